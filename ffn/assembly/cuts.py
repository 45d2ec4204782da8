"""Supervoxels that people have cut: the file of ``ffn cut``, and the segmentation with its new ids."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ffn.assembly.contacts import MAX_GAP_NM
from ffn.assembly.merge_graph import MergeEdge, MergeGraphError
from ffn.assembly.tables import expanded
from ffn.geometry import Box, steps_within
from ffn.io import atomic
from ffn.io.faults import unreadable
from ffn.io.volume import Derived, Volume, voxel_size_of

COLUMNS = ("z", "y", "x", "voxels", "segment", "part")


class WithCuts(Derived):
    """A segmentation in which some voxels have other ids.

    `rows` (int64, (N, 6)) are runs along x, ascending and disjoint: first voxel z, y, x in the full volume, number of
    voxels, id before and after.
    """

    def __init__(self, source: Volume, rows: np.ndarray) -> None:
        super().__init__(source, np.dtype(np.uint64))
        self.rows = rows

    def _read(self, box: Box) -> np.ndarray:
        labels = self.source.read(box).astype(np.uint64)
        z, y, x, voxels = self.rows[:, :4].T
        (z0, y0, x0), (z1, y1, x1) = box.start, box.stop
        near = self.rows[(z >= z0) & (z < z1) & (y >= y0) & (y < y1) & (x < x1) & (x + voxels > x0)]
        row, at = expanded(near[:, 2], near[:, 3])
        row, at = row[(at >= x0) & (at < x1)], at[(at >= x0) & (at < x1)]
        labels[near[row, 0] - z0, near[row, 1] - y0, at - x0] = near[row, 5]
        return labels

    def moved(self, edge: MergeEdge) -> MergeEdge:
        """Return an edge of the graph of `source`; that of a segment that was cut is of its part at the place."""
        pair = edge.segment_a, edge.segment_b
        if not np.isin(pair, self.rows[:, 4].astype(np.uint64)).any():
            return edge
        near = Box.around((edge.z, edge.y, edge.x), steps_within(MAX_GAP_NM, voxel_size_of(self))).intersect(self.box)
        before, after = self.source.read(near), self.read(near)
        places = np.moveaxis(np.indices(near.shape), 0, -1) + near.start
        distance = np.linalg.norm((places - (edge.z, edge.y, edge.x)) * voxel_size_of(self), axis=-1)
        ids = []
        for each in pair:
            of = before == np.uint64(each)
            ids.append(int(after[of][distance[of].argmin()]) if of.any() else each)
        return replace(edge, segment_a=min(ids), segment_b=max(ids))


def write_cuts(path: str, rows: np.ndarray, record: dict[str, Any]) -> None:
    """Write the file of `WithCuts`, with its provenance."""
    lines = "".join(f"{','.join(map(str, row))}\n" for row in rows.tolist())
    atomic.write_text(Path(path), f"# {json.dumps(record, sort_keys=True)}\n{','.join(COLUMNS)}\n{lines}")


def read_cuts(path: str) -> np.ndarray:
    """Read the rows of `WithCuts`."""
    with unreadable(path, "a file of ffn cut", MergeGraphError), open(path) as file:
        next(file)
        if next(file) != ",".join(COLUMNS) + "\n":
            raise ValueError(f"no columns {','.join(COLUMNS)}")
        lines = [line.split(",") for line in file]
        return np.array(lines, np.int64).reshape(-1, len(COLUMNS))
