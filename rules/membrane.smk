# Edges, and the distance of every voxel to the nearest.


rule membrane:
    input:
        image=f"{VOLUME}/raw.h5",
    output:
        membrane=ensure(f"{OUT}/membrane/{{volume}}.h5", non_empty=True),
    log:
        f"{OUT}/logs/membrane/{{volume}}.log",
    benchmark:
        f"{OUT}/benchmarks/membrane.{{volume}}.tsv"
    conda:
        "../envs/ffn.yaml"
    envmodules:
        *MODULES,
    threads: 1
    resources:
        mem_mb=memory("membrane", block(RUN.membrane)),
        runtime=duration("membrane", voxels_in("train_box")),
    params:
        box=lambda wildcards: PLACES[wildcards.volume].train_box,
        flags=flags(RUN.membrane),
        version=__version__,
    shell:
        "ffn membrane --image {input.image}:raw --box {params.box} {params.flags} "
        "--out {output.membrane} > {log} 2>&1"
