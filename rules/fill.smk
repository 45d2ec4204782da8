# Optional: unsegmented voxels given to the segments around them. The unfilled volume stays.


rule fill:
    input:
        segmentation=PATHS.merged(RUN),
        image=IMAGE,
    output:
        segmentation=ensure(PATHS.of("fill"), non_empty=True),
    log:
        PATHS.log("fill", "{volume}"),
    benchmark:
        PATHS.benchmark("fill", "{volume}")
    threads: 1
    resources:
        mem_mb=memory("fill", block_voxels(RUN.fill)),
        runtime=duration("fill", PIPELINE.voxels("segment_box")),
    params:
        flags=flags(RUN.fill),
    shell:
        "ffn fill --segmentation {input.segmentation}:segmentation --image {input.image}:raw {params.flags} "
        "--out {output.segmentation}:segmentation > {log} 2>&1"
