"""Relations between training options."""

import pytest
from pydantic import ValidationError

from ffn.training.config import TrainConfig


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
