"""The learner in JAX trains as that in TensorFlow does, and goes on with its checkpoints."""

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from ffn.config import ModelConfig
from ffn.errors import ConfigError
from ffn.model.network import weight_shapes
from ffn.training import jax_learner
from ffn.training.config import TrainConfig
from ffn.training.jax_learner import devices_of
from ffn.training.loop import make_learner
from ffn.training.parallel.process_group import ProcessGroup
from ffn.training.plan import initial_weights
from ffn.training.walk import LaneWalks

from .conftest import make_batch, weights_of
from .test_jax_patches import Source

jax = pytest.importorskip("jax")

MODEL = ModelConfig(depth=2, features=4, fov_size_zyx=(3, 5, 7), deltas_zyx=(1, 2, 3))
SHAPE = weight_shapes(MODEL)


def make(kind, group=None, seed=1, **options):
    train = TrainConfig(**{"precision": "float32", "batch_size": 2, "engine": kind, **options})
    return make_learner(MODEL, train, initial_weights(MODEL, seed), group or ProcessGroup(), 5)


def assert_close(one, other, atol=1e-4):
    """Assert that two learners would write the same checkpoint, up to rounding."""
    states = [learner.state() for learner in (one, other)]
    assert {name: (a.shape, a.dtype) for name, a in states[0].items()} == {
        name: (a.shape, a.dtype) for name, a in states[1].items()
    }
    for name, array in states[0].items():
        np.testing.assert_allclose(states[1][name], array, atol=atol, rtol=1e-4, err_msg=name)


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("options", "rate"),
    [
        ({"optimizer": "muon", "weight_decay": 0.1, "ema_decay": 0.9}, 1e-3),
        ({"optimizer": "sgd", "compression": "1-bit"}, 0.05),
        pytest.param({"optimizer": "adam", "ema_decay": 0.9}, 1e-3, marks=pytest.mark.slow),
        pytest.param({"optimizer": "adamw", "weight_decay": 0.01, "clip_entries": 0.01}, 0.02, marks=pytest.mark.slow),
        pytest.param({"optimizer": "momentum", "virtual_workers": 3}, 0.05, marks=pytest.mark.slow),
    ],
)
def test_each_optimizer_trains_as_in_tensorflow_and_either_goes_on_for_the_other(options, rate):
    learners = [make(kind, **options) for kind in ("tensorflow", "jax")]
    size = 2 * options.get("virtual_workers", 1)
    start = learners[0].weights_vector()
    for number in range(20):
        outcomes = [learner.step(make_batch(number, size), rate, stop=number == 2) for learner in learners]
        np.testing.assert_allclose(outcomes[1].answers, outcomes[0].answers, atol=1e-3)
        for field in ("loss", "gradient_norm", "finite", "stop", "save", "bytes_sent"):
            assert getattr(outcomes[1], field) == pytest.approx(getattr(outcomes[0], field), rel=1e-3), field
    assert_close(*learners)
    assert np.abs(learners[1].weights_vector() - start).max() > 3e-3
    exchanged = [(learner.state(), learner.worker_states()) for learner in learners]
    for learner, (state, of_workers) in zip(learners, exchanged[::-1], strict=True):
        learner.restore(state, of_workers)
        np.testing.assert_equal((learner.state(), learner.worker_states()), (state, of_workers))
    for learner in learners:
        learner.step(make_batch(99, size), rate)
    assert_close(*learners)


@pytest.fixture(scope="module")
def learner():
    return make("jax", ema_decay=0.5)


def test_a_step_that_is_not_finite_changes_nothing(learner):
    learner.step(make_batch(), 0.01)
    before = learner.state()
    broken = make_batch(1)
    broken.image[1, 2, 3, 4] = np.inf
    assert not learner.step(broken, 0.02).finite
    after = learner.state()
    assert after.pop("num_steps") == before.pop("num_steps") + 1
    np.testing.assert_equal(after, before)


def test_forward_gives_the_loss_of_each_fov_and_the_averaged_weights_are_there_during_a_block_only(learner):
    learner.step(make_batch(), 0.05)
    batch = make_batch(3, size=3)  # not a multiple of the batch size
    pom_logit, losses = learner.forward(batch)
    entropy = np.logaddexp(0, pom_logit) - batch.labels * pom_logit
    np.testing.assert_allclose(losses, (batch.loss_weight * entropy).mean((1, 2, 3)), rtol=1e-5)
    current = weights_of(learner)
    with learner.averaged():
        np.testing.assert_equal(weights_of(learner), learner.averaged_weights())
        assert np.abs(learner.forward(batch)[0] - pom_logit).max() > 1e-4
    np.testing.assert_equal(weights_of(learner), current)
    np.testing.assert_array_equal(learner.forward(batch)[0], pom_logit)


@pytest.mark.tensorflow
def test_the_average_on_the_device_has_the_bits_of_the_exchange_in_tensorflow():
    states = []
    for on_device in (True, False):
        learner = make("jax", optimizer="momentum", virtual_workers=7)
        if not on_device:
            learner._compiled_mean = learner._mean_by_tensorflow()
        for number in range(3):
            learner.step(make_batch(number, 14), 0.1)
        states.append(learner.state())
    np.testing.assert_equal(*states)


