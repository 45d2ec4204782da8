"""The training step in JAX, on the CPU or on the GPUs of this process.

Examples and POMs stay on the devices, and walks get the few values that they move by.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from ffn.config import ModelConfig
from ffn.errors import ConfigError
from ffn.geometry import ZYX, Box, add, scale, zyx
from ffn.inference.movement import ScoredOffset, offsets_of_maxima, sides
from ffn.model.jax_network import STAGE, pipelined_pom, updated_pom
from ffn.model.network import Weights
from ffn.training.config import TrainConfig
from ffn.training.data.examples import IN_OBJECT, SOFT_LABELS, Example, loss_weights, patch_size
from ffn.training.optimizers import State
from ffn.training.parallel.exchange import TAIL
from ffn.training.parallel.process_group import ProcessGroup, pairwise_sum
from ffn.training.step import Batch, Learner
from ffn.training.walk import INIT_LOGIT, MOVE_LOGIT, PAD_LOGIT, HostPatches, Walk

AXIS = "fovs"  # of a batch, which the devices share
WHOLE, SPLIT = PartitionSpec(), PartitionSpec(AXIS)
# Float16 has no normal numbers below 6e-5, and most entries of a gradient are smaller, so the loss is scaled by 2^14.
# Where a gradient is then beyond 65504, the factor falls by 2^4 at a time; our choice.
LARGEST_SCALE, SCALE_STEP = 2.0**14, 2.0**-4
WATCHED = 26  # positions in a queue whose logits come back: all of a walk `fixed`

log = logging.getLogger(__name__)


class Fields(NamedTuple):
    """The patches of a worker, (B, Z, Y, X): normalised images and POMs, float32, and kinds of voxels, uint8."""

    image: jax.Array
    pom_logit: jax.Array
    kinds: jax.Array


class PatchBatch(NamedTuple):
    """The FOVs that a step trains on, by their places in patches."""

    patches: JaxPatches
    requests: np.ndarray  # int32 (workers, B, 3 + 3 × WATCHED): first voxel of a FOV, and watched positions


class JaxPatches(HostPatches):
    """The patches of the lanes of a process; `states` has one entry for each of its workers."""

    def __init__(self, model: ModelConfig, train: TrainConfig, sharding: Any) -> None:
        self.size, self.columns = train.batch_size, 3 + 3 * WATCHED
        self.shape = patch_size(model, train)
        super().__init__(model, train)
        empty = jax.jit(self._empty, out_shardings=sharding)
        self.states: list[Fields] = [empty() for _ in range(train.virtual_workers)]
        self._placed = jax.jit(self._with_example, donate_argnums=0, out_shardings=sharding)
        self._replaced = jax.jit(_with_pom, donate_argnums=0, out_shardings=sharding)

    def walk(self, lane: int, example: Example) -> Walk:
        """Put an example on the devices, in place of the lane's last one."""
        worker, row = divmod(lane, self.size)
        grey, levels = example.grey, example.levels
        self.states[worker] = self._placed(self.states[worker], grey, levels, example.kinds, np.int32(row))
        return JaxWalk(example, self._model, self._train, self, lane)

    def batch(self, walks: Sequence[Walk]) -> PatchBatch:
        """Return the current FOVs of the walks of all lanes."""
        requests = np.zeros((len(walks), self.columns), np.int32)
        for walk, request in zip(walks, requests, strict=True):
            assert isinstance(walk, JaxWalk)
            walk.ask(request)
        return PatchBatch(self, requests.reshape(-1, self.size, self.columns))

    def pom_logit(self, lane: int) -> np.ndarray:
        """Fetch the POM of a lane."""
        worker, row = divmod(lane, self.size)
        return np.array(_row(self.states[worker].pom_logit, np.int32(row)))

    def replace_pom(self, lane: int, pom_logit: np.ndarray) -> None:
        """Replace the POM of a lane."""
        worker, row = divmod(lane, self.size)
        self.states[worker] = self._replaced(self.states[worker], pom_logit, np.int32(row))

    def cut(self, state: Fields, requests: jax.Array) -> Batch:
        """Cut the FOVs out of patches."""
        image, pom_logit, kinds = (jax.vmap(self._cut)(array, requests[:, :3]) for array in state)
        labels, weights = jnp.asarray(SOFT_LABELS), jnp.asarray(loss_weights(self._train.unlabelled_weight))
        return Batch(image, pom_logit, labels[kinds], weights[kinds])  # type: ignore[arg-type]

    def written(self, state: Fields, requests: jax.Array, updated: jax.Array) -> tuple[Fields, jax.Array]:
        """Write updated FOVs to the POMs; return also the answers, see `JaxWalk.write`."""
        corners, points = requests[:, :3], requests[:, 3:].reshape(len(requests), -1, 3)
        pom_logit = state.pom_logit
        for row, fov in enumerate(updated):  # in place; vmap would make a scatter
            pom_logit = jax.lax.dynamic_update_slice(pom_logit, fov[None], (row, *corners[row]))
        peaks = jnp.abs(updated).max((1, 2, 3))[:, None]
        scores, flats = jax.vmap(self._face_maxima)(updated)
        logits = jax.vmap(lambda pom, where: pom[tuple(where.T)])(pom_logit, points)
        answers = jnp.concatenate([peaks, scores, logits], axis=1)
        bits = jax.lax.bitcast_convert_type(answers, jnp.int32)
        return state._replace(pom_logit=pom_logit), jnp.concatenate([bits, flats, self._scores(state, pom_logit)], 1)

    def _empty(self) -> Fields:
        shape = (self.size, *self.shape)
        return Fields(jnp.zeros(shape), jnp.zeros(shape), jnp.zeros(shape, jnp.uint8))

    def _with_example(
        self, state: Fields, grey: jax.Array, levels: jax.Array | None, kinds: jax.Array, row: jax.Array
    ) -> Fields:
        pom_logit = jnp.full(self.shape, PAD_LOGIT, jnp.float32).at[zyx(n // 2 for n in self.shape)].set(INIT_LOGIT)
        patch = Fields(grey if levels is None else levels[grey], pom_logit, kinds)
        return Fields(*(_replaced(arrays, array, row) for arrays, array in zip(state, patch, strict=True)))

    def _cut(self, array: jax.Array, corner: jax.Array) -> jax.Array:
        return jax.lax.dynamic_slice(array, corner, self._model.fov_size_zyx)

    def _face_maxima(self, pom_logit: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Find the maxima of the faces, as `face_max_offsets` does."""
        deltas = self._model.deltas_zyx
        box = pom_logit[Box.around(self._model.fov_radius_zyx, deltas).slices()]
        faces = [jnp.take(box, -1 if sign > 0 else 0, axis).ravel() for axis, sign in sides(deltas)]
        return jnp.stack([face.max() for face in faces]), jnp.stack([face.argmax() for face in faces]).astype(jnp.int32)

    def _scores(self, state: Fields, pom_logit: jax.Array) -> jax.Array:
        """Count as `Walk.score` does, int32 (B, 4)."""
        reach = add(self._model.fov_radius_zyx, scale(self._model.deltas_zyx, self._train.fov_moves))
        where = (slice(None), *Box.around(zyx(n // 2 for n in self.shape), reach).slices())
        kinds = state.kinds[where]
        known = jnp.asarray(loss_weights(self._train.unlabelled_weight) > 0)[kinds]
        found, truth = known & (pom_logit[where] >= MOVE_LOGIT), known & (kinds & IN_OBJECT > 0)
        masks = (found & truth, found & ~truth, known & ~found & ~truth, truth & ~found)
        return jnp.stack([jnp.count_nonzero(mask, axis=(1, 2, 3)).astype(jnp.int32) for mask in masks], axis=1)


class JaxWalk(Walk):
    """A walk whose POM is on the devices; it moves by the answers from there."""

    def __init__(
        self, example: Example, model: ModelConfig, train: TrainConfig, patches: JaxPatches, lane: int
    ) -> None:
        self._patches, self._lane = patches, lane
        self._asked: list[ZYX] = []
        super().__init__(example, model, train)

    @property
    def canvas_logit(self) -> np.ndarray:
        """Fetch the POM of the patch."""
        return self._patches.pom_logit(self._lane)

    def ask(self, request: np.ndarray) -> None:
        """Fill the request for the current FOV."""
        self._asked = self._movement.upcoming(WATCHED)
        request[:3] = [start.start for start in self.window]
        request[3 : 3 + 3 * len(self._asked)] = np.ravel(self._asked)

    def write(self, answer: np.ndarray) -> bool:
        """Take the answer of the devices, which have written the FOV.

        Its int32 columns: largest absolute logit of the FOV, strongest logit of each face and logits of the watched
        positions (bits of float32), index of the strongest voxel in each face, and the counts of `score`.
        """
        num_faces = len(sides(self._deltas_zyx))
        peak, *logits = answer[: 1 + num_faces + WATCHED].view(np.float32).tolist()
        *flats, both, too_much, neither, too_little = answer[1 + num_faces + WATCHED :].tolist()
        self._peak, self._score = peak, np.array((both, too_much, neither, too_little), np.int64)
        self._moves = offsets_of_maxima(logits[:num_faces], flats, self._deltas_zyx, MOVE_LOGIT)
        self._logits = {add(self.position_zyx, offset): score for score, offset in self._moves}
        self._logits.update(zip(self._asked, logits[num_faces:], strict=False))
        return bool(np.isfinite(peak))

    def score(self) -> np.ndarray:
        """Return the score that came with the last answer."""
        return self._score

    def _face_moves(self) -> list[ScoredOffset]:
        return self._moves

    def _logit(self, position_zyx: ZYX) -> float:
        if position_zyx in self._logits:
            return self._logits[position_zyx]
        return float(self.canvas_logit[position_zyx])  # far back in a long queue

    def _put(self, canvas_logit: np.ndarray | None = None) -> None:
        if canvas_logit is not None:
            self._patches.replace_pom(self._lane, canvas_logit)


@jax.jit
def _row(arrays: jax.Array, row: jax.Array) -> jax.Array:
    return arrays[row]


def _with_pom(state: Fields, pom_logit: jax.Array, row: jax.Array) -> Fields:
    return state._replace(pom_logit=_replaced(state.pom_logit, pom_logit, row))


def _replaced(arrays: jax.Array, array: jax.Array, row: jax.Array) -> jax.Array:
    return jax.lax.dynamic_update_index_in_dim(arrays, array, row, 0)


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
        self._whole, self._split = NamedSharding(mesh, WHOLE), NamedSharding(mesh, SPLIT)
        self._held: State
        self._load(self._optimizer.initial(self._flat(weights)))

        def shared(function: Callable[..., Any], in_specs: Any, out_specs: Any, **options: Any) -> Any:
            on_mesh = jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
            return jax.jit(on_mesh, **options)

        self._devices, self._shared = devices, shared
        self._compiled_gradient = shared(self._gradient, (WHOLE, SPLIT, WHOLE), (SPLIT, WHOLE))
        self._compiled_forward = shared(self._forward, (WHOLE, SPLIT), (SPLIT, SPLIT))
        self._is_alone = group.size == 1 and train.compression == "none"
        self._compiled_mean = jax.jit(_mean) if self._is_alone else self._mean_by_tensorflow()
        self._compiled_update = jax.jit(self._updated, donate_argnums=0)

    def patches(self) -> JaxPatches:
        """Return the patches of this process, and compile the step on them."""
        patches = JaxPatches(self._config, self._train, self._split)

        def step(weights: jax.Array, state: Fields, requests: jax.Array, flags: jax.Array) -> tuple[Any, ...]:
            updated, vector = self._gradient(weights, patches.cut(state, requests), flags)
            return *patches.written(state, requests, updated), vector

        compiled = self._shared(step, (WHOLE, SPLIT, SPLIT, WHOLE), (SPLIT, SPLIT, WHOLE), donate_argnums=1)
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

    def _forward(self, weights: jax.Array, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """Return the updated POM and the loss of every FOV."""
        parts = zip(self._shapes.items(), jnp.split(weights, np.cumsum(self._sizes)[:-1]), strict=True)
        params = {name: part.reshape(shape) for (name, shape), part in parts}
        image, pom_logit, labels, loss_weight = map(jnp.asarray, batch)
        if (stages := self._train.pipeline_stages) > 1:
            updated = pipelined_pom(params, image, pom_logit, self._config, self._train.precision, stages)
        else:
            updated = updated_pom(params, image, pom_logit, self._config, self._train.precision)
        entropy = jax.nn.softplus(updated) - labels * updated
        return updated, jnp.mean(loss_weight * entropy, (1, 2, 3))

    def _gradient(self, weights: jax.Array, batch: Batch, flags: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the updated POM of a device's FOVs, and the worker's contribution to the average."""

        def loss_of(weights: jax.Array, scale: Any) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
            updated, losses = self._forward(weights, batch)
            loss = jnp.mean(losses)
            return loss * scale, (updated, loss)

        def differentiate(scale: Any) -> tuple[jax.Array, jax.Array]:
            (_, (updated, loss)), gradient = jax.value_and_grad(loss_of, has_aux=True)(weights, scale)
            # Each stage differentiates the sum of all stages' losses, which are the same, by the weights that it used:
            # the mean is the gradient of one.
            return updated, jax.lax.pmean(jnp.concatenate([gradient / scale, loss[None]]), (AXIS, STAGE))

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
