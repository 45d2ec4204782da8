"""Averages in half precision, encoded or of low rank, and the codecs: from float32 entries to bytes and back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from ffn.training.parallel.exchange import TAIL, TAIL_BYTES, Exchange
from ffn.training.parallel.process_group import ProcessGroup

BUCKET = 512  # entries that share a norm in QSGD, as in its paper's experiments; one norm per layer is too coarse
RANK = 2  # of what PowerSGD sends of a kernel; in its paper, 1 and 2 reached the accuracy of whole gradients
WIDTHS = (1, 2, 4, 8)  # bits per packed number; they divide a byte, so no number crosses two bytes


class HalfExchange(Exchange):
    """Averages gradients that are sent as bfloat16, the upper 16 bits of float32, and added in float32.

    float16 would not do: after 60 steps of a training, 81 % of the entries are smaller than its normal numbers.
    """

    @property
    def bytes_sent(self) -> int:
        """Payload that this process sends per step."""
        rows = self._num_virtual + 1  # each worker's goes out, rounded on its own, and the total comes back
        return round(rows * (self._group.size - 1) / self._group.size * 2 * self._num_values) + self._total_bytes(
            TAIL_BYTES
        )

    def mean(self, vectors: Sequence[tf.Tensor], step: tf.Tensor) -> tf.Tensor:
        """Average over all workers of all processes, see `Exchange.mean`."""
        gradient = self._group.total(tf.stack([tf.cast(vector[:-TAIL], tf.bfloat16) for vector in vectors]))
        tail = self._total([vector[-TAIL:] for vector in vectors])
        return tf.concat([tf.cast(gradient, tf.float32), tail], 0) / self.num_workers


class FeedbackExchange(Exchange):
    """Averages gradients to which each (virtual) worker adds its error, the part that it has not sent yet."""

    def __init__(self, group: ProcessGroup, num_values: int, num_virtual: int, exact: bool = True) -> None:
        super().__init__(group, num_values, num_virtual, exact)
        self._errors = [tf.Variable(tf.zeros(num_values)) for _ in range(num_virtual)]

    def worker_states(self) -> list[dict[str, np.ndarray]]:
        """Return the error that each worker of this process has to make up for."""
        return [{"compression_error": error.numpy()} for error in self._errors] or super().worker_states()

    def restore(self, states: Sequence[Mapping[str, np.ndarray]]) -> None:
        """Restore the result of `worker_states`; missing entries start from 0."""
        for error, state in zip(self._errors, states, strict=False):  # without errors there is nothing to restore
            error.assign(state.get("compression_error", tf.zeros_like(error)))

    def _gradients(self, vectors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return what each worker has to send."""
        gradients = [vector[:-TAIL] for vector in vectors]
        return [gradient + error for gradient, error in zip(gradients, self._errors, strict=True)]

    def _keep_errors(self, gradients: Sequence[tf.Tensor], sent: Sequence[tf.Tensor], mean: tf.Tensor) -> tf.Tensor:
        """Keep the errors, unless the step is skipped: its infinities would stay. Return whether it is made."""
        finite = tf.math.is_finite(tf.nn.l2_loss(mean))
        for kept, gradient, own in zip(self._errors, gradients, sent, strict=True):
            kept.assign(tf.where(finite, gradient - own, kept))
        return finite


