"""Averages the gradients of all workers.

Each worker contributes a float32 (N + TAIL,) vector: the gradient of all weights, one tensor after the other, then the
loss and two flags (stop, save), which are never compressed. A process may stand for several (virtual) workers. Each of
them encodes its own gradient, and sums have a fixed order, so the result is that of as many processes, to the bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ffn.training.parallel.process_group import ProcessGroup, pairwise_sum, whole_branches

if TYPE_CHECKING:
    import tensorflow as tf

TAIL = 3  # loss, and flags to stop and to save, at the end of every vector
TAIL_BYTES = 4 * TAIL


class Exchange:
    """Averages the uncompressed vectors of all workers.

    A gradient has `num_values` entries, and a process stands for `num_virtual` workers. Sums that are not `exact` have
    the order of the library, which depends on the number of processes.
    """

    def __init__(self, group: ProcessGroup, num_values: int, num_virtual: int, exact: bool = True) -> None:
        self._group = group
        self._num_values = num_values
        self._num_virtual = num_virtual
        self._exact = exact

    @property
    def num_workers(self) -> int:
        """Workers of all processes."""
        return self._group.size * self._num_virtual

    @property
    def bytes_sent(self) -> int:
        """Payload that this process sends per step, see `ProcessGroup.total`."""
        return self._total_bytes(4 * self._num_values + TAIL_BYTES)

    def mean(self, vectors: Sequence[tf.Tensor], step: tf.Tensor) -> tf.Tensor:
        """Average one vector of each worker, inside a graph. The result is bit-identical on all processes.

        `step` is the 0-based step of the run, an int64 Tensor.
        """
        return self._total(vectors) / self.num_workers

    def worker_states(self) -> list[dict[str, np.ndarray]]:
        """Return the state of each worker of this process, for a checkpoint."""
        return [{} for _ in range(self._num_virtual)]

    def restore(self, states: Sequence[Mapping[str, np.ndarray]]) -> None:
        """Restore the result of `worker_states`."""

    def _total(self, vectors: Sequence[tf.Tensor]) -> tf.Tensor:
        """Sum over all workers, in the type of the vectors."""
        rows = whole_branches(vectors)
        return self._group.total(rows) if self._exact else self._group.allreduce(pairwise_sum(rows))

    def _total_bytes(self, num_bytes: int) -> int:
        """Payload of a total of vectors of `num_bytes`, when whole branches go out and one total comes back."""
        branches = self._num_virtual // (self._num_virtual & -self._num_virtual) if self._exact else 1
        return round((branches + 1) * (self._group.size - 1) / self._group.size * num_bytes)
