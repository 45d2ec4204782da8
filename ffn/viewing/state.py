"""The Neuroglancer states of an export: of everything, and of each of the worst errors (its links)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ffn.errors import ExportError
from ffn.evaluation.errors import gap_ends
from ffn.geometry import Box, VoxelSize
from ffn.io.atomic import unreadable, write_json
from ffn.viewing import LINKS_FOLDER, STATE_FILE
from ffn.viewing.config import ExportConfig
from ffn.viewing.precomputed import IMAGE, Layer, contrast
from ffn.viewing.segments import Segments

BASE = "{base}"  # placeholder for the URL of the folder, replaced when it is served
NUM_SELECTED = 16  # segments in the first view; more of them hide each other
MAX_SELECTED_FRACTION = 0.04  # of the volume; a larger segment hides all others
ORIENTATION = (-0.5, 0.25, 0.15, 0.81)  # quaternion of the 3D panel; shows no face of the block head-on
FILLING = 0.85  # share of the block's diagonal that spans the 3D panel; its corners may be cut off
PANEL_WIDTH = 700  # pixels of one of four panels in a typical window
BACKGROUND = "#101418"
NUM_SHOWN = 12  # objects of one error to select; a body may have hundreds of specks
SECTION_ZOOM = 0.4  # of an error, relative to the scale that shows the whole volume
MARGIN = 1.4  # around the bounding box of the selected objects in 3D; the error is seldom at its centre
FOCUS = {"selectedAlpha": 0.55, "notSelectedAlpha": 0.08}

State = dict[str, Any]


def write_links(
    folder: Path,
    exported: Mapping[str, Layer],
    segments: Mapping[str, Segments],
    errors: Sequence[Mapping[str, Any]],
    config: ExportConfig,
) -> State:
    """Write the state of each link, and return the state that shows everything."""
    shutil.rmtree(folder / LINKS_FOLDER, ignore_errors=True)  # maybe of other tables
    whole = Box.hull(layer.box for layer in exported.values())
    size = next(iter(exported.values())).voxel_size_zyx_nm
    layers = _layers(exported, segments, config)
    if errors:
        layers.append(errors_layer(errors))
    state = make_state(layers, whole, size)
    write_json(folder / LINKS_FOLDER / "whole.json", state)
    for error in errors:
        write_json(folder / LINKS_FOLDER / f"{error['name']}.json", error_state(state, error, segments, size))
    return state


def _layers(exported: Mapping[str, Layer], facts: Mapping[str, Segments], config: ExportConfig) -> list[State]:
    """List the layers. Image and segmentation are visible at first, all others can be switched on."""
    layers = []
    if image := exported.get(IMAGE):
        layers.append(image_layer(IMAGE, _source(IMAGE), contrast(image.read, image.box)))
    for name, segments in facts.items():
        meshed = segments.voxels >= config.min_mesh_voxels
        chosen = choose_segments(segments.ids[meshed], segments.voxels[meshed], exported[name].box.num_voxels)
        layers.append(labels_layer(name, chosen))
        if name == "segmentation":
            layers.append(skeletons_layer(name))
    for layer in layers:
        if layer["name"] in ("truth", "supervoxels") and "segmentation" in facts:
            layer["visible"] = False  # two colourings on top of each other are illegible
    return layers


def image_layer(name: str, source: str, levels: tuple[float, float]) -> State:
    """Return the layer of an image; `levels` are shown as black and as white."""
    return {"type": "image", "name": name, "source": source, "shaderControls": {"normalized": {"range": list(levels)}}}


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


def errors_layer(errors: Sequence[Mapping[str, Any]]) -> State:
    """Return a layer with a line across the gap of each of the worst errors, or a point; hidden at first."""
    annotations = [
        {
            **_across(gap_ends(error)),
            "id": error["name"],
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


def _across(ends: Sequence[np.ndarray]) -> State:
    """Return what is special about the annotation of a gap: a line, or a point where one end is known."""
    names = ("pointA", "pointB") if len(ends) == 2 else ("point",)
    points = {name: end[::-1].tolist() for name, end in zip(names, ends, strict=True)}
    return {"type": "line" if len(ends) == 2 else "point", **points}


def choose_segments(ids: np.ndarray, voxels: np.ndarray, num_voxels: int) -> list[int]:
    """Choose the segments of the first view, largest first, except those that would hide all others.

    >>> choose_segments(np.array([7, 8, 9]), np.array([30, 900, 40]), 1000)
    [9, 7]
    """
    order = np.lexsort((ids, -voxels))
    slim = order[voxels[order] <= MAX_SELECTED_FRACTION * num_voxels]
    return ids[slim if len(slim) else order][:NUM_SELECTED].tolist()


def make_state(layers: list[State], box: Box, voxel_size_zyx_nm: VoxelSize) -> State:
    """Return a state that looks at the centre of a box, with sections that fill their panels.

    The sources of the layers contain the placeholder ``{base}``; see `located`.
    """
    centre = [(a + b) / 2 for a, b in zip(box.start, box.stop, strict=True)]
    shortest = min(voxel_size_zyx_nm)  # Neuroglancer measures lengths on the screen in it
    lengths = [n * side / shortest for n, side in zip(box.shape, voxel_size_zyx_nm, strict=True)]
    return {
        "dimensions": dimensions(voxel_size_zyx_nm),
        "position": centre[::-1],
        "crossSectionScale": sorted(lengths)[1] / PANEL_WIDTH,
        "projectionScale": FILLING * sum(length**2 for length in lengths) ** 0.5,
        "projectionOrientation": list(ORIENTATION),
        "crossSectionBackgroundColor": BACKGROUND,
        "projectionBackgroundColor": BACKGROUND,
        "showSlices": False,
        "showAxisLines": False,
        "showDefaultAnnotations": False,
        "layers": layers,
        "layout": "4panel",
    }


def dimensions(voxel_size_zyx_nm: VoxelSize) -> dict[str, list]:
    """Return the axes of a Neuroglancer state or source."""
    return {axis: [side * 1e-9, "m"] for axis, side in zip("xyz", voxel_size_zyx_nm[::-1], strict=True)}


def error_state(whole: State, error: Mapping[str, Any], facts: Mapping[str, Segments], voxel_size: VoxelSize) -> State:
    """Select the pieces of a split body, or the bodies of a merger, in different colours.

    `facts` are the segments of the layers ``segmentation`` and ``truth``, where they exist.
    """
    ids = {"segmentation": error["segment_ids"][:NUM_SHOWN], "truth": error["truth_ids"][:NUM_SHOWN]}
    shown = "truth" if error["kind"] == "merge" and "truth" in facts else "segmentation"
    layers = [_focused(layer, ids, shown) for layer in whole["layers"]]
    box = facts[shown].box(ids[shown]) if shown in facts else None
    state = {**whole, "layers": layers, "position": np.mean(gap_ends(error), axis=0)[::-1].tolist()}
    state["crossSectionScale"] = SECTION_ZOOM * whole["crossSectionScale"]
    if box is not None:
        state["projectionScale"] = MARGIN * make_state([], box, voxel_size)["projectionScale"]
    return state


def _focused(layer: State, ids: Mapping[str, list[int]], shown: str) -> State:
    """Select the objects of an error in a layer, and show only one of the label layers."""
    if layer["name"] == "errors":
        return {**layer, "visible": True}
    if layer["name"] not in ids:
        return layer
    return {**layer, "segments": list(map(str, ids[layer["name"]])), "visible": layer["name"] == shown, **FOCUS}


def load_state(export: Path, link: str | None = None) -> State:
    """Read the state of an export that shows everything, or that of a link, with placeholders for its URL."""
    path = export / STATE_FILE if link is None else export / LINKS_FOLDER / f"{link}.json"
    if link is not None and not path.is_file():
        names = ", ".join(sorted(file.stem for file in path.parent.glob("*.json"))) or "none"
        raise ExportError(f"--link: {link!r} is not in {export}, expected one of: {names}. 'ffn queue' adds others")
    with unreadable(path, "the state of a view. Run ffn export first", ExportError):
        return json.loads(path.read_text())


def one_colour(state: State) -> State:
    """Return a state whose selected supervoxels are one object."""
    layers = [
        {**layer, "equivalences": [layer["segments"]], "segmentColors": {}} if layer["name"] == "supervoxels" else layer
        for layer in state["layers"]
    ]
    return {**state, "layers": layers}


def located(state: State, base: str) -> State:
    """Return a state with the URL of the folder, given without a trailing slash.

    >>> located({"source": "precomputed://{base}/image"}, "http://h")
    {'source': 'precomputed://http://h/image'}
    """
    return json.loads(json.dumps(state).replace(BASE, json.dumps(base)[1:-1]))


def select_segments(state: State, segment_ids: Sequence[int]) -> State:
    """Return a state with `segment_ids` selected in every layer that has a selection."""
    chosen = [str(segment_id) for segment_id in segment_ids]
    layers = [{**layer, "segments": chosen} if "segments" in layer else layer for layer in state["layers"]]
    return {**state, "layers": layers}


def _source(name: str) -> str:
    return f"precomputed://{BASE}/{name}"


def _listed(ids: Sequence[int]) -> str:
    return ", ".join(map(str, ids))
