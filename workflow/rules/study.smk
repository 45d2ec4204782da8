# Studies of distributed training: its scaling, its learning rates, and the cost of reaching a score.
# Each training run is one job, which resumes after it was killed. The best rate is known only when the grid is done.
# Therefore the files of further seeds do not name the rate, and the plan does not depend on results.

from ffn.studies.config import CurvesConfig, RatesConfig, ScalingConfig, StalenessConfig
from ffn.training.config import SYNCHRONOUS

STUDY_RUN = "workers-{workers}-rate-{rate}-seed-{seed}"
STUDY_BEST_RUN = "workers-{workers}-seed-{seed}"
STUDY_SEEDS = [SEED + i for i in range(RUN.study.seeds)]  # the first one for the grid
STUDY_MODEL = study_model(RUN)
STUDY_TRAIN = study_train(RUN)
STUDY_TRAINS = {
    str(workers): STUDY_TRAIN.model_copy(update={"virtual_workers": workers}) for workers in RUN.study.workers
}
# How the processes of a measurement are placed on the site's nodes.
MEASURE_LAYOUTS = {str(processes): layout_of(processes, SITE, CORES) for processes in RUN.study.processes}
# As many threads for one process as each process has when several share a node.
MEASURE_TRAIN = RUN.train.model_copy(
    update={
        "virtual_workers": 1,
        **SYNCHRONOUS,
        "intra_op_threads": min(layout.depth for layout in MEASURE_LAYOUTS.values()),
        "validation_steps": 0,
        "validation_examples": 1,
        "use_best": False,
    }
)
STUDY_GRID = expand(
    PATHS.study("runs", f"{STUDY_RUN}.csv"),
    workers=RUN.study.workers,
    rate=map(repr, RUN.study.learning_rates),
    seed=STUDY_SEEDS[0],
)
STUDY_BEST = expand(
    PATHS.study("best", f"{STUDY_BEST_RUN}.csv"),
    workers=RUN.study.workers,
    seed=STUDY_SEEDS[1:],
)
# The study of staleness has the most workers, and their middle rate between others; it also validates.
STALENESS_TRAIN = STUDY_TRAIN.model_copy(
    update={
        "virtual_workers": RUN.study.workers[-1],
        "learning_rate": RUN.study.learning_rates[len(RUN.study.learning_rates) // 2],
        "validation_steps": max(1, RUN.study.steps // 20),
        "validation_examples": RUN.train.validation_examples,
    }
)
# Memory of a measurement on each node.
MEASURE_MB = {
    processes: training_mb(RUN.model, MEASURE_TRAIN, layout.per_node, PIPELINE.learnt_voxels)
    for processes, layout in MEASURE_LAYOUTS.items()
}
MEASURE_MINUTES = measuring_minutes(RUN, MEASURE_TRAIN, MEASURE_TRAIN.intra_op_threads)
STUDY_TIMES = expand(PATHS.study("measure-{processes}.h5"), processes=RUN.study.processes)
STUDY_DATA = f"--records {PATHS.folder('records')} {arguments.training_volumes(PIPELINE)}"


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
        rules.train.input.masks,
    output:
        metrics=ensure(PATHS.study("runs", f"{STUDY_RUN}.csv"), non_empty=True),
    log:
        PATHS.log("studies", "runs", STUDY_RUN),
    benchmark:
        PATHS.benchmark(f"studies/runs/{STUDY_RUN}")
    threads: 1
    resources:
        mem_mb=by_attempt(
            lambda wildcards, threads: training_mb(
                STUDY_MODEL, STUDY_TRAINS[wildcards.workers], 1, PIPELINE.learnt_voxels
            )
        ),
        runtime=by_attempt(lambda wildcards, threads: training_minutes(STUDY_MODEL, STUDY_TRAINS[wildcards.workers])),
        gpu=min(1, GPUS),
    params:
        runs=subpath(output.metrics, parent=True),
        data=STUDY_DATA,
        flags=f"{flags(STUDY_MODEL)} {flags(STUDY_TRAIN, skip=('num_workers', 'virtual_workers', 'learning_rate'))}",
        processes="--num-workers 1 --virtual-workers {workers}",
        untracked=arguments.untracked(STUDY_TRAIN),
        log_steps=STUDY_TRAIN.log_steps,  # tracked: here the rows are the result
        rates="",
        rate="--learning-rate {rate}",
    shell:
        "ffn study train {params.rates} --runs {params.runs} --out {output.metrics} -- {params.data} "
        "{params.flags} {params.processes} {params.untracked} {params.rate} --rng-seed {wildcards.seed} > {log} 2>&1"


use rule study_train as study_train_best with:
    input:
        rules.train.input.records,
        rules.train.input.images,
        rules.train.input.labels,
        rules.train.input.masks,
        rates=PATHS.study("learning_rate.json"),
    output:
        metrics=ensure(PATHS.study("best", f"{STUDY_BEST_RUN}.csv"), non_empty=True),
    log:
        PATHS.log("studies", "best", STUDY_BEST_RUN),
    benchmark:
        PATHS.benchmark(f"studies/best/{STUDY_BEST_RUN}")
    params:
        runs=PATHS.study("runs"),
        rates=f"--rates {PATHS.study('learning_rate.json')}",
        rate="",


# Other jobs would distort the times, so on a single machine this job reserves all cores.
rule study_measure:
    input:
        rules.train.input.records,
        rules.train.input.images,
        rules.train.input.labels,
        rules.train.input.masks,
    output:
        times=ensure(PATHS.study("measure-{processes}.h5"), non_empty=True),
    log:
        PATHS.log("studies", "measure-{processes}"),
    benchmark:
        PATHS.benchmark("studies/measure-{processes}")
    threads: lambda wildcards: (MEASURE_LAYOUTS[wildcards.processes].depth if "launcher" in SITE else CORES)
    resources:
        mem_mb=by_attempt(lambda wildcards, threads: MEASURE_MB[wildcards.processes]),
        runtime=by_attempt(MEASURE_MINUTES),
        nodes=lambda wildcards: MEASURE_LAYOUTS[wildcards.processes].nodes,
        tasks=lambda wildcards: MEASURE_LAYOUTS[wildcards.processes].ranks,
        gpu=lambda wildcards: min(MEASURE_LAYOUTS[wildcards.processes].per_node, GPUS),
        mpi=lambda wildcards: MEASURE_LAYOUTS[wildcards.processes].command,
    params:
        data=STUDY_DATA,
        flags=f"{flags(RUN.model)} {flags(MEASURE_TRAIN, skip=('num_workers',))}",
        untracked=arguments.untracked(MEASURE_TRAIN),
        threads=[MEASURE_TRAIN.intra_op_threads, MEASURE_TRAIN.inter_op_threads],
        steps=RUN.study.measured_steps,
        seed=SEED,
    shell:
        "{resources.mpi} ffn study measure --measured-steps {params.steps} --out {output.times} -- {params.data} "
        "{params.flags} {params.untracked} --num-workers {wildcards.processes} --rng-seed {params.seed} > {log} 2>&1"


# What the profile tells Slurm of training alone, such as the ranks on a node, holds here, too.
if "slurm_extra" in SITE and "slurm_extra" not in snakemake_patches.site(workflow, "study_measure"):
    rules.study_measure.rule.resources["slurm_extra"] = rules.train.rule.resources["slurm_extra"]


# One job, because most of its runs would be shorter than the start of another; a killed one keeps what has ended.
rule study_staleness:
    input:
        rules.train.input.records,
        rules.train.input.images,
        rules.train.input.labels,
        rules.train.input.masks,
        times=STUDY_TIMES[0],
    output:
        numbers=ensure(PATHS.study("staleness.json"), non_empty=True),
        figure=report(PATHS.study("staleness.png"), caption="study-caption.rst", category="Studies"),
    log:
        PATHS.log("studies", "staleness"),
    benchmark:
        PATHS.benchmark("studies/staleness")
    threads: max(1, STALENESS_TRAIN.intra_op_threads)
    resources:
        mem_mb=by_attempt(training_mb(STUDY_MODEL, STALENESS_TRAIN, 1, PIPELINE.learnt_voxels)),
        runtime=by_attempt(24 * 60),
        gpu=min(1, GPUS),
    params:
        study=flags(RUN.study.part(StalenessConfig)),
        data=f"{STUDY_DATA} {arguments.validation_volumes(PIPELINE)}",
        flags=f"{flags(STUDY_MODEL)} {flags(STALENESS_TRAIN, skip=('num_workers',))}",
        untracked=arguments.untracked(STALENESS_TRAIN),
        seed=SEED,
    shell:
        "ffn study staleness {params.study} --measured {input.times} --out {output.numbers} -- {params.data} "
        "{params.flags} {params.untracked} --num-workers 1 --rng-seed {params.seed} > {log} 2>&1"


# --- The studies: the files that each evaluates, other studies that it needs, and its options -------------------------
STUDY_OTHERS = {"rates": PATHS.study("learning_rate.json"), "scaling": PATHS.study("scaling.json")}
STUDIES = {
    "scaling": (STUDY_TIMES, {}, ScalingConfig),
    "learning_rate": (STUDY_GRID, {}, RatesConfig),
    "curves": (STUDY_GRID + STUDY_BEST, STUDY_OTHERS, CurvesConfig),
}
for study, (files, others, section) in STUDIES.items():

    rule:
        name:
            f"study_{study}"
        input:
            files=files,
            others=list(others.values()),
        output:
            numbers=ensure(PATHS.study(f"{study}.json"), non_empty=True),
            figure=report(PATHS.study(f"{study}.png"), caption="study-caption.rst", category="Studies"),
        log:
            PATHS.log("studies", study),
        benchmark:
            PATHS.benchmark(f"studies/{study}")
        threads: 1
        resources:
            mem_mb=by_attempt(2000),
            runtime=by_attempt(10),
        params:
            study=study.replace("_", "-"),
            options=" ".join(f"--{name} {path}" for name, path in others.items()),
            flags=flags(RUN.study.part(section)),
        shell:
            "ffn study {params.study} {input.files} {params.options} {params.flags} --out {output.numbers} > {log} 2>&1"
