"""The published FIB-25 weights, imported: the same answers as an independent evaluation in NumPy."""

import numpy as np
import pytest
from gpu_check.prepare import float64_logits

from ffn.cli import main
from ffn.inference.engine import create_engine
from ffn.model.network import num_weights
from ffn.model.store import load_model


@pytest.mark.fib25
def test_imported_checkpoint_equals_numpy(shared_checkpoint, tmp_path):
    assert main(["import-checkpoint", str(shared_checkpoint), "--out", str(tmp_path / "model")]) == 0
    model = load_model(tmp_path / "model")
    assert (model.config.depth, model.config.features, num_weights(model.config)) == (12, 32, 638_433)
    image, pom = np.random.default_rng(0).normal(size=(2, *model.config.fov_size_zyx)).astype(np.float32)
    answer = create_engine(model, "tensorflow", "float32").predict(image[None], pom[None])[0]
    assert np.abs(answer - float64_logits(model, image, pom)).max() < 1e-3
