"""The computation on the device: one FOV of every canvas, and the moves from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ffn.config import ModelConfig
from ffn.geometry import ZYX
from ffn.inference.canvas import INSIDE_LOGIT, Thresholds
from ffn.inference.movement import sides
from ffn.model.jax_network import Params, updated_pom

if TYPE_CHECKING:
    import jax

WATCHED = 16  # positions in the queue whose logits come back; our choice
INSIDE_COLUMN = 4  # of a request; before it, whether to evaluate, and the position
SEED_COLUMN = 10


class CanvasState(NamedTuple):
    """All canvases: images (N, Z, Y, X) as stored, and POMs (N, Z, Y, X), float32, NaN where not visited."""

    images: jax.Array
    pom_logit: jax.Array


@dataclass(frozen=True)
class Stepper:
    """One step of all canvases as a pure function."""

    model: ModelConfig  # FOV, deltas and depth
    thresholds: Thresholds  # of the flood
    precision: str  # type in which convolutions compute

    def step(
        self, params: Params, seen: jax.Array | None, state: CanvasState, requests: jax.Array
    ) -> tuple[CanvasState, jax.Array]:
        """Evaluate one FOV of every canvas that asks for it.

        Parameters
        ----------
        params : mapping of str to float32 array
            Weights.
        seen : float32 array of shape (256,) or (65536,), optional
            Normalised value of each grey level; None if images are stored as it sees them.
        state : CanvasState
            All canvases.
        requests : int32 array of shape (N, 13 + 3 × WATCHED)
            Of each canvas: 1 to evaluate a FOV or 0 to leave the canvas as it is, the first voxel of the FOV, the box
            in which voxels count (`Canvas.inside`), the seed, and the watched positions.

        Returns
        -------
        CanvasState
            With the updated POMs.
        int32 array of shape (N, 2 × F + 2 + WATCHED), for F faces to which the FOV can move
            Of each canvas: strongest logit of each face (bits of a float32), its index in the face, how many voxels
            were deleted (see `Canvas`), logits of the seed and of the watched positions (bits).
        """
        import jax
        import jax.numpy as jnp

        corners, points = requests[:, 1:INSIDE_COLUMN], requests[:, SEED_COLUMN:].reshape(len(requests), -1, 3)
        counts = jax.vmap(self._is_inside)(corners, requests[:, INSIDE_COLUMN:SEED_COLUMN])
        raw, old = (jax.vmap(self._cut)(array, corners) for array in state)
        image = raw if seen is None else seen[raw]
        visited = jnp.where(jnp.isnan(old), self.thresholds.pad, old)
        new = self._frozen(updated_pom(params, image, visited, self.model, self.precision), old)
        new = jnp.where((requests[:, 0] > 0)[:, None, None, None], new, old)
        pom_logit = jax.vmap(_paste)(state.pom_logit, new, corners)
        scores, flats = jax.vmap(self._face_maxima)(new)
        deleted = _num_voxels(counts & (old >= INSIDE_LOGIT) & (new < 0))
        logits = jax.vmap(lambda pom, where: pom[tuple(where.T)])(pom_logit, points)
        answers = [_bits(scores), flats, deleted, _bits(logits)]
        return CanvasState(state.images, pom_logit), jnp.concatenate(answers, axis=1)

    def _cut(self, array: jax.Array, corner: jax.Array) -> jax.Array:
        import jax

        return jax.lax.dynamic_slice(array, corner, self.model.fov_size_zyx)

    def _is_inside(self, corner: jax.Array, inside: jax.Array) -> jax.Array:
        """Return which voxels of a FOV lie in a box, given by its start and stop."""
        import jax.numpy as jnp

        places = (first + jnp.arange(n) for first, n in zip(corner, self.model.fov_size_zyx, strict=True))
        axes = zip(places, inside[:3], inside[3:], strict=True)
        z, y, x = ((place >= start) & (place < stop) for place, start, stop in axes)
        return z[:, None, None] & y[:, None] & x

    def _frozen(self, new: jax.Array, old: jax.Array) -> jax.Array:
        """Apply the freeze rule, as `Canvas.write` does."""
        import jax.numpy as jnp

        if self.thresholds.freeze_share < 0:
            return new
        num_active = jnp.count_nonzero(new >= self.thresholds.move, axis=(1, 2, 3), keepdims=True)
        is_frozen = num_active > most_active(self.model.fov_size_zyx, self.thresholds.freeze_share)
        return jnp.where(is_frozen & (old < 0) & (new > old), old, new)

    def _face_maxima(self, pom_logit: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Find the maxima of the faces, as `face_max_offsets` does."""
        import jax.numpy as jnp

        (z, y, x), (dz, dy, dx) = self.model.fov_radius_zyx, self.model.deltas_zyx
        box = pom_logit[z - dz : z + dz + 1, y - dy : y + dy + 1, x - dx : x + dx + 1]
        faces = [
            jnp.take(box, box.shape[axis] - 1 if sign > 0 else 0, axis).ravel() for axis, sign in sides((dz, dy, dx))
        ]
        return jnp.stack([face.max() for face in faces]), jnp.stack([face.argmax() for face in faces]).astype(jnp.int32)


def most_active(fov_size_zyx: ZYX, share: float) -> int:
    """Return the largest number of voxels of a FOV that is not more than this share of it, computed as on the host.

    Examples
    --------
    >>> most_active((3, 3, 3), 0.0), most_active((3, 3, 3), 1 / 3), most_active((3, 3, 3), 1.0)
    (0, 9, 27)
    """
    size = fov_size_zyx[0] * fov_size_zyx[1] * fov_size_zyx[2]
    return max(count for count in range(size + 1) if not count / size > share)


def _paste(array: jax.Array, fov: jax.Array, corner: jax.Array) -> jax.Array:
    import jax

    return jax.lax.dynamic_update_slice(array, fov, corner)


def _num_voxels(where: jax.Array) -> jax.Array:
    import jax.numpy as jnp

    return jnp.count_nonzero(where, axis=(1, 2, 3)).astype(jnp.int32)[:, None]


def _bits(floats: jax.Array) -> jax.Array:
    import jax
    import jax.numpy as jnp

    return jax.lax.bitcast_convert_type(floats, jnp.int32)
