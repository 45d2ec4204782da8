# Labelled voxels sorted by how much of their neighbourhood is the same object.


rule partition:
    input:
        labels=LABELS,
    output:
        partitions=ensure(PATHS.file("partition"), non_empty=True),
    log:
        PATHS.log("partition", "{volume}"),
    benchmark:
        PATHS.benchmark("partition", "{volume}")
    threads: CORES
    resources:
        mem_mb=memory("partition"),
        runtime=duration("partition", PIPELINE.voxels("train_box")),
    params:
        box=PIPELINE.box("train_box"),
        flags=flags(RUN.partition),
        untracked=arguments.untracked(RUN.partition),
    shell:
        "ffn partition --labels {input.labels} --box {params.box} {params.flags} {params.untracked} "
        "--threads {threads} --out {output.partitions} > {log} 2>&1"
