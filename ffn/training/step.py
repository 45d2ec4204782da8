"""One optimizer step: forward pass, loss, gradients, their average over all processes, new weights."""

from __future__ import annotations

import contextlib
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ffn.config import ModelConfig
from ffn.model.network import Weights, weight_shapes
from ffn.training.config import TrainConfig
from ffn.training.data.examples import OBJECT_LABEL, OTHER_LABEL
from ffn.training.parallel.exchange import make_exchange
from ffn.training.parallel.process_group import ProcessGroup

WEIGHTS_PREFIX = "weights/"  # prefixes of array names in a checkpoint
AVERAGES_PREFIX = "averages/"
OPTIMIZER_PREFIX = "optimizer/"
LEAST_LOSS = -sum(label * math.log(label) for label in (OBJECT_LABEL, OTHER_LABEL))  # of a voxel, for soft labels


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


class Learner(ABC):
    """Network, optimizer and training step of one process, whichever library computes them.

    A subclass supplies what its library does: the gradients of one (virtual) worker, the average over all workers, the
    update, the forward pass alone, and its state as arrays. All learners keep the same checkpoints.

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
        self._config = model
        self._train = train
        self._shapes = weight_shapes(model)
        self._sizes = [int(np.prod(shape)) for shape in self._shapes.values()]
        self._exchange = make_exchange(train, self._sizes, group, rng_seed)
        self._num_steps = 0

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
        started = time.perf_counter()
        flags = np.array([stop, save], np.float32)
        poms, vectors = zip(*(self._differentiate(part, flags) for part in self._microbatches(batch)), strict=True)
        pom_logit = np.concatenate([np.asarray(pom) for pom in poms])
        differentiated = time.perf_counter()
        mean, (loss, num_stops, num_saves) = self._mean(vectors)
        averaged = time.perf_counter()
        norm, finite = self._update(mean, learning_rate)
        self._num_steps += 1
        return Outcome(
            pom_logit=pom_logit,
            loss=float(loss),
            finite=finite,
            stop=bool(num_stops > 0),
            save=bool(num_saves > 0),
            gradient_norm=norm,
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
        poms, losses = zip(*(self._evaluate(part) for part in self._microbatches(padded)), strict=True)
        return np.concatenate(poms)[:num_fovs], np.concatenate(losses)[:num_fovs]

    @abstractmethod
    def weights(self) -> Weights:
        """Return the current weights by name."""

    def averaged_weights(self) -> Weights:
        """Return the weights to save and validate: their moving average if there is one, else the current weights.

        Notes
        -----
        The average starts from the initial weights, and update t (from 1) keeps at most (1 + t) / (10 + t) of it. So it
        quickly forgets those, which estimate nothing: their share falls with t⁻⁹ until ``ema_decay`` is reached.
        """
        average = self._average()
        return self.weights() if average is None else self._by_name(average)

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """Put the averaged weights into the network during a ``with`` block, which must not train."""
        if self._average() is None:
            yield
            return
        current = self.weights()
        self._set_weights(self.averaged_weights())
        try:
            yield
        finally:
            self._set_weights(current)

    def state(self) -> dict[str, np.ndarray]:
        """Return the part of a checkpoint that is the same on all processes."""
        state = {f"{WEIGHTS_PREFIX}{name}": value for name, value in self.weights().items()}
        if self._average() is not None:
            state |= {f"{AVERAGES_PREFIX}{name}": value for name, value in self.averaged_weights().items()}
        slots = {f"{OPTIMIZER_PREFIX}{i:03d}": slot for i, slot in enumerate(self._slots())}
        return state | slots | {"num_steps": np.array(self._num_steps)}

    def worker_states(self) -> list[dict[str, np.ndarray]]:
        """Return what a checkpoint holds of each worker of this process: the error that compression has left so far."""
        return self._exchange.worker_states()

    def restore(self, state: dict[str, np.ndarray], worker_states: Sequence[Mapping[str, np.ndarray]]) -> None:
        """Restore what `state` and `worker_states` of any learner returned; other arrays are ignored."""
        self._set_weights(_with_prefix(state, WEIGHTS_PREFIX))
        slots = _with_prefix(state, OPTIMIZER_PREFIX)
        self._set_slots([slots[number] for number in sorted(slots, key=int)])
        if self._average() is not None:
            self._set_average(self._flat(_with_prefix(state, AVERAGES_PREFIX)))
        self._num_steps = int(state["num_steps"])
        self._exchange.restore(worker_states)

    @abstractmethod
    def _differentiate(self, batch: Batch, flags: np.ndarray) -> tuple[Any, Any]:
        """Return the updated POM of a microbatch, and its worker's vector for the average: gradient, loss, flags."""

    @abstractmethod
    def _mean(self, vectors: Sequence[Any]) -> tuple[Any, np.ndarray]:
        """Average the vectors of all workers of all processes; return also its tail, see `exchange.TAIL`."""

    @abstractmethod
    def _update(self, mean: Any, learning_rate: float) -> tuple[float, bool]:
        """Update weights, optimizer and moving average, if the gradient is finite; return its norm and whether it is.

        The norm is that before clipping.
        """

    @abstractmethod
    def _evaluate(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        """Return the updated POM of a microbatch, and the loss of every FOV."""

    @abstractmethod
    def _set_weights(self, weights: Weights) -> None:
        """Replace the current weights."""

    @abstractmethod
    def _slots(self) -> list[np.ndarray]:
        """Return the state of the optimizer.

        Returns
        -------
        list of ndarray
            Updates so far (integer), the last learning rate, then what the optimizer keeps of each weight tensor.
        """

    @abstractmethod
    def _set_slots(self, slots: Sequence[np.ndarray]) -> None:
        """Restore what `_slots` returned."""

    @abstractmethod
    def _average(self) -> np.ndarray | None:
        """Return the moving average of the weights, one tensor after the other; None without one."""

    @abstractmethod
    def _set_average(self, average: np.ndarray) -> None:
        """Restore what `_average` returned."""

    def _microbatches(self, batch: Batch) -> Iterator[Batch]:
        size = self._train.batch_size
        for start in range(0, len(batch.image), size):
            yield Batch(*(field[start : start + size] for field in batch))

    def _flat(self, weights: Weights) -> np.ndarray:
        """Lay weights end to end."""
        return np.concatenate([weights[name].ravel() for name in self._shapes])

    def _by_name(self, vector: np.ndarray) -> Weights:
        """Undo `_flat`."""
        parts = np.split(vector, np.cumsum(self._sizes)[:-1])
        return {name: part.reshape(self._shapes[name]) for name, part in zip(self._shapes, parts, strict=True)}


def model_weights(state: dict[str, np.ndarray]) -> Weights:
    """Return the weights of a model from what `Learner.state` returned: the averaged ones if there are any."""
    return _with_prefix(state, AVERAGES_PREFIX) or _with_prefix(state, WEIGHTS_PREFIX)


def _with_prefix(state: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """Return the arrays whose names start with `prefix`, by the rest of their names."""
    return {name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)}
