"""Corrections of an agglomeration by people: pairs of places whose segments are joined or kept apart, in a CSV file."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ffn.assembly.connected import connected_roots
from ffn.errors import FfnError
from ffn.geometry import ZYX, Box, relative_sides, zyx
from ffn.io.volume import Volume, voxel_size_of

JOIN = "join"
SEPARATE = "separate"
COLUMNS = ("action", "z_a", "y_a", "x_a", "z_b", "y_b", "x_b")
REACH = 10  # smallest voxel sides from a place to its supervoxel: fill grows segments, and people draw what they see


class CorrectionError(FfnError):
    """Corrections that cannot be read or applied."""


class Correction(NamedTuple):
    """One correction."""

    action: str  # `JOIN` or `SEPARATE`
    a_zyx: ZYX  # A voxel of each of the two segments, in the full volume. Places stay valid when ids change
    b_zyx: ZYX

    def __str__(self) -> str:
        """Return the line of the file."""
        return ",".join(map(str, (self.action, *self.a_zyx, *self.b_zyx)))


class Constraints(NamedTuple):
    """Corrections in terms of supervoxels."""

    # pairs of supervoxels that are in one group, and pairs that are not
    joined: np.ndarray = np.empty((0, 2), np.uint64)
    apart: np.ndarray = np.empty((0, 2), np.uint64)


NOTHING_GIVEN = Constraints()


def read_corrections(path: str | Path) -> list[Correction]:
    """Read a file of corrections."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")  # spreadsheets write a byte order mark
        rows = list(csv.reader(text.splitlines()))
    except (OSError, UnicodeDecodeError, csv.Error) as reason:
        raise CorrectionError(
            f"{path}: cannot be read ({reason}), expected a file of 'ffn view RUN --corrections'"
        ) from None
    if not rows or tuple(rows[0]) != COLUMNS:
        found = ",".join(rows[0]) if rows else "nothing"
        raise CorrectionError(f"{path}: starts with {found!r}, expected the columns {','.join(COLUMNS)}")
    return [_parse(row, f"{path}: line {number}") for number, row in enumerate(rows[1:], 2) if row]


def _parse(row: Sequence[str], where: str) -> Correction:
    try:
        action, *numbers = row
        first, second = np.array(numbers, np.int64).reshape(2, 3)
        if action not in (JOIN, SEPARATE):
            raise ValueError
    except (ValueError, OverflowError):
        raise CorrectionError(
            f"{where} is {','.join(row)!r}, expected {JOIN} or {SEPARATE}, and z,y,x of two voxels"
        ) from None
    return Correction(action, zyx(first), zyx(second))


def corrections_text(corrections: Iterable[Correction]) -> str:
    """Return the text of a file of corrections."""
    return "".join(f"{line}\n" for line in (",".join(COLUMNS), *corrections))


def constraints_of(corrections: Sequence[Correction], path: str | Path, base: Volume) -> Constraints:
    """Look up the supervoxels that corrections name."""
    found = [[_segment_at(base, place, f"{path}: {each}") for place in each[1:]] for each in corrections]
    pairs = np.array(found, np.uint64).reshape(-1, 2)
    is_join = np.array([each.action == JOIN for each in corrections], bool)
    ids, index = np.unique(pairs, return_inverse=True)
    index = index.reshape(-1, 2)
    roots = connected_roots(len(ids), index[is_join])[index]
    for row in np.flatnonzero(~is_join & (roots[:, 0] == roots[:, 1])).tolist():
        a, b = found[row]
        what = (
            f"two places of supervoxel {a}, which merge does not cut" if a == b else f"{a} from {b}, joined by others"
        )
        raise CorrectionError(
            f"{path}: {corrections[row]} separates {what}. Delete it, or the corrections that contradict it"
        )
    return Constraints(pairs[is_join], pairs[~is_join])


def nearest_voxel(volume: Volume, place_zyx: ZYX, wanted: Callable[[Box], np.ndarray]) -> ZYX | None:
    """Return the wanted voxel of a volume that is nearest to a place; None if there is none within `REACH`."""
    sides = np.array(relative_sides(voxel_size_of(volume)))
    box = Box.around(place_zyx, zyx((REACH // sides).astype(int))).intersect(volume.box)
    if box.is_empty:
        return None
    voxels = np.argwhere(wanted(box)) + box.start
    distances = np.linalg.norm((voxels - place_zyx) * sides, axis=1)
    return zyx(voxels[distances.argmin()]) if (distances <= REACH).any() else None


def _segment_at(base: Volume, place_zyx: ZYX, where: str) -> int:
    """Return the nearest supervoxel, at most `REACH` away."""
    voxel = nearest_voxel(base, place_zyx, lambda box: base.read(box) > 0)
    if voxel is None:
        raise CorrectionError(f"{where}: there is no segment near {','.join(map(str, place_zyx))}, expected one")
    return int(base.read(Box.around(voxel)).item())
