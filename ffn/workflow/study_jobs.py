"""The training runs of the studies: network, options, and the time of a measurement."""

from __future__ import annotations

from ffn.config import ModelConfig
from ffn.studies.config import NUM_ROWS, WARM_UP_STEPS
from ffn.training.config import SYNCHRONOUS, TrainConfig, fine_tuning_defaults
from ffn.workflow.needs import training_minutes
from ffn.workflow.run import RunConfig

LEAST_MEASURING = 60  # minutes to ask for; our choice


def study_model(run: RunConfig) -> ModelConfig:
    """Return the network that the studies train."""
    own = {"depth": run.study.depth, "features": run.study.features}
    return run.model.model_copy(update={name: value for name, value in own.items() if value is not None})


def study_train(run: RunConfig) -> TrainConfig:
    """Return the options of a training run with one worker: everything else is as in section ``train``.

    The runs start from new weights, so options that follow from `init` have their usual defaults.
    """
    tuning = fine_tuning_defaults(run.train, is_validated=False) if run.init else {}
    own = {
        **{name: run.train.defaults()[name] for name in tuning if getattr(run.train, name) == tuning[name]},
        "num_workers": 1,
        "virtual_workers": 1,
        "batch_size": 1,
        **SYNCHRONOUS,
        "max_steps": run.study.steps,
        "log_steps": max(1, run.study.steps // NUM_ROWS),
        "scaling_rule": "constant",
        "schedule": "cyclic" if run.train.schedule == "cyclic" else "constant",
        "on_row": None,
        "validation_steps": 0,
        "validation_examples": 1,
        "use_best": False,
        "intra_op_threads": min(1, run.train.intra_op_threads),
    }
    return run.train.model_copy(update=own)


def measuring_minutes(run: RunConfig, train: TrainConfig, threads: int) -> int:
    """Return the time to ask for to measure step times, which a killed job begins again."""
    steps = WARM_UP_STEPS + run.study.measured_steps
    return max(LEAST_MEASURING, training_minutes(run.model, train.model_copy(update={"max_steps": steps}), threads))
