"""Gradient codecs: the decoded values, their bias and variance; packed numbers."""

import numpy as np
import pytest
import tensorflow as tf

from ffn.training.parallel.exchange import BUCKET, WIDTHS, OneBit, Qsgd, pack, packed_size, unpack

SIZES = (27 * 2 * 5, 5, 333, 1)  # of weight tensors; they fill neither whole bytes nor whole buckets
NUM_VALUES = sum(SIZES)


def gradient(seed=0, size=NUM_VALUES):
    return np.random.default_rng(seed).normal(0.1, 1, size).astype(np.float32)


def step(number):
    return tf.constant(number, tf.int64)


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
    arrived = np.stack([codec.decode(codec.encode(tf.constant(sent), step(number))) for number in range(200)])
    factor = 1 + min(BUCKET / levels**2, BUCKET**0.5 / levels)
    for bucket in (slice(0, BUCKET), slice(BUCKET, NUM_VALUES)):
        norm = np.linalg.norm(sent[bucket])
        assert (arrived[:, bucket] ** 2).sum(1).mean() <= factor * norm**2
        off = (
            (arrived[:, bucket].mean(0) - sent[bucket]) * levels / norm
        )  # standard deviation of each: at most 0.5 / √200
        assert np.abs(off).max() < 5 * 0.5 / 200**0.5
        assert np.abs(off.mean()) < 4 * 0.5 / (200 * len(off)) ** 0.5


def test_qsgd_depends_on_the_seed_and_the_number_of_the_message():
    def sent(seed, number):
        return Qsgd(NUM_VALUES, 7, seed).encode(tf.constant(gradient()), step(number)).numpy()

    np.testing.assert_array_equal(sent(1, 5), sent(1, 5))
    assert (sent(1, 5) != sent(1, 6)).any() and (sent(1, 5) != sent(2, 5)).any()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("size", [1, 7, 8, 9, 1001])
def test_packed_numbers_come_back(width, size):
    values = np.random.default_rng(size).integers(0, 2**width, size).astype(np.uint8)
    packed = pack(tf.constant(values), width)
    assert packed.shape == (packed_size(size, width),) and packed.dtype == tf.uint8
    np.testing.assert_array_equal(unpack(packed, width, size), values)
