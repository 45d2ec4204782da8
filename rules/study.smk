# Studies of distributed training: how it scales, which learning rate it needs, what it costs to reach a score.
# Each training run is a job, which goes on where it was killed. Which rate is best is known only when the grid is
# done, so the file of a further seed does not name it: the plan stays the same whatever comes out.

STUDY = f"{OUT}/studies"
STUDY_RUNS = f"{STUDY}/runs/workers-{{workers}}-rate-{{rate}}-seed-{{seed}}"
STUDY_SEEDS = [SEED + i for i in range(RUN.study.seeds)]
# The network of the studies is small; everything else is trained as section `train` says, on its own.
STUDY_MODEL = RUN.model.model_copy(
    update={
        "depth": RUN.study.depth or RUN.model.depth,
        "features": RUN.study.features or RUN.model.features,
    }
)
STUDY_TRAIN = RUN.train.model_copy(
    update={
        "num_workers": 1,
        "batch_size": 1,
        "max_steps": RUN.study.steps,
        "log_steps": RUN.study.log_steps,
        "scaling_rule": "constant",
        "schedule": "constant",
        "validation_steps": 0,
        "use_best": False,
        "image_steps": 0,
        "horovod_timeline": None,
        "intra_op_threads": min(1, RUN.train.intra_op_threads),
    }
)
# The same threads for one process as for as many as share a node.
MEASURE_TRAIN = RUN.train.model_copy(
    update={
        "virtual_workers": 1,
        "intra_op_threads": min(
            site_layout(processes).depth for processes in RUN.study.processes
        ),
        "validation_steps": 0,
        "horovod_timeline": None,
    }
)
STUDY_GRID = expand(
    f"{STUDY_RUNS}.csv",
    workers=RUN.study.workers,
    rate=map(repr, RUN.study.learning_rates),
    seed=STUDY_SEEDS[: RUN.study.grid_seeds],
)
STUDY_BEST = expand(
    f"{STUDY}/best/workers-{{workers}}-seed-{{seed}}.csv",
    workers=RUN.study.workers,
    seed=STUDY_SEEDS[RUN.study.grid_seeds :],
)
STUDY_DATA = " ".join(
    [
        f"--records {OUT}/records",
        *(
            f"--volume {name}={OUT}/volumes/{name}/raw.h5:raw,{OUT}/volumes/{name}/labels.h5:labels"
            for name in TRAINED
        ),
    ]
)
STAGES |= {
    f"study_{kind}": [f"{STUDY}/{kind}.json"] if TRAINED else []
    for kind in ("scaling", "learning_rate", "efficiency", "curves")
}


wildcard_constraints:
    workers=r"\d+",
    processes=r"\d+",
    seed=r"\d+",
    rate=r"[0-9.e-]+",


rule study_train:
    input:
        rules.train.input.records,
        rules.train.input.images,
        rules.train.input.labels,
    output:
        metrics=ensure(f"{STUDY_RUNS}.csv", non_empty=True),
    log:
        f"{OUT}/logs/studies/runs/workers-{{workers}}-rate-{{rate}}-seed-{{seed}}.log",
    benchmark:
        f"{OUT}/benchmarks/studies/runs/workers-{{workers}}-rate-{{rate}}-seed-{{seed}}.tsv"
    conda:
        "../envs/ffn.yaml"
    envmodules:
        *MODULES,
    threads: 1
    resources:
        mem_mb=by_attempt(4000),
        runtime=by_attempt(8 * 60),
        gpu=min(1, GPUS),
    params:
        runs=subpath(output.metrics, parent=True),
        data=STUDY_DATA,
        flags=f"{flags(STUDY_MODEL)} {flags(STUDY_TRAIN, skip=('virtual_workers', 'learning_rate'))}",
        version=__version__,
    shell:
        "ffn study train {params.data} {params.flags} --virtual-workers {wildcards.workers} "
        "--learning-rate {wildcards.rate} --rng-seed {wildcards.seed} --runs {params.runs} --out {output.metrics} "
        "> {log} 2>&1"


rule study_train_best:
    input:
        rules.train.input.records,
        rules.train.input.images,
        rules.train.input.labels,
        rates=f"{STUDY}/learning_rate.json",
    output:
        metrics=ensure(
            f"{STUDY}/best/workers-{{workers}}-seed-{{seed}}.csv", non_empty=True
        ),
    log:
        f"{OUT}/logs/studies/best/workers-{{workers}}-seed-{{seed}}.log",
    benchmark:
        f"{OUT}/benchmarks/studies/best/workers-{{workers}}-seed-{{seed}}.tsv"
    conda:
        "../envs/ffn.yaml"
    envmodules:
        *MODULES,
    threads: 1
    resources:
        mem_mb=by_attempt(4000),
        runtime=by_attempt(8 * 60),
        gpu=min(1, GPUS),
    params:
        runs=f"{STUDY}/runs",
        data=STUDY_DATA,
        flags=rules.study_train.params.flags,
        version=__version__,
    shell:
        "ffn study train {params.data} {params.flags} --virtual-workers {wildcards.workers} "
        "--rates {input.rates} --rng-seed {wildcards.seed} --runs {params.runs} --out {output.metrics} "
        "> {log} 2>&1"


