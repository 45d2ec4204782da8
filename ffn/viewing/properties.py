"""Properties of all segments of a layer: a list that Neuroglancer sorts and filters, and a table for other programs.

Source of the format: Neuroglancer, ``src/datasource/precomputed/segment_properties.md``. Its queries handle numbers of
up to 32 bits, so a bounding box is six numbers.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ffn.errors import ExportError
from ffn.geometry import VoxelSize
from ffn.io.atomic import atomic_path
from ffn.io.faults import unreadable
from ffn.viewing.segments import Segments

FOLDER = "segment_properties"
NM3_PER_UM3 = 1e9


Lengths = tuple[np.ndarray, np.ndarray]  # ids and lengths, nm, of skeletons


class Column(NamedTuple):
    """One number for each segment, under a name for queries, as in ``voxels>1000``, and a description."""

    name: str
    description: str
    values: np.ndarray


def columns_of(segments: Segments, voxel_size_zyx_nm: VoxelSize, lengths: Lengths | None) -> Iterator[Column]:
    """Yield size, bounding box and, where a layer has skeletons, their lengths."""
    yield Column("voxels", "voxels at mip 0", segments.voxels)
    volumes = segments.voxels * (math.prod(voxel_size_zyx_nm) / NM3_PER_UM3)
    yield Column("volume_um3", "volume, µm³", volumes)
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
        numbers = {each["id"]: each["values"] for each in inline["properties"]}
        return {"id": list(map(int, inline["ids"])), **numbers}


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
