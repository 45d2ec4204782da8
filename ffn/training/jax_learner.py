"""The training step in JAX, on the CPU or on the GPUs of this process."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ffn.config import ModelConfig
from ffn.errors import ConfigError
from ffn.machine.jax_device import require_jax
from ffn.model.jax_network import Params, updated_pom
from ffn.model.network import Weights
from ffn.training.config import TrainConfig
from ffn.training.jax_optimizers import Slots, make_optimizer
from ffn.training.parallel.exchange import TAIL
from ffn.training.parallel.process_group import ProcessGroup
from ffn.training.parallel.sums import pairwise_sum
from ffn.training.step import LEAST_LOSS, Batch, Learner

if TYPE_CHECKING:
    import jax

AXIS = "fovs"  # of a batch, which the devices share

log = logging.getLogger(__name__)


class LearnerState(NamedTuple):
    """What a step changes, on every device; vectors have one weight tensor after the other.

    Parameters
    ----------
    weights : float32 array of shape (N,)
        The weights.
    slots : tuple of float32 array of shape (N,)
        What the optimizer keeps.
    num_updates : int32 array of shape ()
        Updates so far.
    rate : float32 array of shape ()
        Learning rate of the last update.
    average : float32 array of shape (N,), optional
        Moving average of the weights.
    """

    weights: jax.Array
    slots: Slots
    num_updates: jax.Array
    rate: jax.Array
    average: jax.Array | None


class JaxLearner(Learner):
    """A learner of four compiled functions, see `Learner`. The devices of this process share the FOVs of a worker.

    Raises
    ------
    ConfigError
        If JAX is not installed, or if a device has too little memory for a step.

    Notes
    -----
    A process that is alone and does not compress keeps its gradients on the devices, and needs no TensorFlow. Others
    exchange them by the same graphs of TensorFlow as its learner does, in the memory of the host.
    """

    def __init__(
        self, model: ModelConfig, train: TrainConfig, weights: Weights, group: ProcessGroup, rng_seed: int = 0
    ) -> None:
        require_jax()
        import jax
        from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

        super().__init__(model, train, weights, group, rng_seed)
        self._optimizer = make_optimizer(train, list(self._shapes.values()))
        devices = devices_of(group, train.batch_size)
        mesh = Mesh(np.array(devices), (AXIS,), axis_types=(AxisType.Auto,))
        whole, split = PartitionSpec(), PartitionSpec(AXIS)
        self._whole, self._split = NamedSharding(mesh, whole), NamedSharding(mesh, split)
        self._state = self._initial_state(weights)

        def shared(function: Callable[..., Any], in_specs: Any, out_specs: Any) -> Any:
            return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False))

        gradient = shared(self._gradient, (whole, split, whole), (split, whole))
        self._compiled_gradient = gradient.lower(self._state.weights, *self._example()).compile()
        require_memory(self._compiled_gradient, devices, train.batch_size)
        self._compiled_forward = shared(self._forward, (whole, split), (split, split))
        is_alone = group.size == 1 and train.compression == "none"
        self._compiled_mean = jax.jit(_mean) if is_alone else self._mean_by_tensorflow()
        self._compiled_update = jax.jit(self._updated, donate_argnums=0)

    def weights(self) -> Weights:
        """Return the current weights by name."""
        return self._by_name(np.array(self._state.weights))

    def _differentiate(self, batch: Batch, flags: np.ndarray) -> tuple[jax.Array, jax.Array]:
        import jax

        on_devices = jax.device_put(batch, self._split), jax.device_put(flags, self._whole)
        return self._compiled_gradient(self._state.weights, *on_devices)

    def _mean(self, vectors: Sequence[jax.Array]) -> tuple[jax.Array, np.ndarray]:
        mean, tail = self._compiled_mean(vectors)
        return mean, np.asarray(tail)

    def _update(self, mean: jax.Array, learning_rate: float) -> tuple[float, bool]:
        self._state, norm, finite = self._compiled_update(self._state, mean, np.float32(learning_rate))
        return float(norm), bool(finite)

    def _evaluate(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        import jax

        pom_logit, losses = self._compiled_forward(self._state.weights, jax.device_put(batch, self._split))
        return np.asarray(pom_logit), np.asarray(losses)

    def _set_weights(self, weights: Weights) -> None:
        self._replace(weights=self._flat(weights))

    def _slots(self) -> list[np.ndarray]:
        slots = [self._by_name(np.array(slot)) for slot in self._state.slots]
        of_tensors = [slot[name] for name in self._shapes for slot in slots]
        return [np.array(self._state.num_updates, np.int64), np.array(self._state.rate), *of_tensors]

    def _set_slots(self, slots: Sequence[np.ndarray]) -> None:
        num_updates, rate, *of_tensors = slots
        num = self._optimizer.num_slots
        assert len(of_tensors) == num * len(self._shapes)
        vectors = [np.concatenate([part.ravel() for part in of_tensors[i::num]]) for i in range(num)]
        self._replace(num_updates=np.int32(num_updates), rate=np.float32(rate), slots=tuple(vectors))

    def _average(self) -> np.ndarray | None:
        return None if self._state.average is None else np.array(self._state.average)

    def _set_average(self, average: np.ndarray) -> None:
        self._replace(average=average)

    def _initial_state(self, weights: Weights) -> LearnerState:
        import jax

        flat = self._flat(weights)
        slots = tuple(np.zeros_like(flat) for _ in range(self._optimizer.num_slots))
        average = flat if self._train.ema_decay else None
        parts: tuple[Any, ...] = flat, slots, np.int32(0), np.float32(self._train.learning_rate), average
        return jax.device_put(LearnerState(*parts), self._whole)

    def _replace(self, **parts: object) -> None:
        """Replace parts of the state."""
        import jax

        self._state = self._state._replace(**jax.device_put(parts, self._whole))

    def _example(self) -> tuple[Batch, Any]:
        """Return the shapes of a batch and of the flags."""
        import jax

        fovs = (self._train.batch_size, *self._config.fov_size_zyx)
        field: Any = jax.ShapeDtypeStruct(fovs, np.float32, sharding=self._split)
        return Batch(field, field, field, field), jax.ShapeDtypeStruct((2,), np.float32, sharding=self._whole)

    def _mean_by_tensorflow(self) -> Callable[[Sequence[jax.Array]], tuple[jax.Array, np.ndarray]]:
        """Return a function that averages the vectors of all workers of all processes."""
        import jax
        import tensorflow as tf

        exchanged = tf.function(self._exchange.mean, autograph=False)

        def mean(vectors: Sequence[jax.Array]) -> tuple[jax.Array, np.ndarray]:
            on_host = [tf.constant(np.asarray(vector)) for vector in vectors]
            averaged = exchanged(on_host, tf.constant(self._num_steps, tf.int64)).numpy()
            return jax.device_put(averaged, self._whole), averaged[-TAIL:]

        return mean

    def _params(self, weights: jax.Array) -> Params:
        """Return the weight tensors by name."""
        import jax.numpy as jnp

        parts = jnp.split(weights, np.cumsum(self._sizes)[:-1])
        return {name: part.reshape(shape) for (name, shape), part in zip(self._shapes.items(), parts, strict=True)}

    def _forward(self, weights: jax.Array, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """Return the updated POM and the loss of every FOV."""
        return self._forward_with(self._params(weights), batch)

    def _forward_with(self, params: Params, batch: Batch) -> tuple[jax.Array, jax.Array]:
        import jax
        import jax.numpy as jnp

        image, pom_logit, labels, loss_weight = map(jnp.asarray, batch)
        updated = updated_pom(params, image, pom_logit, self._config, self._train.precision)
        entropy = jax.nn.softplus(updated) - labels * updated
        return updated, jnp.mean(loss_weight * entropy, (1, 2, 3))

    def _gradient(self, weights: jax.Array, batch: Batch, flags: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the updated POM of a device's FOVs, and the worker's contribution to the average."""
        import jax
        import jax.numpy as jnp

        def loss_of(params: Params) -> tuple[jax.Array, jax.Array]:
            updated, losses = self._forward_with(params, batch)
            return jnp.mean(losses), updated

        params = self._params(weights)
        loss, pull_back, updated = jax.vjp(loss_of, params, has_aux=True)

        def gradients() -> Params:
            return pull_back(jnp.ones_like(loss))[0]

        if (tolerated := self._train.tolerated_loss) is None:
            gradient = gradients()
        else:
            avoidable = jax.lax.pmean(loss - LEAST_LOSS * jnp.mean(batch.loss_weight), AXIS)
            gradient = jax.lax.cond(
                avoidable <= tolerated, lambda: jax.tree_util.tree_map(jnp.zeros_like, params), gradients
            )
        own = jnp.concatenate([*(gradient[name].ravel() for name in self._shapes), loss[None]])
        return updated, jnp.concatenate([jax.lax.pmean(own, AXIS), flags])

    def _updated(
        self, state: LearnerState, mean: jax.Array, rate: jax.Array
    ) -> tuple[LearnerState, jax.Array, jax.Array]:
        """Return the state with an update if the averaged gradient is finite, its norm, and whether it is finite."""
        import jax
        import jax.numpy as jnp

        gradient, loss = mean[:-TAIL], mean[-TAIL]
        norm = _norm(gradient)
        finite = jnp.isfinite(norm + loss)
        updated = self._applied(state, gradient, norm, rate)
        return jax.tree.map(lambda new, old: jnp.where(finite, new, old), updated, state), norm, finite

    def _applied(self, state: LearnerState, gradient: jax.Array, norm: jax.Array, rate: jax.Array) -> LearnerState:
        """Return weights, optimizer state and moving average after an update."""
        import jax.numpy as jnp

        if (largest := self._train.clip_entries) is not None:
            gradient = jnp.clip(gradient, -largest, largest)
            norm = _norm(gradient)
        if (longest := self._train.clip_norm) is not None:
            gradient *= jnp.where(norm > longest, longest / norm, 1.0)
        num_updates = state.num_updates + 1
        number = num_updates.astype(jnp.float32)
        weights, slots = self._optimizer.update(state.weights, gradient, state.slots, rate, number)
        average = state.average
        if average is not None and self._train.ema_decay is not None:
            decay = jnp.minimum(self._train.ema_decay, (1 + number) / (10 + number))  # see `Learner.averaged_weights`
            average += (1 - decay) * (weights - average)
        return LearnerState(weights, slots, num_updates, rate, average)


