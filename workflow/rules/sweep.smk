# Scores that the output of merge would have at every threshold, for the report.


rule sweep:
    input:
        segmentation=tracked_file(PATHS.base(RUN)),
        graphs=lambda wildcards: PIPELINE.watched("agglomerate", volume=wildcards.volume),
        truth=LABELS,
        masks=MASKS,
        corrections=CORRECTION_FILES,
        cuts=CUT_FILES,
        blocks=of("sweep", "files"),
    output:
        table=ensure(PATHS.of("sweep"), non_empty=True),
    log:
        PATHS.log("sweep", "{volume}"),
    benchmark:
        PATHS.benchmark("sweep", "{volume}")
    threads: 1
    resources:
        **needs("sweep"),
    params:
        masks=MASKED,
        box=of("sweep", "box"),
        graphs=lambda wildcards: FILES("agglomerate", volume=wildcards.volume),
        corrections=CORRECTIONS,
        cuts=CUTS,
        flags=flags(RUN.sweep),
        untracked=arguments.untracked(RUN.sweep),
        job=of("sweep", "option"),
        out=lambda wildcards, output: output.table,
    shell:
        "ffn sweep {params.graphs} --segmentation {input.segmentation} --truth {input.truth} "
        "--box={params.box} {params.masks} {params.corrections} {params.cuts} {params.flags} {params.untracked} "
        "{params.job} --out {params.out} > {log} 2>&1"


# Parts of the blocks of a large volume: pairs of ids, which need no graph.
use rule sweep as sweep_blocks with:
    input:
        segmentation=tracked_file(PATHS.base(RUN)),
        truth=LABELS,
        masks=MASKS,
        cuts=CUT_FILES,
        earlier=of("sweep_blocks", "files"),
    output:
        record=ensure(PATHS.job("sweep"), non_empty=True),
    log:
        PATHS.log("sweep_blocks", "{volume}", "{step_name}-{job}"),
    benchmark:
        PATHS.benchmark("sweep_blocks", "{volume}", "{step_name}-{job}")
    params:
        graphs="",
        corrections="",
        flags="",
        job=arguments.job,
        out=PATHS.of("sweep"),
