"""Devices that divide a network among them train as one does."""

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from ffn.config import ModelConfig
from ffn.errors import ConfigError
from ffn.training.config import TrainConfig, require_stages
from ffn.training.parallel.process_group import ProcessGroup
from ffn.training.plan import initial_weights

from ..conftest import make_batch

pytest.importorskip("jax")
from ffn.model.jax_network import schedule  # noqa: E402
from ffn.training.jax_learner import JaxLearner, devices_of  # noqa: E402

MODEL = ModelConfig(depth=5, features=4, fov_size_zyx=(3, 5, 7), deltas_zyx=(1, 2, 3))


def make(num_stages, **options):
    train = TrainConfig(
        engine="jax", optimizer="sgd", batch_size=4, pipeline_stages=num_stages, **{"precision": "float32", **options}
    )
    return JaxLearner(MODEL, train, initial_weights(MODEL, 1), ProcessGroup())


def gradient_of(learner, number=0):
    """Gradient and loss of a batch."""
    return np.asarray(learner._differentiate(make_batch(number, 4), np.zeros(2, np.float32))[1])


FOUR_DEVICES = textwrap.dedent(
    """
    import sys
    import jax, numpy as np
    from tests.unit.training.parallel.test_pipeline import gradient_of, make, make_batch

    learner = make(4)
    found = {"gradient": gradient_of(learner)}
    learner.step(make_batch(0, 4), 0.1)
    found |= {**learner.state(), "pom": learner.forward(make_batch(1, 3))[0]}
    two_pipelines = make(2, precision="float16")
    assert len(two_pipelines._held.weights.sharding.device_set) == 4
    np.savez(sys.argv[1], **found, half=gradient_of(two_pipelines))
    """
)


@pytest.mark.slow
def test_four_devices_train_as_one_does_to_rounding(tmp_path):
    path = tmp_path / "four.npz"
    variables = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", FOUR_DEVICES, str(path)], check=True, env=variables)
    one = make(1)
    expected = {"gradient": gradient_of(one)}
    one.step(make_batch(0, 4), 0.1)
    expected |= {**one.state(), "pom": one.forward(make_batch(1, 3))[0]}
    with np.load(path) as found:
        half = found["half"]
        assert {*found} == {*expected, "half"}
        for name, array in expected.items():
            np.testing.assert_allclose(found[name], array, rtol=0, atol=1e-6 * np.abs(array).max(), err_msg=name)
    gradient = expected["gradient"]
    assert 0 < np.abs(half - gradient).max() < 0.01 * np.abs(gradient).max()


@pytest.mark.parametrize(("num_fovs", "num_stages"), [(1, 4), (4, 4), (32, 4), (5, 1)])
def test_the_idle_share_of_the_schedule(num_fovs, num_stages):
    ticks = schedule(num_fovs, num_stages)
    assert (ticks < 0).mean() == pytest.approx((num_stages - 1) / (num_fovs + num_stages - 1))
    for stage, fovs in enumerate(ticks.T):  # each FOV once, a tick after the stage before had it
        assert fovs[stage : stage + num_fovs].tolist() == list(range(num_fovs))


def test_what_no_pipeline_can_have_is_refused():
    for depth in (5, 1):
        with pytest.raises(ConfigError, match=r"train\.pipeline_stages: found 3"):
            require_stages(TrainConfig(engine="jax", pipeline_stages=3), MODEL.model_copy(update={"depth": depth}))
    with pytest.raises(ConfigError, match=r"train\.pipeline_stages: found 99"):
        devices_of(ProcessGroup(), 4, 99)
