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
from ffn.training.optimizers import Optimizer, State
from ffn.training.parallel.exchange import Exchange
from ffn.training.parallel.process_group import ProcessGroup

WEIGHTS_PREFIX = "weights/"  # prefixes of array names in a checkpoint
AVERAGES_PREFIX = "averages/"
OPTIMIZER_PREFIX = "optimizer/"


class Batch(NamedTuple):
    """The FOVs that a step trains on: float32 arrays of shape (B, Z, Y, X), one virtual worker after the other."""

    image: np.ndarray  # normalised
    pom_logit: np.ndarray  # current POM
    labels: np.ndarray  # soft
    loss_weight: np.ndarray  # of each voxel


class Outcome(NamedTuple):
    """The results of a step."""

    answers: np.ndarray  # one for each FOV: its updated POM, float32 (Z, Y, X), or what patches on a device answer
    loss: float  # mean over voxels, batch and processes
    finite: Any  # whether the averaged gradient was finite; if not, no process changed its weights
    stop: bool = False  # whether any process asked to stop
    gradient_norm: Any = 0.0  # of the averaged gradient, before clipping; this and `finite` may not be computed yet
    compute_seconds: float = 0.0  # forward pass, backward pass and update
    allreduce_seconds: float = 0.0  # average, which includes the wait for the slowest process
    bytes_sent: int = 0  # payload that this process sent to the others
    save: bool = False  # whether any process asked for a checkpoint


