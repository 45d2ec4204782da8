"""One optimizer step: forward, loss, gradients, average over all processes, Adam."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ffn.config import ModelConfig
from ffn.model.network import Weights, build_network, get_weights, set_weights
from ffn.threads import threads_here
from ffn.training.config import TrainConfig
from ffn.training.distributed import ProcessGroup

if TYPE_CHECKING:
    import tensorflow as tf

log = logging.getLogger(__name__)


class Batch(NamedTuple):
    """What a step trains on; each float32 of shape (B, Z, Y, X), the FOV.

    Parameters
    ----------
    image, pom_logit : ndarray
        Normalised image and current POM.
    labels : ndarray
        Soft labels.
    """

    image: np.ndarray
    pom_logit: np.ndarray
    labels: np.ndarray


class Outcome(NamedTuple):
    """What a step did.

    Parameters
    ----------
    pom_logit : float32 ndarray of shape (B, Z, Y, X)
        The updated POM.
    loss : float
        Mean over voxels, batch and processes.
    finite : bool
        Whether the averaged gradient was finite; if not, the weights are unchanged on every process.
    """

    pom_logit: np.ndarray
    loss: float
    finite: bool


class Learner:
    """Network, optimizer and the compiled training step of one process.

    Parameters
    ----------
    model : ModelConfig
        Architecture.
    train : TrainConfig
        Batch size and precision (not ``auto``).
    weights : dict of str to ndarray
        Initial weights.
    group : ProcessGroup
        Averages the gradients.
    """

    def __init__(self, model: ModelConfig, train: TrainConfig, weights: Weights, group: ProcessGroup) -> None:
        import keras
        import tensorflow as tf

        self._config = model
        self._group = group
        self._network = build_network(model, train.precision, train.batch_size)
        set_weights(self._network, model, weights)
        self._variables = self._network.trainable_variables
        self._optimizer = keras.optimizers.Adam(train.learning_rate)
        self._optimizer.build(self._variables)
        fov = tf.TensorSpec((train.batch_size, *model.fov_size_zyx), tf.float32)
        self._compiled = tf.function(self._step, input_signature=[fov, fov, fov, tf.TensorSpec((), tf.float32)])

    def step(self, batch: Batch, learning_rate: float) -> Outcome:
        """Train on one batch; all processes call this together."""
        pom_logit, loss, finite = self._compiled(*batch, np.float32(learning_rate))
        return Outcome(pom_logit.numpy(), float(loss), bool(finite))

    def weights(self) -> Weights:
        """Return the current weights by name."""
        return get_weights(self._network, self._config)

    def state(self) -> dict[str, np.ndarray]:
        """Return weights and optimizer slots for a checkpoint."""
        slots = {f"optimizer/{i:03d}": np.asarray(v) for i, v in enumerate(self._optimizer.variables)}
        return {f"weights/{name}": value for name, value in self.weights().items()} | slots

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Take over what `state` returned."""
        prefix = "weights/"
        weights = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
        set_weights(self._network, self._config, weights)
        for i, variable in enumerate(self._optimizer.variables):
            variable.assign(state[f"optimizer/{i:03d}"])

    def _step(
        self, image: tf.Tensor, pom_logit: tf.Tensor, labels: tf.Tensor, learning_rate: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            updated = self._network([image[..., None], pom_logit[..., None]], training=True)[..., 0]
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=updated))
        gradients = tape.gradient(loss, self._variables)
        # one vector, one message: weights and loss of all layers are averaged in a single call
        vector = self._group.average(tf.concat([tf.reshape(g, [-1]) for g in [*gradients, loss]], 0))
        finite = tf.reduce_all(tf.math.is_finite(vector))
        tf.cond(finite, lambda: self._apply(vector[:-1], learning_rate), lambda: None)
        return updated, vector[-1], finite

    def _apply(self, vector: tf.Tensor, learning_rate: tf.Tensor) -> None:
        """Apply a flat gradient."""
        import tensorflow as tf

        sizes = [int(np.prod(v.shape)) for v in self._variables]
        parts = zip(tf.split(vector, sizes), self._variables, strict=True)
        self._optimizer.learning_rate.assign(learning_rate)
        self._optimizer.apply([tf.reshape(part, v.shape) for part, v in parts], self._variables)


def configure_tensorflow(group: ProcessGroup, rng_seed: int) -> None:
    """Give this process its share of the machine's cores or its GPU, and make every operation deterministic.

    Notes
    -----
    There are ``OMP_NUM_THREADS`` threads; where that is not set, the cores divided by the processes on them.
    Threads and GPU can be set only before TensorFlow has computed anything.
    """
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(rng_seed % 2**32)
    tf.config.experimental.enable_op_determinism()
    # TensorFlow 2.21's remapper fails on residual modules, and says so on stderr; without it the speed is the same
    tf.config.optimizer.set_experimental_options({"remapping": False})
    threads = threads_here(group.local_size)
    with contextlib.suppress(RuntimeError):  # TensorFlow already runs in this process: its devices are what they are
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        gpus = tf.config.list_physical_devices("GPU")
        tf.config.set_visible_devices(gpus[group.local_rank % len(gpus) :][:1] if gpus else [], "GPU")
    log.debug("rank %d: %d threads", group.rank, threads)
