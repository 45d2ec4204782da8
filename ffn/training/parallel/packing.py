"""Packs small integers into bytes, inside TensorFlow graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tensorflow as tf

WIDTHS = (1, 2, 4, 8)  # bits per number; they divide a byte, so no number crosses two bytes


def width_for(num_symbols: int) -> int:
    """Return the bits for a number below `num_symbols`, which is at most 256.

    Examples
    --------
    >>> [width_for(n) for n in (2, 3, 15, 255)]
    [1, 2, 4, 8]
    """
    return next(width for width in WIDTHS if num_symbols <= 2**width)


def packed_size(num_values: int, width: int) -> int:
    """Return the bytes for `num_values` numbers of `width` bits.

    Examples
    --------
    >>> packed_size(9, 1), packed_size(9, 4), packed_size(9, 8)
    (2, 5, 9)
    """
    return -(-num_values * width // 8)


def pack(values: tf.Tensor, width: int) -> tf.Tensor:
    """Pack numbers into bytes.

    Parameters
    ----------
    values : uint8 Tensor of shape (N,)
        Numbers below 2 ** `width`.
    width : {1, 2, 4, 8}
        Bits per number.

    Returns
    -------
    uint8 Tensor of shape (packed_size(N, width),)
        The k-th bits of all bytes hold the k-th part of the numbers. This way whole rows are shifted, which is fast.
    """
    import tensorflow as tf

    num_bytes, num_parts = packed_size(int(values.shape[0]), width), 8 // width
    padded = tf.pad(values, [[0, num_bytes * num_parts - int(values.shape[0])]])
    parts = tf.unstack(tf.reshape(padded, (num_parts, num_bytes)))
    packed = parts[0]
    for number, part in enumerate(parts[1:], 1):
        packed = tf.bitwise.bitwise_or(packed, tf.bitwise.left_shift(part, tf.constant(number * width, tf.uint8)))
    return packed


def unpack(packed: tf.Tensor, width: int, num_values: int) -> tf.Tensor:
    """Return the `num_values` uint8 numbers that `pack` packed."""
    import tensorflow as tf

    mask = tf.constant(2**width - 1, tf.uint8)
    shifts = [tf.constant(number * width, tf.uint8) for number in range(8 // width)]
    parts = [tf.bitwise.bitwise_and(tf.bitwise.right_shift(packed, shift), mask) for shift in shifts]
    return tf.concat(parts, 0)[:num_values]
