"""The Neuroglancer state of an export: which segments are shown, and from where."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ffn.errors import ExportError
from ffn.geometry import Box, VoxelSize

STATE_FILE = "neuroglancer.json"
LINKS_FOLDER = "links"
BASE = "{base}"  # placeholder for the URL of the folder, replaced when it is served
NUM_SELECTED = 16  # segments in the first view; more of them hide each other
MAX_SELECTED_FRACTION = 0.04  # of the volume; a larger segment hides all others
ORIENTATION = (-0.5, 0.25, 0.15, 0.81)  # quaternion of the 3D panel; shows no face of the block head-on
FILLING = 0.85  # share of the block's diagonal that spans the 3D panel; its corners may be cut off
PANEL_WIDTH = 700  # pixels of one of four panels in a typical window
BACKGROUND = "#101418"

State = dict[str, Any]


def choose_segments(ids: np.ndarray, voxels: np.ndarray, num_voxels: int) -> list[int]:
    """Choose the segments of the first view: the largest, except those that would hide all others.

    Parameters
    ----------
    ids : uint64 ndarray of shape (N,)
        Segments.
    voxels : int64 ndarray of shape (N,)
        Voxels of each.
    num_voxels : int
        Voxels of the volume.

    Returns
    -------
    list of int
        At most `NUM_SELECTED`, largest first.

    Examples
    --------
    >>> choose_segments(np.array([7, 8, 9]), np.array([30, 900, 40]), 1000)
    [9, 7]
    """
    order = np.lexsort((ids, -voxels))
    slim = order[voxels[order] <= MAX_SELECTED_FRACTION * num_voxels]
    return ids[slim if len(slim) else order][:NUM_SELECTED].tolist()


def make_state(layers: list[State], box: Box, voxel_size_zyx_nm: VoxelSize) -> State:
    """Return a state that looks at the centre of a box, with sections that fill their panels.

    Parameters
    ----------
    layers : list of dict
        From `ffn.viewing.layers`.
    box : Box
        What to look at, full-volume voxels.
    voxel_size_zyx_nm : tuple of float
        Sides of a voxel, nm. Neuroglancer measures lengths on the screen in the shortest side.

    Returns
    -------
    dict
        Ready for JSON. The sources contain the placeholder ``{base}``; see `located`.
    """
    centre = [(a + b) / 2 for a, b in zip(box.start, box.stop, strict=True)]
    shortest = min(voxel_size_zyx_nm)
    lengths = [n * side / shortest for n, side in zip(box.shape, voxel_size_zyx_nm, strict=True)]
    sides = zip("xyz", voxel_size_zyx_nm[::-1], strict=True)
    return {
        "dimensions": {axis: [side * 1e-9, "m"] for axis, side in sides},
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


def load_state(export: Path, link: str | None = None) -> State:
    """Read a state of an export, with placeholders for its URL.

    Parameters
    ----------
    export : Path
        Folder that `ffn.viewing.export.export` wrote.
    link : str, optional
        Name of one of its links. The default is the state that shows everything.

    Raises
    ------
    ExportError
        If the state is missing or damaged, or there is no such link.
    """
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

    Examples
    --------
    >>> located({"source": "precomputed://{base}/image"}, "http://h")
    {'source': 'precomputed://http://h/image'}
    """
    return json.loads(json.dumps(state).replace(BASE, json.dumps(base)[1:-1]))


def select_segments(state: State, segment_ids: Sequence[int]) -> State:
    """Return a state with `segment_ids` selected in every layer that has a selection."""
    chosen = [str(segment_id) for segment_id in segment_ids]
    layers = [{**layer, "segments": chosen} if "segments" in layer else layer for layer in state["layers"]]
    return {**state, "layers": layers}
