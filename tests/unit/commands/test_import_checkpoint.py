import numpy as np

from ffn.cli import main
from ffn.config import ModelConfig
from ffn.model.network import weight_shapes
from ffn.model.store import Model, load_model, save_model

MODEL = ModelConfig(depth=2, features=4, fov_size_zyx=(9, 11, 13), deltas_zyx=(2, 3, 3), image_mean=1, image_stddev=2)


def save(folder, value, **changes):
    config = MODEL.model_copy(update=changes)
    weights = {name: np.full(shape, value, np.float32) for name, shape in weight_shapes(config).items()}
    save_model(folder, Model(config, weights, {"stage": "train"}))


def test_a_prefix_is_imported_as_a_published_checkpoint(monkeypatch):
    calls = []
    monkeypatch.setattr("ffn.model.published.import_checkpoint", lambda *given: calls.append(given))
    words = ["import-checkpoint", "model.ckpt-7", "--out", "model", "--image-mean", "99"]
    assert main([*words, "--reference-image", "raw.zarr"]) == 0
    ((prefix, folder, config, reference_image),) = calls
    assert (prefix, folder, reference_image) == ("model.ckpt-7", "model", "raw.zarr")
    assert (config.image_mean, config.image_stddev) == (99, 33), "the defaults are those of FIB-25"


def test_a_step_of_training_is_exported(monkeypatch, tmp_path):
    calls = []
    (tmp_path / "manifest.json").touch()
    monkeypatch.setattr("ffn.training.checkpoint.export_checkpoint", lambda *given: calls.append(given))
    for checkpoint in ("checkpoints/step-00000500", str(tmp_path)):
        assert main(["import-checkpoint", checkpoint, "--out", "model"]) == 0
    assert calls == [("checkpoints/step-00000500", "model", None), (str(tmp_path), "model", None)]


def test_initial_weights_are_written_with_the_network_of_the_training_that_started_from_them(tmp_path):
    save(tmp_path / "start", 1.0)
    save(tmp_path / "trained", 2.0, deltas_zyx=(3, 3, 3), image_mean=128.0)
    words = ["import-checkpoint", f"{tmp_path}/start", "--trained", f"{tmp_path}/trained"]
    assert main([*words, "--out", f"{tmp_path}/out"]) == 0
    made, trained = load_model(tmp_path / "out"), load_model(tmp_path / "trained")
    assert made.config == trained.config
    assert made.weights["conv0_a/weights"].max() == made.weights["conv1_b/weights"].max() == 1
