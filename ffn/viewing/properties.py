"""List all segments with their properties, so that Neuroglancer can sort and filter them.

Source of the format: Neuroglancer, ``src/datasource/precomputed/segment_properties.md``. Its queries handle numbers of
up to 32 bits, tags and labels, so a bounding box is six numbers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ffn.errors import ExportError
from ffn.geometry import VoxelSize
from ffn.viewing.segments import Matches, Segments

FOLDER = "segment_properties"
NM3_PER_UM3 = 1e9
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
    rows = np.searchsorted(segments.ids, ids)
    for origin in np.argsort(origins.num_fovs, kind="stable"):  # the last one stays
        if ids[origin]:
            num_fovs[rows[origin]] += origins.num_fovs[origin]
            seeds[rows[origin]] = origins.seeds_zyx[origin]
    columns = [Column("fovs", "fields of view evaluated from its seeds", num_fovs)]
    return columns + [Column(f"seed_{name}", f"{name} of the seed", seeds[:, i]) for i, name in enumerate("zyx")]


def pom_column(means: np.ndarray) -> Column:
    """Return the mean POM of each segment."""
    return Column("mean_pom", "mean probability of its voxels, 0 if none has one", means)


def length_column(segments: Segments, lengths_nm: Mapping[int, float]) -> Column:
    """Return the length of each segment's skeleton; a segment without one has 0."""
    values = np.array([lengths_nm.get(i, 0.0) / 1000 for i in segments.ids.tolist()], np.float64)
    return Column("length_um", "length of its skeleton, µm, 0 if it has none", values)


def truth_columns(matches: Matches) -> list[Column]:
    """Return the matching body of each segment, and the share of the segment in it."""
    return [
        Column("truth", "body with most of its voxels, 0 for none", matches.truth_ids),
        Column("truth_share", "share of its labelled voxels in this body", matches.shares),
    ]


def group_column(segments: Segments, groups: Mapping[int, int]) -> Column:
    """Return the agglomerated group of each segment; a segment without one is its own group."""
    values = np.array([groups.get(i, i) for i in segments.ids.tolist()], np.uint64)
    return Column("group", "agglomerated object", values)


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
    inline = {
        "ids": [str(segment_id) for segment_id in segments.ids.tolist()],
        "properties": [*_labels(columns), *map(_number, columns)],
    }
    (layer / FOLDER).mkdir(exist_ok=True)
    (layer / FOLDER / "info").write_text(json.dumps({"@type": "neuroglancer_segment_properties", "inline": inline}))


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
    except (OSError, ValueError, KeyError):
        raise ExportError(f"{path}: cannot be read, expected a list of segments. Run ffn export again") from None


def _labels(columns: list[Column]) -> Iterator[dict]:
    """Yield ids too large for a number of the format as text, which is shown with the segment's id."""
    for column in columns:
        if _data_type(column.values) == "float32" and column.values.dtype == np.uint64:
            texts = [f"{column.name} {value}" if value else "" for value in column.values.tolist()]
            yield {"id": f"{column.name}_label", "type": "label", "values": texts}
            return  # a segment has one label only


def _number(column: Column) -> dict:
    data_type = _data_type(column.values)
    values = column.values.astype(np.float32) if data_type == "float32" else column.values
    return {
        "id": column.name,
        "type": "number",
        "description": column.description,
        "data_type": data_type,
        "values": values.tolist(),
    }


def _data_type(values: np.ndarray) -> str:
    """Smallest type of the format that can hold all values. The format has no integers above 32 bits."""
    if values.dtype.kind == "f":
        return "float32"
    low, high = int(values.min(initial=0)), int(values.max(initial=0))
    if low >= 0 and high < 2**32:
        return "uint32"
    return "int32" if -(2**31) <= low and high < 2**31 else "float32"
