"""Gradients that travel in fewer bytes: what arrives, and what N processes make of it."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf

from ffn.training.config import TrainConfig
from ffn.training.parallel.compression import BUCKET, OneBit, Qsgd
from ffn.training.parallel.exchange import TAIL, make_exchange
from ffn.training.parallel.packing import WIDTHS, pack, packed_size, unpack
from ffn.training.parallel.process_group import ProcessGroup

SIZES = (27 * 2 * 5, 5, 333, 1)  # weight tensors; neither bytes nor buckets come out even
NUM_VALUES = sum(SIZES)


def gradient(seed=0, size=NUM_VALUES):
    return np.random.default_rng(seed).normal(0.1, 1, size).astype(np.float32)


def vector(seed, stop=0.0):
    return tf.constant(np.concatenate([gradient(seed), [0.5 + seed, stop]]), tf.float32)


def step(number):
    return tf.constant(number, tf.int64)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("size", [1, 7, 8, 9, 1001])
def test_packed_numbers_come_back(width, size):
    values = np.random.default_rng(size).integers(0, 2**width, size).astype(np.uint8)
    packed = pack(tf.constant(values), width)
    assert packed.shape == (packed_size(size, width),) and packed.dtype == tf.uint8
    np.testing.assert_array_equal(unpack(packed, width, size), values)


def test_one_bit_sends_signs_and_the_means_of_each_tensor():
    codec, sent = OneBit(SIZES), gradient()
    payload = codec.encode(tf.constant(sent), step(0))
    assert payload.shape == (codec.payload_size,) == (packed_size(NUM_VALUES, 1) + 8 * len(SIZES),)
    arrived = codec.decode(payload).numpy()
    for one, other in zip(*(np.split(each, np.cumsum(SIZES)[:-1]) for each in (sent, arrived)), strict=True):
        for sign in (one >= 0, one < 0):
            np.testing.assert_allclose(other[sign], one[sign].mean() if sign.any() else [], rtol=1e-5)


@pytest.mark.parametrize(("levels", "width"), [(1, 2), (7, 4), (8, 8), (127, 8)])
def test_qsgd_is_right_on_average_and_varies_no_more_than_it_may(levels, width):
    codec, sent = Qsgd(NUM_VALUES, levels, rng_seed=3), gradient()
    assert codec.payload_size == packed_size(NUM_VALUES, width) + 4 * -(-NUM_VALUES // BUCKET)
    arrived = np.stack([codec.decode(codec.encode(tf.constant(sent), step(number))) for number in range(200)])
    factor = 1 + min(BUCKET / levels**2, BUCKET**0.5 / levels)
    for bucket in (slice(0, BUCKET), slice(BUCKET, NUM_VALUES)):
        norm = np.linalg.norm(sent[bucket])
        assert (arrived[:, bucket] ** 2).sum(1).mean() <= factor * norm**2
        off = (arrived[:, bucket].mean(0) - sent[bucket]) * levels / norm  # each with a deviation of 0.5 / √200 at most
        assert np.abs(off).max() < 5 * 0.5 / 200**0.5
        assert np.abs(off.mean()) < 4 * 0.5 / (200 * len(off)) ** 0.5


def test_qsgd_draws_by_seed_and_number_of_the_message():
    def sent(seed, number):
        return Qsgd(NUM_VALUES, 7, seed).encode(tf.constant(gradient()), step(number)).numpy()

    np.testing.assert_array_equal(sent(1, 5), sent(1, 5))
    assert (sent(1, 5) != sent(1, 6)).any() and (sent(1, 5) != sent(2, 5)).any()


def test_qsgd_keeps_zeros_and_lone_entries():
    lone = np.zeros(NUM_VALUES, np.float32)
    lone[17] = -3e-10
    codec = Qsgd(NUM_VALUES, 7, 1)
    np.testing.assert_allclose(codec.decode(codec.encode(tf.constant(lone), step(0))), lone, rtol=1e-6)


@pytest.mark.parametrize("compression", ["none", "fp16", "1-bit", "qsgd"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_arrives_as_such_and_leaves_no_trace(compression, bad):
    exchange = make_exchange(TrainConfig(compression=compression), SIZES, ProcessGroup(), 1)
    exchange.mean([vector(1)], step(0))
    before = exchange.own_state()
    broken = vector(2).numpy()
    broken[300] = bad
    assert not np.isfinite(exchange.mean([tf.constant(broken)], step(1)).numpy()).all()
    np.testing.assert_equal(exchange.own_state(), before)


def test_one_bit_loses_nothing_in_the_long_run():
    exchange = make_exchange(TrainConfig(compression="1-bit"), SIZES, ProcessGroup(), 1)
    arrived = sum(exchange.mean([vector(number)], step(number)).numpy()[:-TAIL] for number in range(50))
    left = exchange.own_state()["compression_errors"][0]
    np.testing.assert_allclose(arrived + left, sum(gradient(number) for number in range(50)), atol=2e-4)
    assert np.abs(left).max() < 10


def test_half_precision_rounds_gradients_and_nothing_else():
    mean = make_exchange(TrainConfig(compression="fp16"), SIZES, ProcessGroup(), 1).mean([vector(1)], step(0)).numpy()
    np.testing.assert_array_equal(mean[:-TAIL], gradient(1).astype(np.float16))
    np.testing.assert_array_equal(mean[-TAIL:], [1.5, 0])


class Threads:
    """Processes in one: groups whose calls meet in this one."""

    def __init__(self, size):
        self.size = size
        self._barrier = threading.Barrier(size)
        self._items = [None] * size

    def meet(self, rank, item):
        self._items[rank] = item
        self._barrier.wait(60)
        items = list(self._items)
        self._barrier.wait(60)
        return items

    def run(self, action):
        with ThreadPoolExecutor(self.size) as pool:
            return list(pool.map(action, [ThreadGroup(self, rank) for rank in range(self.size)]))


class ThreadGroup(ProcessGroup):
    def __init__(self, threads, rank):
        self.rank, self.size = rank, threads.size
        self._threads = threads

    def average(self, vector):
        return tf.add_n(self._threads.meet(self.rank, vector)) / self.size

    def all_gather(self, vector):
        return tf.stack(self._threads.meet(self.rank, vector))


@pytest.mark.parametrize("compression", ["none", "fp16", "1-bit", "qsgd"])
def test_virtual_workers_send_what_as_many_processes_would(compression):
    def exchange_all(group, num_virtual):
        train = TrainConfig(compression=compression, virtual_workers=num_virtual)
        exchange = make_exchange(train, SIZES, group, rng_seed=1)
        mine = range(group.rank * num_virtual, (group.rank + 1) * num_virtual)
        means = [
            exchange.mean([vector(10 * number + worker, stop=worker == 3) for worker in mine], step(number)).numpy()
            for number in range(3)
        ]
        return means, exchange.own_state().get("compression_errors", np.zeros((0, NUM_VALUES)))

    results = {size: Threads(size).run(lambda group: exchange_all(group, 4 // group.size)) for size in (1, 2, 4)}
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


def test_bytes_are_those_of_the_payload():
    group = ThreadGroup(Threads(4), 0)

    def sent(**options):
        return make_exchange(TrainConfig(**options), SIZES, group, 1).bytes_sent

    assert sent() == sent(virtual_workers=8) == 2 * 3 * (4 * NUM_VALUES + 8) // 4
    assert sent(compression="fp16") == 2 * 3 * (2 * NUM_VALUES + 8) // 4
    assert sent(compression="1-bit", virtual_workers=2) == 3 * (2 * OneBit(SIZES).payload_size + 8)
    assert sent(compression="qsgd", qsgd_levels=7) == 3 * (Qsgd(NUM_VALUES, 7, 0).payload_size + 8)
    assert make_exchange(TrainConfig(compression="qsgd"), SIZES, ProcessGroup(), 1).bytes_sent == 0