def devices_of(group: ProcessGroup, batch_size: int) -> list[jax.Device]:
    """Return the devices that share the FOVs of a worker: as many of this process as can have equally many."""
    import jax

    here = jax.local_devices()
    mine = here[group.local_rank :: group.local_size] or [here[group.local_rank % len(here)]]
    used = max(number for number in range(1, len(mine) + 1) if batch_size % number == 0)
    if used < len(mine):
        log.warning(
            "rank %d: train.batch_size %d uses %d of %d devices, a multiple of %d would use all",
            *(group.rank, batch_size, used, len(mine), len(mine)),
        )
    return mine[:used]


def require_memory(step: Any, devices: Sequence[jax.Device], batch_size: int) -> None:
    """Check that a step, a `jax.stages.Compiled`, fits into the memory of its devices.

    Raises
    ------
    ConfigError
        If it does not.
    """
    sizes = step.memory_analysis()
    needed = sizes.temp_size_in_bytes + sizes.argument_size_in_bytes + sizes.output_size_in_bytes
    log.info("JAX: a step of %d FOVs on %d × %s, %.0f MB each", batch_size, len(devices), devices[0], needed / 1e6)
    limits = [stats["bytes_limit"] for device in devices if (stats := device.memory_stats())]
    if limits and needed > min(limits):
        raise ConfigError(
            f"train.batch_size: {batch_size} FOVs need {needed / 1e9:.1f} GB of each device in a step, found "
            f"{min(limits) / 1e9:.1f} GB. Lower it, and raise virtual_workers to keep the global batch"
        )


def _mean(vectors: Sequence[jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Average the vectors of a process that is alone, as `Exchange` does; return also the tail."""
    import jax.numpy as jnp

    mean = pairwise_sum(jnp.stack(list(vectors))) / len(vectors)
    return mean, mean[-TAIL:]


def _norm(vector: jax.Array) -> jax.Array:
    import jax.numpy as jnp

    return jnp.sqrt(jnp.sum(vector * vector))
