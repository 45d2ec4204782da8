# Labelled voxels sorted by how much of their neighbourhood is the same object.


rule partition:
    input:
        labels=f"{VOLUME}/labels.h5",
    output:
        partitions=ensure(f"{OUT}/partitions/{{volume}}.h5", non_empty=True),
    log:
        f"{OUT}/logs/partition/{{volume}}.log",
    benchmark:
        f"{OUT}/benchmarks/partition.{{volume}}.tsv"
    conda:
        "../envs/ffn.yaml"
    envmodules:
        *MODULES,
    threads: CORES
    resources:
        mem_mb=memory("partition"),
        runtime=duration("partition", voxels_in("train_box")),
    params:
        box=lambda wildcards: PLACES[wildcards.volume].train_box,
        flags=flags(RUN.partition),
        version=__version__,
    shell:
        "ffn partition --labels {input.labels}:labels --box {params.box} {params.flags} "
        "--threads {threads} --out {output.partitions}:partitions > {log} 2>&1"
