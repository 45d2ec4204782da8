# Voxels that training may start from, by partition.


rule coordinates:
    input:
        partitions=f"{OUT}/partitions/{{volume}}.h5",
        membrane=f"{OUT}/membrane/{{volume}}.h5",
    output:
        coordinates=ensure(f"{OUT}/coordinates/{{volume}}.h5", non_empty=True),
    log:
        f"{OUT}/logs/coordinates/{{volume}}.log",
    benchmark:
        f"{OUT}/benchmarks/coordinates.{{volume}}.tsv"
    conda:
        "../envs/ffn.yaml"
    envmodules:
        *MODULES,
    threads: 1
    resources:
        mem_mb=memory("coordinates", voxels_in("train_box")),
        runtime=duration("coordinates", voxels_in("train_box")),
    params:
        flags=flags(RUN.coordinates),
        version=__version__,
    shell:
        "ffn coordinates --partitions {input.partitions}:partitions --membrane {input.membrane} {params.flags} "
        "--out {output.coordinates} > {log} 2>&1"
