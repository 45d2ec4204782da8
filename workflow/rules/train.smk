# Synchronous data-parallel training.


# `resources.mpi` is the launcher, and memory is that of one node (ffn/workflow/rank_layout.py). metrics.csv,
# validation.csv and checkpoints/ are not declared as outputs, because Snakemake would remove them before a rerun, which
# has to resume from them.
rule train:
    input:
        records=PATHS.of("records"),
        images=expand(IMAGE, volume=PIPELINE.learnt_from),
        labels=expand(LABELS, volume=PIPELINE.learnt_from),
        masks=PIPELINE.mask_files(PIPELINE.learnt_from),
        init=PIPELINE.models.initial_files,
    output:
        model=ensure(PATHS.of("train"), non_empty=True),
        weights=ensure(PATHS.of("train", "weights"), non_empty=True),
    log:
        PATHS.log("train"),
    benchmark:
        PATHS.benchmark("train")
    threads: LAYOUT.depth
    resources:
        mem_mb=by_attempt(training_mb(COSTED.model, RUN.train, LAYOUT.per_node, PIPELINE.learnt_voxels)),
        runtime=by_attempt(24 * 60),
        nodes=LAYOUT.nodes,
        tasks=LAYOUT.ranks,
        gpu=min(LAYOUT.per_node, GPUS),
        mpi=LAYOUT.command,
    params:
        records=subpath(input.records, parent=True),
        volumes=arguments.training_volumes(PIPELINE),
        validation=arguments.validation_volumes(PIPELINE),
        init=arguments.option("--init", [PIPELINE.models.initial] if PIPELINE.models.initial else []),
        folder=subpath(output.model, parent=True),
        model=PIPELINE.models.flags,
        workers=RUN.train.total_workers,
        flags=flags(RUN.train, skip=("num_workers", "virtual_workers"), defaults=PIPELINE.models.train_defaults),
        processes=arguments.processes(RUN.train),
        untracked=arguments.untracked(RUN.train),
        seed=SEED,
    shell:
        "{resources.mpi} ffn train --records {params.records} {params.volumes} {params.validation} {params.init} "
        "{params.model} {params.flags} {params.processes} {params.untracked} "
        "--rng-seed {params.seed} --out {params.folder} > {log} 2>&1"
