"""Averages the gradients of all workers: uncompressed, in half precision, or encoded.

Each worker contributes a float32 (N + TAIL,) vector: the gradient of all weights, one tensor after the other, then the
loss and two flags (stop, save), which are never compressed. A process may stand for several (virtual) workers. Each of
them encodes its own gradient, and sums have a fixed order, so the result is that of as many processes, to the bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ffn.training.config import TrainConfig
from ffn.training.parallel.compression import OneBit, Qsgd, to_bytes, to_floats
from ffn.training.parallel.process_group import ProcessGroup, whole_branches

if TYPE_CHECKING:
    import tensorflow as tf

TAIL = 3  # loss, and flags to stop and to save, at the end of every vector
TAIL_BYTES = 4 * TAIL


def make_exchange(train: TrainConfig, sizes: Sequence[int], group: ProcessGroup, rng_seed: int) -> Exchange:
    """Return the exchange for the configured compression; `sizes` are the entries of each weight tensor, in order."""
    if train.compression == "1-bit":
        return EncodedExchange(group, sum(sizes), train.virtual_workers, OneBit(sizes))
    if train.compression == "qsgd":
        codec = Qsgd(sum(sizes), train.qsgd_levels, rng_seed)
        return EncodedExchange(group, sum(sizes), train.virtual_workers, codec)
    kind = HalfExchange if train.compression == "fp16" else Exchange
    return kind(group, sum(sizes), train.virtual_workers)


class Exchange:
    """Averages the uncompressed vectors of all workers.

    A gradient has `num_values` entries, and a process stands for `num_virtual` workers.
    """

    def __init__(self, group: ProcessGroup, num_values: int, num_virtual: int) -> None:
        self._group = group
        self._num_values = num_values
        self._num_virtual = num_virtual

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
        return self._group.total(whole_branches(vectors))

    def _total_bytes(self, num_bytes: int) -> int:
        """Payload of a total of vectors of `num_bytes`, when whole branches go out and one total comes back."""
        branches = self._num_virtual // (self._num_virtual & -self._num_virtual)
        return round((branches + 1) * (self._group.size - 1) / self._group.size * num_bytes)


class HalfExchange(Exchange):
    """Averages gradients as float16, which are also added in float16.

    A sum above 65504 makes the step not finite, so it is skipped. An entry below 6e-8 becomes 0.
    """

    @property
    def bytes_sent(self) -> int:
        """Payload that this process sends per step."""
        return self._total_bytes(2 * self._num_values + TAIL_BYTES)

    def mean(self, vectors: Sequence[tf.Tensor], step: tf.Tensor) -> tf.Tensor:
        """Average over all workers of all processes, see `Exchange.mean`."""
        import tensorflow as tf

        gradient = self._total([tf.cast(vector[:-TAIL], tf.float16) for vector in vectors])
        tail = self._total([vector[-TAIL:] for vector in vectors])
        return tf.concat([tf.cast(gradient, tf.float32), tail], 0) / self.num_workers


class EncodedExchange(Exchange):
    """Averages encoded gradients. They cannot be added, so every process gets, decodes and averages all of them."""

    def __init__(self, group: ProcessGroup, num_values: int, num_virtual: int, codec: OneBit | Qsgd) -> None:
        import tensorflow as tf

        super().__init__(group, num_values, num_virtual)
        self._codec = codec
        # error feedback: the part of its gradients that each virtual worker has not sent yet
        self._errors = [tf.Variable(tf.zeros(num_values)) for _ in range(num_virtual)] if codec.keeps_error else []

    @property
    def bytes_sent(self) -> int:
        """Payload that each of N processes sends per step: its messages N - 1 times."""
        return (self._group.size - 1) * self._num_virtual * (self._codec.payload_size + TAIL_BYTES)

    def mean(self, vectors: Sequence[tf.Tensor], step: tf.Tensor) -> tf.Tensor:
        """Average over all workers of all processes, see `Exchange.mean`."""
        import tensorflow as tf

        gradients = [vector[:-TAIL] for vector in vectors]
        if self._errors:
            gradients = [gradient + error for gradient, error in zip(gradients, self._errors, strict=True)]
        first = (step * self._group.size + self._group.rank) * self._num_virtual
        payloads = [self._codec.encode(gradient, first + number) for number, gradient in enumerate(gradients)]
        mean = self._all_decoded(payloads, [vector[-TAIL:] for vector in vectors])
        if self._errors:
            self._keep_errors(gradients, payloads, tf.math.is_finite(tf.nn.l2_loss(mean)))
        return mean

    def worker_states(self) -> list[dict[str, np.ndarray]]:
        """Return the error that each worker of this process has to make up for."""
        return [{"compression_error": error.numpy()} for error in self._errors] or super().worker_states()

    def restore(self, states: Sequence[Mapping[str, np.ndarray]]) -> None:
        """Restore the result of `worker_states`; missing entries start from 0."""
        import tensorflow as tf

        for error, state in zip(self._errors, states, strict=False):  # without errors there is nothing to restore
            error.assign(state.get("compression_error", tf.zeros_like(error)))

    def _keep_errors(self, gradients: Sequence[tf.Tensor], payloads: Sequence[tf.Tensor], finite: tf.Tensor) -> None:
        """Keep the errors of the messages, but not those of a skipped step: its infinities would stay for ever."""
        import tensorflow as tf

        for error, gradient, payload in zip(self._errors, gradients, payloads, strict=True):
            error.assign(tf.where(finite, gradient - self._codec.decode(payload), error))

    def _all_decoded(self, payloads: Sequence[tf.Tensor], tails: Sequence[tf.Tensor]) -> tf.Tensor:
        """Exchange messages and tails with all processes; return the mean of all workers, added in their order."""
        import tensorflow as tf

        pairs = zip(payloads, map(to_bytes, tails), strict=True)
        received = self._group.all_gather(tf.concat([part for pair in pairs for part in pair], 0))
        messages = tf.reshape(received, (self.num_workers, self._codec.payload_size + TAIL_BYTES))
        gradient = tf.foldl(
            lambda total, message: total + self._codec.decode(message[:-TAIL_BYTES]),
            messages,
            tf.zeros(self._num_values),
            parallel_iterations=1,
        )
        all_tails = tf.reshape(to_floats(tf.reshape(messages[:, -TAIL_BYTES:], [-1])), (-1, TAIL))
        return tf.concat([gradient / self.num_workers, tf.reduce_mean(all_tails, 0)], 0)
