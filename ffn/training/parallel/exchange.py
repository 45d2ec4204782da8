"""Averages the gradients of all workers: uncompressed, in half precision, or encoded.

Each worker contributes a float32 (N + TAIL,) vector: the gradient of all weights, one tensor after the other, then the
loss and the stop flag, which are never compressed. A process may stand for several (virtual) workers. Each of them
encodes its own gradient, so the result equals that of as many processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ffn.training.config import TrainConfig
from ffn.training.parallel.compression import Codec, OneBit, Qsgd, to_bytes, to_floats
from ffn.training.parallel.process_group import ProcessGroup

if TYPE_CHECKING:
    import tensorflow as tf

TAIL = 2  # loss and stop flag, at the end of every vector
TAIL_BYTES = 4 * TAIL


def make_exchange(train: TrainConfig, sizes: Sequence[int], group: ProcessGroup, rng_seed: int) -> Exchange:
    """Return the exchange for the configured compression.

    Parameters
    ----------
    train : TrainConfig
        Compression and virtual workers.
    sizes : sequence of int
        Entries of each weight tensor, in the order of the gradient.
    group : ProcessGroup
        The processes of the job.
    rng_seed : int
        Seed of the run, for randomised compression.
    """
    if train.compression == "1-bit":
        return EncodedExchange(group, sum(sizes), train.virtual_workers, OneBit(sizes))
    if train.compression == "qsgd":
        codec = Qsgd(sum(sizes), train.qsgd_levels, rng_seed)
        return EncodedExchange(group, sum(sizes), train.virtual_workers, codec)
    kind = HalfExchange if train.compression == "fp16" else Exchange
    return kind(group, sum(sizes), train.virtual_workers)


class Exchange:
    """Averages the uncompressed vectors of all workers by allreduce.

    Parameters
    ----------
    group : ProcessGroup
        The processes of the job.
    num_values : int
        Entries of a gradient.
    num_virtual : int
        Virtual workers per process.
    """

    def __init__(self, group: ProcessGroup, num_values: int, num_virtual: int) -> None:
        self._group = group
        self._num_values = num_values
        self._num_virtual = num_virtual

    @property
    def bytes_sent(self) -> int:
        """Payload that each of N processes sends per step: 2 (N - 1) / N of the vector, as in a ring allreduce."""
        return self._ring_bytes(4 * self._num_values + TAIL_BYTES)

    def mean(self, vectors: Sequence[tf.Tensor], step: tf.Tensor) -> tf.Tensor:
        """Average over all workers of all processes, inside a graph. The result is bit-identical on all processes.

        Parameters
        ----------
        vectors : sequence of float32 Tensor of shape (N + TAIL,)
            One vector for each virtual worker of this process.
        step : int64 Tensor
            0-based step of the run.

        Returns
        -------
        float32 Tensor of shape (N + TAIL,)
        """
        return self._group.average(mean_of(vectors))

    def own_state(self) -> dict[str, np.ndarray]:
        """Return the state of this process alone, for a checkpoint."""
        return {}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Restore what `own_state` returned."""

    def _ring_bytes(self, num_bytes: int) -> int:
        return round(2 * (self._group.size - 1) / self._group.size * num_bytes)


class HalfExchange(Exchange):
    """Averages gradients as float16 by allreduce, which also adds them in float16.

    Virtual workers of one process are added in float32. An entry above 65504 makes the step not finite, so it is
    skipped. An entry below 6e-8 becomes 0.
    """

    @property
    def bytes_sent(self) -> int:
        """Payload that each process sends per step, as in a ring allreduce."""
        return self._ring_bytes(2 * self._num_values + TAIL_BYTES)

    def mean(self, vectors: Sequence[tf.Tensor], step: tf.Tensor) -> tf.Tensor:
        """Average over all workers of all processes, see `Exchange.mean`."""
        import tensorflow as tf

        rounded = [tf.cast(tf.cast(vector[:-TAIL], tf.float16), tf.float32) for vector in vectors]
        gradient = self._group.average(tf.cast(mean_of(rounded), tf.float16))
        tail = self._group.average(mean_of([vector[-TAIL:] for vector in vectors]))
        return tf.concat([tf.cast(gradient, tf.float32), tail], 0)


