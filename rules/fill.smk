# Optional: unsegmented voxels given to the segments around them. The unfilled volume stays.


rule fill:
    input:
        segmentation=tracked_file(PATHS.merged(RUN)),
        image=IMAGE,
        masks=MASKS,
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
        masks=MASKED,
        mask_stamps=MASK_STAMPS,
        flags=flags(RUN.fill),
    shell:
        "ffn fill --segmentation {input.segmentation} --image {input.image} {params.masks} {params.flags} "
        "--out {output.segmentation} > {log} 2>&1"
