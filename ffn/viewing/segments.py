"""All segments of a layer, counted block by block, as a list that Neuroglancer sorts and filters, and as a table.

Source of the format: Neuroglancer, ``src/datasource/precomputed/segment_properties.md``. Its queries handle numbers of
up to 32 bits, so a bounding box is six numbers.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ffn.contingency import find_runs
from ffn.errors import ExportError
from ffn.geometry import Box, VoxelSize, zyx
from ffn.io.atomic import atomic_path, unreadable

MIN_PENDING = 2**20  # segments that wait before they are merged: with fewer, each block would sort all again
FOLDER = "segment_properties"
NM3_PER_UM3 = 1e9


Lengths = tuple[np.ndarray, np.ndarray]  # ids and lengths, nm, of skeletons


@dataclass(frozen=True)
class Segments:
    """Facts about segments, by ascending id; int64 but for the ids."""

    ids: np.ndarray  # uint64, without 0
    voxels: np.ndarray
    start_zyx: np.ndarray  # of the bounding box, full-volume voxels, of shape (N, 3)
    stop_zyx: np.ndarray

    def box(self, segment_ids: list[int]) -> Box | None:
        """Return the common bounding box of some segments; None if none of them occurs."""
        rows = np.isin(self.ids, np.array(segment_ids, np.uint64))
        return Box(zyx(self.start_zyx[rows].min(0)), zyx(self.stop_zyx[rows].max(0))) if rows.any() else None


def count_segments(block: Box, labels: np.ndarray) -> Segments:
    """Count the segments of a block of labels.

    >>> found = count_segments(Box((5, 0, 0), (6, 1, 4)), np.array([[[7, 7, 0, 3]]], np.uint64))
    >>> found.ids.tolist(), found.voxels.tolist(), found.start_zyx.tolist(), found.stop_zyx.tolist()
    ([3, 7], [1, 2], [[5, 0, 3], [5, 0, 0]], [[6, 1, 4], [6, 1, 2]])
    """
    first, lengths = find_runs(labels, within_rows=True)
    start = np.stack(np.unravel_index(first, labels.shape), axis=1) + block.start
    stop = start + 1
    stop[:, 2] = start[:, 2] + lengths
    ids = labels.ravel()[first].astype(np.uint64)
    return _merged([Segments(*(column[ids > 0] for column in (ids, lengths, start, stop)))])


def merge_segments(parts: Iterable[Segments]) -> Segments:
    """Combine the segments of disjoint blocks. Memory grows with the number of segments, not with that of blocks."""
    pending, num_pending = [count_segments(Box.from_shape((1, 1, 1)), np.zeros((1, 1, 1), np.uint64))], 0
    for part in parts:
        if len(part.ids):
            pending.append(part)
            num_pending += len(part.ids)
        if num_pending > max(MIN_PENDING, len(pending[0].ids)):
            pending, num_pending = [_merged(pending)], 0
    return _merged(pending)


def _merged(parts: list[Segments]) -> Segments:
    """Combine rows with the same id."""
    ids, *columns = (np.concatenate([getattr(part, name) for part in parts]) for name in Segments.__dataclass_fields__)
    order = np.argsort(ids, kind="stable")
    known, first = np.unique(ids[order], return_index=True)
    if not len(ids):
        return parts[0]
    voxels, start, stop = (column[order] for column in columns)
    reduced = np.minimum.reduceat(start, first, axis=0), np.maximum.reduceat(stop, first, axis=0)
    return Segments(known, np.add.reduceat(voxels, first), *reduced)


def number_segments(labels: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Replace each of the `wanted` ids (ascending) by its place among them, from 1, and all other ids by 0.

    The result, uint32, needs half the memory of `labels` in the libraries that process it.
    """
    numbers = np.zeros(labels.shape, np.uint32)
    if len(wanted):
        for section, target in zip(labels, numbers, strict=True):  # one section at a time saves memory
            row = np.searchsorted(wanted, section).clip(max=len(wanted) - 1)
            target[:] = np.where(wanted[row] == section, row + 1, 0)
    return numbers


class Column(NamedTuple):
    """One number for each segment, under a name for queries, as in ``voxels>1000``, and a description."""

    name: str
    description: str
    values: np.ndarray


def columns_of(segments: Segments, voxel_size_zyx_nm: VoxelSize, lengths: Lengths | None) -> Iterator[Column]:
    """Yield size, bounding box and, where a layer has skeletons, their lengths."""
    yield Column("voxels", "voxels at mip 0", segments.voxels)
    yield Column("volume_um3", "volume, µm³", segments.voxels * (math.prod(voxel_size_zyx_nm) / NM3_PER_UM3))
    for axis, name in enumerate("zyx"):
        yield Column(f"{name}_start", f"first {name} of the bounding box", segments.start_zyx[:, axis])
        yield Column(f"{name}_stop", f"first {name} after the bounding box", segments.stop_zyx[:, axis])
    if lengths is not None:
        ids, lengths_nm = lengths
        values = np.zeros(len(segments.ids))
        values[np.searchsorted(segments.ids, ids)] = lengths_nm / 1000
        yield Column("length_um", "length of its skeleton, µm, 0 if it has none", values)


def write_segment_properties(layer: Path, segments: Segments, columns: Sequence[Column]) -> None:
    """Write the properties of all segments into the folder of their layer."""
    with atomic_path(layer / FOLDER / "info") as temporary, temporary.open("w") as file:
        ids = json.dumps(list(map(str, segments.ids.tolist())))
        file.write(f'{{"@type": "neuroglancer_segment_properties", "inline": {{"ids": {ids}, "properties": [')
        for number, member in enumerate(_properties(columns)):  # one at a time, which saves memory
            file.write(", " * bool(number) + json.dumps(member))
        file.write("]}}")


def read_segment_properties(layer: Path) -> dict[str, list]:
    """Return the ids (``id``) of all segments of a layer, and their numbers, by name."""
    path = layer / FOLDER / "info"
    with unreadable(path, "a list of segments. Run ffn export again", ExportError):
        inline = json.loads(path.read_text())["inline"]
        return {"id": list(map(int, inline["ids"])), **{each["id"]: each["values"] for each in inline["properties"]}}


def _properties(columns: Sequence[Column]) -> Iterator[dict[str, Any]]:
    """Yield the members of the list."""
    for name, description, values in columns:
        data_type = _data_type(values)
        shown = (values.astype(np.float32) if data_type == "float32" else values).tolist()
        yield {"id": name, "type": "number", "description": description, "data_type": data_type, "values": shown}


def _data_type(values: np.ndarray) -> str:
    """Smallest type of the format that can hold all values. The format has no integers above 32 bits."""
    if values.dtype.kind == "f":
        return "float32"
    low, high = int(values.min(initial=0)), int(values.max(initial=0))
    if low >= 0 and high < 2**32:
        return "uint32"
    return "int32" if -(2**31) <= low and high < 2**31 else "float32"


def write_table(path: Path, segments: Segments, columns: Sequence[Column]) -> None:
    """Write a row for each segment of a layer as CSV."""
    named = {"id": segments.ids} | {column.name: column.values for column in columns}
    with atomic_path(path) as temporary, temporary.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(named)
        writer.writerows(zip(*map(_cells, named.values()), strict=True))


def _cells(values: np.ndarray) -> Iterable:
    return (f"{value:.6g}" for value in values) if values.dtype.kind == "f" else values
