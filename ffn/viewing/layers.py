"""Layers of a Neuroglancer state: how each volume and table of an export is shown."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ffn.geometry import Box, VoxelSize
from ffn.io.atomic import write_json
from ffn.viewing.config import ExportConfig
from ffn.viewing.inputs import ExportTables, Groups
from ffn.viewing.segments import Segments
from ffn.viewing.shards import order_in_shards, plan_shards, shard_path, write_shard
from ffn.viewing.state import (
    BASE,
    LINKS_FOLDER,
    POINTS_FOLDER,
    State,
    choose_segments,
    dimensions,
    error_state,
    make_state,
)
from ffn.viewing.volumes import Part, contrast

MAX_MAPPED = 100_000  # ids in the groups of a state; with more, a browser takes seconds to load it

# The layers below show through where a value is 0.
EDGES_SHADER = "void main() { float v = toNormalized(getDataValue()); emitRGBA(vec4(1.0, 0.35, 0.1, 0.7 * v)); }"
PROBABILITY_SHADER = (
    "void main() { float v = toNormalized(getDataValue()); emitRGBA(vec4(colormapJet(v), v > 0.0 ? 0.5 : 0.0)); }"
)
POINTS_SHADER = (
    "void main() { setPointMarkerSize(4.0); setPointMarkerBorderWidth(0.0);"
    " setColor(vec4(colormapJet(float(prop_partition()) / 12.0), 1.0)); }"
)


def write_links(
    folder: Path,
    parts: Mapping[str, Part],
    segments: Mapping[str, Segments],
    tables: ExportTables,
    config: ExportConfig,
) -> State:
    """Write the state of each link, and the training coordinates; return the state that shows everything."""
    for name in (LINKS_FOLDER, POINTS_FOLDER):  # maybe of other tables
        shutil.rmtree(folder / name, ignore_errors=True)
    whole, size = Box.hull(part.box for part in parts.values()), next(iter(parts.values())).voxel_size_zyx_nm
    points = tables.points[whole.holds(tables.points[:, :3])]
    layers = _layers(parts, segments, tables, config)
    if len(points):
        write_points(folder / POINTS_FOLDER, points, whole, size)
        layers.append(points_layer())
    if tables.errors:
        layers.append(errors_layer(tables.errors))
    state = make_state(layers, whole, size)
    write_json(folder / LINKS_FOLDER / "whole.json", state)
    for error in tables.errors:
        write_json(folder / LINKS_FOLDER / f"{error['name']}.json", error_state(state, error, segments, size))
    return state


def _layers(
    parts: Mapping[str, Part], facts: Mapping[str, Segments], tables: ExportTables, config: ExportConfig
) -> list[State]:
    """List the layers. Image and segmentation are visible at first, all others can be switched on."""
    layers = []
    if "image" in parts:
        layers.append(image_layer(contrast(parts["image"])))
    for name, segments in facts.items():
        layers += _labels_layers(parts[name], segments, tables, config)
    layers += [overlay_layer(name) for name in ("edges", "probability") if name in parts]
    for layer in layers:
        if layer["name"] in ("truth", "supervoxels", "agglomerated") and "segmentation" in facts:
            layer["visible"] = False  # two colourings on top of each other are illegible
    return layers


def _labels_layers(part: Part, segments: Segments, tables: ExportTables, config: ExportConfig) -> Iterator[State]:
    """Yield the layer of some labels; for a segmentation also its agglomeration and its skeletons."""
    meshed = segments.voxels >= config.min_mesh_voxels
    chosen = choose_segments(segments.ids[meshed], segments.voxels[meshed], part.box.num_voxels)
    layer = labels_layer(part.name, chosen)
    has_groups = part.name == tables.base
    grouped = with_groups(layer, tables.groups, segments.ids) if has_groups else layer
    if part.name != "segmentation":
        yield grouped
        return
    yield layer
    if has_groups:
        yield {**grouped, "name": "agglomerated"}
    yield skeletons_layer(part.name)


def image_layer(levels: tuple[float, float]) -> State:
    """Return the layer of the image; `levels` are shown as black and as white."""
    shader = {"normalized": {"range": list(levels)}}
    return {"type": "image", "name": "image", "source": _source("image"), "shaderControls": shader}


def overlay_layer(name: str) -> State:
    """Return a layer of edges or probabilities over the image, hidden at first."""
    shader = EDGES_SHADER if name == "edges" else PROBABILITY_SHADER
    return {"type": "image", "name": name, "source": _source(name), "shader": shader, "visible": False}


def labels_layer(name: str, segment_ids: Sequence[int]) -> State:
    """Return a segmentation layer with its meshes.

    The selected segments are shown in 3D, and in stronger colours in the sections.
    """
    return {
        "type": "segmentation",
        "name": name,
        "source": {"url": _source(name), "subsources": {"skeletons": False}},
        "segments": [str(segment_id) for segment_id in segment_ids],
        "selectedAlpha": 0.4,
        "notSelectedAlpha": 0.18,
    }


def skeletons_layer(name: str) -> State:
    """Return a layer with the skeletons of the segments selected in layer `name`; hidden at first."""
    return {
        "type": "segmentation",
        "name": f"{name} skeletons",
        "source": {"url": _source(name), "enableDefaultSubsources": False, "subsources": {"skeletons": True}},
        "linkedSegmentationGroup": name,
        "skeletonRendering": {"mode3d": "lines", "lineWidth3d": 3, "mode2d": "lines_and_points"},
        "visible": False,
    }


def with_groups(layer: State, groups: Groups, known: np.ndarray) -> State:
    """Return a segmentation layer that shows each group of segments as one.

    `known` are the base ids in the layer, ascending. Beyond `MAX_MAPPED` ids, the smallest groups are left out.
    """
    group_ids = groups.of(known)
    order = np.argsort(group_ids, kind="stable")
    base_ids = known[order]
    _, first, sizes = np.unique(group_ids[order], return_index=True, return_counts=True)
    largest_first = np.lexsort((base_ids[first], -sizes))
    taken = largest_first[(sizes[largest_first] > 1) & (np.cumsum(sizes[largest_first]) <= MAX_MAPPED)]
    members = [base_ids[first[group] : first[group] + sizes[group]].tolist() for group in taken]
    return {**layer, "equivalences": [list(map(str, ids)) for ids in members]}


def errors_layer(errors: Sequence[Mapping[str, Any]]) -> State:
    """Return a layer with a point for each of the worst errors of ``ffn evaluate``; hidden at first."""
    annotations = [
        {
            "type": "point",
            "id": error["name"],
            "point": [n + 0.5 for n in error["position_zyx"][::-1]],
            "description": f"{error['name']}: {error['voxels']} voxels, bodies {_listed(error['truth_ids'])}, "
            f"segments {_listed(error['segment_ids'])}",
        }
        for error in errors
    ]
    return {
        "type": "annotation",
        "name": "errors",
        "source": "local://annotations",
        "annotations": annotations,
        "annotationColor": "#ffd23f",
        "visible": False,
    }


def points_layer() -> State:
    """Return a layer of training coordinates, coloured by partition; hidden at first."""
    return {
        "type": "annotation",
        "name": POINTS_FOLDER,
        "source": _source(POINTS_FOLDER),
        "shader": POINTS_SHADER,
        "visible": False,
    }


def write_points(folder: Path, points: np.ndarray, box: Box, voxel_size_zyx_nm: VoxelSize) -> None:
    """Write points inside a box (zyx and partition) as a precomputed annotation layer of three files.

    Source of the format: Neuroglancer, ``src/datasource/precomputed/annotations.md``.
    """
    # Three bytes of padding follow the three floats and the class.
    rows = np.zeros(len(points), [("xyz", "<f4", 3), ("class", "u1"), ("fill", "u1", 3)])
    rows["xyz"], rows["class"] = points[:, 2::-1] + 0.5, points[:, 3]  # at the centres of the voxels
    for name in ("by_id", "all"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    ids, sharding = np.arange(len(rows), dtype="<u8"), plan_shards(len(rows), 0)  # one shard
    items = ((number, b"", rows[number].tobytes()) for number in ids[order_in_shards(sharding, ids)].tolist())
    write_shard(shard_path(folder / "by_id", sharding, 0), sharding, items)
    (folder / "all" / "0_0_0").write_bytes(np.uint64(len(rows)).tobytes() + rows.tobytes() + ids.tobytes())
    info = {
        "@type": "neuroglancer_annotations_v1",
        "dimensions": dimensions(voxel_size_zyx_nm),
        "lower_bound": box.start[::-1],
        "upper_bound": box.stop[::-1],
        "annotation_type": "POINT",
        "properties": [{"id": "partition", "type": "uint8", "description": "active fraction class"}],
        "relationships": [],
        "by_id": {"key": "by_id", "sharding": sharding},
        "spatial": [{"key": "all", "grid_shape": [1, 1, 1], "chunk_size": box.shape[::-1], "limit": len(rows)}],
    }
    (folder / "info").write_text(json.dumps(info))


def _source(name: str) -> str:
    return f"precomputed://{BASE}/{name}"


def _listed(ids: Sequence[int]) -> str:
    return ", ".join(map(str, ids))
