"""Boxes of the jobs of a volume, by the names that their files have."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from ffn.geometry import Box, Grid, cut, tile
from ffn.workflow.places import Place
from ffn.workflow.run import RunConfig

STEM = re.compile(r"z(-?\d+)-y(-?\d+)-x(-?\d+)")


class JobBoxes(Mapping[str, Box]):
    """The boxes of a grid by their stems, such as ``z000000-y000000-x000128``; a million of them take no memory.

    Examples
    --------
    >>> boxes = JobBoxes(cut(Box((0, 0, -4), (4, 4, 4)), (4, 4, 4)))
    >>> list(boxes), str(boxes["z000000-y000000-x000000"])
    (['z000000-y000000-x-00004', 'z000000-y000000-x000000'], '0:4,0:4,0:4')
    """

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self._stops = [dict(ranges) for ranges in grid.ranges_zyx]

    def __len__(self) -> int:
        """Return the number of boxes."""
        return len(self.grid)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names, in zyx order of the boxes."""
        return (box.stem for box in self.grid)

    def __getitem__(self, stem: str) -> Box:
        """Return the box of that name; a `KeyError` if there is none."""
        match = STEM.fullmatch(stem)
        if match is None:
            raise KeyError(stem)
        z, y, x = map(int, match.groups())
        stops = self._stops
        return Box((z, y, x), (stops[0][z], stops[1][y], stops[2][x]))


def subvolume_boxes(config: RunConfig, place: Place) -> JobBoxes:
    """Return the boxes of flood filling, which overlap."""
    return JobBoxes(tile(place.segment_box, config.subvolumes.size_zyx, config.subvolumes.overlap_zyx))


def contact_boxes(config: RunConfig, place: Place) -> JobBoxes:
    """Return the boxes of agglomeration, which do not overlap."""
    return JobBoxes(cut(place.segment_box, config.agglomerate.job_size_zyx))
