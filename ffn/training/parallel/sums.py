"""Sums over all workers with the same bits however the workers are shared out among processes.

Neighbouring workers are added, then neighbouring sums, and so on; the last one of an odd number waits for the next
round. A process has a run of neighbouring workers, so it can add whole branches of this tree before it sends anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tensorflow as tf


def pairwise_sum(rows: Any) -> Any:
    """Sum the rows of a (K, N) array of any library pairwise.

    Returns
    -------
    array of shape (N,)

    Examples
    --------
    >>> import numpy as np
    >>> pairwise_sum(np.arange(14).reshape(7, 2)).tolist()
    [42, 49]
    """
    whole = 1 << (rows.shape[0].bit_length() - 1)  # the largest branch of the tree
    rows, rest = rows[:whole], rows[whole:]
    while rows.shape[0] > 1:
        rows = rows[::2] + rows[1::2]
    return rows[0] + pairwise_sum(rest) if rest.shape[0] else rows[0]


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
