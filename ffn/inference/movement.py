"""The movement of the FOV: the FaceMax policy of the published FFN."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np

from ffn.geometry import ZYX, Box, add, scale, subtract, zyx

ScoredOffset = tuple[float, ZYX]


class FaceMaxMovement:
    """Queue of positions: breadth first, and the best face first among the moves of one FOV.

    Notes
    -----
    Source: Januszewski et al. 2018, Methods. A position belongs to the cell
    ``floor((position - seed + deltas // 2) / deltas)``; every cell is evaluated at most once.
    """

    def __init__(
        self,
        seed_zyx: ZYX,
        deltas_zyx: ZYX,
        queue: Iterable[ZYX] | None = None,
        evaluated: Iterable[ZYX] = (),
        inside: Box | None = None,
    ) -> None:
        self._seed = seed_zyx
        self._deltas = deltas_zyx
        self._inside = inside
        self.queue: deque[ZYX] = deque([seed_zyx] if queue is None else queue)
        self.evaluated = list(evaluated)
        self._done = set(map(self._cell, self.evaluated))

    def pop(self) -> ZYX | None:
        """Return the next position whose cell has not been evaluated, None if there is none."""
        while self.queue:
            position = self.queue.popleft()
            if self._cell(position) not in self._done:
                return position
        return None

    def upcoming(self, count: int) -> list[ZYX]:
        """Return the first positions, at most `count`, that `pop` would return if it were called again and again."""
        return list(islice((position for position in self.queue if self._cell(position) not in self._done), count))

    def follow(self, position_zyx: ZYX, offsets: Iterable[ScoredOffset]) -> None:
        """Mark `position_zyx` as evaluated and queue the moves by `offsets`, which are those of `face_max_offsets`."""
        self._done.add(self._cell(position_zyx))
        self.evaluated.append(position_zyx)
        moved = (add(position_zyx, offset) for _, offset in offsets)
        self.queue.extend(map(self._inside.mirrored, moved) if self._inside else moved)

    def _cell(self, position: ZYX) -> ZYX:
        (z, y, x), (sz, sy, sx), (dz, dy, dx) = position, self._seed, self._deltas
        return (z - sz + dz // 2) // (dz or 1), (y - sy + dy // 2) // (dy or 1), (x - sx + dx // 2) // (dx or 1)


def centres_across(jumps: np.ndarray | None, canvas: Box, radius_zyx: ZYX) -> list[Box]:
    """Return where on a canvas FOVs would see both sides of a jump, one of a table of `ffn.io.section_faults`.

    Notes
    -----
    google/ffn's shift mask: it restricts movement, while voxels there can belong to segments.

    Examples
    --------
    >>> jumps = np.array([(20, 0, 0, 64, 64, 0, 15)])
    >>> [str(box) for box in centres_across(jumps, Box((10, 0, 0), (90, 99, 99)), (4, 16, 16))]
    ['6:14,0:80,0:80']
    """
    found = []
    for z, y, x, y_stop, x_stop, *_ in [] if jumps is None else jumps.tolist():
        start, stop = subtract((z, y, x), radius_zyx), add((z, y_stop, x_stop), radius_zyx)
        seen = Box(start, stop).intersect(canvas)
        if not seen.is_empty:
            found.append(seen.shift(scale(canvas.start, -1)))
    return found


def face_max_offsets(pom_logit: np.ndarray, deltas_zyx: ZYX, move_logit: float) -> list[ScoredOffset]:
    """Find the strongest voxel of each of the six faces at ± deltas."""
    (z, y, x), (dz, dy, dx) = zyx(n // 2 for n in pom_logit.shape), deltas_zyx
    box = pom_logit[z - dz : z + dz + 1, y - dy : y + dy + 1, x - dx : x + dx + 1]
    faces = [box.take(-1 if sign > 0 else 0, axis) for axis, sign in sides(deltas_zyx)]
    flats = [int(face.argmax()) for face in faces]
    scores = [float(face.flat[flat]) for face, flat in zip(faces, flats, strict=True)]
    return offsets_of_maxima(scores, flats, deltas_zyx, move_logit)


def sides(deltas_zyx: ZYX) -> list[tuple[int, int]]:
    """Return axis and direction of the faces, in order.

    Examples
    --------
    >>> sides((0, 8, 8))
    [(1, -1), (1, 1), (2, -1), (2, 1)]
    """
    return [(axis, sign) for axis in range(3) if deltas_zyx[axis] for sign in (-1, 1)]


def offsets_of_maxima(
    scores: Sequence[float], flats: Sequence[int], deltas_zyx: ZYX, move_logit: float
) -> list[ScoredOffset]:
    """Turn the maxima of the faces, in the order of `sides`, into moves."""
    found: set[ScoredOffset] = set()
    for (axis, sign), score, flat in zip(sides(deltas_zyx), scores, flats, strict=True):
        if score >= move_logit:
            rows = [delta for other, delta in enumerate(deltas_zyx) if other != axis]
            row, column = divmod(flat, 2 * rows[1] + 1)
            offset = [row - rows[0], column - rows[1]]
            offset.insert(axis, sign * deltas_zyx[axis])
            found.add((score, (offset[0], offset[1], offset[2])))
    return sorted(found, reverse=True)
