# Balanced, shuffled coordinates of all training volumes as sharded TFRecords.


rule records:
    input:
        coordinates=PIPELINE.targets("coordinates"),
    output:
        index=ensure(PATHS.of("records"), non_empty=True),
    log:
        PATHS.log("records"),
    benchmark:
        PATHS.benchmark("records")
    threads: 1
    resources:
        mem_mb=memory("records", PIPELINE.most_records),
        runtime=by_attempt(lambda wildcards, threads: minutes("records", PIPELINE.trained_voxels, threads)),
    params:
        coordinates=[f"{name}={PATHS.of('coordinates', volume=name)}" for name in PIPELINE.trained],
        weights=[f"--weight {name}={RUN.volumes[name].train_weight}" for name in PIPELINE.trained],
        folder=subpath(output.index, parent=True),
        flags=flags(RUN.records),
        seed=SEED,
    shell:
        "ffn records --coordinates {params.coordinates} {params.weights} {params.flags} --rng-seed {params.seed} "
        "--out {params.folder} > {log} 2>&1"
