"""A grid of overlapping subvolumes: which of them overlap, and which voxels each contributes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np

from ffn.errors import VolumeError
from ffn.geometry import ZYX, Box, Grid, zyx


class Tiling(Grid):
    """Boxes as `ffn.geometry.tile` makes them, numbered in zyx order: starts and stops of ranges ascend, without gaps.

    Examples
    --------
    >>> tiling = Tiling.of([Box((0, 0, 0), (6, 4, 4)), Box((4, 0, 0), (10, 4, 4))])
    >>> str(tiling.core(0)), str(tiling.core(1)), list(tiling.overlapped_by(0))
    ('0:5,0:4,0:4', '5:10,0:4,0:4', [1])
    """

    @classmethod
    def of(cls, boxes: Sequence[Box]) -> Tiling:
        """Return the tiling that distinct `boxes` form, in any order."""
        tiling = cls([sorted({(box.start[axis], box.stop[axis]) for box in boxes}) for axis in range(3)])
        if len(tiling) != len(boxes):
            present = set(boxes)
            raise VolumeError(_hole(len(boxes), f"none is at {next(box for box in tiling if box not in present)}"))
        for axis, ranges in zip("zyx", tiling.ranges_zyx, strict=True):
            for (start, stop), (next_start, next_stop) in itertools.pairwise(ranges):
                if not (start < next_start <= stop < next_stop):
                    found = f"{start}:{stop} is followed by {next_start}:{next_stop} on axis {axis}"
                    raise VolumeError(_hole(len(boxes), found))
        return tiling

    @property
    def shape(self) -> ZYX:
        """Number of boxes along each axis."""
        return zyx(map(len, self.ranges_zyx))

    @property
    def hull(self) -> Box:
        """The box that all boxes cover together."""
        return Box(zyx(ranges[0][0] for ranges in self.ranges_zyx), zyx(ranges[-1][1] for ranges in self.ranges_zyx))

    def core(self, index: int) -> Box:
        """Return the part of a box that it contributes: up to the middle of the overlap with each neighbour.

        Cores are disjoint and cover the hull.
        """
        place = self._place(index)
        starts = zyx(cuts[i] for cuts, i in zip(self._cuts, place, strict=True))
        return Box(starts, zyx(cuts[i + 1] for cuts, i in zip(self._cuts, place, strict=True)))

    def overlapped_by(self, index: int) -> Iterator[int]:
        """Yield the later boxes that share voxels with a box, in ascending order."""
        near = (ranges[place] for ranges, place in zip(self._near, self._place(index), strict=True))
        for place in itertools.product(*near):
            if (number := self._number(place)) > index:
                yield number

    def overlap_shares(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Return the depth of the overlaps of boxes, as a share of the first ones' sides."""
        places = (np.unravel_index(numbers, self.shape) for numbers in (first, second))
        shares = []
        for ranges, of_first, of_second in zip(self.ranges_zyx, *places, strict=True):
            starts, stops = np.array(ranges).T
            depth = np.minimum(stops[of_first], stops[of_second]) - np.maximum(starts[of_first], starts[of_second])
            shares.append(depth / (stops - starts)[of_first])
        return np.minimum.reduce(shares)

    def cores_in(self, block: Box) -> Iterator[tuple[int, Box]]:
        """Yield the number of every box whose core overlaps `block`, and the part that does."""
        for place in itertools.product(*map(_cells, self._cuts, block.start, block.stop)):
            number = self._number(place)
            part = self.core(number).intersect(block)
            if not part.is_empty:
                yield number, part

    @cached_property
    def _cuts(self) -> list[np.ndarray]:
        """Borders between cores along each axis, with those of the hull at both ends."""
        inner = ([(b[0] + a[1]) // 2 for a, b in itertools.pairwise(ranges)] for ranges in self.ranges_zyx)
        return [np.array([r[0][0], *cuts, r[-1][1]]) for r, cuts in zip(self.ranges_zyx, inner, strict=True)]

    @cached_property
    def _near(self) -> list[list[range]]:
        return [_neighbours(ranges) for ranges in self.ranges_zyx]

    def _place(self, index: int) -> ZYX:
        _, y, x = self.shape
        return index // (y * x), index // x % y, index % x

    def _number(self, place: tuple[int, ...]) -> int:
        _, y, x = self.shape
        return (place[0] * y + place[1]) * x + place[2]


def _hole(num_boxes: int, found: str) -> str:
    return (
        f"reconcile: of the {num_boxes} subvolumes {found}, expected a tiling without holes. "
        "Is a subvolume missing, or from another tiling?"
    )


def _neighbours(ranges: Sequence[tuple[int, int]]) -> list[range]:
    """For each range of an axis, the ranges that share voxels with it, including itself."""
    starts, stops = np.array(ranges).T
    first, last = np.searchsorted(stops, starts, "right"), np.searchsorted(starts, stops, "left")
    return [range(a, b) for a, b in zip(first.tolist(), last.tolist(), strict=True)]


def _cells(cuts: np.ndarray, start: int, stop: int) -> range:
    """Return the cells between `cuts` that overlap start … stop."""
    first, last = np.searchsorted(cuts, start, "right") - 1, np.searchsorted(cuts, stop, "left")
    return range(max(0, int(first)), min(int(last), len(cuts) - 1))