def on(device, **options):
    """Return a learner in JAX on this device alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax_learner, "devices_of", lambda *_: [device])
        return make("jax", **options)


@pytest.mark.gpu
def test_a_gpu_trains_as_the_cpu_does(gpu):
    learners = [on(device, optimizer="momentum") for device in (jax.devices("cpu")[0], gpu)]
    for number in range(5):
        losses = [learner.step(make_batch(number), 0.1).loss for learner in learners]
        assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert_close(*learners)


@pytest.mark.parametrize("factor", [1e-5, 1.0, 1e3])
def test_float16_keeps_small_and_large_gradients(factor):
    """Without a scale, entries below 6e-8 would be 0; at the largest, entries above 4 would be infinite."""
    batch = make_batch()
    batch = batch._replace(loss_weight=batch.loss_weight * np.float32(factor))
    expected, found = (
        np.asarray(make("jax", precision=precision)._differentiate(batch, np.zeros(2, np.float32))[1])
        for precision in ("float32", "float16")
    )
    assert np.abs(found - expected).max() < 0.01 * np.abs(expected).max()
    assert (found != 0).sum() >= 0.99 * (expected != 0).sum()


def test_a_gradient_that_no_scale_brings_into_range_is_not_finite():
    broken = make_batch(1)
    broken.image[1, 2, 3, 4] = np.inf
    learner = make("jax", precision="float16")
    before = weights_of(learner)
    assert not learner.step(broken, 0.02).finite
    np.testing.assert_equal(weights_of(learner), before)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_precision_learns(jax_device, precision):
    learner = on(jax_device, precision=precision)
    losses = [learner.step(make_batch(number), 0.01).loss for number in range(40)]
    assert np.mean(losses[-5:]) < 0.8 * losses[0]
    assert all(array.dtype == np.float32 for array in weights_of(learner).values())


class SecondOfTwo(ProcessGroup):
    rank, size, local_rank, local_size = 1, 2, 1, 2


@pytest.mark.parametrize(
    ("num_devices", "group", "batch_size", "expected"),
    [
        (4, ProcessGroup(), 8, [0, 1, 2, 3]),
        (4, ProcessGroup(), 6, [0, 1, 2]),
        (4, SecondOfTwo(), 8, [1, 3]),
        (1, SecondOfTwo(), 8, [0]),
        (4, ProcessGroup(), 1, [0]),
    ],
)
def test_ranks_divide_the_devices_and_each_uses_as_many_as_get_equally_many_fovs(
    monkeypatch, caplog, num_devices, group, batch_size, expected
):
    monkeypatch.setattr(jax, "local_devices", lambda: list(range(num_devices)))
    assert devices_of(group, batch_size) == expected
    is_told = num_devices == 4 and batch_size in (1, 6)
    assert ("multiple of 4" in caplog.text) == is_told


@pytest.mark.slow
def test_a_batch_that_is_too_large_for_the_device_is_refused_before_training(monkeypatch):
    class Small:
        def memory_stats(self):
            return {"bytes_limit": 10_000}

    real = jax_learner.require_memory
    monkeypatch.setattr(jax_learner, "require_memory", lambda step, devices, size: real(step, [Small()], size))
    with pytest.raises(ConfigError, match=r"train\.batch_size: 2"):
        make("jax").patches()


def losses_of_walks(learner):
    """Train on patches that stay on the devices."""
    positions, train = dict.fromkeys(range(2), 0), TrainConfig(fov_policy="fixed")
    walks, losses = LaneWalks(Source(positions, train), positions, learner.patches()), []
    for _ in range(9):
        outcome = learner.step(walks.batch(), 0.1)
        walks.proceed(outcome.answers)
        losses.append(outcome.loss)
    return losses


TWO_DEVICES = textwrap.dedent(
    """
    import sys
    sys.modules["tensorflow"] = sys.modules["keras"] = None  # as where they are not installed
    import jax, numpy as np
    from tests.unit.training.test_jax_learner import losses_of_walks, make, make_batch

    assert len(jax.devices()) == 2
    learner = make("jax", optimizer="momentum")
    losses = [learner.step(make_batch(number), 0.1).loss for number in range(5)]
    assert len(learner._held.weights.sharding.device_set) == 2
    losses += losses_of_walks(learner)
    np.savez(sys.argv[1], losses=losses, pom=learner.forward(make_batch(7, 3))[0], **learner.state())
    """
)


@pytest.mark.slow
def test_two_devices_share_a_batch_and_train_as_one_does_without_tensorflow(tmp_path):
    one, path = make("jax", optimizer="momentum"), tmp_path / "two.npz"
    losses = [one.step(make_batch(number), 0.1).loss for number in range(5)] + losses_of_walks(one)
    variables = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    subprocess.run([sys.executable, "-c", TWO_DEVICES, str(path)], check=True, env=variables)
    two = np.load(path)
    np.testing.assert_allclose(two["losses"], losses, rtol=1e-5)
    np.testing.assert_allclose(two["pom"], one.forward(make_batch(7, 3))[0], atol=1e-5)
    for name, array in one.state().items():
        np.testing.assert_allclose(two[name], array, atol=1e-5, err_msg=name)
