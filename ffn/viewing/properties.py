"""List all segments with their properties, so that Neuroglancer can sort and filter them.

Source of the format: Neuroglancer, ``src/datasource/precomputed/segment_properties.md``. Its queries handle numbers of
up to 32 bits, tags and labels, so a bounding box is six numbers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple, TextIO

import numpy as np

from ffn.errors import ExportError
from ffn.geometry import VoxelSize
from ffn.io.atomic import atomic_path
from ffn.viewing.segments import Matches, Segments

FOLDER = "segment_properties"
NM3_PER_UM3 = 1e9
ROWS_AT_ONCE = 2**16  # as Python objects
NO_SEED = -1  # coordinate of the seed of a segment without origin; its FOV count is 0


class Column(NamedTuple):
    """One number for each segment.

    Parameters
    ----------
    name : str
        Name in queries, as in ``voxels>1000``.
    description : str
        Text shown by Neuroglancer.
    values : ndarray of shape (N,)
        Values in the order of the segments.
    """

    name: str
    description: str
    values: np.ndarray


class Origins(NamedTuple):
    """The seeds of segments.

    Parameters
    ----------
    seeds_zyx : int ndarray of shape (K, 3)
        Full-volume voxels.
    num_fovs : int ndarray of shape (K,)
        Number of FOVs evaluated from each seed.
    """

    seeds_zyx: np.ndarray
    num_fovs: np.ndarray


class Groups(NamedTuple):
    """The agglomerated group of each base id.

    Parameters
    ----------
    base_ids, group_ids : uint64 ndarray of shape (G,)
        By ascending base id.
    """

    base_ids: np.ndarray = np.empty(0, np.uint64)
    group_ids: np.ndarray = np.empty(0, np.uint64)

    def of(self, ids: np.ndarray) -> np.ndarray:
        """Return the group of each id; an id without one is its own group."""
        if not len(self.base_ids):
            return ids
        rows = np.searchsorted(self.base_ids, ids).clip(max=len(self.base_ids) - 1)
        return np.where(self.base_ids[rows] == ids, self.group_ids[rows], ids)


class Lengths(NamedTuple):
    """The lengths of skeletons.

    Parameters
    ----------
    ids : uint64 ndarray of shape (N,)
        Their segments, in any order.
    nm : float64 ndarray of shape (N,)
        Length of each.
    """

    ids: np.ndarray = np.empty(0, np.uint64)
    nm: np.ndarray = np.empty(0)


def place_columns(segments: Segments, voxel_size_zyx_nm: VoxelSize) -> list[Column]:
    """Return the size and bounding box of each segment."""
    volumes = segments.voxels * (math.prod(voxel_size_zyx_nm) / NM3_PER_UM3)
    columns = [Column("voxels", "voxels at mip 0", segments.voxels), Column("volume_um3", "volume, µm³", volumes)]
    for axis, name in enumerate("zyx"):
        columns.append(Column(f"{name}_start", f"first {name} of the bounding box", segments.start_zyx[:, axis]))
        columns.append(Column(f"{name}_stop", f"first {name} after the bounding box", segments.stop_zyx[:, axis]))
    return columns


def origin_columns(segments: Segments, origins: Origins, ids: np.ndarray) -> list[Column]:
    """Return the seed and FOV count of each segment. With several origins: the seed with most FOVs, and all FOVs.

    Parameters
    ----------
    segments : Segments
        Segments of the layer.
    origins : Origins
        Origins of all subvolumes.
    ids : uint64 ndarray of shape (K,)
        Segment at each seed; 0 for none.
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


def pom_column(means: np.ndarray) -> Column:
    """Return the mean POM of each segment."""
    return Column("mean_pom", "mean probability of its voxels, 0 if none has one", means)


def length_column(segments: Segments, lengths: Lengths) -> Column:
    """Return the length of each segment's skeleton; a segment without one has 0."""
    values = np.zeros(len(segments.ids))
    values[np.searchsorted(segments.ids, lengths.ids)] = lengths.nm / 1000
    return Column("length_um", "length of its skeleton, µm, 0 if it has none", values)


def truth_columns(matches: Matches) -> list[Column]:
    """Return the matching body of each segment, and the share of the segment in it."""
    return [
        Column("truth", "body with most of its voxels, 0 for none", matches.truth_ids),
        Column("truth_share", "share of its labelled voxels in this body", matches.shares),
    ]


def group_column(segments: Segments, groups: Groups) -> Column:
    """Return the agglomerated group of each segment; a segment without one is its own group."""
    return Column("group", "agglomerated object", groups.of(segments.ids))


def write_segment_properties(layer: Path, segments: Segments, columns: list[Column]) -> None:
    """Write the properties of the segments of a layer.

    Parameters
    ----------
    layer : Path
        Folder of a label volume.
    segments : Segments
        All its segments.
    columns : list of Column
        Their properties.
    """
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
    """Return the ids of all segments of a layer.

    Raises
    ------
    ExportError
        If the layer has no readable list of segments.
    """
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
