"""The training step in JAX, on the CPU or on the GPUs of this process."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from ffn.config import ModelConfig
from ffn.errors import ConfigError
from ffn.model.jax_network import Params, updated_pom
from ffn.model.network import Weights
from ffn.training.config import TrainConfig
from ffn.training.jax_patches import Fields, JaxPatches, PatchBatch
from ffn.training.optimizers import State
from ffn.training.parallel.exchange import TAIL
from ffn.training.parallel.pipeline import STAGE, pipelined_pom
from ffn.training.parallel.process_group import ProcessGroup, pairwise_sum
from ffn.training.step import Batch, Learner

AXIS = "fovs"  # of a batch, which the devices share
# Float16 has no normal numbers below 6e-5, and most entries of a gradient are smaller, so the loss is scaled by 2^14.
# Where a gradient is then beyond 65504, the factor falls by 2^4 at a time; our choice.
LARGEST_SCALE, SCALE_STEP = 2.0**14, 2.0**-4

log = logging.getLogger(__name__)


class JaxLearner(Learner):
    """A learner of four compiled functions, see `Learner`. The devices of this process share the FOVs of a worker.

    With `pipeline_stages`, groups of as many devices do, each group one network. All devices have all weights, and
    only their activations are divided, which need the memory.

    A process that is alone and does not compress keeps its gradients on the devices, and needs no TensorFlow. Others
    exchange them by the same graphs of TensorFlow as its learner does, in the memory of the host.
    """

    def __init__(
        self, model: ModelConfig, train: TrainConfig, weights: Weights, group: ProcessGroup, rng_seed: int = 0
    ) -> None:
        super().__init__(model, train, group, rng_seed, jnp)
        devices = devices_of(group, train.batch_size, train.pipeline_stages)
        grid = np.array(devices).reshape(-1, train.pipeline_stages)
        mesh = Mesh(grid, (AXIS, STAGE), axis_types=(AxisType.Auto,) * 2)
        whole, split = PartitionSpec(), PartitionSpec(AXIS)
        self._whole, self._split = NamedSharding(mesh, whole), NamedSharding(mesh, split)
        self._held: State
        self._load(self._optimizer.initial(self._flat(weights)))

        def shared(function: Callable[..., Any], in_specs: Any, out_specs: Any, **options: Any) -> Any:
            on_mesh = jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
            return jax.jit(on_mesh, **options)

        self._devices, self._shared = devices, shared
        self._compiled_gradient = shared(self._gradient, (whole, split, whole), (split, whole))
        self._compiled_forward = shared(self._forward, (whole, split), (split, split))
        self._is_alone = group.size == 1 and train.compression == "none"
        self._compiled_mean = jax.jit(_mean) if self._is_alone else self._mean_by_tensorflow()
        self._compiled_update = jax.jit(self._updated, donate_argnums=0)

    def patches(self) -> JaxPatches:
        """Return the patches of this process, and compile the step on them."""
        patches = JaxPatches(self._config, self._train, self._split)

        def step(weights: jax.Array, state: Fields, requests: jax.Array, flags: jax.Array) -> tuple[Any, ...]:
            updated, vector = self._gradient(weights, patches.cut(state, requests), flags)
            return *patches.written(state, requests, updated), vector

        whole, split = PartitionSpec(), PartitionSpec(AXIS)
        compiled = self._shared(step, (whole, split, split, whole), (split, split, whole), donate_argnums=1)
        request = jax.ShapeDtypeStruct((patches.size, patches.columns), np.int32, sharding=self._split)
        flags = jax.ShapeDtypeStruct((TAIL - 1,), np.float32, sharding=self._whole)
        self._compiled_step = compiled.lower(self._held.weights, patches.states[0], request, flags).compile()
        require_memory(self._compiled_step, self._devices, patches.size)
        return patches

    def _microbatches(self, batch: Batch | PatchBatch) -> Iterator[Any]:
        if isinstance(batch, Batch):
            return super()._microbatches(batch)
        return ((batch.patches, worker, requests) for worker, requests in enumerate(batch.requests))

    def _differentiate(self, batch: Any, flags: np.ndarray) -> tuple[Any, jax.Array]:
        if not isinstance(batch, Batch):
            patches, worker, requests = batch
            placed = jax.device_put(requests, self._split), jax.device_put(flags, self._whole)
            state, answers, vector = self._compiled_step(self._held.weights, patches.states[worker], *placed)
            patches.states[worker] = state
            # else the wait for the devices would count as one for other processes
            return answers if self._is_alone else np.asarray(answers), vector
        on_devices = jax.device_put(batch, self._split), jax.device_put(flags, self._whole)
        return self._compiled_gradient(self._held.weights, *on_devices)

    def _mean(self, vectors: Sequence[jax.Array]) -> tuple[jax.Array, Any]:
        return self._compiled_mean(vectors)

    def _update(self, mean: jax.Array, learning_rate: float) -> tuple[jax.Array, jax.Array]:
        self._held, norm, finite = self._compiled_update(self._held, mean, np.float32(learning_rate))
        return norm, finite

    def _evaluate(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        pom_logit, losses = self._compiled_forward(self._held.weights, jax.device_put(batch, self._split))
        return np.asarray(pom_logit), np.asarray(losses)

    def _state(self) -> State:
        return self._held.map(np.array)

    def _load(self, state: State) -> None:
        self._held = jax.device_put(state, self._whole)

    def _mean_by_tensorflow(self) -> Callable[[Sequence[jax.Array]], tuple[jax.Array, np.ndarray]]:
        """Return a function that averages the vectors of all workers of all processes."""
        import tensorflow as tf

        exchanged = tf.function(self._exchange.mean, autograph=False)

        def mean(vectors: Sequence[jax.Array]) -> tuple[jax.Array, np.ndarray]:
            on_host = [tf.constant(np.asarray(vector)) for vector in vectors]
            averaged = exchanged(on_host, tf.constant(self._num_steps, tf.int64)).numpy()
            return jax.device_put(averaged, self._whole), averaged[-TAIL:]

        return mean

    def _params(self, weights: jax.Array) -> Params:
        """Return the weight tensors by name."""
        parts = jnp.split(weights, np.cumsum(self._sizes)[:-1])
        return {name: part.reshape(shape) for (name, shape), part in zip(self._shapes.items(), parts, strict=True)}

    def _forward(self, weights: jax.Array, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """Return the updated POM and the loss of every FOV."""
        return self._forward_with(self._params(weights), batch)

    def _forward_with(self, params: Params, batch: Batch) -> tuple[jax.Array, jax.Array]:
        image, pom_logit, labels, loss_weight = map(jnp.asarray, batch)
        if (stages := self._train.pipeline_stages) > 1:
            updated = pipelined_pom(params, image, pom_logit, self._config, self._train.precision, stages)
        else:
            updated = updated_pom(params, image, pom_logit, self._config, self._train.precision)
        entropy = jax.nn.softplus(updated) - labels * updated
        return updated, jnp.mean(loss_weight * entropy, (1, 2, 3))

    def _gradient(self, weights: jax.Array, batch: Batch, flags: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the updated POM of a device's FOVs, and the worker's contribution to the average."""

        def loss_of(params: Params, scale: Any) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
            updated, losses = self._forward_with(params, batch)
            loss = jnp.mean(losses)
            return loss * scale, (updated, loss)

        params = self._params(weights)

        def differentiate(scale: Any) -> tuple[jax.Array, jax.Array]:
            (_, (updated, loss)), gradient = jax.value_and_grad(loss_of, has_aux=True)(params, scale)
            own = jnp.concatenate([gradient[name].ravel() for name in self._shapes])
            # Each stage differentiates the sum of all stages' losses, which are the same, by the weights that it used:
            # the mean is the gradient of one.
            return updated, jax.lax.pmean(jnp.concatenate([own / scale, loss[None]]), (AXIS, STAGE))

        updated, own = in_range(differentiate) if self._train.precision == "float16" else differentiate(1.0)
        return updated, jnp.concatenate([own, flags])

    def _updated(self, state: State, mean: jax.Array, rate: jax.Array) -> tuple[State, jax.Array, jax.Array]:
        """Return the state with an update if the averaged gradient is finite, its norm, and whether it is finite."""
        gradient, loss = mean[:-TAIL], mean[-TAIL]
        norm = jnp.linalg.norm(gradient)
        finite = jnp.isfinite(norm + loss)
        updated = self._optimizer.update(state, gradient, rate)
        return jax.tree.map(lambda new, old: jnp.where(finite, new, old), updated, state), norm, finite


