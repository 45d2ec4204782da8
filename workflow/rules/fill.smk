# Optional: unsegmented voxels given to the segments around them, or to new ones. The unfilled volume stays.
AFFINITIES = PATHS.file("affinities") if RUN.affinities.enabled else []


rule fill:
    input:
        segmentation=tracked_file(PATHS.merged(RUN)),
        image=IMAGE,
        masks=MASKS,
        affinities=AFFINITIES,
        corrections=CORRECTION_FILES if AFFINITIES else [],
        blocks=of("fill", "files"),
    output:
        segmentation=ensure(PATHS.file("fill"), non_empty=True),
    log:
        PATHS.log("fill", "{volume}"),
    benchmark:
        PATHS.benchmark("fill", "{volume}")
    threads: 1
    resources:
        **needs("fill"),
    params:
        masks=MASKED,
        affinities=arguments.option("--affinities", [PATHS.of("affinities")] if AFFINITIES else []),
        corrections=CORRECTIONS if AFFINITIES else "",
        flags=flags(RUN.fill),
        job=of("fill", "option"),
        out=lambda wildcards, output: output.segmentation,
    shell:
        "ffn fill --segmentation {input.segmentation} --image {input.image} {params.masks} {params.affinities} {params.corrections} "
        "{params.flags} {params.job} --out {params.out} > {log} 2>&1"


# Parts of the blocks of a large volume.
use rule fill as fill_blocks with:
    input:
        segmentation=tracked_file(PATHS.merged(RUN)),
        image=IMAGE,
        masks=MASKS,
        affinities=AFFINITIES,
        corrections=CORRECTION_FILES if AFFINITIES else [],
        earlier=of("fill_blocks", "files"),
    output:
        record=ensure(PATHS.job("fill"), non_empty=True),
    log:
        PATHS.log("fill_blocks", "{volume}", "{step_name}-{job}"),
    benchmark:
        PATHS.benchmark("fill_blocks", "{volume}", "{step_name}-{job}")
    params:
        job=arguments.job,
        out=PATHS.of("fill"),


# What becomes of the bright places without a segment.
use rule fill_blocks as fill_compete with:
    input:
        segmentation=tracked_file(PATHS.merged(RUN)),
        image=IMAGE,
        masks=MASKS,
        affinities=AFFINITIES,
        corrections=CORRECTION_FILES if AFFINITIES else [],
        earlier=of("fill_compete", "files"),
    output:
        tables=ensure(PATHS.tables("fill", "compete"), non_empty=True),
    log:
        PATHS.log("fill_compete", "{volume}"),
    benchmark:
        PATHS.benchmark("fill_compete", "{volume}")
    params:
        job="--step compete",
