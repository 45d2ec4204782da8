# Supervoxels joined along the agglomeration graph. Their own volume stays as it is.


rule merge:
    input:
        segmentation=tracked_file(PATHS.base(RUN)),
        graphs=lambda wildcards: PIPELINE.watched("agglomerate", volume=wildcards.volume),
        corrections=CORRECTION_FILES,
        cuts=CUT_FILES,
        blocks=of("merge", "files"),
    output:
        segmentation=ensure(PATHS.file("merge"), non_empty=True),
        mapping=ensure(PATHS.of("merge", "mapping"), non_empty=True),
    log:
        PATHS.log("merge", "{volume}"),
    benchmark:
        PATHS.benchmark("merge", "{volume}")
    threads: 1
    resources:
        **needs("merge"),
    params:
        graphs=lambda wildcards: FILES("agglomerate", volume=wildcards.volume),
        corrections=CORRECTIONS,
        cuts=CUTS,
        flags=flags(RUN.merge),
        untracked=arguments.untracked(RUN.merge),
        job=of("merge", "option"),
        out=lambda wildcards, output: f"--mapping {output.mapping} --out {output.segmentation}",
    shell:
        "ffn merge {params.graphs} --segmentation {input.segmentation} {params.corrections} {params.cuts} "
        "{params.flags} {params.untracked} {params.job} {params.out} > {log} 2>&1"


# Parts of the blocks of a large volume.
use rule merge as merge_blocks with:
    input:
        segmentation=tracked_file(PATHS.base(RUN)),
        corrections=CORRECTION_FILES,
        cuts=CUT_FILES,
        earlier=of("merge_blocks", "files"),
    output:
        record=ensure(PATHS.job("merge"), non_empty=True),
    log:
        PATHS.log("merge_blocks", "{volume}", "{step_name}-{job}"),
    benchmark:
        PATHS.benchmark("merge_blocks", "{volume}", "{step_name}-{job}")
    params:
        job=arguments.job,
        out=f"--out {PATHS.of('merge')}",


use rule merge_blocks as merge_mapping with:
    input:
        segmentation=tracked_file(PATHS.base(RUN)),
        graphs=lambda wildcards: PIPELINE.watched("agglomerate", volume=wildcards.volume),
        corrections=CORRECTION_FILES,
        cuts=CUT_FILES,
        earlier=of("merge_mapping", "files"),
    output:
        tables=ensure(PATHS.tables("merge", "mapping"), non_empty=True),
    log:
        PATHS.log("merge_mapping", "{volume}"),
    benchmark:
        PATHS.benchmark("merge_mapping", "{volume}")
    params:
        job="--step mapping",
