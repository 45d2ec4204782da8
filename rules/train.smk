# The network: initial weights where there are some, and synchronous data-parallel training.


rule import_checkpoint:
    input:
        manifest=INIT_MANIFEST,
    output:
        model=ensure(f"{OUT}/initial/model.yaml", non_empty=True),
        weights=ensure(f"{OUT}/initial/weights.h5", non_empty=True),
    log:
        f"{OUT}/logs/import_checkpoint.log",
    benchmark:
        f"{OUT}/benchmarks/import_checkpoint.tsv"
    conda:
        "../envs/ffn.yaml"
    envmodules:
        *MODULES,
    threads: 1
    resources:
        mem_mb=memory("import"),
        runtime=by_attempt(10),
    params:
        checkpoint=shlex.quote(RUN.init or ""),
        folder=subpath(output.model, parent=True),
        flags=flags(RUN.model, skip=("depth", "features")),
        version=__version__,
    shell:
        "ffn import-checkpoint {params.checkpoint} {params.flags} --out {params.folder} > {log} 2>&1"


# `resources.mpi` starts the processes of what follows it, memory is that of a node (ffn/workflow/rank_layout.py). metrics.csv,
# validation.csv and checkpoints/ are no outputs: Snakemake would remove them before a rerun that has to resume from them.
rule train:
    input:
        records=f"{OUT}/records/index.json",
        images=expand(f"{VOLUME}/raw.h5", volume=LEARNT_FROM),
        labels=expand(f"{VOLUME}/labels.h5", volume=LEARNT_FROM),
        init=[] if INIT is None else f"{INIT}/model.yaml",
    output:
        model=ensure(f"{OUT}/model/model.yaml", non_empty=True),
        weights=ensure(f"{OUT}/model/weights.h5", non_empty=True),
    log:
        f"{OUT}/logs/train.log",
    benchmark:
        f"{OUT}/benchmarks/train.tsv"
    conda:
        "../envs/ffn.yaml"
    envmodules:
        *MODULES,
    threads: LAYOUT.depth
    resources:
        mem_mb=by_attempt(LAYOUT.per_node * memory_mb("train")),
        runtime=by_attempt(24 * 60),
        nodes=LAYOUT.nodes,
        tasks=LAYOUT.ranks,
        gpu=min(LAYOUT.per_node, GPUS),
        mpi=LAUNCH,
        slurm_extra=LAYOUT.spread,
    params:
        records=subpath(input.records, parent=True),
        volumes=[
            f"--volume {name}={OUT}/volumes/{name}/raw.h5:raw,{OUT}/volumes/{name}/labels.h5:labels"
            for name in TRAINED
        ],
        validation=[
            f"--validate {name}={OUT}/volumes/{name}/raw.h5:raw,{OUT}/volumes/{name}/labels.h5:labels,"
            f"{PLACES[name].validate_box}"
            for name in VALIDATED
        ],
        init="" if INIT is None else f"--init {shlex.quote(INIT)}",
        folder=subpath(output.model, parent=True),
        flags=" ".join(([] if INIT else [flags(RUN.model)]) + [flags(RUN.train)]),
        seed=SEED,
        stage=staging,
        version=__version__,
    shell:
        "{resources.mpi} ffn train --records {params.records} {params.volumes} {params.validation} {params.init} "
        "{params.stage} {params.flags} --rng-seed {params.seed} --out {params.folder} > {log} 2>&1"