class EncodedExchange(FeedbackExchange):
    """Averages encoded gradients. They cannot be added, so every process gets, decodes and averages all of them."""

    def __init__(self, group: ProcessGroup, num_values: int, num_virtual: int, codec: OneBit | Qsgd) -> None:
        super().__init__(group, num_values, num_virtual)
        self._codec = codec
        if not codec.keeps_error:
            self._errors = []

    @property
    def bytes_sent(self) -> int:
        """Payload that each of N processes sends per step: its messages N - 1 times."""
        return (self._group.size - 1) * self._num_virtual * (self._codec.payload_size + TAIL_BYTES)

    def mean(self, vectors: Sequence[tf.Tensor], step: tf.Tensor) -> tf.Tensor:
        """Average over all workers of all processes, see `Exchange.mean`."""
        gradients = self._gradients(vectors) if self._errors else [vector[:-TAIL] for vector in vectors]
        first = (step * self._group.size + self._group.rank) * self._num_virtual
        payloads = [self._codec.encode(gradient, first + number) for number, gradient in enumerate(gradients)]
        mean = self._all_decoded(payloads, [vector[-TAIL:] for vector in vectors])
        if self._errors:
            self._keep_errors(gradients, list(map(self._codec.decode, payloads)), mean)
        return mean

    def _all_decoded(self, payloads: Sequence[tf.Tensor], tails: Sequence[tf.Tensor]) -> tf.Tensor:
        """Exchange messages and tails with all processes; return the mean of all workers, added in their order."""
        pairs = zip(payloads, map(to_bytes, tails), strict=True)
        received = self._group.concatenate(tf.concat([part for pair in pairs for part in pair], 0))
        messages = tf.reshape(received, (self.num_workers, self._codec.payload_size + TAIL_BYTES))
        gradient = tf.foldl(
            lambda total, message: total + self._codec.decode(message[:-TAIL_BYTES]),
            messages,
            tf.zeros(self._num_values),
            parallel_iterations=1,
        )
        all_tails = tf.reshape(to_floats(tf.reshape(messages[:, -TAIL_BYTES:], [-1])), (-1, TAIL))
        return tf.concat([gradient / self.num_workers, tf.reduce_mean(all_tails, 0)], 0)


