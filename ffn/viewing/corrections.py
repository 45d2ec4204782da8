"""Corrections as lines that people draw in Neuroglancer, in one layer for each action."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import neuroglancer
import numpy as np

from ffn.assembly.corrections import JOIN, SEPARATE, Correction, corrections_text, read_corrections
from ffn.geometry import ZYX, zyx
from ffn.io import atomic
from ffn.viewing.state import State

log = logging.getLogger(__name__)

COLOURS = {JOIN: "#3dd68c", SEPARATE: "#ff5c5c"}


def known_corrections(path: Path) -> list[Correction]:
    """Read a file of corrections; one that does not exist yet has none.

    Raises
    ------
    CorrectionError
        If the file cannot be read.
    """
    return read_corrections(path) if path.exists() else []


def with_corrections(state: State, corrections: Sequence[Correction]) -> State:
    """Return a state with a layer of lines for each action; ctrl-click draws in the layer that is selected."""
    selected = {"selectedLayer": {"layer": JOIN, "visible": True}}
    return {**state, **selected, "layers": [*state["layers"], *(_layer(action, corrections) for action in COLOURS)]}


def _layer(action: str, corrections: Sequence[Correction]) -> State:
    lines = [each for each in corrections if each.action == action]
    return {
        "type": "annotation",
        "name": action,
        "source": "local://annotations",
        "tool": "annotateLine",
        "tab": "annotations",
        "annotationColor": COLOURS[action],
        "annotations": [
            {"type": "line", "id": str(number), "pointA": _centre(line.a_zyx), "pointB": _centre(line.b_zyx)}
            for number, line in enumerate(lines)
        ],
    }


def corrections_in(state: State) -> list[Correction] | None:
    """Return the lines that are drawn in the layers of `with_corrections`; None if a layer is not there any more."""
    layers = {layer["name"]: layer for layer in state.get("layers", [])}
    if not layers.keys() >= COLOURS.keys():
        return None
    return [
        Correction(action, _voxel(line["pointA"]), _voxel(line["pointB"]))
        for action in COLOURS
        for line in layers[action].get("annotations", [])
        if line["type"] == "line"
    ]


@contextlib.contextmanager
def kept(viewer: neuroglancer.Viewer, path: Path) -> Iterator[None]:
    """Write what is drawn to a file, at once and whenever it changes, for the length of a ``with`` block.

    Raises
    ------
    OSError
        If the file cannot be written at the start; later, the log says so.
    """
    drawn = corrections_in(viewer.shared_state.raw_state) or []
    atomic.write_text(path, corrections_text(drawn))

    def keep() -> None:
        nonlocal drawn
        found = corrections_in(viewer.shared_state.raw_state)
        if found is None or found == drawn:
            return
        try:
            atomic.write_text(path, corrections_text(found))
        except OSError as reason:
            log.error("%s: what was drawn is not kept (%s). Make room, and move any line", path, reason)
            return
        log.info("%s: %d corrections", path, len(found))
        drawn = found

    viewer.shared_state.add_changed_callback(keep)
    try:
        yield
    finally:
        viewer.shared_state.remove_changed_callback(keep)


def _centre(voxel_zyx: ZYX) -> list[float]:
    return [n + 0.5 for n in voxel_zyx[::-1]]


def _voxel(point_xyz: Any) -> ZYX:
    return zyx(np.floor(point_xyz[::-1]).astype(int))
