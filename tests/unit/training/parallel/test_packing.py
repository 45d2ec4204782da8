"""Packed numbers come back unchanged."""

import numpy as np
import pytest
import tensorflow as tf

from ffn.training.parallel.packing import WIDTHS, pack, packed_size, unpack


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("size", [1, 7, 8, 9, 1001])
def test_packed_numbers_come_back(width, size):
    values = np.random.default_rng(size).integers(0, 2**width, size).astype(np.uint8)
    packed = pack(tf.constant(values), width)
    assert packed.shape == (packed_size(size, width),) and packed.dtype == tf.uint8
    np.testing.assert_array_equal(unpack(packed, width, size), values)
