"""Weights of others: a tiny TensorFlow 1 checkpoint made here, and the published networks where they are."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from gpu_check.prepare import float64_logits

from ffn.cli import main
from ffn.config import ModelConfig
from ffn.inference.lanes import create_engine
from ffn.model.network import num_weights, weight_shapes
from ffn.model.store import load_model


def random_weights(depth):
    rng = np.random.default_rng(depth)
    shapes = weight_shapes(ModelConfig(depth=depth, features=3))
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Prefixes of checkpoints as TensorFlow 1 writes them."""
    weights = random_weights(depth=2)
    incomplete = {name: array for name, array in weights.items() if name != "conv1_b/biases"}
    contents = {"whole": ("seed_update", weights), "other": ("other", weights), "part": ("seed_update", incomplete)}
    prefixes = {name: f"{tmp_path_factory.mktemp(name)}/model.ckpt" for name in contents}
    for name, (scope, arrays) in contents.items():
        write_checkpoint(prefixes[name], {f"{scope}/{variable}": array for variable, array in arrays.items()})
    return prefixes


def write_checkpoint(prefix, arrays):
    with tf.Graph().as_default(), tf.Session() as session:
        for name, value in arrays.items():
            tf.get_variable(name, initializer=value)
        tf.get_variable("global_step", initializer=np.int64(7))
        session.run(tf.global_variables_initializer())
        tf.train.Saver().save(session, prefix, write_meta_graph=False)


def test_depth_features_and_weights_are_read(checkpoints, tmp_path):
    weights = random_weights(depth=2)
    fov = ["--fov-size", "7", "9", "9", "--deltas", "1", "2", "2", "--image-mean", "99", "--image-stddev", "21"]
    assert main(["import-checkpoint", checkpoints["whole"], *fov, "--out", str(tmp_path / "model")]) == 0
    model = load_model(tmp_path / "model")
    assert (model.config.depth, model.config.features, model.config.fov_size_zyx) == (2, 3, (7, 9, 9))
    assert (model.config.image_mean, model.config.image_stddev) == (99, 21)
    assert all(np.array_equal(model.weights[name], array) for name, array in weights.items())


@pytest.mark.parametrize(
    ("name", "message"), [("other", "has no variable seed_update/conv0_a/weights"), ("part", "conv1_b/biases: ")]
)
def test_another_network_is_refused(checkpoints, tmp_path, capsys, name, message):
    assert main(["import-checkpoint", checkpoints[name], "--out", str(tmp_path / "model")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "model").exists()


@pytest.mark.slow
@pytest.mark.fib25
def test_imported_checkpoint_equals_numpy(shared_checkpoint, tmp_path):
    assert main(["import-checkpoint", str(shared_checkpoint), "--out", str(tmp_path / "model")]) == 0
    model = load_model(tmp_path / "model")
    assert (model.config.depth, model.config.features, num_weights(model.config)) == (12, 32, 638_433)
    assert (model.config.image_mean, model.config.image_stddev) == (128, 33), "by default, those of FIB-25"
    image, pom = np.random.default_rng(0).normal(size=(2, *model.config.fov_size_zyx)).astype(np.float32)
    answer = create_engine(model, "openvino", "float32").predict(image[None], pom[None])[0]
    assert np.abs(answer - float64_logits(model, image, pom)).max() < 1e-3
