"""Corrections as lines that people draw in Neuroglancer, in one layer for each action."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import neuroglancer
import numpy as np

from ffn.assembly.given import JOIN, SEPARATE, Correction, corrections_text, nearest_voxel
from ffn.errors import VolumeError
from ffn.geometry import ZYX, Box, zyx
from ffn.io import atomic
from ffn.io.open import open_volume
from ffn.viewing.state import State

log = logging.getLogger(__name__)

COLOURS = {JOIN: "#3dd68c", SEPARATE: "#ff5c5c"}

Snap = Callable[[ZYX, int], ZYX]  # returns a voxel of a segment near a given one
Drawn = dict[str, tuple[ZYX, ZYX]]  # ends of lines by their ids


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
        "linkedSegmentationLayer": "segmentation",  # so that a line knows in which segments it was drawn
        "tool": "annotateLine",
        "tab": "annotations",
        "annotationColor": COLOURS[action],
        "annotations": [
            {"type": "line", "id": str(number), "pointA": _centre(line.a_zyx), "pointB": _centre(line.b_zyx)}
            for number, line in enumerate(lines)
        ],
    }


@contextlib.contextmanager
def drawn_near(export: Path) -> Iterator[Snap]:
    """Yield a function that moves an end of a line into the segment that it was drawn in.

    On a mesh, lines are drawn on the surface, where the next voxel may be of the neighbour: in two of five places of
    FIB-25's labels. If the export has supervoxels, it is a voxel that has one.
    """
    with contextlib.ExitStack() as stack:
        segmentation = stack.enter_context(open_volume(export / "segmentation"))
        path = export / "supervoxels"
        base = stack.enter_context(open_volume(path)) if path.exists() else segmentation
        base = base if base.box.contains(segmentation.box) else segmentation

        @functools.cache
        def snap(voxel_zyx: ZYX, segment_id: int) -> ZYX:
            def wanted(box: Box) -> np.ndarray:
                return (segmentation.read(box) == np.uint64(segment_id)) & (base.read(box) > 0)

            return nearest_voxel(segmentation, voxel_zyx, wanted) or voxel_zyx

        yield snap


@contextlib.contextmanager
def drawn(viewer: neuroglancer.Viewer, base: str, path: Path, export: Path) -> Iterator[None]:
    """Keep what is drawn in a viewer of an export; see `kept`."""
    with drawn_near(export) as snap, kept(viewer, path, snap):
        yield


def corrections_in(
    state: State, snap: Snap = lambda voxel_zyx, segment_id: voxel_zyx, drawn: Drawn | None = None
) -> list[Correction] | None:
    """Return the lines in the layers of `with_corrections`; None if a layer was closed.

    `drawn` keeps the ends of each line from when it was drawn: Neuroglancer keeps the segments of a line whose ends
    are moved later, and these ends are not snapped.
    """
    drawn = {} if drawn is None else drawn
    layers = {layer["name"]: layer for layer in state.get("layers", [])}
    if not layers.keys() >= COLOURS.keys():
        return None
    return [
        Correction(action, *_ends(action, line, snap, drawn))
        for action in COLOURS
        for line in layers[action].get("annotations", [])
        if line["type"] == "line"
    ]


@contextlib.contextmanager
def kept(viewer: neuroglancer.Viewer, path: Path, snap: Snap) -> Iterator[None]:
    """Write what is drawn in a viewer to a file, at once and whenever it changes.

    A file that another program has changed meanwhile stays as it is; the log says so. The first write raises OSError
    if the file cannot be written; later ones log it.
    """
    drawn: Drawn = {}
    known = corrections_in(viewer.shared_state.raw_state, snap, drawn) or []
    atomic.write_text(path, corrections_text(known))

    def keep() -> None:
        nonlocal known
        try:
            found = corrections_in(viewer.shared_state.raw_state, snap, drawn)
            if found is None or found == known:
                return
            if _is_changed(path, known):
                log.error("%s: was changed by another program, so it is not overwritten. Move it away", path)
                return
            atomic.write_text(path, corrections_text(found))
        except (OSError, VolumeError) as reason:
            log.error("%s: cannot be written (%s). Make room, and draw another line", path, reason)
            return
        log.info("%s: %d corrections", path, len(found))
        known = found

    viewer.shared_state.add_changed_callback(keep)
    try:
        yield
    finally:
        viewer.shared_state.remove_changed_callback(keep)


def _is_changed(path: Path, written: Sequence[Correction]) -> bool:
    """Whether a file has another text than was written; a missing file has not."""
    try:
        return path.read_text() != corrections_text(written)
    except FileNotFoundError:
        return False
    except ValueError:  # not a text
        return True


def _ends(action: str, line: State, snap: Snap, drawn: Drawn) -> tuple[ZYX, ZYX]:
    """Return the voxels of both ends, in the segments that the line was drawn in: two, or one to separate."""
    a, b = _voxel(line["pointA"]), _voxel(line["pointB"])
    segments = [int(text) for text in (line.get("segments") or [[]])[0]]
    is_known = len(segments) == 2 or (len(segments) == 1 and action == SEPARATE)
    is_moved = drawn.setdefault(line["id"], (a, b)) != (a, b)
    return (snap(a, segments[0]), snap(b, segments[-1])) if is_known and not is_moved else (a, b)


def _centre(voxel_zyx: ZYX) -> list[float]:
    return [n + 0.5 for n in voxel_zyx[::-1]]


def _voxel(point_xyz: Any) -> ZYX:
    return zyx(np.floor(point_xyz[::-1]).astype(int))
