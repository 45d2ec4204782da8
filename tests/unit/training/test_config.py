"""Relations between training options."""

import pytest
from pydantic import ValidationError

from ffn.training.config import TrainConfig
from ffn.training.presets import PRESETS


def test_only_max_pred_makes_more_than_one_move():
    assert TrainConfig(fov_policy="max_pred", fov_moves=2).fov_moves == 2
    with pytest.raises(ValidationError, match="fov_moves: found 2, expected 1 for fov_policy fixed_window"):
        TrainConfig(fov_policy="fixed_window", fov_moves=2)


@pytest.mark.parametrize("name", ["adam", "momentum", "sgd"])
def test_weight_decay_without_an_optimizer_that_has_it_is_refused(name):
    with pytest.raises(ValidationError, match=f"weight_decay: found 0.1, expected 0 for optimizer {name}"):
        TrainConfig(optimizer=name, weight_decay=0.1)


def test_a_walltime_within_its_margin_is_refused():
    assert TrainConfig(walltime_minutes=2.1).walltime_margin_seconds == 120
    with pytest.raises(ValidationError, match=r"walltime_minutes: found 2, .* \(120 s\), so each run would stop"):
        TrainConfig(walltime_minutes=2)


def test_lanes_are_the_fovs_of_all_workers():
    assert TrainConfig(num_workers=3, virtual_workers=5, batch_size=2).num_lanes == 30


# What a recipe leaves open: how long and on how many processes, what is looked at meanwhile, and options that belong to
# choices which no recipe makes.
NOT_IN_PRESETS = {"preset", "num_workers", "virtual_workers", "max_steps", "validation_steps", "validation_examples"}
NOT_IN_PRESETS |= {"scaling_exponent", "cycle_steps", "cycle_low", "momentum", "qsgd_levels", "blur_sigma"}
NOT_IN_PRESETS |= {"max_misalignment"}


def test_a_preset_decides_every_option_that_results_depend_on():
    expected = TrainConfig.model_fields.keys() - TrainConfig.same_result() - NOT_IN_PRESETS
    for name, values in PRESETS.items():
        assert values.keys() == expected, name


def test_the_paper_is_one_word():
    paper = TrainConfig(preset="dong2019", num_workers=64)
    assert (paper.optimizer, paper.adam_epsilon, paper.clip_entries, paper.precision) == ("adam", 1e-8, 0.7, "float32")
    assert (paper.fov_policy, paper.batch_size, paper.schedule, paper.scaling_rule) == ("fixed", 1, "constant", "sqrt")
    assert paper.permutable_axes == ("y", "x") and paper.num_workers == 64
    assert TrainConfig(preset=None) == TrainConfig() and not paper.departures()


def test_what_is_given_beside_a_preset_counts_even_if_it_is_the_default():
    default = TrainConfig().learning_rate
    train = TrainConfig(preset="dong2019", learning_rate=default, clip_entries=None)
    assert (train.learning_rate, train.clip_entries, train.adam_epsilon) == (default, None, 1e-8)
    assert train.departures() == {"learning_rate": (default, 1e-5), "clip_entries": (None, 0.7)}
    assert TrainConfig(**train.model_dump()) == train


def test_an_unknown_preset_is_refused():
    with pytest.raises(ValidationError, match="preset"):
        TrainConfig(preset="dong2018")
