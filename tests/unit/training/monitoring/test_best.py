"""The best model of a training."""

import numpy as np
import pytest

from ffn.config import ModelConfig
from ffn.model.network import weight_shapes
from ffn.model.store import load_model
from ffn.training.monitoring.reporting import FOLDER, BestModel, load_best

MODEL = ModelConfig(depth=1, features=2, fov_size_zyx=(3, 5, 7), deltas_zyx=(1, 1, 2), image_mean=100, image_stddev=50)


def weights(value):
    return {name: np.full(shape, value, np.float32) for name, shape in weight_shapes(MODEL).items()}


def offer(best, step, f1):
    best.offer({"step": step, "f1": f1}, lambda: weights(step))


def test_the_best_model_is_kept_and_the_latest_of_equals(tmp_path):
    best = BestModel(tmp_path, MODEL, 0, False)
    for step, f1 in ((0, 0.0), (10, 0.0), (20, 0.5), (30, float("nan")), (40, 0.25)):
        offer(best, step, f1)
        assert load_best(tmp_path)[0] == {0: 0, 10: 10}.get(step, 20)
    step, found = load_best(tmp_path)
    assert all((array == 20).all() for array in found.values())
    assert load_model(tmp_path / FOLDER).provenance["inputs"] == {"step": "20", "validation_f1": "0.5"}


@pytest.mark.parametrize(
    ("step", "is_comparable", "kept"), [(30, True, True), (20, True, True), (10, True, False), (30, False, False)]
)
def test_a_resumed_training_keeps_a_best_model_of_its_own_past(tmp_path, step, is_comparable, kept):
    offer(BestModel(tmp_path, MODEL, 0, False), 20, 0.5)
    resumed = BestModel(tmp_path, MODEL, step, is_comparable)
    assert (tmp_path / FOLDER).exists() == kept
    offer(resumed, 40, 0.25)
    assert load_best(tmp_path)[0] == (20 if kept else 40)
