"""Properties of all segments of a layer: a list that Neuroglancer sorts and filters, and tables for other programs.

Source of the format: Neuroglancer, ``src/datasource/precomputed/segment_properties.md``. Its queries handle numbers of
up to 32 bits, tags and labels, so a bounding box is six numbers.
"""

from __future__ import annotations

import csv
import importlib.util
import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, TextIO

import numpy as np

from ffn.errors import ExportError
from ffn.geometry import VoxelSize
from ffn.io.atomic import atomic_path
from ffn.viewing.inputs import ExportTables, Origins
from ffn.viewing.segments import Counts, Segments
from ffn.viewing.volumes import Part

FOLDER = "segment_properties"
NM3_PER_UM3 = 1e9
ROWS_AT_ONCE = 2**16  # as Python objects
NO_SEED = -1  # coordinate of the seed of a segment without origin; its FOV count is 0


Lengths = tuple[np.ndarray, np.ndarray]  # ids and lengths, nm, of skeletons


class Column(NamedTuple):
    """One number for each segment, under a name for queries, as in ``voxels>1000``, and a description."""

    name: str
    description: str
    values: np.ndarray


def write_facts(
    folder: Path,
    parts: Mapping[str, Part],
    counts: Mapping[str, Counts],
    tables: ExportTables,
    lengths: Lengths,
    formats: Collection[str],
) -> None:
    """Write all facts about the segments of each layer of an export."""
    for name, each in counts.items():
        columns = list(_columns(parts[name], each, tables, lengths, parts))
        write_segment_properties(folder / name, each.segments, columns)
        write_tables(folder / name, formats, each.segments, columns)


def _columns(
    part: Part, counts: Counts, tables: ExportTables, lengths: Lengths, others: Collection[str]
) -> Iterator[Column]:
    segments, is_main = counts.segments, part.name == "segmentation"
    yield from place_columns(segments, part.voxel_size_zyx_nm)
    if is_main and tables.origins is not None:
        yield from origin_columns(segments, tables.origins, counts.ids_at_points(len(tables.origins.num_fovs)))
    if part.name == tables.base:
        yield Column("group", "agglomerated object", tables.groups.of(segments.ids))
    if is_main:
        yield length_column(segments, *lengths)
    if is_main and "probability" in others:
        yield Column("mean_pom", "mean probability of its voxels, 0 if none has one", segments.mean_pom())
    if is_main and "truth" in others:
        truth_ids, shares = counts.matches()
        yield Column("truth", "body with most of its voxels, 0 for none", truth_ids)
        yield Column("truth_share", "share of its labelled voxels in this body", shares)


def place_columns(segments: Segments, voxel_size_zyx_nm: VoxelSize) -> Iterator[Column]:
    """Yield the size and bounding box of each segment."""
    yield Column("voxels", "voxels at mip 0", segments.voxels)
    volumes = segments.voxels * (math.prod(voxel_size_zyx_nm) / NM3_PER_UM3)
    yield Column("volume_um3", "volume, µm³", volumes)
    for axis, name in enumerate("zyx"):
        yield Column(f"{name}_start", f"first {name} of the bounding box", segments.start_zyx[:, axis])
        yield Column(f"{name}_stop", f"first {name} after the bounding box", segments.stop_zyx[:, axis])


def origin_columns(segments: Segments, origins: Origins, ids: np.ndarray) -> list[Column]:
    """Return the seed and FOV count of each segment; `ids` has the segment at each seed, 0 for none.

    With several origins, it is the seed with most FOVs, and the sum of FOVs.
    """
    num_fovs = np.zeros(len(segments.ids), np.int64)
    seeds = np.full((len(segments.ids), 3), NO_SEED, np.int64)
    order = np.argsort(origins.num_fovs, kind="stable")
    order = order[ids[order] > 0]
    rows = np.searchsorted(segments.ids, ids[order])
    np.add.at(num_fovs, rows, origins.num_fovs[order])
    seeds[rows] = origins.seeds_zyx[order]  # of several with the same row, the last one stays
    columns = [Column("fovs", "fields of view evaluated from its seeds", num_fovs)]
    return columns + [Column(f"seed_{name}", f"{name} of the seed", seeds[:, i]) for i, name in enumerate("zyx")]


def length_column(segments: Segments, ids: np.ndarray, lengths_nm: np.ndarray) -> Column:
    """Return the length of each segment's skeleton, which only some `ids` have."""
    values = np.zeros(len(segments.ids))
    values[np.searchsorted(segments.ids, ids)] = lengths_nm / 1000
    return Column("length_um", "length of its skeleton, µm, 0 if it has none", values)


