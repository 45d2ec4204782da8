# Labelled voxels sorted by how much of their neighbourhood is the same object.


rule partition:
    input:
        labels=LABELS,
        blocks=of("partition", "files"),
    output:
        partitions=ensure(PATHS.file("partition"), non_empty=True),
    log:
        PATHS.log("partition", "{volume}"),
    benchmark:
        PATHS.benchmark("partition", "{volume}")
    threads: CORES
    resources:
        **needs("partition"),
    params:
        box=of("partition", "box"),
        flags=flags(RUN.partition),
        untracked=arguments.untracked(RUN.partition),
        job=of("partition", "option"),
        out=lambda wildcards, output: output.partitions,
    shell:
        "ffn partition --labels {input.labels} --box={params.box} {params.flags} {params.untracked} "
        "--threads {threads} {params.job} --out {params.out} > {log} 2>&1"


# Parts of the blocks of a large volume.
use rule partition as partition_blocks with:
    input:
        labels=LABELS,
        earlier=of("partition_blocks", "files"),
    output:
        record=ensure(PATHS.job("partition"), non_empty=True),
    log:
        PATHS.log("partition_blocks", "{volume}", "{step_name}-{job}"),
    benchmark:
        PATHS.benchmark("partition_blocks", "{volume}", "{step_name}-{job}")
    threads: 1
    params:
        job=arguments.job,
        out=PATHS.of("partition"),


use rule partition_blocks as partition_sizes with:
    input:
        labels=LABELS,
        earlier=of("partition_sizes", "files"),
    output:
        tables=ensure(PATHS.tables("partition", "sizes"), non_empty=True),
    log:
        PATHS.log("partition_sizes", "{volume}"),
    benchmark:
        PATHS.benchmark("partition_sizes", "{volume}")
    params:
        job="--step sizes",