class LowRankExchange(FeedbackExchange):
    """Averages each kernel as a product of two thin matrices, which can be added, so messages do not grow with workers.

    A kernel M has a row for each of its inputs and a column for each feature. All processes have the same Q of `rank`
    columns. The sum of all M Q has an orthonormal basis P, the mean of all Mᵀ P is the next Q, and P Qᵀ the average.
    Biases are sent as they are, and so is a kernel that would become no smaller.

    Notes
    -----
    Source: Vogels et al. 2019, PowerSGD. It converges only with error feedback.
    """

    def __init__(self, group: ProcessGroup, shapes: Sequence[tuple[int, ...]], num_virtual: int, exact: bool) -> None:
        self._sizes = [math.prod(shape) for shape in shapes]
        super().__init__(group, sum(self._sizes), num_virtual, exact)
        forms = {i: (self._sizes[i] // shape[-1], shape[-1]) for i, shape in enumerate(shapes)}
        self._forms = {i: form for i, form in forms.items() if RANK * sum(form) < math.prod(form)}
        self._columns = [columns * RANK for _, columns in self._forms.values()]
        thin = {i: rows * RANK for i, (rows, _) in self._forms.items()}
        self._first_sizes = [thin.get(i, size) for i, size in enumerate(self._sizes)] + [TAIL]
        start = np.random.default_rng(0).normal(size=sum(self._columns))
        self._basis = tf.Variable(start.astype(np.float32))

    @property
    def bytes_sent(self) -> int:
        """Payload that this process sends per step, in two sums."""
        return self._total_bytes(4 * sum(self._first_sizes)) + self._total_bytes(4 * sum(self._columns))

    def mean(self, vectors: Sequence[tf.Tensor], step: tf.Tensor) -> tf.Tensor:
        """Average over all workers of all processes, see `Exchange.mean`."""
        if not self._forms:
            return Exchange.mean(self, vectors, step)
        gradients = self._gradients(vectors)
        tensors = [self._tensors(gradient) for gradient in gradients]
        bases = self._bases(self._basis)
        images = [
            _flat([*(part @ bases[i] if i in bases else part for i, part in enumerate(parts)), vector[-TAIL:]])
            for parts, vector in zip(tensors, vectors, strict=True)
        ]
        *averages, tail = tf.split(self._total(images) / self.num_workers, self._first_sizes)
        orthonormal = {i: tf.linalg.qr(tf.reshape(averages[i], (-1, RANK))).q for i in bases}
        answers = [_flat([tf.transpose(parts[i]) @ orthonormal[i] for i in bases]) for parts in tensors]
        basis = self._total(answers) / self.num_workers
        mean = self._product(orthonormal, basis, averages)
        sent = [self._product(orthonormal, *both) for both in zip(answers, tensors, strict=True)]
        finite = self._keep_errors(gradients, sent, mean)
        self._basis.assign(tf.where(finite, basis, self._basis))
        return tf.concat([mean, tail], 0)

    def worker_states(self) -> list[dict[str, np.ndarray]]:
        """Return the error that each worker of this process has to make up for, and the Q of all."""
        return [{**state, "compression_basis": self._basis.numpy()} for state in super().worker_states()]

    def restore(self, states: Sequence[Mapping[str, np.ndarray]]) -> None:
        """Restore the result of `worker_states`; missing errors start from 0, a missing Q stays as it is."""
        super().restore(states)
        self._basis.assign(states[0].get("compression_basis", self._basis))

    def _tensors(self, gradient: tf.Tensor) -> list[tf.Tensor]:
        """Return the kernels as matrices, and the rest as vectors."""
        return [tf.reshape(part, self._forms.get(i, (-1,))) for i, part in enumerate(tf.split(gradient, self._sizes))]

    def _bases(self, basis: tf.Tensor) -> dict[int, tf.Tensor]:
        """Return the thin matrices of the kernels, by the numbers of their tensors."""
        parts = tf.split(basis, self._columns)
        return {i: tf.reshape(part, (-1, RANK)) for i, part in zip(self._forms, parts, strict=True)}

    def _product(self, orthonormal: Mapping[int, tf.Tensor], basis: tf.Tensor, rest: Sequence[tf.Tensor]) -> tf.Tensor:
        """Return a gradient: products of thin matrices, and tensors that are sent as they are."""
        products = {i: orthonormal[i] @ tf.transpose(other) for i, other in self._bases(basis).items()}
        return _flat([products.get(i, part) for i, part in enumerate(rest)])


class OneBit:
    """Sends the sign of every entry, and the means of the positive and the negative entries of each weight tensor.

    Notes
    -----
    Source: Seide et al. 2014, 1-bit SGD. It converges only with error feedback. Zeros count as positive.
    """

    keeps_error = True

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = list(sizes)
        self._num_sign_bytes = packed_size(sum(sizes), 1)
        self.payload_size = self._num_sign_bytes + 2 * 4 * len(sizes)

    def encode(self, gradient: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
        """Encode a float32 (N,) gradient; `number` of the message is unique in the run."""
        positive = gradient >= 0
        means = [_means(*parts) for parts in zip(self._split(gradient), self._split(positive), strict=True)]
        return tf.concat([pack(tf.cast(positive, tf.uint8), 1), to_bytes(tf.concat(means, 0))], 0)

    def decode(self, payload: tf.Tensor) -> tf.Tensor:
        """Decode a message; the result is not finite if the encoded gradient was not."""
        signs = unpack(payload[: self._num_sign_bytes], 1, sum(self._sizes))
        means = tf.unstack(tf.reshape(to_floats(payload[self._num_sign_bytes :]), (len(self._sizes), 2)))
        parts = zip(self._split(tf.cast(signs, tf.bool)), means, strict=True)
        return tf.concat([tf.where(positive, mean[0], mean[1]) for positive, mean in parts], 0)

    def _split(self, vector: tf.Tensor) -> list[tf.Tensor]:
        return tf.split(vector, self._sizes)


class Qsgd:
    """Sends sign and level of every entry, relative to the norm of its bucket, with unbiased random rounding.

    An entry of relative size a becomes one of the two levels around a · s. The expected level is a · s.

    Parameters
    ----------
    num_values : int
        Entries of a gradient.
    num_levels : int
        Levels s above 0, at most 127. An entry takes 2 bits (1 level), 4 bits (up to 7) or 8 bits.
    rng_seed : int
        Seed of the run.

    Notes
    -----
    Source: Alistarh et al. 2017, QSGD. A bucket is a run of `BUCKET` entries of the whole gradient, across layers. The
    second moment is at most 1 + min(n / s², √n / s) times the squared norm, where n is the size of a bucket.
    """

    keeps_error = False

    def __init__(self, num_values: int, num_levels: int, rng_seed: int) -> None:
        self._num_values = num_values
        self.num_levels = num_levels
        self._rng_seed = rng_seed % 2**63
        self._width = next(width for width in WIDTHS if 2 * num_levels + 1 <= 2**width)
        self._num_buckets = -(-num_values // BUCKET)
        self._num_code_bytes = packed_size(num_values, self._width)
        self.payload_size = self._num_code_bytes + 4 * self._num_buckets

    def encode(self, gradient: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
        """Encode a float32 (N,) gradient; `number` of the message is unique in the run."""
        buckets = self._bucketed(gradient)
        norms = tf.norm(buckets, axis=1)
        scaled = tf.abs(buckets) * tf.math.divide_no_nan(float(self.num_levels), norms)[:, None]
        chance = tf.random.stateless_uniform(buckets.shape, tf.stack([tf.constant(self._rng_seed, tf.int64), number]))
        # rounding can push the only entry of a bucket beyond the last level
        level = tf.minimum(tf.floor(scaled + chance), self.num_levels) * tf.sign(buckets)
        codes = tf.cast(level + self.num_levels, tf.uint8)
        return tf.concat([pack(tf.reshape(codes, [-1])[: self._num_values], self._width), to_bytes(norms)], 0)

    def levels(self, payload: tf.Tensor) -> tf.Tensor:
        """Return the level of each entry in a message, with its sign, float32 (N,)."""
        codes = unpack(payload[: self._num_code_bytes], self._width, self._num_values)
        return tf.cast(codes, tf.float32) - self.num_levels

    def decode(self, payload: tf.Tensor) -> tf.Tensor:
        """Decode a message; the result is not finite if the encoded gradient was not."""
        levels = self._bucketed(self.levels(payload))
        norms = to_floats(payload[self._num_code_bytes :])
        return tf.reshape(levels * (norms / self.num_levels)[:, None], [-1])[: self._num_values]

    def _bucketed(self, vector: tf.Tensor) -> tf.Tensor:
        """Reshape a vector to buckets; zeros pad the last one."""
        return tf.reshape(tf.pad(vector, [[0, self._num_buckets * BUCKET - self._num_values]]), (-1, BUCKET))


def _flat(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Lay tensors end to end."""
    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)


def _means(entries: tf.Tensor, positive: tf.Tensor) -> tf.Tensor:
    """Mean of the positive and mean of the negative entries; 0 without any."""
    sums = tf.stack([tf.reduce_sum(tf.maximum(entries, 0)), tf.reduce_sum(tf.minimum(entries, 0))])
    count = tf.reduce_sum(tf.cast(positive, tf.float32))
    return sums / tf.maximum(tf.stack([count, entries.shape[0] - count]), 1)


def to_bytes(values: tf.Tensor) -> tf.Tensor:
    """Return the bytes of a float32 (N,) tensor, uint8 (4 N,)."""
    return tf.reshape(tf.bitcast(values, tf.uint8), [-1])


def to_floats(data: tf.Tensor) -> tf.Tensor:
    """Return the float32 (N,) tensor of 4 N bytes."""
    return tf.bitcast(tf.reshape(data, (-1, 4)), tf.float32)


def packed_size(num_values: int, width: int) -> int:
    """Return the bytes for `num_values` numbers of `width` bits.

    Examples
    --------
    >>> packed_size(9, 1), packed_size(9, 4), packed_size(9, 8)
    (2, 5, 9)
    """
    return -(-num_values * width // 8)


def pack(values: tf.Tensor, width: int) -> tf.Tensor:
    """Pack uint8 (N,) numbers below 2 ** `width` into bytes.

    The k-th bits of all bytes hold the k-th part of the numbers. This way whole rows are shifted, which is fast.
    """
    num_bytes, num_parts = packed_size(int(values.shape[0]), width), 8 // width
    padded = tf.pad(values, [[0, num_bytes * num_parts - int(values.shape[0])]])
    parts = tf.unstack(tf.reshape(padded, (num_parts, num_bytes)))
    packed = parts[0]
    for number, part in enumerate(parts[1:], 1):
        packed = tf.bitwise.bitwise_or(packed, tf.bitwise.left_shift(part, tf.constant(number * width, tf.uint8)))
    return packed


def unpack(packed: tf.Tensor, width: int, num_values: int) -> tf.Tensor:
    """Return the `num_values` uint8 numbers that `pack` packed."""
    mask = tf.constant(2**width - 1, tf.uint8)
    shifts = [tf.constant(number * width, tf.uint8) for number in range(8 // width)]
    parts = [tf.bitwise.bitwise_and(tf.bitwise.right_shift(packed, shift), mask) for shift in shifts]
    return tf.concat(parts, 0)[:num_values]
