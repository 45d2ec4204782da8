# Optional: the segmentations with seeds forward and reversed, split wherever they disagree. Both inputs stay.


rule consensus:
    input:
        forward=PATHS.of("reconcile", order=""),
        backward=PATHS.of("reconcile", order="-reversed"),
    output:
        segmentation=ensure(PATHS.of("consensus"), non_empty=True),
    log:
        PATHS.log("consensus", "{volume}"),
    benchmark:
        PATHS.benchmark("consensus", "{volume}")
    threads: 1
    resources:
        mem_mb=memory("consensus", block_voxels(RUN.consensus)),
        runtime=duration("consensus", PIPELINE.voxels("segment_box")),
    params:
        flags=flags(RUN.consensus),
        untracked=arguments.untracked(RUN.consensus),
    shell:
        "ffn consensus {input.forward}:segmentation {input.backward}:segmentation {params.flags} {params.untracked} "
        "--out {output.segmentation}:segmentation > {log} 2>&1"
