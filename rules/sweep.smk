# Scores of the merge graph at every threshold, for the report.


rule sweep_blocks:
    input:
        segmentation=tracked_file(PATHS.base(RUN)),
        truth=LABELS,
        masks=MASKS,
    output:
        record=ensure(PATHS.job("sweep"), non_empty=True),
    log:
        PATHS.log("sweep_blocks", "{volume}", "{job}"),
    benchmark:
        PATHS.benchmark("sweep_blocks", "{volume}", "{job}")
    threads: 1
    resources:
        mem_mb=memory("sweep", block_voxels(RUN.sweep)),
        runtime=duration("sweep", PIPELINE.voxels_of_blocks("sweep")),
    params:
        masks=MASKED,
        mask_stamps=MASK_STAMPS,
        box=PIPELINE.box("evaluate_box"),
        table=PATHS.of("sweep"),
        untracked=arguments.untracked(RUN.sweep),
    shell:
        "ffn sweep --segmentation {input.segmentation} --truth {input.truth} --box {params.box} {params.masks} "
        "{params.untracked} --job {wildcards.job} --job-record {output.record} --out {params.table} > {log} 2>&1"


rule sweep:
    input:
        segmentation=tracked_file(PATHS.base(RUN)),
        graphs=lambda wildcards: PIPELINE.watched("agglomerate", volume=wildcards.volume),
        truth=LABELS,
        masks=MASKS,
        calibration=arguments.inputs(*calibration_files(RUN.sweep.calibration)),
        blocks=lambda wildcards: PIPELINE.job_records("sweep", wildcards.volume),
    output:
        table=ensure(PATHS.of("sweep"), non_empty=True),
    log:
        PATHS.log("sweep", "{volume}"),
    benchmark:
        PATHS.benchmark("sweep", "{volume}")
    threads: 1
    resources:
        mem_mb=memory("sweep", block_voxels(RUN.sweep)),
        runtime=duration("sweep", PIPELINE.voxels_of_blocks("sweep")),
    params:
        masks=MASKED,
        mask_stamps=MASK_STAMPS,
        box=PIPELINE.box("evaluate_box"),
        graphs=lambda wildcards: FILES("agglomerate", volume=wildcards.volume),
        stamps=arguments.stamps(*calibration_files(RUN.sweep.calibration)),
        flags=flags(RUN.sweep),
        untracked=arguments.untracked(RUN.sweep),
        job=PIPELINE.job_option("sweep"),
    shell:
        "ffn sweep {params.graphs} --segmentation {input.segmentation} --truth {input.truth} "
        "--box {params.box} {params.masks} {params.flags} {params.untracked} {params.job} --out {output.table} "
        "> {log} 2>&1"
