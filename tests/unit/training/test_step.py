"""One step of training: its effects, averages, and state for a checkpoint."""

import numpy as np
import pytest

from ffn.config import ModelConfig
from ffn.training.config import TrainConfig
from ffn.training.parallel.process_group import ProcessGroup
from ffn.training.plan import initial_weights
from ffn.training.step import Batch, model_weights
from ffn.training.tensorflow_learner import TensorFlowLearner

from .conftest import make_batch, weights_of

MODEL = ModelConfig(depth=1, features=4, fov_size_zyx=(3, 5, 7), deltas_zyx=(1, 2, 3))
FOV = MODEL.fov_size_zyx


def make_learner(seed=1, model=MODEL, **options):
    options = {"batch_size": 2, **options}
    train = TrainConfig(**{"precision": "float32", **options})
    return TensorFlowLearner(model, train, initial_weights(model, seed), ProcessGroup(), rng_seed=5)


def flat(weights):
    return np.concatenate([weight.ravel() for weight in weights.values()])


@pytest.fixture(scope="module")
def learner():
    return make_learner()


def test_the_loss_is_weighted_by_voxel(learner):
    batch = make_batch(size=3)
    batch.loss_weight[1, :, :2] = 0
    batch.loss_weight[2] = 0.5
    pom_logit, losses = learner.forward(batch)  # more than one microbatch, and not a multiple of it
    entropy = np.logaddexp(0, pom_logit) - batch.labels * pom_logit
    np.testing.assert_allclose(losses, (batch.loss_weight * entropy).mean((1, 2, 3)), rtol=1e-5)
    first_two = Batch(*(field[:2] for field in batch))
    assert learner.step(first_two, 0.0).loss == pytest.approx(losses[:2].mean(), rel=1e-5)


@pytest.mark.parametrize("compression", ["none", "1-bit", "qsgd", "powersgd"])
def test_a_step_that_is_not_finite_changes_nothing(compression):
    learner = make_learner(compression=compression, ema_decay=0.9)
    learner.step(make_batch(), 0.01)
    state, own = learner.state(), learner.worker_states()
    broken = make_batch(1)
    broken.image[1, 2, 3, 4] = np.inf
    assert not learner.step(broken, 0.02).finite
    after = learner.state()
    assert after.pop("num_steps") == state.pop("num_steps") + 1  # the number of the next message, for random rounding
    np.testing.assert_equal((after, learner.worker_states()), (state, own))


def test_entries_of_the_averaged_gradient_are_clipped():
    start, limit, moved = flat(initial_weights(MODEL, 1)), 1e-3, {}
    for name, options in {"whole": {}, "clipped": {"clip_entries": limit}}.items():
        learner = make_learner(optimizer="sgd", **options)
        norm = learner.step(make_batch(), 1.0).gradient_norm
        moved[name] = flat(weights_of(learner)) - start
    assert norm == pytest.approx(np.linalg.norm(moved["whole"]), rel=1e-3)  # as it was before clipping
    assert 0 < (np.abs(moved["whole"]) > limit).mean() < 1
    np.testing.assert_allclose(moved["clipped"], np.clip(moved["whole"], -limit, limit), atol=1e-6)


def test_averaged_weights_follow_every_step():
    learner, decay = make_learner(ema_decay=0.5), 0.5
    average = flat(learner.averaged_weights())
    np.testing.assert_array_equal(average, flat(initial_weights(MODEL, 1)))
    for number in range(1, 12):
        learner.step(make_batch(number), 0.01)
        now = min(decay, (1 + number) / (10 + number))
        average = now * average + (1 - now) * flat(weights_of(learner))
    np.testing.assert_allclose(flat(learner.averaged_weights()), average, rtol=1e-4, atol=1e-6)
    np.testing.assert_equal(model_weights(learner.state()), learner.averaged_weights())


@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": "adamw", "weight_decay": 0.01, "ema_decay": 0.9},
        {"compression": "1-bit", "virtual_workers": 2, "batch_size": 1},
        pytest.param({"compression": "qsgd", "virtual_workers": 2, "batch_size": 1}, marks=pytest.mark.slow),
        pytest.param({"compression": "powersgd", "virtual_workers": 2, "batch_size": 1}, marks=pytest.mark.slow),
    ],
)
def test_a_restored_learner_continues_bit_identically(options):
    learner = make_learner(**options)
    for number in range(3):
        learner.step(make_batch(number), 0.02)
    state, own = learner.state(), learner.worker_states()
    other = make_learner(seed=2, **options)
    other.restore(state, own)
    outcomes = [[each.step(make_batch(number), 0.02).answers for number in range(3, 6)] for each in (learner, other)]
    np.testing.assert_array_equal(*outcomes)
    np.testing.assert_equal((other.state(), other.worker_states()), (learner.state(), learner.worker_states()))


def test_one_worker_that_asks_stops_and_saves_for_all():
    learner = make_learner(virtual_workers=2, batch_size=1)
    asks, quiet = (learner.differentiate(make_batch(), *wishes)[1] for wishes in ((True, True), (False, False)))
    for vectors, asked in (([asks[0], quiet[1]], True), (quiet, False)):
        outcome = learner.update(vectors, 0.01)
        assert (outcome.stop, outcome.save) == (asked, asked)


def test_half_precision_learns():
    learner = make_learner(precision="bfloat16", ema_decay=0.9)
    losses = [learner.step(make_batch(number), 0.01).loss for number in range(60)]
    assert np.mean(losses[-5:]) < 0.8 * losses[0]
