# Skeletons of the bodies of the ground truth, unless the configuration gives them.


rule skeletonize:
    input:
        truth=LABELS,
        masks=MASKS,
    output:
        skeletons=ensure(PATHS.of("skeletonize"), non_empty=True),
    log:
        PATHS.log("skeletonize", "{volume}"),
    benchmark:
        PATHS.benchmark("skeletonize", "{volume}")
    threads: 1
    resources:
        mem_mb=memory("skeletonize", PIPELINE.voxels("evaluate_box")),
        runtime=duration("skeletonize", PIPELINE.voxels("evaluate_box")),
    params:
        masks=MASKED,
        mask_stamps=MASK_STAMPS,
        box=PIPELINE.box("evaluate_box"),
        flags=flags(RUN.skeletonize),
    shell:
        "ffn skeletonize --labels {input.truth} --box {params.box} {params.masks} {params.flags} "
        "--out {output.skeletons} > {log} 2>&1"
