"""The computation on the device: a burst of FOVs of several objects, with the queues by which they move."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from ffn.config import ModelConfig
from ffn.geometry import ZYX, zyx
from ffn.inference.canvas import INSIDE_LOGIT, Thresholds
from ffn.inference.movement import sides
from ffn.model.jax_network import Params, updated_pom

if TYPE_CHECKING:
    import jax

    from ffn.kernels.gpu import Packed

Array = TypeVar("Array", "np.ndarray", "jax.Array")

LOOKAHEAD = 256  # positions of a queue of which one step finds the first that may be visited; our choice
IDLE_FOVS = 4  # FOVs that canvases may miss in a burst, in all, before the host is asked for objects; our choice
REQUEST = 17  # numbers of a request
ANSWER = 8  # numbers of an answer before the positions
CROWDED = 4  # column of an answer


class Scenes(NamedTuple):
    """What objects do not change: images (N, Z, Y, X), as stored, and where objects may not be centred (bool)."""

    images: jax.Array
    blocked: jax.Array


class Growing(NamedTuple):
    """An object on each of N canvases."""

    pom_logit: jax.Array  # (N, Z, Y, X), float32, NaN where not visited
    done: jax.Array  # (N, cells), bool: which cells have been evaluated; see `FaceMaxMovement`
    queue: jax.Array  # (N, Q, 3), int32: a ring of positions
    ends: jax.Array  # (N, 2), int32: numbers of the first position in the queue and of the next to be added


class _Loop(NamedTuple):
    """State of a burst of L objects."""

    pom_logit: jax.Array
    done: jax.Array
    queue: jax.Array
    ends: jax.Array  # (L, 2)
    found: jax.Array  # (L,) whether the first position in the queue may be visited
    ready: jax.Array  # (L,) whether it is evaluated next
    counts: jax.Array  # (L, 2) FOVs, and voxels deleted
    evaluated: jax.Array  # (L, FOVs, 3)
    idle: jax.Array  # FOVs missed so far
    goes_on: jax.Array  # GPUs wait for this number before each step, so it is known at the end of the one before


class _Objects(NamedTuple):
    """Requests by column."""

    lanes: jax.Array  # (L,)
    left: jax.Array  # (L,)
    seed: jax.Array  # (L, 3), as all that follow
    inside_start: jax.Array
    inside_stop: jax.Array
    reach_start: jax.Array
    reach_stop: jax.Array


@dataclass(frozen=True)
class Burst:
    """A burst of FOVs as a pure function."""

    model: ModelConfig  # FOV, deltas and depth
    thresholds: Thresholds  # of the flood
    precision: str  # type in which convolutions compute
    shape_zyx: ZYX  # of the canvases
    num_fovs: int  # of an object, at most

    @property
    def num_sides(self) -> int:
        """Number of moves from a FOV, at most."""
        return len(sides(self.model.deltas_zyx))

    @property
    def num_cells(self) -> int:
        """Number of cells of a canvas."""
        return math.prod(self._num_cells_zyx)

    @property
    def _num_cells_zyx(self) -> ZYX:
        """Number of cells along each axis of a canvas, wherever the seed is."""
        return zyx((n - 1) // (d or 1) + 2 for n, d in zip(self.shape_zyx, self.model.deltas_zyx, strict=True))

    def run(
        self, params: Params | Packed, seen: jax.Array | None, scenes: Scenes, growing: Growing, requests: jax.Array
    ) -> tuple[Growing, jax.Array]:
        """Evaluate FOVs of the objects on some canvases, in the order of `ObjectGrower`.

        It ends when no object has a FOV to evaluate, or when objects that had none have missed `IDLE_FOVS`.

        Parameters
        ----------
        params : pytree
            Weights, see `ffn.model.jax_network.prepared`.
        seen : float32 array of shape (256,) or (65536,), optional
            Normalised value of each grey level; None if images are stored as it sees them.
        scenes : Scenes
            All canvases.
        growing : Growing
            All objects.
        requests : int32 array of shape (L, 17)
            Of L objects: the canvas, each another; how many FOVs at most, 0 to leave it as it is; the seed; first voxel
            and stop of `Canvas.inside`, and of `Canvas.reach`.

        Returns
        -------
        Growing
            With the objects grown.
        int32 array of shape (L, 8 + 3 × num_fovs)
            Of each object: number of FOVs; how many voxels were deleted (see `Canvas`); whether the queue has a
            position that may be visited; whether the seed is strong; whether the queue needs more room; the first
            position in the queue; positions evaluated.
        """
        import jax
        import jax.numpy as jnp

        objects = _Objects(requests[:, 0], requests[:, 1], *jnp.moveaxis(requests[:, 2:].reshape(-1, 5, 3), 1, 0))
        num, no, none = len(requests), jnp.zeros(len(requests), bool), jnp.int32(0)
        counts, evaluated = jnp.zeros((num, 2), jnp.int32), jnp.zeros((num, self.num_fovs, 3), jnp.int32)
        start = _Loop(*growing[:3], growing.ends[objects.lanes], no, no, counts, evaluated, none, jnp.bool(False))

        def step(loop: _Loop) -> _Loop:
            return self._searched(scenes, objects, self._evaluated(params, seen, scenes, objects, loop))

        loop = jax.lax.while_loop(lambda loop: loop.goes_on, step, self._searched(scenes, objects, start))
        loop = jax.lax.while_loop(
            lambda loop: (~loop.found & (loop.ends[:, 0] < loop.ends[:, 1])).any(),
            lambda loop: self._searched(scenes, objects, loop),
            loop,
        )
        flags = [loop.found, self._is_strong(loop, objects), ~self._has_room(loop)]
        first = loop.queue[objects.lanes, loop.ends[:, 0] % loop.queue.shape[1]]
        answers = [loop.counts, jnp.stack(flags, axis=1).astype(jnp.int32), first, loop.evaluated.reshape(num, -1)]
        ends = growing.ends.at[objects.lanes].set(loop.ends, unique_indices=True)
        return Growing(*loop[:3], ends), jnp.concatenate(answers, axis=1)

    def _evaluated(
        self, params: Params | Packed, seen: jax.Array | None, scenes: Scenes, objects: _Objects, loop: _Loop
    ) -> _Loop:
        """Evaluate the first position in the queue of each object that is ready, and queue the moves from there."""
        import jax.numpy as jnp

        lanes, ready, head = objects.lanes, loop.ready, loop.ends[:, 0]
        written = jnp.where(ready, lanes, len(loop.done) + lanes)  # beyond the last canvas, so nothing is written
        position = loop.queue[lanes, head % loop.queue.shape[1]]
        corners = jnp.column_stack([lanes, position - jnp.array(self.model.fov_radius_zyx)])
        raw, old = self._cut(scenes.images, corners), self._cut(loop.pom_logit, corners)
        visited = jnp.where(jnp.isnan(old), self.thresholds.pad, old)
        image = raw if seen is None else seen[raw]
        new = self._frozen(updated_pom(params, image, visited, self.model, self.precision), old)
        new = jnp.where(ready[:, None, None, None], new, old)
        is_lost = self._is_inside(corners[:, 1:], objects) & (old >= INSIDE_LOGIT) & (new < 0)
        num_lost = jnp.count_nonzero(is_lost, axis=(1, 2, 3)).astype(jnp.int32)
        # Nothing reads the old POM after the write, and XLA sees it, or it would copy the canvas for each FOV.
        pom_logit = _pasted(loop.pom_logit, new, jnp.where(num_lost[:, None] >= 0, corners, 0))
        order, is_move, moves = self._moves(self._cut(pom_logit, corners))
        places = jnp.where(is_move, (loop.ends[:, 1:] + order) % loop.queue.shape[1], loop.queue.shape[1] + order)
        moved = _mirrored(position[:, None] + moves, objects.inside_start[:, None], objects.inside_stop[:, None])
        added = jnp.where(ready, is_move.sum(axis=1), 0)
        rows = jnp.where(ready, jnp.arange(len(lanes)), len(lanes) + jnp.arange(len(lanes)))
        return loop._replace(
            pom_logit=pom_logit,
            done=loop.done.at[written, self.cell(position, objects.seed)].set(True, mode="drop", unique_indices=True),
            queue=loop.queue.at[written[:, None], places].set(moved, mode="drop", unique_indices=True),
            ends=loop.ends + jnp.column_stack([ready, added]).astype(jnp.int32),
            found=loop.found & ~ready,
            counts=loop.counts + jnp.column_stack([ready, num_lost]).astype(jnp.int32),
            evaluated=loop.evaluated.at[rows, loop.counts[:, 0]].set(position, mode="drop", unique_indices=True),
            idle=loop.idle + jnp.count_nonzero((objects.left > 0) & ~ready).astype(jnp.int32),
        )

    def _searched(self, scenes: Scenes, objects: _Objects, loop: _Loop) -> _Loop:
        """Drop the first positions that may not be visited, `LOOKAHEAD` at most, as `ObjectGrower` does."""
        import jax.numpy as jnp

        head, tail = loop.ends.T
        numbers = head[:, None] + jnp.arange(LOOKAHEAD, dtype=jnp.int32)
        lanes = objects.lanes[:, None]
        positions = loop.queue[lanes, numbers % loop.queue.shape[1]]
        where = (lanes, *jnp.moveaxis(positions, -1, 0))
        fits = (positions >= objects.reach_start[:, None]) & (positions < objects.reach_stop[:, None])
        may_visit = (numbers < tail[:, None]) & fits.all(axis=-1) & ~scenes.blocked[where]
        may_visit &= ~loop.done[lanes, self.cell(positions, objects.seed[:, None])]
        may_visit &= loop.pom_logit[where] >= self.thresholds.move
        found = may_visit.any(axis=1)
        dropped = jnp.where(found, may_visit.argmax(axis=1).astype(jnp.int32), LOOKAHEAD)
        loop = loop._replace(ends=jnp.column_stack([jnp.minimum(head + dropped, tail), tail]), found=found)
        ready = found & self._is_strong(loop, objects) & self._has_room(loop) & (loop.counts[:, 0] < objects.left)
        return loop._replace(ready=ready, goes_on=ready.any() & (loop.idle < IDLE_FOVS))

    def _is_strong(self, loop: _Loop, objects: _Objects) -> jax.Array:
        return loop.pom_logit[(objects.lanes, *objects.seed.T)] >= self.thresholds.move

    def _has_room(self, loop: _Loop) -> jax.Array:
        """Whether the queue holds all moves of another FOV."""
        return loop.ends[:, 1] - loop.ends[:, 0] + self.num_sides <= loop.queue.shape[1]

    def cell(self, positions: Array, seed: Array) -> Array:
        """Return the index of the cells of positions (…, 3), as `FaceMaxMovement` counts them."""
        deltas, (_, size_y, size_x) = self.model.deltas_zyx, self._num_cells_zyx
        half, side = np.array([d // 2 for d in deltas]), np.array([d or 1 for d in deltas])
        cells = (positions - seed + half) // side - (half - seed) // side
        return (cells[..., 0] * size_y + cells[..., 1]) * size_x + cells[..., 2]

    def _cut(self, arrays: jax.Array, corners: jax.Array) -> jax.Array:
        """Cut FOVs out of arrays (N, Z, Y, X), at (number, z, y, x)."""
        import jax

        axes = jax.lax.GatherDimensionNumbers((1, 2, 3), (0,), (0, 1, 2, 3))
        size = (1, *self.model.fov_size_zyx)
        return jax.lax.gather(arrays, corners, axes, size, unique_indices=True, mode="clip")

    def _is_inside(self, corners: jax.Array, objects: _Objects) -> jax.Array:
        """Return which voxels of FOVs lie in `Canvas.inside`."""
        import jax.numpy as jnp

        places = [corners[:, axis, None] + jnp.arange(n) for axis, n in enumerate(self.model.fov_size_zyx)]
        bounds = zip(places, objects.inside_start.T, objects.inside_stop.T, strict=True)
        z, y, x = ((place >= start[:, None]) & (place < stop[:, None]) for place, start, stop in bounds)
        return z[:, :, None, None] & y[:, None, :, None] & x[:, None, None, :]

    def _frozen(self, new: jax.Array, old: jax.Array) -> jax.Array:
        """Apply the freeze rule, as `Canvas.write` does."""
        import jax.numpy as jnp

        if self.thresholds.freeze_share < 0:
            return new
        num_active = jnp.count_nonzero(new >= self.thresholds.move, axis=(1, 2, 3), keepdims=True)
        is_frozen = num_active > most_active(self.model.fov_size_zyx, self.thresholds.freeze_share)
        return jnp.where(is_frozen & (old < 0) & (new > old), old, new)

    def _moves(self, pom_logit: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Find the moves from FOVs, as `face_max_offsets` does: their order, which of them are made, and where to."""
        import jax.numpy as jnp

        (z, y, x), deltas = self.model.fov_radius_zyx, self.model.deltas_zyx
        dz, dy, dx = deltas
        box = pom_logit[:, z - dz : z + dz + 1, y - dy : y + dy + 1, x - dx : x + dx + 1]
        scores, moves = [], []
        for axis, sign in sides(deltas):
            face = jnp.take(box, 2 * deltas[axis] if sign > 0 else 0, axis + 1)
            flat, (height, width) = face.reshape(len(face), -1), (d for n, d in enumerate(deltas) if n != axis)
            row, column = jnp.divmod(flat.argmax(axis=1), 2 * width + 1)
            offset = [row - height, column - width]
            offset.insert(axis, jnp.full_like(row, sign * deltas[axis]))
            scores.append(flat.max(axis=1))
            moves.append(jnp.column_stack(offset).astype(jnp.int32))
        score, offsets = jnp.column_stack(scores), jnp.stack(moves, axis=1)
        key = (offsets[..., 0] * (2 * dy + 1) + offsets[..., 1]) * (2 * dx + 1) + offsets[..., 2]  # in order of zyx
        ours, others = (score[..., None], key[..., None]), (score[:, None], key[:, None])
        same = (ours[0] == others[0]) & (ours[1] == others[1])
        earlier = np.tri(len(scores), k=-1, dtype=bool)
        is_move = (score >= self.thresholds.move) & ~(same & earlier).any(axis=-1)
        behind = (others[0] > ours[0]) | ((others[0] == ours[0]) & (others[1] > ours[1])) | (same & earlier)
        order = jnp.where(is_move, (behind & is_move[:, None]).sum(axis=-1), np.arange(len(scores)))
        return order.astype(jnp.int32), is_move, offsets