# Times are worth nothing beside other jobs: on a single machine it takes all cores, whatever it uses of them.
rule study_measure:
    input:
        rules.train.input.records,
        rules.train.input.images,
        rules.train.input.labels,
    output:
        times=ensure(f"{STUDY}/measure-{{processes}}.h5", non_empty=True),
    log:
        f"{OUT}/logs/studies/measure-{{processes}}.log",
    benchmark:
        f"{OUT}/benchmarks/studies/measure-{{processes}}.tsv"
    conda:
        "../envs/ffn.yaml"
    envmodules:
        *MODULES,
    threads: lambda wildcards: (layout_measured(wildcards).depth if "launcher" in SITE else CORES)
    resources:
        mem_mb=by_attempt(
            lambda wildcards, threads: layout_measured(wildcards).per_node
            * memory_mb("train")
        ),
        runtime=by_attempt(60),
        nodes=lambda wildcards: layout_measured(wildcards).nodes,
        tasks=lambda wildcards: layout_measured(wildcards).ranks,
        gpu=lambda wildcards: min(layout_measured(wildcards).per_node, GPUS),
        mpi=lambda wildcards: layout_measured(wildcards).command,
        slurm_extra=lambda wildcards: layout_measured(wildcards).spread,
    params:
        data=STUDY_DATA,
        flags=f"{flags(RUN.model)} {flags(MEASURE_TRAIN, skip=('num_workers',))}",
        steps=RUN.study.measured_steps,
        seed=SEED,
        version=__version__,
    shell:
        "{resources.mpi} ffn study measure {params.data} {params.flags} --num-workers "
        "{wildcards.processes} --measured-steps {params.steps} --rng-seed {params.seed} --out {output.times} "
        "> {log} 2>&1"


rule study_scaling:
    input:
        times=expand(f"{STUDY}/measure-{{processes}}.h5", processes=RUN.study.processes),
    output:
        numbers=ensure(f"{STUDY}/scaling.json", non_empty=True),
        page=f"{STUDY}/scaling.html",
        figure=report(
            f"{STUDY}/scaling.png",
            caption="../docs/study-caption.rst",
            category="Studies",
        ),
    log:
        f"{OUT}/logs/studies/scaling.log",
    benchmark:
        f"{OUT}/benchmarks/studies/scaling.tsv"
    conda:
        "../envs/ffn.yaml"
    envmodules:
        *MODULES,
    threads: 1
    resources:
        mem_mb=by_attempt(2000),
        runtime=by_attempt(10),
    params:
        flags=flags(RUN.study),
        version=__version__,
    shell:
        "ffn study scaling {input.times} {params.flags} --out {output.numbers} > {log} 2>&1"


rule study_learning_rate:
    input:
        metrics=STUDY_GRID,
    output:
        numbers=ensure(f"{STUDY}/learning_rate.json", non_empty=True),
        page=f"{STUDY}/learning_rate.html",
        figure=report(
            f"{STUDY}/learning_rate.png",
            caption="../docs/study-caption.rst",
            category="Studies",
        ),
    log:
        f"{OUT}/logs/studies/learning_rate.log",
    benchmark:
        f"{OUT}/benchmarks/studies/learning_rate.tsv"
    conda:
        "../envs/ffn.yaml"
    envmodules:
        *MODULES,
    threads: 1
    resources:
        mem_mb=by_attempt(2000),
        runtime=by_attempt(10),
    params:
        flags=flags(RUN.study),
        seed=SEED,
        version=__version__,
    shell:
        "ffn study learning-rate {input.metrics} {params.flags} --rng-seed {params.seed} --out {output.numbers} "
        "> {log} 2>&1"


rule study_efficiency:
    input:
        metrics=STUDY_GRID + STUDY_BEST,
        rates=f"{STUDY}/learning_rate.json",
        scaling=f"{STUDY}/scaling.json",
    output:
        numbers=ensure(f"{STUDY}/efficiency.json", non_empty=True),
        page=f"{STUDY}/efficiency.html",
        figure=report(
            f"{STUDY}/efficiency.png",
            caption="../docs/study-caption.rst",
            category="Studies",
        ),
    log:
        f"{OUT}/logs/studies/efficiency.log",
    benchmark:
        f"{OUT}/benchmarks/studies/efficiency.tsv"
    conda:
        "../envs/ffn.yaml"
    envmodules:
        *MODULES,
    threads: 1
    resources:
        mem_mb=by_attempt(2000),
        runtime=by_attempt(10),
    params:
        flags=flags(RUN.study),
        version=__version__,
    shell:
        "ffn study efficiency {input.metrics} --rates {input.rates} --scaling {input.scaling} {params.flags} "
        "--out {output.numbers} > {log} 2>&1"


rule study_curves:
    input:
        metrics=STUDY_GRID + STUDY_BEST,
        rates=f"{STUDY}/learning_rate.json",
        scaling=f"{STUDY}/scaling.json",
    output:
        numbers=ensure(f"{STUDY}/curves.json", non_empty=True),
        page=f"{STUDY}/curves.html",
        figure=report(
            f"{STUDY}/curves.png",
            caption="../docs/study-caption.rst",
            category="Studies",
        ),
    log:
        f"{OUT}/logs/studies/curves.log",
    benchmark:
        f"{OUT}/benchmarks/studies/curves.tsv"
    conda:
        "../envs/ffn.yaml"
    envmodules:
        *MODULES,
    threads: 1
    resources:
        mem_mb=by_attempt(2000),
        runtime=by_attempt(10),
    params:
        flags=flags(RUN.study),
        version=__version__,
    shell:
        "ffn study curves {input.metrics} --rates {input.rates} --scaling {input.scaling} {params.flags} "
        "--out {output.numbers} > {log} 2>&1"
