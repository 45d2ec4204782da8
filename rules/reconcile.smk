# Subvolumes joined into one volume with global ids.


rule reconcile:
    input:
        subvolumes=lambda wildcards: PIPELINE.watched("segment", volume=wildcards.volume, order=wildcards.order),
        blocks=lambda wildcards: PIPELINE.job_records("reconcile", **wildcards),
    output:
        segmentation=ensure(PATHS.file("reconcile"), non_empty=True),
    log:
        PATHS.log("reconcile{order}", "{volume}"),
    benchmark:
        PATHS.benchmark("reconcile{order}", "{volume}")
    threads: 1
    resources:
        mem_mb=memory("reconcile", PART_VOXELS),
        runtime=duration("reconcile", PIPELINE.voxels_of_blocks("reconcile")),
    params:
        subvolumes=lambda wildcards: FILES("segment", volume=wildcards.volume, order=wildcards.order),
        flags=flags(RUN.reconcile),
        untracked=arguments.untracked(RUN.reconcile),
        job=PIPELINE.last_step("reconcile"),
        out=lambda wildcards, output: output.segmentation,
    shell:
        "ffn reconcile {params.subvolumes} {params.flags} {params.untracked} "
        "{params.job} --out {params.out} > {log} 2>&1"


# Parts of the blocks of a large volume.
use rule reconcile as reconcile_blocks with:
    input:
        earlier=PIPELINE.before("reconcile"),
    output:
        record=ensure(PATHS.job("reconcile"), non_empty=True),
    log:
        PATHS.log("reconcile_blocks{order}", "{volume}", "{step_name}-{job}"),
    benchmark:
        PATHS.benchmark("reconcile_blocks{order}", "{volume}", "{step_name}-{job}")
    params:
        job=arguments.job,
        out=PATHS.of("reconcile"),


use rule reconcile_blocks as reconcile_tiling with:
    input:
        subvolumes=lambda wildcards: PIPELINE.watched("segment", volume=wildcards.volume, order=wildcards.order),
        earlier=PIPELINE.before("reconcile", "tiling"),
    output:
        tables=ensure(PATHS.tables("reconcile", "tiling"), non_empty=True),
    log:
        PATHS.log("reconcile_tiling{order}", "{volume}"),
    benchmark:
        PATHS.benchmark("reconcile_tiling{order}", "{volume}")
    params:
        job="--step tiling",


use rule reconcile_blocks as reconcile_match with:
    input:
        earlier=PIPELINE.before("reconcile", "match"),
    output:
        tables=ensure(PATHS.tables("reconcile", "match"), non_empty=True),
    log:
        PATHS.log("reconcile_match{order}", "{volume}"),
    benchmark:
        PATHS.benchmark("reconcile_match{order}", "{volume}")
    params:
        job="--step match",


use rule reconcile_blocks as reconcile_label with:
    input:
        earlier=PIPELINE.before("reconcile", "label"),
    output:
        tables=ensure(PATHS.tables("reconcile", "label"), non_empty=True),
    log:
        PATHS.log("reconcile_label{order}", "{volume}"),
    benchmark:
        PATHS.benchmark("reconcile_label{order}", "{volume}")
    params:
        job="--step label",
