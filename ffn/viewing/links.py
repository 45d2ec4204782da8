"""Links of an export: a state of the whole volume, and one for each of the worst errors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ffn.geometry import VoxelSize
from ffn.io.atomic import write_json
from ffn.viewing.segments import Segments
from ffn.viewing.state import LINKS_FOLDER, State, make_state

NUM_SHOWN = 12  # objects of one error to select; a body may have hundreds of specks
SECTION_ZOOM = 0.4  # relative to the scale that shows the whole volume
MARGIN = 1.4  # around the bounding box of the selected objects in 3D; the error is seldom at its centre
FOCUS = {"selectedAlpha": 0.55, "notSelectedAlpha": 0.08}


def write_links(
    folder: Path, whole: State, errors: list[dict[str, Any]], facts: Mapping[str, Segments], voxel_size: VoxelSize
) -> None:
    """Write the states of all links.

    Parameters
    ----------
    folder : Path
        The export.
    whole : dict
        State that shows everything.
    errors : list of dict
        Errors of ``ffn evaluate``. Each link has the name of its error.
    facts : mapping of str to Segments
        Segments of the layers ``segmentation`` and ``truth``, where they exist.
    voxel_size : tuple of float
        Sides of a voxel, zyx, nm.
    """
    write_json(folder / LINKS_FOLDER / "whole.json", whole)
    for error in errors:
        write_json(folder / LINKS_FOLDER / f"{error['name']}.json", _error_state(whole, error, facts, voxel_size))


def _error_state(whole: State, error: dict[str, Any], facts: Mapping[str, Segments], voxel_size: VoxelSize) -> State:
    """Select what should have one colour but has several: the pieces of a split body, or the bodies of a merger."""
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