def most_active(fov_size_zyx: ZYX, share: float) -> int:
    """Return the largest number of voxels of a FOV that is not more than this share of it, computed as on the host.

    Examples
    --------
    >>> most_active((3, 3, 3), 0.0), most_active((3, 3, 3), 1 / 3), most_active((3, 3, 3), 1.0)
    (0, 9, 27)
    """
    size = fov_size_zyx[0] * fov_size_zyx[1] * fov_size_zyx[2]
    return max(count for count in range(size + 1) if not count / size > share)


def _pasted(arrays: jax.Array, fovs: jax.Array, corners: jax.Array) -> jax.Array:
    """Write FOVs into arrays (N, Z, Y, X), at (number, z, y, x), each into another array."""
    import jax

    axes = jax.lax.ScatterDimensionNumbers((1, 2, 3), (0,), (0, 1, 2, 3))
    return jax.lax.scatter(arrays, corners, fovs, axes, unique_indices=True, mode="clip")


def _mirrored(positions: jax.Array, start: jax.Array, stop: jax.Array) -> jax.Array:
    """Return the voxels that positions show, as `Box.mirrored` does."""
    import jax.numpy as jnp

    last = stop - start - 1
    there_and_back = (positions - start) % jnp.maximum(2 * last, 1)
    return start + jnp.minimum(there_and_back, 2 * last - there_and_back)
