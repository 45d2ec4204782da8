# Optional: the segmentations with seeds forward and reversed, split wherever they disagree. Both inputs stay.


rule consensus:
    input:
        forward=PATHS.file("reconcile", order=""),
        backward=PATHS.file("reconcile", order="-reversed"),
    output:
        segmentation=ensure(PATHS.file("consensus"), non_empty=True),
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
        "ffn consensus {input.forward} {input.backward} {params.flags} {params.untracked} "
        "--out {output.segmentation} > {log} 2>&1"
