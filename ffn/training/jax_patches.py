"""Training patches on JAX's devices: examples and POMs stay there, and walks get the few values that they move by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ffn.config import ModelConfig
from ffn.geometry import ZYX, Box, add, scale, zyx
from ffn.inference.movement import ScoredOffset, offsets_of_maxima, sides
from ffn.training.config import TrainConfig
from ffn.training.data.examples import IN_OBJECT, SOFT_LABELS, Example, loss_weights, patch_size
from ffn.training.step import Batch
from ffn.training.walk import INIT_LOGIT, MOVE_LOGIT, PAD_LOGIT, HostPatches, Walk

WATCHED = 26  # positions in a queue whose logits come back: all of a walk `fixed`


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
        cuts = (jax.vmap(self._cut)(array, requests[:, :3]) for array in state)
        image, pom_logit, kinds = cuts
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
