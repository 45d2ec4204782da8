# Scores of the merge graph at every threshold, for the report.


rule sweep:
    input:
        segmentation=tracked_file(PATHS.base(RUN)),
        graphs=lambda wildcards: PIPELINE.files("agglomerate", volume=wildcards.volume),
        truth=LABELS,
        masks=MASKS,
        calibration=arguments.inputs(*calibration_files(RUN.sweep.calibration)),
    output:
        table=ensure(PATHS.of("sweep"), non_empty=True),
    log:
        PATHS.log("sweep", "{volume}"),
    benchmark:
        PATHS.benchmark("sweep", "{volume}")
    threads: 1
    resources:
        mem_mb=memory("sweep", block_voxels(RUN.sweep)),
        runtime=duration("sweep", PIPELINE.voxels("evaluate_box")),
    params:
        masks=MASKED,
        mask_stamps=MASK_STAMPS,
        box=PIPELINE.box("evaluate_box"),
        graphs=lambda wildcards: FILES("agglomerate", volume=wildcards.volume),
        stamps=arguments.stamps(*calibration_files(RUN.sweep.calibration)),
        flags=flags(RUN.sweep),
        untracked=arguments.untracked(RUN.sweep),
    shell:
        "ffn sweep {params.graphs} --segmentation {input.segmentation} --truth {input.truth} "
        "--box {params.box} {params.masks} {params.flags} {params.untracked} --out {output.table} > {log} 2>&1"