class Learner(ABC):
    """Network, optimizer and training step of one process, whichever library computes them.

    A subclass supplies what its library does: the gradients of one (virtual) worker, the average over all workers, the
    update, the forward pass alone, and the state of training as arrays. All learners keep the same checkpoints.
    """

    def __init__(
        self, model: ModelConfig, train: TrainConfig, group: ProcessGroup, rng_seed: int, library: Any
    ) -> None:
        self._config = model
        self._train = train
        self._shapes = weight_shapes(model)
        self._sizes = [int(np.prod(shape)) for shape in self._shapes.values()]
        self._exchange = make_exchange(train, list(self._shapes.values()), group, rng_seed)
        self._optimizer = Optimizer(train, list(self._shapes.values()), library)
        self._num_steps = 0

    def step(self, batch: Any, learning_rate: float, stop: bool = False, save: bool = False) -> Outcome:
        """Train on one batch, which patches made (`make_patches`). All processes call this together."""
        started = time.perf_counter()
        parts, vectors = self.differentiate(batch, stop, save)
        outcome = self.update(vectors, learning_rate)
        # a device makes the update while walks take the answers
        answers = np.concatenate([np.asarray(part) for part in parts])
        compute_seconds = time.perf_counter() - started - outcome.allreduce_seconds
        return outcome._replace(answers=answers, compute_seconds=compute_seconds)

    def differentiate(self, batch: Any, stop: bool = False, save: bool = False) -> tuple[Sequence[Any], Sequence[Any]]:
        """Return answers to a batch, and a vector for the average (see `exchange`), of each worker in this process."""
        flags = np.array([stop, save], np.float32)
        parts, vectors = zip(*(self._differentiate(part, flags) for part in self._microbatches(batch)), strict=True)
        return parts, vectors

    def update(self, vectors: Sequence[Any], learning_rate: float) -> Outcome:
        """Update the weights by the mean of what `differentiate` returned; the outcome has no answers."""
        started = time.perf_counter()
        mean, tail = self._mean(vectors)
        averaged = time.perf_counter()
        norm, finite = self._update(mean, learning_rate)
        loss, num_stops, num_saves = np.asarray(tail)
        self._num_steps += 1
        return Outcome(
            answers=np.empty(0, np.float32),
            loss=float(loss),
            finite=finite,
            stop=bool(num_stops > 0),
            save=bool(num_saves > 0),
            gradient_norm=norm,
            allreduce_seconds=averaged - started,
            bytes_sent=self._exchange.bytes_sent,
        )

    def forward(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        """Run the network on any number of FOVs, in this process alone."""
        num_fovs = len(batch.image)
        # the network takes full microbatches only, so FOVs from the start fill up the last one
        padded_size = -(-num_fovs // self._train.batch_size) * self._train.batch_size
        padded = Batch(*(np.take(field, range(padded_size), 0, mode="wrap") for field in batch))
        poms, losses = zip(*(self._evaluate(part) for part in self._microbatches(padded)), strict=True)
        return np.concatenate(poms)[:num_fovs], np.concatenate(losses)[:num_fovs]

    def weights_vector(self) -> np.ndarray:
        """Return a copy of the current weights, end to end."""
        return np.array(self._state().weights)

    def take_weights(self, vector: np.ndarray) -> None:
        """Replace the current weights by a `weights_vector`."""
        self._load(self._state()._replace(weights=vector))

    def averaged_weights(self) -> Weights:
        """Return the weights to save and validate: their moving average if there is one, else the current weights."""
        state = self._state()
        return self._by_name(state.weights if state.average is None else state.average)

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """Put the averaged weights into the network during a ``with`` block, which must not train."""
        current = self._state()
        if current.average is None:
            yield
            return
        self._load(current._replace(weights=current.average))
        try:
            yield
        finally:
            self._load(current)

    def state(self) -> dict[str, np.ndarray]:
        """Return the part of a checkpoint that is the same on all processes."""
        current = self._state()
        arrays = {f"{WEIGHTS_PREFIX}{name}": value for name, value in self._by_name(current.weights).items()}
        if current.average is not None:
            arrays |= {f"{AVERAGES_PREFIX}{name}": value for name, value in self._by_name(current.average).items()}
        slots = {f"{OPTIMIZER_PREFIX}{number}": slot for number, slot in enumerate(current.slots)}
        return arrays | slots | {"num_updates": current.num_updates, "num_steps": np.array(self._num_steps)}

    def worker_states(self) -> list[dict[str, np.ndarray]]:
        """Return, for each worker of this process, the error that compression has left so far, for a checkpoint."""
        return self._exchange.worker_states()

    def restore(self, state: dict[str, np.ndarray], worker_states: Sequence[Mapping[str, np.ndarray]]) -> None:
        """Restore the results of `state` and `worker_states` of any learner; other arrays are ignored."""
        slots = _with_prefix(state, OPTIMIZER_PREFIX)
        average = _with_prefix(state, AVERAGES_PREFIX)
        self._load(
            State(
                self._flat(_with_prefix(state, WEIGHTS_PREFIX)),
                tuple(slots[number] for number in sorted(slots)),
                state["num_updates"],
                self._flat(average) if average else None,
            )
        )
        self._num_steps = int(state["num_steps"])
        self._exchange.restore(worker_states)

    @abstractmethod
    def _differentiate(self, batch: Any, flags: np.ndarray) -> tuple[Any, Any]:
        """Return the answers to a microbatch, and its worker's vector for the average: gradient, loss, flags."""

    @abstractmethod
    def _mean(self, vectors: Sequence[Any]) -> tuple[Any, Any]:
        """Average the vectors of all workers of all processes; return also its tail, see `exchange.TAIL`."""

    @abstractmethod
    def _update(self, mean: Any, learning_rate: float) -> tuple[Any, Any]:
        """Update the state if the gradient is finite; return the norm before clipping, and whether it is finite."""

    @abstractmethod
    def _evaluate(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        """Return the updated POM of a microbatch, and the loss of every FOV."""

    @abstractmethod
    def _state(self) -> State:
        """Return the state of training as arrays of NumPy."""

    @abstractmethod
    def _load(self, state: State) -> None:
        """Replace the state of training."""

    def _microbatches(self, batch: Any) -> Iterator[Any]:
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


def make_exchange(
    train: TrainConfig, shapes: Sequence[tuple[int, ...]], group: ProcessGroup, rng_seed: int
) -> Exchange:
    """Return the exchange for the configured compression; `shapes` are those of the weight tensors, in order."""
    sizes = [math.prod(shape) for shape in shapes]
    if train.compression == "none":
        return Exchange(group, sum(sizes), train.virtual_workers, train.exact_sums)
    # loads TensorFlow, which JAX without compression does not need
    from ffn.training.parallel.compression import EncodedExchange, HalfExchange, LowRankExchange, OneBit, Qsgd

    if train.compression == "bfloat16":
        return HalfExchange(group, sum(sizes), train.virtual_workers)
    if train.compression == "powersgd":
        return LowRankExchange(group, shapes, train.virtual_workers, train.exact_sums)
    codec = OneBit(sizes) if train.compression == "1-bit" else Qsgd(sum(sizes), train.qsgd_levels, rng_seed)
    return EncodedExchange(group, sum(sizes), train.virtual_workers, codec)


def model_weights(state: dict[str, np.ndarray]) -> Weights:
    """Return the weights of a model from the result of `Learner.state`: the averaged ones if there are any."""
    return _with_prefix(state, AVERAGES_PREFIX) or _with_prefix(state, WEIGHTS_PREFIX)


def _with_prefix(state: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """Return the arrays whose names start with `prefix`, by the rest of their names."""
    return {name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)}