def devices_of(group: ProcessGroup, batch_size: int, num_stages: int = 1) -> list[jax.Device]:
    """Return the devices that share the FOVs of a worker: as many of this process as can have equally many.

    With several stages, pipelines share the FOVs, each of as many devices.
    """
    here = jax.local_devices()
    mine = here[group.local_rank :: group.local_size] or [here[group.local_rank % len(here)]]
    if len(mine) < num_stages:
        raise ConfigError(f"train.pipeline_stages: found {num_stages}, expected at most {len(mine)}, the devices here")
    pipelines = len(mine) // num_stages
    used = max(number for number in range(1, pipelines + 1) if batch_size % number == 0)
    if used < pipelines:
        log.warning(
            "rank %d: train.batch_size %d uses %d of %d devices, a multiple of %d would use all",
            *(group.rank, batch_size, used * num_stages, len(mine), pipelines),
        )
    return mine[: used * num_stages]


def require_memory(step: Any, devices: Sequence[jax.Device], batch_size: int) -> None:
    """Check that a step, a `jax.stages.Compiled`, fits into the memory of its devices."""
    sizes = step.memory_analysis()
    needed = sizes.temp_size_in_bytes + sizes.argument_size_in_bytes + sizes.output_size_in_bytes
    log.info("JAX: a step of %d FOVs on %d × %s, %.0f MB each", batch_size, len(devices), devices[0], needed / 1e6)
    limits = [stats["bytes_limit"] for device in devices if (stats := device.memory_stats())]
    if limits and needed > min(limits):
        raise ConfigError(
            f"train.batch_size: {batch_size} FOVs need {needed / 1e9:.1f} GB of each device in a step, found "
            f"{min(limits) / 1e9:.1f} GB. Lower it, and raise virtual_workers to keep the global batch"
        )


def in_range(differentiate: Callable[[Any], tuple[jax.Array, jax.Array]]) -> tuple[jax.Array, jax.Array]:
    """Return answers and gradient for the largest scale of the loss at which the gradient is finite, if there is one.

    The scale depends on nothing but the batch, so checkpoints need not hold it.
    """

    def attempt(state: tuple[Any, ...]) -> tuple[Any, ...]:
        scale, *_ = state
        return scale * SCALE_STEP, *differentiate(scale)

    def is_beyond(state: tuple[Any, ...]) -> Any:
        scale, _, vector = state
        return (scale >= 1) & ~jnp.isfinite(vector).all()

    kinds = jax.eval_shape(differentiate, jnp.float32(1))
    nothing = (jnp.full(kind.shape, jnp.nan, kind.dtype) for kind in kinds)
    _, answers, vector = jax.lax.while_loop(is_beyond, attempt, (jnp.float32(LARGEST_SCALE), *nothing))
    return answers, vector


def _mean(vectors: Sequence[jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Average the vectors of a process that is alone, as `Exchange` does; return also the tail."""
    mean = pairwise_sum(jnp.stack(list(vectors))) / len(vectors)
    return mean, mean[-TAIL:]
