"""import-checkpoint on a tiny TensorFlow 1 checkpoint made here, so that it is tested without the published weights."""

import subprocess
import sys

import numpy as np
import pytest

from ffn.cli import main
from ffn.config import ModelConfig
from ffn.model.network import weight_shapes
from ffn.model.store import load_model

WRITE = """
import sys
import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_eager_execution()
arrays = dict(np.load(sys.argv[1]))
for name, value in arrays.items():
    tf.get_variable(name.replace(":", "/"), initializer=value)
tf.get_variable("global_step", initializer=np.int64(7))
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    tf.train.Saver().save(session, sys.argv[2], write_meta_graph=False)
"""


def write_checkpoint(folder, weights, scope="seed_update"):
    """Write `weights` as TensorFlow 1 does, in a process of its own: it needs another mode of execution."""
    np.savez(folder / "weights.npz", **{f"{scope}:{name.replace('/', ':')}": w for name, w in weights.items()})
    command = [sys.executable, "-c", WRITE, str(folder / "weights.npz"), str(folder / "model.ckpt")]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return str(folder / "model.ckpt")


def random_weights(depth):
    rng = np.random.default_rng(depth)
    shapes = weight_shapes(ModelConfig(depth=depth, features=3))
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def test_depth_features_and_weights_are_read(tmp_path):
    weights = random_weights(depth=2)
    prefix = write_checkpoint(tmp_path, weights)
    fov = ["--fov-size", "7", "9", "9", "--deltas", "1", "2", "2", "--image-mean", "99", "--image-stddev", "21"]
    assert main(["import-checkpoint", prefix, *fov, "--out", str(tmp_path / "model")]) == 0
    model = load_model(tmp_path / "model")
    assert (model.config.depth, model.config.features, model.config.fov_size_zyx) == (2, 3, (7, 9, 9))
    assert (model.config.image_mean, model.config.image_stddev) == (99, 21)
    assert all(np.array_equal(model.weights[name], array) for name, array in weights.items())


@pytest.mark.parametrize(
    ("scope", "drop", "message"),
    [("other", None, "has no variable seed_update/conv0_a/weights"), ("seed_update", "conv1_b/biases", "do not form")],
)
def test_another_network_is_refused(tmp_path, capsys, scope, drop, message):
    weights = random_weights(depth=2)
    weights.pop(drop, None)
    prefix = write_checkpoint(tmp_path, weights, scope)
    assert main(["import-checkpoint", prefix, "--out", str(tmp_path / "model")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "model").exists()