def write_segment_properties(layer: Path, segments: Segments, columns: list[Column]) -> None:
    """Write the properties of all segments into the folder of their layer."""
    with atomic_path(layer / FOLDER / "info") as temporary, temporary.open("w") as file:
        file.write('{"@type": "neuroglancer_segment_properties", "inline": {"ids": ')
        _write_list(file, segments.ids, lambda ids: list(map(str, ids.tolist())))
        file.write(', "properties": [')
        for number, (head, values, shown) in enumerate([*_labels(columns), *map(_number, columns)]):
            file.write(f'{", " * bool(number)}{json.dumps(head)[:-1]}, "values": ')
            _write_list(file, values, shown)
            file.write("}")
        file.write("]}}")


def read_segment_ids(layer: Path) -> set[int]:
    """Return the ids of all segments of a layer."""
    path = layer / FOLDER / "info"
    try:
        return set(map(int, json.loads(path.read_text())["inline"]["ids"]))
    except (OSError, ValueError, KeyError, TypeError):
        raise ExportError(f"{path}: cannot be read, expected a list of segments. Run ffn export again") from None


Shown = Callable[[np.ndarray], list]
Property = tuple[dict[str, str], np.ndarray, Shown]  # all members but the values, these, and how they are shown


def _labels(columns: list[Column]) -> Iterator[Property]:
    """Yield ids too large for a number of the format as text, which is shown with the segment's id."""
    for column in columns:
        if _data_type(column.values) == "float32" and column.values.dtype == np.uint64:
            head = {"id": f"{column.name}_label", "type": "label"}
            yield head, column.values, partial(_texts, column.name)
            return  # a segment has one label only


def _texts(name: str, values: np.ndarray) -> list[str]:
    return [f"{name} {value}" if value else "" for value in values.tolist()]


def _number(column: Column) -> Property:
    data_type = _data_type(column.values)
    head = {"id": column.name, "type": "number", "description": column.description, "data_type": data_type}
    dtype = np.dtype(np.float32) if data_type == "float32" else column.values.dtype
    return head, column.values, lambda values: values.astype(dtype).tolist()


def _write_list(file: TextIO, values: np.ndarray, shown: Shown) -> None:
    """Write a list of a JSON file, some values at a time."""
    file.write("[")
    for start in range(0, len(values), ROWS_AT_ONCE):
        texts = json.dumps(shown(values[start : start + ROWS_AT_ONCE]))[1:-1]
        file.write(f", {texts}" if start else texts)
    file.write("]")


def _data_type(values: np.ndarray) -> str:
    """Smallest type of the format that can hold all values. The format has no integers above 32 bits."""
    if values.dtype.kind == "f":
        return "float32"
    low, high = int(values.min(initial=0)), int(values.max(initial=0))
    if low >= 0 and high < 2**32:
        return "uint32"
    return "int32" if -(2**31) <= low and high < 2**31 else "float32"


def require_writers(formats: Collection[str]) -> None:
    """Check that the library of every format is installed, before the export starts."""
    if "parquet" in formats and importlib.util.find_spec("pyarrow") is None:
        raise ExportError(
            "export.formats: has parquet, but pyarrow is not installed. Run: pip install pyarrow, or take csv"
        )


def write_tables(path: Path, formats: Collection[str], segments: Segments, columns: Sequence[Column]) -> None:
    """Write a row for each segment of a layer as ``csv``, ``parquet`` or both; `path` has no suffix."""
    named = {"id": segments.ids} | {column.name: column.values for column in columns}
    for kind, write in (("csv", _write_csv), ("parquet", _write_parquet)):
        if kind in formats:
            with atomic_path(path.with_suffix(f".{kind}")) as temporary:
                write(temporary, named)


def _write_csv(path: Path, columns: dict[str, np.ndarray]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for start in range(0, len(columns["id"]), ROWS_AT_ONCE):
            rows = slice(start, start + ROWS_AT_ONCE)
            writer.writerows(zip(*(_cells(values[rows]) for values in columns.values()), strict=True))


def _cells(values: np.ndarray) -> list:
    return [f"{value:.6g}" for value in values.tolist()] if values.dtype.kind == "f" else values.tolist()


def _write_parquet(path: Path, columns: dict[str, np.ndarray]) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table(columns), path)
