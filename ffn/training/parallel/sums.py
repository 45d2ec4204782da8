"""Sums over all workers with the same bits however the workers are shared out among processes.

Neighbouring workers are added, then neighbouring sums, and so on; the last one of an odd number waits for the next
round. A process has a run of neighbouring workers, so it can add whole branches of this tree before it sends anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tensorflow as tf


def pairwise_sum(rows: tf.Tensor) -> tf.Tensor:
    """Sum the rows of a (K, N) tensor pairwise.

    Returns
    -------
    Tensor of shape (N,)
    """
    import tensorflow as tf

    while (count := rows.shape[0]) > 1:
        even = count - count % 2
        rows = tf.concat([rows[:even:2] + rows[1:even:2], rows[even:]], 0)
    return rows[0]


def whole_branches(vectors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Sum the vectors of a process's workers as far as they fill branches of the tree over all workers.

    Parameters
    ----------
    vectors : sequence of Tensor of shape (N,)
        One vector for each worker. Every process has equally many.

    Returns
    -------
    Tensor of shape (K, N)
        K is the odd part of the number of vectors: a power of two leaves a single row.
    """
    import tensorflow as tf

    rows = tf.stack(list(vectors))
    while rows.shape[0] % 2 == 0:
        rows = rows[::2] + rows[1::2]
    return rows
