"""Relations between training options."""

import pytest
from pydantic import ValidationError

from ffn.training.config import PRESETS, TrainConfig


def test_only_max_pred_makes_more_than_one_move():
    assert TrainConfig(fov_policy="max_pred", fov_moves=2).fov_moves == 2
    with pytest.raises(ValidationError, match="fov_moves"):
        TrainConfig(fov_policy="faces", fov_moves=2)


@pytest.mark.parametrize(
    "options",
    [
        {"weight_decay": 0.1},
        {"weight_decay": 0.1, "optimizer": "sgd"},
        {"qsgd_levels": 3},
        {"exact_sums": False, "compression": "bfloat16"},
        {"precision": "float16"},
        {"pipeline_stages": 2},
        {"gradients_per_update": 1, "exact_sums": False},
        {"gradients_per_update": 3},
        {"max_staleness": None, "compression": "bfloat16"},
        {"preset": "dong2018"},
    ],
)
def test_an_option_that_nothing_uses_or_knows_is_refused(options):
    with pytest.raises(ValidationError, match=next(iter(options))):
        TrainConfig(**options)


OTHER_VALUES = {
    "max_steps": 7,
    "engine": "jax",
    "checkpoint_minutes": 2.0,
    "checkpoint_steps": 2,
    "keep_checkpoints": 9,
    "log_steps": 3,
    "on_row": "python track.py",
    "collective": "mpi",
    "exact_sums": False,
    "pipeline_stages": 2,
    "validation_steps": 0,
    "validation_examples": 3,
    "use_best": True,
    "intra_op_threads": 3,
    "inter_op_threads": 2,
    "stall_seconds": 9,
    "preset": "dong2019",
}


@pytest.mark.parametrize(("schedule", "decisive"), [("constant", set()), ("cosine", {"max_steps"})])
def test_a_checkpoint_stays_valid_with_other_values_of_these_options_only(schedule, decisive):
    train = TrainConfig(schedule=schedule)
    for name, value in OTHER_VALUES.items():
        changes = train.model_copy(update={name: value}).decisive() != train.decisive()
        assert changes == (name in decisive), name
    free = TrainConfig.model_fields.keys() - TrainConfig().decisive().keys()
    assert free == OTHER_VALUES.keys() | {"num_workers", "virtual_workers"}


def test_a_preset_changes_defaults():
    for values in PRESETS.values():
        assert all(TrainConfig.model_fields[name].default != value for name, value in values.items())
    paper = TrainConfig(preset="dong2019", num_workers=64)
    assert (paper.optimizer, paper.adam_epsilon, paper.clip_entries, paper.precision) == ("adam", 1e-8, 0.7, "float32")
    assert (paper.fov_policy, paper.batch_size, paper.schedule, paper.scaling_rule) == ("fixed", 1, "constant", "sqrt")
    assert paper.permutable_axes == ("y", "x") and paper.num_workers == 64
    assert TrainConfig(preset=None) == TrainConfig()


def test_what_is_given_beside_a_preset_counts_even_if_it_is_the_default():
    default = TrainConfig().learning_rate
    train = TrainConfig(preset="dong2019", learning_rate=default, clip_entries=None)
    assert (train.learning_rate, train.clip_entries, train.adam_epsilon) == (default, None, 1e-8)
    assert TrainConfig(**train.model_dump()) == train
