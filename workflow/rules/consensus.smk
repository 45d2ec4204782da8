# Optional: the segmentations with seeds forward and reversed, split wherever they disagree. Both inputs stay.


rule consensus:
    input:
        forward=PATHS.file("reconcile", order=""),
        backward=PATHS.file("reconcile", order="-reversed"),
        blocks=of("consensus", "files"),
    output:
        segmentation=ensure(PATHS.file("consensus"), non_empty=True),
    log:
        PATHS.log("consensus", "{volume}"),
    benchmark:
        PATHS.benchmark("consensus", "{volume}")
    threads: 1
    resources:
        **needs("consensus"),
    params:
        flags=flags(RUN.consensus),
        untracked=arguments.untracked(RUN.consensus),
        job=of("consensus", "option"),
        out=lambda wildcards, output: output.segmentation,
    shell:
        "ffn consensus {input.forward} {input.backward} {params.flags} {params.untracked} "
        "{params.job} --out {params.out} > {log} 2>&1"


# Parts of the blocks of a large volume.
use rule consensus as consensus_blocks with:
    input:
        forward=PATHS.file("reconcile", order=""),
        backward=PATHS.file("reconcile", order="-reversed"),
        earlier=of("consensus_blocks", "files"),
    output:
        record=ensure(PATHS.job("consensus"), non_empty=True),
    log:
        PATHS.log("consensus_blocks", "{volume}", "{step_name}-{job}"),
    benchmark:
        PATHS.benchmark("consensus_blocks", "{volume}", "{step_name}-{job}")
    params:
        job=arguments.job,
        out=PATHS.of("consensus"),


use rule consensus_blocks as consensus_count with:
    input:
        forward=PATHS.file("reconcile", order=""),
        backward=PATHS.file("reconcile", order="-reversed"),
        earlier=of("consensus_count", "files"),
    output:
        tables=ensure(PATHS.tables("consensus", "count"), non_empty=True),
    log:
        PATHS.log("consensus_count", "{volume}"),
    benchmark:
        PATHS.benchmark("consensus_count", "{volume}")
    params:
        job="--step count",
