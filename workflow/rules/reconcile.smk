# Subvolumes joined into one volume with global ids.


rule reconcile:
    input:
        subvolumes=lambda wildcards: PIPELINE.watched("segment", volume=wildcards.volume, order=wildcards.order),
        blocks=of("reconcile", "files"),
    output:
        segmentation=ensure(PATHS.file("reconcile"), non_empty=True),
    log:
        PATHS.log("reconcile{order}", "{volume}"),
    benchmark:
        PATHS.benchmark("reconcile{order}", "{volume}")
    threads: 1
    resources:
        **needs("reconcile"),
    params:
        subvolumes=lambda wildcards: FILES("segment", volume=wildcards.volume, order=wildcards.order),
        flags=flags(RUN.reconcile),
        untracked=arguments.untracked(RUN.reconcile),
        job=of("reconcile", "option"),
        out=lambda wildcards, output: output.segmentation,
    shell:
        "ffn reconcile {params.subvolumes} {params.flags} {params.untracked} "
        "{params.job} --out {params.out} > {log} 2>&1"


# Parts of the blocks of a large volume.
use rule reconcile as reconcile_blocks with:
    input:
        earlier=of("reconcile_blocks", "files"),
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
        earlier=of("reconcile_tiling", "files"),
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
        earlier=of("reconcile_match", "files"),
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
        earlier=of("reconcile_label", "files"),
    output:
        tables=ensure(PATHS.tables("reconcile", "label"), non_empty=True),
    log:
        PATHS.log("reconcile_label{order}", "{volume}"),
    benchmark:
        PATHS.benchmark("reconcile_label{order}", "{volume}")
    params:
        job="--step label",
