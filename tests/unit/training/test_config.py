"""Relations between training options."""

import pytest
from pydantic import ValidationError

from ffn.training.config import TrainConfig
from ffn.training.presets import PRESETS


def test_only_max_pred_makes_more_than_one_move():
    assert TrainConfig(fov_policy="max_pred", fov_moves=2).fov_moves == 2
    with pytest.raises(ValidationError, match="fov_moves: found 2, expected 1 for fov_policy fixed_window"):
        TrainConfig(fov_policy="fixed_window", fov_moves=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"weight_decay": 0.1},
            "weight_decay: found 0.1, expected 0 for optimizer adam. Or choose the optimizer adamw, ",
        ),
        (
            {"weight_decay": 0.1, "optimizer": "sgd"},
            "expected 0 for optimizer sgd. Or choose .* adamw, muon, lamb or lars",
        ),
        ({"momentum": 0.8}, "momentum: found 0.8, expected 0.9 for optimizer adam. Or .* momentum or lars"),
        ({"scaling_exponent": 0.3}, "scaling_exponent: found 0.3, expected 0.5 for scaling_rule constant. Or .* power"),
        (
            {"cycle_steps": 50, "schedule": "cosine"},
            "cycle_steps: found 50, expected 2000 for schedule cosine. Or .* cycl",
        ),
        ({"cycle_low": 0.5}, "cycle_low: found 0.5, expected 0.1 for schedule constant. Or .* cyclic or ramp"),
        ({"qsgd_levels": 3}, "qsgd_levels: found 3, expected 7 for compression none. Or choose the compression qsgd"),
    ],
)
def test_an_option_that_nothing_uses_is_refused(options, message):
    with pytest.raises(ValidationError, match=message):
        TrainConfig(**options)


def test_options_that_something_uses_are_kept():
    options = {"optimizer": "lars", "weight_decay": 0.1, "momentum": 0.8, "compression": "qsgd", "qsgd_levels": 3}
    config = TrainConfig(**options, schedule="cyclic", cycle_low=0.5, cycle_steps=50)
    assert config.without_unused() == config
    constant = config.model_copy(update={"schedule": "constant", "optimizer": "adam"}).without_unused()
    assert (constant.cycle_low, constant.cycle_steps, constant.momentum, constant.weight_decay) == (0.1, 2000, 0.9, 0.0)
    assert constant.qsgd_levels == 3


def test_steps_of_muon_have_one_length_so_no_gradient_is_left_out():
    with pytest.raises(ValidationError, match=r"tolerated_loss: found 0.01, expected null for optimizer muon"):
        TrainConfig(optimizer="muon", tolerated_loss=0.01)


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
