# Affinities of neighbouring voxels, learnt from the training boxes in minutes.


rule learn_affinities:
    input:
        images=expand(IMAGE, volume=PIPELINE.taught),
        labels=expand(LABELS, volume=PIPELINE.taught),
        masks=PIPELINE.mask_files(PIPELINE.taught),
        initial=RUN.affinities.network or [],
    output:
        network=ensure(PATHS.of("learn-affinities"), non_empty=True),
    log:
        PATHS.log("learn_affinities"),
    benchmark:
        PATHS.benchmark("learn_affinities")
    threads: min(2, CORES)
    resources:
        mem_mb=memory("learn-affinities"),
        runtime=by_attempt(10 + RUN.affinities.max_steps // 50),
    params:
        volumes=arguments.taught_volumes(PIPELINE),
        flags=flags(RUN.affinities),
        seed=SEED,
    shell:
        "ffn learn-affinities {params.volumes} {params.flags} --rng-seed {params.seed} --out {output.network} "
        "> {log} 2>&1"
