"""The average over all workers, with and without compression, and the gradient codecs."""

import numpy as np
import pytest
import tensorflow as tf
from compressed import coded_bits

from ffn.training.config import TrainConfig
from ffn.training.parallel.compression import BUCKET, OneBit, Qsgd, packed_size
from ffn.training.parallel.exchange import TAIL
from ffn.training.parallel.process_group import ProcessGroup
from ffn.training.step import make_exchange

# Of weight tensors, which fill neither whole bytes nor whole buckets. Only the first two have a lower rank.
SHAPES = ((3, 3, 3, 2, 5), (1, 1, 4, 5), (5,), (333,), (1,))
SIZES = tuple(int(np.prod(shape)) for shape in SHAPES)
NUM_VALUES = sum(SIZES)


def gradient(seed=0, size=NUM_VALUES):
    return np.random.default_rng(seed).normal(0.1, 1, size).astype(np.float32)


def step(number):
    return tf.constant(number, tf.int64)


def vector(seed, stop=0.0):
    return tf.constant(np.concatenate([gradient(seed), [0.5 + seed, stop, 0.0]]), tf.float32)


@pytest.mark.parametrize("compression", ["1-bit", "powersgd"])
def test_error_feedback_loses_nothing_in_the_long_run(compression):
    exchange = make_exchange(TrainConfig(compression=compression), SHAPES, ProcessGroup(), 1)
    mean = tf.function(exchange.mean)
    arrived = sum(mean([vector(number)], step(number)).numpy()[:-TAIL] for number in range(50))
    left = exchange.worker_states()[0]["compression_error"]
    np.testing.assert_allclose(arrived + left, sum(gradient(number) for number in range(50)), atol=2e-4)
    assert np.abs(left).max() < 10


def test_bfloat16_keeps_small_entries_and_adds_in_float32():
    """Entries of real gradients are smaller than the normal numbers of float16; 256 + 1 is no bfloat16."""
    exchange = make_exchange(TrainConfig(compression="fp16", virtual_workers=4), SHAPES, ProcessGroup(), 1)
    small = tf.concat([vector(1)[:-TAIL] * 1e-9, vector(1)[-TAIL:]], 0)
    mean = exchange.mean([small] * 4, step(0)).numpy()
    np.testing.assert_allclose(mean[:-TAIL], small[:-TAIL], rtol=2**-8)
    np.testing.assert_array_equal(mean[-TAIL:], [1.5, 0, 0])
    mixed = tf.constant([[256.0] * NUM_VALUES] + [[1.0] * NUM_VALUES] * 3)
    mean = exchange.mean([tf.concat([row, [0.0] * TAIL], 0) for row in mixed], step(0)).numpy()
    np.testing.assert_array_equal(mean[:-TAIL], 260 / 4)  # 259 rounded; pairs added in bfloat16 make 258


