"""The Neuroglancer states of an export: of everything, and of each of the worst errors (its links)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ffn.errors import ExportError
from ffn.geometry import Box, VoxelSize
from ffn.viewing.segments import Segments

STATE_FILE = "neuroglancer.json"
LINKS_FOLDER = "links"
POINTS_FOLDER = "coordinates"  # and the name of their layer
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


def error_state(whole: State, error: dict[str, Any], facts: Mapping[str, Segments], voxel_size: VoxelSize) -> State:
    """Select the pieces of a split body, or the bodies of a merger, in different colours.

    `facts` are the segments of the layers ``segmentation`` and ``truth``, where they exist.
    """
    ids = {"segmentation": error["segment_ids"][:NUM_SHOWN], "truth": error["truth_ids"][:NUM_SHOWN]}
    shown = "truth" if error["kind"] == "merge" and "truth" in facts else "segmentation"
    layers = [_focused(layer, ids, shown) for layer in whole["layers"]]
    box = facts[shown].box(ids[shown]) if shown in facts else None
    state = {**whole, "layers": layers, "position": [n + 0.5 for n in error["position_zyx"][::-1]]}
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
        raise ExportError(f"--link: {link!r} is not in {export}, expected one of: {names}")
    try:
        return json.loads(path.read_text())
    except OSError as reason:
        raise ExportError(f"{path}: cannot be read ({reason.strerror}). Run ffn export first") from None
    except ValueError as reason:
        raise ExportError(f"{path}: is not JSON ({reason}). Run ffn export again") from None


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
