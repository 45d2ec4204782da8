"""The learning rate of each step, and the optimizers: the same lines update arrays of TensorFlow and of JAX.

All weights are one vector, one tensor after the other, so that an update is a few operations. Adam, the moving average
and the order of the momentum are those of Keras; biases never decay.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ffn.training.config import TrainConfig

BETA_1, BETA_2 = np.float32(0.9), np.float32(0.999)  # of Adam, as in Keras
MOMENTUM = 0.9
MUON_MOMENTUM = 0.95
MUON_SCALE = 0.2  # root mean square of the entries of a step at rate 1, about that of Adam's: both take the same rates
MUON_ROUNDS, MUON_COEFFICIENTS = 5, (3.4445, -4.7750, 2.0315)
NUM_SLOTS = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2, "muon": 2}

CYCLE_STEPS, CYCLE_LOW = 2000, 0.1  # of the cyclic schedule: length, and lowest rate as a share of the peak; our choice
EXPONENTS = {"constant": 0.0, "linear": 1.0, "sqrt": 0.5}  # of the global batch, by scaling rule


def learning_rate(train: TrainConfig, step: int) -> float:
    """Return the rate of the 0-based `step`: a linear warm-up, then the schedule.

    The scaling rule sets the peak rate from the global batch: Dong et al. 2019 found linear scaling best up to 16
    workers of batch size 1, and the square root beyond. Cosine falls from the peak to 0 at ``max_steps``. Cyclic (Smith
    2017) falls linearly to a share of the peak and rises again.

    Examples
    --------
    >>> train = TrainConfig(num_workers=1, learning_rate=0.4, warmup_steps=4, max_steps=8)
    >>> [round(learning_rate(train, step), 3) for step in (0, 1, 3, 7)]
    [0.1, 0.2, 0.4, 0.4]
    >>> cosine = train.model_copy(update={"schedule": "cosine"})
    >>> [round(learning_rate(cosine, step), 3) for step in (0, 4, 6, 8)]
    [0.1, 0.4, 0.2, 0.0]
    >>> cyclic = train.model_copy(update={"schedule": "cyclic"})
    >>> [round(learning_rate(cyclic, 4 + since), 3) for since in (0, 500, 1000, 1500, 2000)]
    [0.4, 0.22, 0.04, 0.22, 0.4]
    >>> sqrt = train.model_copy(update={"scaling_rule": "sqrt", "num_workers": 9})
    >>> [round(learning_rate(sqrt, step), 3) for step in (0, 1, 3, 7)]
    [0.3, 0.6, 1.2, 1.2]
    """
    peak = train.learning_rate * train.global_batch ** EXPONENTS[train.scaling_rule]
    if step < train.warmup_steps:
        return peak * (step + 1) / train.warmup_steps
    since = step - train.warmup_steps
    progress = min(1.0, since / max(1, train.max_steps - train.warmup_steps))
    if train.schedule == "cosine":
        return peak * (1 + math.cos(math.pi * progress)) / 2
    if train.schedule == "cyclic":
        above_low = abs(1 - 2 * (since % CYCLE_STEPS) / CYCLE_STEPS)
        return peak * (CYCLE_LOW + (1 - CYCLE_LOW) * above_low)
    return peak


class State(NamedTuple):
    """All that an update changes: float32 arrays of all N weights."""

    weights: Any
    slots: tuple[Any, ...]  # that the optimizer keeps
    num_updates: Any  # so far, float32, which is exact up to 2^24
    average: Any | None  # moving average of the weights

    def map(self, function: Callable[[Any], Any]) -> State:
        """Apply a function to every array."""
        average = None if self.average is None else function(self.average)
        return State(function(self.weights), tuple(map(function, self.slots)), function(self.num_updates), average)


class Optimizer:
    """Updates a `State`, see `update`.

    `library` has the functions of TensorFlow, JAX or NumPy that an update needs, by the names that NumPy gives them.
    """

    def __init__(self, train: TrainConfig, shapes: Sequence[tuple[int, ...]], library: Any) -> None:
        self._train = train
        self._shapes = shapes
        self._stops = np.cumsum([np.prod(shape, dtype=int) for shape in shapes])
        self._library = library
        self._is_kernel = self._per_entry([len(shape) > 1 for shape in shapes])
        self._is_matrix = self._per_entry([_is_matrix(shape) for shape in shapes])
        self._step = {"muon": self._muon, "adam": self._adam, "adamw": self._adam}.get(train.optimizer, self._momentum)

    def initial(self, weights: np.ndarray) -> State:
        """Return the state before the first update."""
        slots = tuple(np.zeros_like(weights) for _ in range(NUM_SLOTS[self._train.optimizer]))
        return State(weights, slots, np.float32(0), weights if self._train.ema_decay else None)

    def update(self, state: State, gradient: Any, rate: Any) -> State:
        """Return the state after an update at a learning rate.

        The moving average starts from the initial weights, and update t (from 1) keeps at most (1 + t) / (10 + t) of
        it. So it quickly forgets those, which estimate nothing: their share falls with t⁻⁹ until ``ema_decay`` is
        reached.
        """
        train, library = self._train, self._library
        if (largest := train.clip_entries) is not None:
            gradient = library.maximum(library.minimum(gradient, largest), -largest)
        number = state.num_updates + 1
        weights, slots = self._step(state, gradient, rate, number)
        average = state.average
        if train.ema_decay is not None:
            decay = library.minimum(train.ema_decay, (1 + number) / (10 + number))
            average = average + (1 - decay) * (weights - average)
        return State(weights, slots, number, average)

    def _momentum(self, state: State, gradient: Any, rate: Any, number: Any) -> tuple[Any, tuple[Any, ...]]:
        if not state.slots:
            return state.weights - rate * gradient, ()
        velocity = MOMENTUM * state.slots[0] - rate * gradient
        return state.weights + velocity, (velocity,)

    def _adam(self, state: State, gradient: Any, rate: Any, number: Any) -> tuple[Any, tuple[Any, ...]]:
        """Adam and AdamW (Kingma & Ba 2015, Loshchilov & Hutter 2019)."""
        mean, square = state.slots
        mean = mean + (1 - BETA_1) * (gradient - mean)
        square = square + (1 - BETA_2) * (gradient * gradient - square)
        step = rate * self._library.sqrt(1 - BETA_2**number) / (1 - BETA_1**number)
        change = step * mean / (self._library.sqrt(square) + self._train.adam_epsilon)
        return self._decayed(state.weights, rate) - change, (mean, square)

    def _muon(self, state: State, gradient: Any, rate: Any, number: Any) -> tuple[Any, tuple[Any, ...]]:
        """Momentum with orthogonal steps for kernels; Adam for biases and the last convolution.

        For a kernel W as a matrix of inputs × outputs, with gradient G and learning rate γ::

            M ← 0.95 M + G        W ← W − γ orthogonal_step(G + 0.95 M)
        """
        by_adam, (mean, square) = self._adam(state, gradient, rate, number)
        momentum = MUON_MOMENTUM * state.slots[0] + gradient
        steps = [
            self._library.reshape(self._orthogonal_step(part, shape), (-1,)) if _is_matrix(shape) else part
            for part, shape in zip(self._split(gradient + MUON_MOMENTUM * momentum), self._shapes, strict=True)
        ]
        by_muon = self._decayed(state.weights, rate) - rate * self._library.concatenate(steps)

        def pick(of_matrices: Any, of_others: Any) -> Any:
            return self._library.where(self._is_matrix, of_matrices, of_others)

        return pick(by_muon, by_adam), (pick(momentum, mean), pick(0.0, square))

    def _orthogonal_step(self, momentum: Any, shape: tuple[int, ...]) -> Any:
        """Return a step in which all directions of a kernel's momentum count alike.

        It is 0.2 √max(N, F) times a matrix with the singular vectors of the momentum and singular values of 0.7 to 1.2,
        where they are not tiny: five rounds of an odd polynomial bring them there, without computing them.

        Source: Jordan et al. 2024, Muon: an optimizer for hidden layers in neural networks; the scale is that of Liu
        et al. 2025, Muon is scalable for LLM training, section 2.2.
        """
        matrix = self._library.reshape(momentum, (-1, shape[-1]))
        rows, columns = matrix.shape
        wide = self._library.transpose(matrix) if rows > columns else matrix
        wide = wide / (self._library.linalg.norm(wide) + 1e-7)
        a, b, c = MUON_COEFFICIENTS
        for _ in range(MUON_ROUNDS):
            square = wide @ self._library.transpose(wide)
            wide = a * wide + (b * square + c * square @ square) @ wide
        step = MUON_SCALE * max(rows, columns) ** 0.5 * wide
        return self._library.transpose(step) if rows > columns else step

    def _decayed(self, weights: Any, rate: Any) -> Any:
        decay = self._train.weight_decay
        return weights - rate * (decay * self._is_kernel) * weights if decay else weights

    def _split(self, vector: Any) -> list[Any]:
        return [vector[start:stop] for start, stop in zip([0, *self._stops[:-1]], self._stops, strict=True)]

    def _per_entry(self, values: list[bool]) -> np.ndarray:
        """Repeat a value of each tensor at all its entries."""
        return np.repeat(values, np.diff(self._stops, prepend=0))


def _is_matrix(shape: Sequence[int]) -> bool:
    """Whether a weight tensor maps several inputs to several outputs."""
    return len(shape) > 1 and shape[-1] > 1