class EncodedExchange(Exchange):
    """Averages encoded gradients. They cannot be added, so every process gets, decodes and averages all of them.

    Parameters
    ----------
    group, num_values, num_virtual : ProcessGroup, int, int
        As for `Exchange`.
    codec : Codec
        Encodes and decodes the messages.
    """

    def __init__(self, group: ProcessGroup, num_values: int, num_virtual: int, codec: Codec) -> None:
        import tensorflow as tf

        super().__init__(group, num_values, num_virtual)
        self._codec = codec
        # error feedback: the part of its gradients that each virtual worker has not sent yet
        self._errors = [tf.Variable(tf.zeros(num_values)) for _ in range(num_virtual)] if codec.keeps_error else []

    @property
    def bytes_sent(self) -> int:
        """Payload that each of N processes sends per step: its messages N - 1 times."""
        return (self._group.size - 1) * (self._num_virtual * self._codec.payload_size + TAIL_BYTES)

    def mean(self, vectors: Sequence[tf.Tensor], step: tf.Tensor) -> tf.Tensor:
        """Average over all workers of all processes, see `Exchange.mean`."""
        import tensorflow as tf

        gradients = [vector[:-TAIL] for vector in vectors]
        if self._errors:
            gradients = [gradient + error for gradient, error in zip(gradients, self._errors, strict=True)]
        first = (step * self._group.size + self._group.rank) * self._num_virtual
        payloads = [self._codec.encode(gradient, first + number) for number, gradient in enumerate(gradients)]
        mean = self._all_decoded(payloads, mean_of([vector[-TAIL:] for vector in vectors]))
        if self._errors:
            self._keep_errors(gradients, payloads, tf.math.is_finite(tf.nn.l2_loss(mean)))
        return mean

    def own_state(self) -> dict[str, np.ndarray]:
        """Return the errors of this process's workers, of shape (virtual workers, N)."""
        return {"compression_errors": np.stack([error.numpy() for error in self._errors])} if self._errors else {}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Restore what `own_state` returned."""
        for error, value in zip(self._errors, state.get("compression_errors", ()), strict=True):
            error.assign(value)

    def _keep_errors(self, gradients: Sequence[tf.Tensor], payloads: Sequence[tf.Tensor], finite: tf.Tensor) -> None:
        """Keep the errors of the messages, but not those of a skipped step: its infinities would stay for ever."""
        import tensorflow as tf

        for error, gradient, payload in zip(self._errors, gradients, payloads, strict=True):
            error.assign(tf.where(finite, gradient - self._codec.decode(payload), error))

    def _all_decoded(self, payloads: Sequence[tf.Tensor], tail: tf.Tensor) -> tf.Tensor:
        """Exchange messages and tails with all processes; return the mean of all workers."""
        import tensorflow as tf

        received = self._group.all_gather(tf.concat([*payloads, to_bytes(tail)], 0))
        num_workers = self._group.size * self._num_virtual
        gradient = tf.foldl(
            lambda total, payload: total + self._codec.decode(payload),
            tf.reshape(received[:, :-TAIL_BYTES], (num_workers, self._codec.payload_size)),
            tf.zeros(self._num_values),
            parallel_iterations=1,
        )
        tails = tf.reshape(to_floats(tf.reshape(received[:, -TAIL_BYTES:], [-1])), (-1, TAIL))
        return tf.concat([gradient / num_workers, tf.reduce_mean(tails, 0)], 0)


def mean_of(vectors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Average tensors of equal shape."""
    import tensorflow as tf

    return vectors[0] if len(vectors) == 1 else tf.add_n(list(vectors)) / len(vectors)