@pytest.mark.parametrize("compression", ["none", "bfloat16", "1-bit", "qsgd", "powersgd"])
def test_virtual_workers_average_to_the_bit_as_that_many_processes_do(compression, run_processes):
    def exchange_all(group):
        train = TrainConfig(compression=compression, virtual_workers=12 // group.size)
        exchange = make_exchange(train, SHAPES, group, rng_seed=1)
        mine = range(group.rank * train.virtual_workers, (group.rank + 1) * train.virtual_workers)
        means = [
            exchange.mean([vector(10 * number + worker, stop=worker == 3) for worker in mine], step(number)).numpy()
            for number in range(3)
        ]
        return means, exchange.worker_states()

    ((alone, states),) = run_processes(1, exchange_all)
    expected = np.mean([vector(worker, stop=worker == 3) for worker in range(12)], axis=0)
    if compression in ("none", "bfloat16"):
        np.testing.assert_allclose(alone[0], expected, atol=2e-2 if compression == "bfloat16" else 1e-6)
    # sums of numbers have branches, which processes may cut (see test_process_group); messages are added one by one
    for size in (3, 4) if compression not in ("1-bit", "qsgd") else (3,):
        results = run_processes(size, exchange_all)
        for means, _ in results:
            np.testing.assert_array_equal(means, alone)
        np.testing.assert_equal([state for _, own in results for state in own], states)


def test_a_gradient_of_low_rank_arrives_whole_and_its_basis_is_kept():
    """The mean of two workers has rank 2; the next exchange starts from what was found."""
    exchange = make_exchange(TrainConfig(compression="powersgd", virtual_workers=2), SHAPES, ProcessGroup(), 1)
    rng, vectors = np.random.default_rng(0), [vector(worker).numpy() for worker in range(2)]
    for own in vectors:
        own[: SIZES[0]] = np.outer(rng.normal(size=54), rng.normal(size=5)).ravel()
        own[SIZES[0] : sum(SIZES[:2])] = np.outer(rng.normal(size=4), rng.normal(size=5)).ravel()
    before = exchange.worker_states()[0]["compression_basis"]
    mean = exchange.mean([tf.constant(own) for own in vectors], step(0)).numpy()
    np.testing.assert_allclose(mean, np.mean(vectors, axis=0), atol=1e-5)
    assert np.abs(exchange.worker_states()[1]["compression_error"]).max() < 1e-5
    assert np.abs(exchange.worker_states()[0]["compression_basis"] - before).max() > 0.1


def test_powersgd_sends_a_network_of_two_features_as_it_is():
    shapes = ((3, 3, 3, 2, 2), (2,))
    train = TrainConfig(compression="powersgd", virtual_workers=2)
    exchange = make_exchange(train, shapes, ProcessGroup(), 1)
    vectors = [np.arange(110 + TAIL, dtype=np.float32) * worker for worker in (1, 2)]
    mean = exchange.mean([tf.constant(own) for own in vectors], step(0)).numpy()
    np.testing.assert_allclose(mean, np.mean(vectors, axis=0), rtol=1e-6)
    exchange.restore(exchange.worker_states())


def test_powersgd_sends_two_thin_matrices_of_each_kernel():
    group = ProcessGroup()
    group.size = 4
    exchange = make_exchange(TrainConfig(compression="powersgd"), SHAPES, group, 1)
    assert exchange.bytes_sent == 2 * 3 / 4 * 4 * (2 * (54 + 5) + 2 * (4 + 5) + sum(SIZES[2:]) + TAIL)


def test_sums_that_need_not_be_exact_are_one_allreduce():
    """Of a single vector for all workers of the process, here of the first of four processes that send the same."""
    group = ProcessGroup()
    group.size, group.allreduce = 4, lambda vector: 4 * vector
    exchange = make_exchange(TrainConfig(virtual_workers=3, exact_sums=False), SHAPES, group, 1)
    mean = exchange.mean([vector(worker) for worker in range(3)], step(0)).numpy()
    np.testing.assert_allclose(mean, np.mean([vector(worker) for worker in range(3)], axis=0), atol=1e-6)
    assert exchange.bytes_sent == 2 * 3 / 4 * 4 * (NUM_VALUES + TAIL)


def test_one_bit_sends_signs_and_the_means_of_each_tensor():
    codec, sent = OneBit(SIZES), gradient()
    payload = codec.encode(tf.constant(sent), step(0))
    assert payload.shape == (codec.payload_size,) == (packed_size(NUM_VALUES, 1) + 8 * len(SIZES),)
    arrived = codec.decode(payload).numpy()
    for one, other in zip(*(np.split(each, np.cumsum(SIZES)[:-1]) for each in (sent, arrived)), strict=True):
        for sign in (one >= 0, one < 0):
            np.testing.assert_allclose(other[sign], one[sign].mean() if sign.any() else [], rtol=1e-5)


@pytest.mark.parametrize(("levels", "width"), [(1, 2), (7, 4), (8, 8), (127, 8)])
def test_qsgd_is_unbiased_and_its_variance_is_bounded(levels, width):
    codec, sent = Qsgd(NUM_VALUES, levels, rng_seed=3), gradient()
    assert codec.payload_size == packed_size(NUM_VALUES, width) + 4 * -(-NUM_VALUES // BUCKET)
    pass_on = tf.function(lambda number: codec.decode(codec.encode(tf.constant(sent), number)))
    arrived = np.stack([pass_on(step(number)) for number in range(200)])
    factor = 1 + min(BUCKET / levels**2, BUCKET**0.5 / levels)
    for bucket in (slice(0, BUCKET), slice(BUCKET, NUM_VALUES)):
        norm = np.linalg.norm(sent[bucket])
        assert (arrived[:, bucket] ** 2).sum(1).mean() <= factor * norm**2
        off = (
            (arrived[:, bucket].mean(0) - sent[bucket]) * levels / norm
        )  # standard deviation of each: at most 0.5 / √200
        assert np.abs(off).max() < 5 * 0.5 / 200**0.5
        assert np.abs(off.mean()) < 4 * 0.5 / (200 * len(off)) ** 0.5


def test_qsgd_with_one_level_is_sparse_and_its_code_is_short():
    """At most √n of n entries are expected, and √n (log₂ n + log₂ 2e) bits besides the norm."""
    codec = Qsgd(4 * BUCKET, 1, rng_seed=3)
    encode = tf.function(codec.encode)
    for seed, sent in ((1, np.ones(4 * BUCKET, np.float32)), (2, gradient(2, 4 * BUCKET) ** 5)):
        payloads = [encode(tf.constant(sent), step(100 * seed + number)) for number in range(50)]
        counts = [np.count_nonzero(codec.decode(payload)) / 4 for payload in payloads]
        assert np.mean(counts) <= BUCKET**0.5 + 5 * BUCKET**0.25 / 200**0.5  # and five standard deviations
        bits = np.mean([coded_bits(codec.levels(payload).numpy(), 1) for payload in payloads]) / 4
        assert bits < BUCKET**0.5 * np.log2(2 * np.e * BUCKET) + 32 < 8 * codec.payload_size / 4
    assert np.mean(counts) < 0.5 * BUCKET**0.5  # of few large entries


def test_the_code_of_qsgd_has_gaps_levels_and_signs():
    codec = Qsgd(BUCKET, 2, rng_seed=3)
    sent = np.zeros(BUCKET, np.float32)
    sent[[0, 10]] = 3, -4  # levels 1 or 2, and 2: gaps of 1 and 10
    levels = codec.levels(codec.encode(tf.constant(sent), step(0))).numpy()
    assert coded_bits(levels, 2) - 32 - 2 - 1 - 7 in (1 + 3, 3 + 3)


def test_qsgd_depends_on_the_seed_and_the_number_of_the_message():
    def sent(seed, number):
        return Qsgd(NUM_VALUES, 7, seed).encode(tf.constant(gradient()), step(number)).numpy()

    np.testing.assert_array_equal(sent(1, 5), sent(1, 5))
    assert (sent(1, 5) != sent(1, 6)).any() and (sent(1, 5) != sent(2, 5)).any()
