# Optional: unsegmented voxels given to the segments around them. The unfilled volume stays.


rule fill:
    input:
        segmentation=tracked_file(PATHS.merged(RUN)),
        image=IMAGE,
    output:
        segmentation=ensure(PATHS.file("fill"), non_empty=True),
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
        "ffn fill --segmentation {input.segmentation} --image {input.image} {params.flags} "
        "--out {output.segmentation} > {log} 2>&1"
