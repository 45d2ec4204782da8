"""What the training runs of a study have of their own, and the time of a measurement."""

from ffn.config import ModelConfig
from ffn.training.config import TrainConfig
from ffn.workflow.arguments import measuring_minutes, study_model, study_train
from ffn.workflow.needs import training_minutes
from ffn.workflow.run import load_run

from ...small_run import SMALL_RUN


def run_of(train=None, **study):
    return load_run({**SMALL_RUN, "train": {**SMALL_RUN["train"], **(train or {})}, "study": study})


def test_the_time_of_a_measurement_follows_from_its_steps_and_threads():
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
