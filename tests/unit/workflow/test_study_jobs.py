"""How the training runs of a study are shared out among processes, and what they ask for."""

import pytest

from ffn.config import ModelConfig
from ffn.training.config import TrainConfig
from ffn.workflow.needs import training_minutes
from ffn.workflow.run import load_run
from ffn.workflow.study_jobs import measuring_minutes, study_job, study_model, study_train

from ...small_run import SMALL_RUN

SITE = {"launcher": "srun -n {ranks} -c {depth}", "ranks_per_node": 2, "cores_per_node": 64}


def job_of(run, workers, site, cores, voxels=()):
    return study_job(run, study_train(run), workers, site, cores, list(voxels))


def run_of(train=None, **study):
    return load_run({**SMALL_RUN, "train": {**SMALL_RUN["train"], **(train or {})}, "study": study})


@pytest.mark.parametrize(
    ("workers", "ranks", "shared"),
    [(1, 4, (1, 1)), (4, 1, (1, 4)), (6, 4, (3, 2)), (7, 4, (1, 7)), (16, 4, (4, 4)), (1024, 64, (64, 16))],
)
def test_as_many_processes_as_allowed_share_out_the_workers_evenly(workers, ranks, shared):
    job = job_of(run_of(ranks=ranks), workers, {}, 8)
    assert (job.train.num_workers, job.train.virtual_workers) == shared
    assert job.train.num_workers * job.train.virtual_workers == workers


def test_processes_of_this_machine_take_a_core_each_and_those_of_a_cluster_their_share_of_a_node():
    here = job_of(run_of(ranks=4), 8, {}, 16)
    assert (here.threads, here.train.intra_op_threads) == (4, 1)
    assert here.layout.command == "ffn launch --num-ranks 4 --launcher local --"
    there = job_of(run_of(ranks=4), 8, SITE, 16)
    assert (there.threads, there.train.intra_op_threads) == (32, 32)
    assert (there.layout.command, there.layout.nodes) == ("srun -n 4 -c 32", 2)
    alone = job_of(run_of(), 8, SITE, 16)
    assert (alone.threads, alone.layout.command, alone.layout.nodes) == (1, "", 1)


def test_time_follows_from_fovs_and_memory_from_what_a_process_holds():
    def job(workers, site=(), **study):
        return job_of(run_of(depth=9, features=32, **study), workers, dict(site), 16, [10**6])

    few, many, shared = job(1), job(64), job(64, SITE, ranks=64)
    assert many.minutes > 50 * (few.minutes - 10) and job(1, steps=20_000).minutes > 8 * (few.minutes - 10)
    assert shared.minutes - 10 < (many.minutes - 10) / 64  # each process has one worker and half a node
    assert many.mb > few.mb and shared.mb == 2 * few.mb  # two processes on a node
    run = run_of({"batch_size": 8}, measured_steps=300).model_copy(update={"model": ModelConfig()})
    asked = {threads: measuring_minutes(run, run.train, threads) for threads in (1, 8)}
    assert asked[1] == training_minutes(run.model, run.train.model_copy(update={"max_steps": 320})) > 300
    assert asked[1] > 6 * asked[8] - 60
    assert measuring_minutes(run_of(), run_of().train, 8) == 60  # as ever for a small network


def test_a_study_has_its_own_network_and_schedule():
    assert study_train(run_of({"schedule": "cyclic"})).schedule == "cyclic"
    run = run_of({"optimizer": "adamw", "weight_decay": 0.1, "scaling_rule": "linear", "schedule": "cosine"})
    TrainConfig(**study_train(run).model_dump())  # as the command line would check it
    assert (study_model(run_of()).depth, study_model(run_of()).features) == (3, 8)
    whole = study_model(run_of(depth=None, features=None))
    assert (whole.depth, whole.features) == (2, 8)


def test_runs_start_from_new_weights_without_the_warm_up_of_fine_tuning():
    def warm_up(**train):
        values = {**SMALL_RUN, "init": "model", "train": {**SMALL_RUN["train"], **train}}
        return study_train(load_run(values)).warmup_steps

    assert (warm_up(), warm_up(warmup_steps=50), warm_up(preset="dong2019", warmup_steps=100)) == (0, 50, 100)
