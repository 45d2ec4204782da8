# Balanced, shuffled coordinates of all training volumes as sharded TFRecords.


rule records:
    input:
        coordinates=expand(f"{OUT}/coordinates/{{volume}}.h5", volume=TRAINED),
    output:
        index=ensure(f"{OUT}/records/index.json", non_empty=True),
    log:
        f"{OUT}/logs/records.log",
    benchmark:
        f"{OUT}/benchmarks/records.tsv"
    conda:
        "../envs/ffn.yaml"
    envmodules:
        *MODULES,
    threads: CORES
    resources:
        mem_mb=memory("records"),
        runtime=duration("records", TRAINED_VOXELS),
    params:
        coordinates=[f"{name}={OUT}/coordinates/{name}.h5" for name in TRAINED],
        weights=[
            f"--weight {name}={RUN.volumes[name].train_weight}" for name in TRAINED
        ],
        folder=subpath(output.index, parent=True),
        flags=flags(RUN.records),
        seed=SEED,
        version=__version__,
    shell:
        "ffn records --coordinates {params.coordinates} {params.weights} {params.flags} --rng-seed {params.seed} "
        "--processes {threads} --out {params.folder} > {log} 2>&1"
