# Skeletons of the bodies of the ground truth, unless the configuration gives them.


rule skeletonize:
    input:
        truth=LABELS,
        masks=MASKS,
        blocks=of("skeletonize", "files"),
    output:
        skeletons=ensure(PATHS.of("skeletonize"), non_empty=True),
    log:
        PATHS.log("skeletonize", "{volume}"),
    benchmark:
        PATHS.benchmark("skeletonize", "{volume}")
    threads: 1
    resources:
        **needs("skeletonize"),
    params:
        masks=MASKED,
        box=of("skeletonize", "box"),
        flags=flags(RUN.skeletonize),
        job="",
        out=lambda wildcards, output: output.skeletons,
    shell:
        "ffn skeletonize --labels {input.truth} --box={params.box} {params.masks} {params.flags} {params.job} "
        "--out {params.out} > {log} 2>&1"


# Parts of the blocks of a large volume.
use rule skeletonize as skeletonize_blocks with:
    input:
        truth=LABELS,
        masks=MASKS,
    output:
        record=ensure(PATHS.job("skeletonize"), non_empty=True),
    log:
        PATHS.log("skeletonize_blocks", "{volume}", "{step_name}-{job}"),
    benchmark:
        PATHS.benchmark("skeletonize_blocks", "{volume}", "{step_name}-{job}")
    resources:
        **needs("skeletonize_blocks"),
    params:
        job=arguments.job,
        out=PATHS.of("skeletonize"),
