"""The optimizers of `ffn.training.optimizers`, by the same names, as pure functions of JAX arrays.

All weights are one vector, one tensor after the other, so that an update is a few operations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ffn.training import muon
from ffn.training.config import TrainConfig

if TYPE_CHECKING:
    import jax

Slots = tuple["jax.Array", ...]
Update = Callable[["jax.Array", "jax.Array", Slots, "jax.Array", "jax.Array"], tuple["jax.Array", Slots]]

BETA_1, BETA_2 = 0.9, 0.999  # of Adam, as in Keras


class Optimizer(NamedTuple):
    """An optimizer.

    Parameters
    ----------
    num_slots : int
        Vectors that it keeps, each as long as that of the weights and 0 at first.
    update : callable
        Returns new weights and slots from weights, gradient, slots, learning rate and number of the update, from 1.
    """

    num_slots: int
    update: Update


def make_optimizer(train: TrainConfig, shapes: Sequence[tuple[int, ...]]) -> Optimizer:
    """Return the optimizer that the configuration names.

    Parameters
    ----------
    train : TrainConfig
        Optimizer, momentum, weight decay and ε.
    shapes : sequence of tuple of int
        Shapes of the weight tensors. Vectors among them (biases) never decay.
    """
    tensors, decay = _Tensors(shapes), train.weight_decay
    return {
        "sgd": lambda: _momentum(0.0),
        "momentum": lambda: _momentum(train.momentum),
        "adam": lambda: _adam(train.adam_epsilon, 0.0, tensors),
        "adamw": lambda: _adam(train.adam_epsilon, decay, tensors),
        "muon": lambda: _muon(train.adam_epsilon, decay, tensors),
        "lamb": lambda: _lamb(train.adam_epsilon, decay, tensors),
        "lars": lambda: _lars(train.momentum, decay, tensors),
    }[train.optimizer]()


class _Tensors:
    """The weight tensors in a vector of all weights."""

    def __init__(self, shapes: Sequence[tuple[int, ...]]) -> None:
        self._shapes = shapes
        self._sizes = [int(np.prod(shape)) for shape in shapes]
        self._are_kernels = [len(shape) > 1 for shape in shapes]

    def of_kernels(self, value: float) -> jax.Array:
        """Return a vector with `value` at the entries of kernels, 0 at those of biases."""
        return self._spread([value * is_kernel for is_kernel in self._are_kernels])

    def of_matrices(self) -> jax.Array:
        """Return a vector that is 1 where `ffn.training.muon` makes orthogonal steps, 0 elsewhere."""
        return self._spread([float(muon.is_matrix(shape)) for shape in self._shapes])

    def norms(self, vector: jax.Array) -> list[jax.Array]:
        """Return the norm of each tensor."""
        import jax.numpy as jnp

        return [jnp.linalg.norm(part) for part in self._split(vector)]

    def orthogonal_steps(self, vector: jax.Array) -> jax.Array:
        """Return the steps of `ffn.training.muon` for the momentum of all weights, 0 where it has none."""
        import jax.numpy as jnp

        steps = [
            muon.orthogonal_step(part.reshape(-1, shape[-1]), jnp.transpose, jnp.linalg.norm).ravel()
            if muon.is_matrix(shape)
            else jnp.zeros_like(part)
            for part, shape in zip(self._split(vector), self._shapes, strict=True)
        ]
        return jnp.concatenate(steps)

    def trust(self, norms: Sequence[jax.Array], divisors: Sequence[jax.Array]) -> jax.Array:
        """Return at every entry the quotient of two norms of its tensor, 1 in biases and where one of them is 0."""
        import jax.numpy as jnp

        quotients = [
            jnp.where((norm > 0) & (divisor > 0), norm / divisor, 1.0) if is_kernel else 1.0
            for norm, divisor, is_kernel in zip(norms, divisors, self._are_kernels, strict=True)
        ]
        return self._spread(quotients)

    def _split(self, vector: jax.Array) -> list[jax.Array]:
        import jax.numpy as jnp

        return jnp.split(vector, np.cumsum(self._sizes)[:-1])

    def _spread(self, values: Sequence[Any]) -> jax.Array:
        """Repeat one value of each tensor at all its entries."""
        import jax.numpy as jnp

        parts = zip(values, self._sizes, strict=True)
        return jnp.concatenate([jnp.full(size, value, jnp.float32) for value, size in parts])


def _momentum(momentum: float) -> Optimizer:
    def update(
        weights: jax.Array, gradient: jax.Array, slots: Slots, rate: jax.Array, count: jax.Array
    ) -> tuple[jax.Array, Slots]:
        if not momentum:
            return weights - rate * gradient, ()
        velocity = momentum * slots[0] - rate * gradient
        return weights + velocity, (velocity,)

    return Optimizer(1 if momentum else 0, update)


def _adam(epsilon: float, decay: float, tensors: _Tensors) -> Optimizer:
    def update(
        weights: jax.Array, gradient: jax.Array, slots: Slots, rate: jax.Array, count: jax.Array
    ) -> tuple[jax.Array, Slots]:
        import jax.numpy as jnp

        mean, square = _moments(gradient, slots)
        if decay:
            weights -= rate * tensors.of_kernels(decay) * weights
        step = rate * jnp.sqrt(1 - BETA_2**count) / (1 - BETA_1**count)
        return weights - step * mean / (jnp.sqrt(square) + epsilon), (mean, square)

    return Optimizer(2, update)


def _muon(epsilon: float, decay: float, tensors: _Tensors) -> Optimizer:
    adam = _adam(epsilon, decay, tensors)

    def update(
        weights: jax.Array, gradient: jax.Array, slots: Slots, rate: jax.Array, count: jax.Array
    ) -> tuple[jax.Array, Slots]:
        import jax.numpy as jnp

        matrices = tensors.of_matrices() > 0
        momentum = muon.MOMENTUM * slots[0] + gradient
        step = rate * tensors.orthogonal_steps(gradient + muon.MOMENTUM * momentum)
        decayed = weights - rate * tensors.of_kernels(decay) * weights if decay else weights
        by_adam, (mean, square) = adam.update(weights, gradient, slots, rate, count)
        kept = jnp.where(matrices, momentum, mean), jnp.where(matrices, 0.0, square)
        return jnp.where(matrices, decayed - step, by_adam), kept

    return Optimizer(2, update)


def _lamb(epsilon: float, decay: float, tensors: _Tensors) -> Optimizer:
    def update(
        weights: jax.Array, gradient: jax.Array, slots: Slots, rate: jax.Array, count: jax.Array
    ) -> tuple[jax.Array, Slots]:
        import jax.numpy as jnp

        mean, square = _moments(gradient, slots)
        direction = mean / (1 - BETA_1**count) / (jnp.sqrt(square / (1 - BETA_2**count)) + epsilon)
        direction += tensors.of_kernels(decay) * weights
        trust = tensors.trust(tensors.norms(weights), tensors.norms(direction))
        return weights - rate * trust * direction, (mean, square)

    return Optimizer(2, update)


def _lars(momentum: float, decay: float, tensors: _Tensors) -> Optimizer:
    def update(
        weights: jax.Array, gradient: jax.Array, slots: Slots, rate: jax.Array, count: jax.Array
    ) -> tuple[jax.Array, Slots]:
        norms = tensors.norms(weights)
        divisors = [of_g + decay * of_w for of_g, of_w in zip(tensors.norms(gradient), norms, strict=True)]
        decayed = gradient + tensors.of_kernels(decay) * weights
        velocity = momentum * slots[0] + rate * tensors.trust(norms, divisors) * decayed
        return weights - velocity, (velocity,)

    return Optimizer(1, update)


def _moments(gradient: jax.Array, slots: Slots) -> tuple[jax.Array, jax.Array]:
    """Return Adam's moving averages of the gradient and of its square."""
    mean, square = slots
    return mean + (1 - BETA_1) * (gradient - mean), square + (1 - BETA_2) * (gradient * gradient - square)
