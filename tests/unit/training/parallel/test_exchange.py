"""The average over all workers, with and without compression."""

import numpy as np
import pytest
import tensorflow as tf

from ffn.training.config import TrainConfig
from ffn.training.parallel.compression import OneBit, Qsgd
from ffn.training.parallel.exchange import TAIL, make_exchange
from ffn.training.parallel.process_group import ProcessGroup

SIZES = (27 * 2 * 5, 5, 333, 1)  # of weight tensors; they fill neither whole bytes nor whole buckets
NUM_VALUES = sum(SIZES)


def gradient(seed=0, size=NUM_VALUES):
    return np.random.default_rng(seed).normal(0.1, 1, size).astype(np.float32)


def step(number):
    return tf.constant(number, tf.int64)


def vector(seed, stop=0.0):
    return tf.constant(np.concatenate([gradient(seed), [0.5 + seed, stop]]), tf.float32)


@pytest.mark.parametrize("compression", ["none", "fp16", "1-bit", "qsgd"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_gradient_that_is_not_finite_stays_so_and_leaves_no_error_behind(compression, bad):
    exchange = make_exchange(TrainConfig(compression=compression), SIZES, ProcessGroup(), 1)
    exchange.mean([vector(1)], step(0))
    before = exchange.own_state()
    broken = vector(2).numpy()
    broken[300] = bad
    assert not np.isfinite(exchange.mean([tf.constant(broken)], step(1)).numpy()).all()
    np.testing.assert_equal(exchange.own_state(), before)


def test_error_feedback_loses_nothing_in_the_long_run():
    exchange = make_exchange(TrainConfig(compression="1-bit"), SIZES, ProcessGroup(), 1)
    arrived = sum(exchange.mean([vector(number)], step(number)).numpy()[:-TAIL] for number in range(50))
    left = exchange.own_state()["compression_errors"][0]
    np.testing.assert_allclose(arrived + left, sum(gradient(number) for number in range(50)), atol=2e-4)
    assert np.abs(left).max() < 10


def test_half_precision_rounds_gradients_and_nothing_else():
    mean = make_exchange(TrainConfig(compression="fp16"), SIZES, ProcessGroup(), 1).mean([vector(1)], step(0)).numpy()
    np.testing.assert_array_equal(mean[:-TAIL], gradient(1).astype(np.float16))
    np.testing.assert_array_equal(mean[-TAIL:], [1.5, 0])


@pytest.mark.parametrize("compression", ["none", "fp16", "1-bit", "qsgd"])
def test_virtual_workers_average_as_that_many_processes_do(compression, run_processes):
    def exchange_all(group, num_virtual):
        train = TrainConfig(compression=compression, virtual_workers=num_virtual)
        exchange = make_exchange(train, SIZES, group, rng_seed=1)
        mine = range(group.rank * num_virtual, (group.rank + 1) * num_virtual)
        means = [
            exchange.mean([vector(10 * number + worker, stop=worker == 3) for worker in mine], step(number)).numpy()
            for number in range(3)
        ]
        return means, exchange.own_state().get("compression_errors", np.zeros((0, NUM_VALUES)))

    results = {size: run_processes(size, lambda group: exchange_all(group, 4 // group.size)) for size in (1, 2, 4)}
    ((alone, errors),) = results[1]
    assert all(mean[-1] == 0.25 for mean in alone)
    for size in (2, 4):
        for means, _ in results[size]:
            np.testing.assert_array_equal(means, results[size][0][0])  # the same on all
        if compression in ("1-bit", "qsgd"):
            np.testing.assert_array_equal(results[size][0][0], alone)
            np.testing.assert_array_equal(np.concatenate([own for _, own in results[size]]), errors)
        rounding = 2e-3 if compression == "fp16" else 1e-6
        np.testing.assert_allclose(results[size][0][0], alone, atol=rounding)


def test_bytes_sent_are_those_of_the_payload():
    group = ProcessGroup()
    group.size = 4

    def sent(**options):
        return make_exchange(TrainConfig(**options), SIZES, group, 1).bytes_sent

    assert sent() == sent(virtual_workers=8) == 2 * 3 * (4 * NUM_VALUES + 8) // 4
    assert sent(compression="fp16") == 2 * 3 * (2 * NUM_VALUES + 8) // 4
    assert sent(compression="1-bit", virtual_workers=2) == 3 * (2 * OneBit(SIZES).payload_size + 8)
    assert sent(compression="qsgd", qsgd_levels=7) == 3 * (Qsgd(NUM_VALUES, 7, 0).payload_size + 8)
    assert make_exchange(TrainConfig(compression="qsgd"), SIZES, ProcessGroup(), 1).bytes_sent == 0
