"""One optimizer step: forward pass, loss, gradients, their average over all processes, new weights."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ffn.config import ModelConfig
from ffn.model.network import Weights, build_network, conv_names, get_weights, set_weights, weight_shapes
from ffn.training.config import TrainConfig
from ffn.training.moving_average import MovingAverage, flat
from ffn.training.parallel.exchange import TAIL, make_exchange
from ffn.training.parallel.process_group import ProcessGroup

if TYPE_CHECKING:
    import tensorflow as tf

WEIGHTS_PREFIX = "weights/"  # prefixes of array names in a checkpoint
AVERAGES_PREFIX = "averages/"


class Batch(NamedTuple):
    """The FOVs that a step trains on: float32 arrays of shape (B, Z, Y, X), one virtual worker after the other.

    Parameters
    ----------
    image, pom_logit : ndarray
        Normalised image and current POM.
    labels : ndarray
        Soft labels.
    loss_weight : ndarray
        Weight of each voxel in the loss.
    """

    image: np.ndarray
    pom_logit: np.ndarray
    labels: np.ndarray
    loss_weight: np.ndarray


class Outcome(NamedTuple):
    """The results of a step.

    Parameters
    ----------
    pom_logit : float32 ndarray of shape (B, Z, Y, X)
        The updated POM.
    loss : float
        Mean over voxels, batch and processes.
    finite : bool
        Whether the averaged gradient was finite. If not, the weights are unchanged on every process.
    stop, save : bool
        Whether any process asked to stop; whether one asked for a checkpoint.
    gradient_norm : float
        Norm of the averaged gradient before clipping.
    compute_seconds, allreduce_seconds : float
        Time of the forward pass, the backward pass and the update; time of the average, which includes the wait for the
        slowest process.
    bytes_sent : int
        Payload that this process sent to the others, see `ffn.training.parallel.exchange`.
    """

    pom_logit: np.ndarray
    loss: float
    finite: bool
    stop: bool = False
    gradient_norm: float = 0.0
    compute_seconds: float = 0.0
    allreduce_seconds: float = 0.0
    bytes_sent: int = 0
    save: bool = False


class Learner:
    """Network, optimizer and compiled training step of one process.

    Four functions are compiled: the gradients of one (virtual) worker, the average over all workers, the update, and
    the forward pass alone.

    Parameters
    ----------
    model : ModelConfig
        Architecture.
    train : TrainConfig
        Batch size, precision (not ``auto``), optimizer, compression.
    weights : dict of str to ndarray
        Initial weights.
    group : ProcessGroup
        Averages the gradients.
    rng_seed : int
        Seed of the run, for randomised compression.
    """

    def __init__(
        self, model: ModelConfig, train: TrainConfig, weights: Weights, group: ProcessGroup, rng_seed: int = 0
    ) -> None:
        import tensorflow as tf

        from ffn.training.optimizers import make_optimizer

        self._config = model
        self._train = train
        self._network = build_network(model, train.precision, train.batch_size)
        set_weights(self._network, model, weights)
        # in the order of `weight_shapes`
        self._variables = [v for name in conv_names(model) for v in self._network.get_layer(name).trainable_variables]
        self._sizes = [int(np.prod(shape)) for shape in weight_shapes(model).values()]
        self._optimizer = make_optimizer(train, self._variables)
        self._exchange = make_exchange(train, self._sizes, group, rng_seed)
        self._average = MovingAverage(self._variables, train.ema_decay) if train.ema_decay else None
        self._num_steps = 0
        fovs = [tf.TensorSpec((train.batch_size, *model.fov_size_zyx), tf.float32)] * len(Batch._fields)
        self._differentiate = tf.function(
            self._differentiated, input_signature=[*fovs, tf.TensorSpec((2,))], autograph=False
        )
        self._mean = tf.function(self._exchange.mean, autograph=False)
        self._update = tf.function(self._updated, autograph=False)
        self._evaluate = tf.function(self._forward, input_signature=fovs, autograph=False)

    def step(self, batch: Batch, learning_rate: float, stop: bool = False, save: bool = False) -> Outcome:
        """Train on one batch. All processes call this together.

        Parameters
        ----------
        batch : Batch
            ``batch_size`` FOVs for each virtual worker.
        learning_rate : float
            Learning rate of this step.
        stop, save : bool
            Whether this process asks to stop, or for a checkpoint. Every process learns of it in this step.
        """
        import tensorflow as tf

        started = time.perf_counter()
        poms, vectors = zip(
            *(self._differentiate(*part, np.array([stop, save], np.float32)) for part in self._microbatches(batch)),
            strict=True,
        )
        pom_logit = np.concatenate([pom.numpy() for pom in poms])
        differentiated = time.perf_counter()
        mean = self._mean(vectors, tf.constant(self._num_steps, tf.int64))
        loss, num_stops, num_saves = mean[-TAIL:].numpy()
        averaged = time.perf_counter()
        norm, finite = (tensor.numpy() for tensor in self._update(mean, tf.constant(learning_rate, tf.float32)))
        self._num_steps += 1
        return Outcome(
            pom_logit=pom_logit,
            loss=float(loss),
            finite=bool(finite),
            stop=bool(num_stops > 0),
            save=bool(num_saves > 0),
            gradient_norm=float(norm),
            compute_seconds=differentiated - started + time.perf_counter() - averaged,
            allreduce_seconds=averaged - differentiated,
            bytes_sent=self._exchange.bytes_sent,
        )

    def forward(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        """Run the network on any number of FOVs, in this process alone.

        Returns
        -------
        pom_logit : float32 ndarray of shape (B, Z, Y, X)
            The updated POM.
        loss : float32 ndarray of shape (B,)
            Mean over the voxels of each FOV.
        """
        num_fovs = len(batch.image)
        # the network takes full microbatches only, so FOVs from the start fill up the last one
        padded_size = -(-num_fovs // self._train.batch_size) * self._train.batch_size
        padded = Batch(*(np.take(field, range(padded_size), 0, mode="wrap") for field in batch))
        poms, losses = zip(*(self._evaluate(*part) for part in self._microbatches(padded)), strict=True)
        return np.concatenate(poms)[:num_fovs], np.concatenate(losses)[:num_fovs]

    def weights(self) -> Weights:
        """Return the current weights by name."""
        return get_weights(self._network, self._config)

    def averaged_weights(self) -> Weights:
        """Return the weights to save and validate: their moving average if there is one, else the current weights."""
        if self._average is None:
            return self.weights()
        parts = np.split(self._average.value.numpy(), np.cumsum(self._sizes)[:-1])
        shapes = weight_shapes(self._config).items()
        return {name: part.reshape(shape) for (name, shape), part in zip(shapes, parts, strict=True)}

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """Put the averaged weights into the network during a ``with`` block, which must not train."""
        if self._average is None:
            yield
            return
        current = self.weights()
        set_weights(self._network, self._config, self.averaged_weights())
        try:
            yield
        finally:
            set_weights(self._network, self._config, current)

    def state(self) -> dict[str, np.ndarray]:
        """Return the part of a checkpoint that is the same on all processes."""
        state = {f"{WEIGHTS_PREFIX}{name}": value for name, value in self.weights().items()}
        if self._average is not None:
            state |= {f"{AVERAGES_PREFIX}{name}": value for name, value in self.averaged_weights().items()}
        slots = {f"optimizer/{i:03d}": np.asarray(v) for i, v in enumerate(self._optimizer.variables)}
        return state | slots | {"num_steps": np.array(self._num_steps)}

    def worker_states(self) -> list[dict[str, np.ndarray]]:
        """Return what a checkpoint holds of each worker of this process: the error that compression has left so far."""
        return self._exchange.worker_states()

    def restore(self, state: dict[str, np.ndarray], worker_states: Sequence[Mapping[str, np.ndarray]]) -> None:
        """Restore what `state` and `worker_states` returned; other arrays are ignored."""
        set_weights(self._network, self._config, _with_prefix(state, WEIGHTS_PREFIX))
        for i, variable in enumerate(self._optimizer.variables):
            variable.assign(state[f"optimizer/{i:03d}"])
        if self._average is not None:
            averages = _with_prefix(state, AVERAGES_PREFIX)
            self._average.value.assign(np.concatenate([averages[n].ravel() for n in weight_shapes(self._config)]))
        self._num_steps = int(state["num_steps"])
        self._exchange.restore(worker_states)

    def _microbatches(self, batch: Batch) -> Iterator[Batch]:
        size = self._train.batch_size
        for start in range(0, len(batch.image), size):
            yield Batch(*(field[start : start + size] for field in batch))

    def _forward(
        self, image: tf.Tensor, pom_logit: tf.Tensor, labels: tf.Tensor, loss_weight: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the updated POM and the loss of every FOV."""
        import tensorflow as tf

        updated = self._network([image[..., None], pom_logit[..., None]], training=True)[..., 0]
        entropy = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=updated)
        return updated, tf.reduce_mean(loss_weight * entropy, (1, 2, 3))

    def _differentiated(self, *batch_and_flags: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the updated POM of a microbatch, and its worker's contribution to the average."""
        import tensorflow as tf

        *batch, flags = batch_and_flags
        with tf.GradientTape() as tape:
            updated, losses = self._forward(*batch)
            loss = tf.reduce_mean(losses)
        # one vector makes one message: a single call averages the gradients of all layers, the loss and the flags
        return updated, flat([*tape.gradient(loss, self._variables), loss, flags])

    def _updated(self, mean: tf.Tensor, learning_rate: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Update the weights if the averaged gradient is finite; return its norm and whether it is finite."""
        import tensorflow as tf

        half_square, loss = tf.nn.l2_loss(mean[:-TAIL]), mean[-TAIL]
        norm, finite = tf.sqrt(2 * half_square), tf.math.is_finite(half_square + loss)
        tf.cond(finite, lambda: self._apply(mean, norm, learning_rate), lambda: None)
        return norm, finite

    def _apply(self, mean: tf.Tensor, norm: tf.Tensor, learning_rate: tf.Tensor) -> None:
        """Update weights, optimizer state and moving average."""
        import tensorflow as tf

        if (largest := self._train.clip_entries) is not None:
            mean = tf.clip_by_value(mean, -largest, largest)
            norm = tf.norm(mean[:-TAIL])
        if self._train.clip_norm is not None:
            mean *= tf.minimum(1.0, tf.math.divide_no_nan(self._train.clip_norm, norm))
        parts = zip(tf.split(mean, [*self._sizes, TAIL]), self._variables, strict=False)
        self._optimizer.learning_rate.assign(learning_rate)
        self._optimizer.apply([tf.reshape(part, v.shape) for part, v in parts], self._variables)
        if self._average is not None:
            self._average.update(self._optimizer.iterations)


def model_weights(state: dict[str, np.ndarray]) -> Weights:
    """Return the weights of a model from what `Learner.state` returned: the averaged ones if there are any."""
    return _with_prefix(state, AVERAGES_PREFIX) or _with_prefix(state, WEIGHTS_PREFIX)


def _with_prefix(state: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """Return the arrays whose names start with `prefix`, by the rest of their names."""
    return {name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)}
