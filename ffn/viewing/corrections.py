"""Corrections that people draw in Neuroglancer as lines, in one layer for each action, and the file that keeps them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import neuroglancer
import numpy as np

from ffn.assembly.given import (
    CUT,
    GROWN,
    JOIN,
    SEPARATE,
    TRACE,
    Correction,
    WithCuts,
    corrections_text,
    id_at,
    known_corrections,
    nearest_voxel,
    read_cuts,
)
from ffn.assembly.merge import apply_groups
from ffn.contingency import count_pairs, largest_parts
from ffn.errors import FfnError
from ffn.geometry import ZYX, Box, steps_within, zyx
from ffn.io import atomic
from ffn.io.open import open_volume
from ffn.io.volume import voxel_size_of
from ffn.viewing.state import State
from ffn.viewing.trials import TrialInputs, Trials, edit_layers

log = logging.getLogger(__name__)

STATUS = "ffn"  # name of the line at the bottom of the window
COLOURS = {JOIN: "#3dd68c", SEPARATE: "#ff5c5c", CUT: "#c77dff", TRACE: "#ffd23f"}
HELP = {
    JOIN: "Ctrl-click in two pieces to join them (layers separate, cut, trace: for other corrections), u takes back",
    SEPARATE: "Ctrl-click in two neurons to separate them (layer join: to join two pieces), u takes back",
    CUT: "Ctrl-click in two neurons that are one supervoxel, u takes back",
    TRACE: "Ctrl-click into a neuron that is no segment, u takes back",
}
DONE = {
    JOIN: "Joined {} + {}.",
    SEPARATE: "Separated {} and {}.",
    CUT: "ffn correct will cut {}.",
    TRACE: "ffn correct will add it.",
}
AROUND_NM = 300.0  # beyond the reach of a click. With 100 nm in all, 24 of 328 ends were wrong; without it, 63 of 365
MOST_COLOURED = 1000  # joins, the last ones: 3 ms each to look up what they join


class End(NamedTuple):
    """One end of a line."""

    voxel_zyx: ZYX
    segment: int  # what is shown there
    supervoxel: int


EndAt = Callable[[ZYX, int], End | None]  # gets a place, and the segment that was clicked on, 0 if unknown


def with_corrections(state: State, corrections: Sequence[Correction]) -> State:
    """Return a state with a layer of lines for each action; ctrl-click draws in the layer that is selected."""
    selected = {"selectedLayer": {"layer": JOIN, "visible": True}}
    return {**state, **selected, "layers": [*state["layers"], *(_layer(action, corrections) for action in COLOURS)]}


def _layer(action: str, corrections: Sequence[Correction]) -> State:
    return {
        "type": "annotation",
        "name": action,
        "source": "local://annotations",
        "tab": "annotations",
        "annotationColor": COLOURS[action],
        "annotations": [_line(each) for each in dict.fromkeys(corrections) if each.action == action],
    }


def _line(correction: Correction) -> State:
    """Return the annotation of a correction, whose text is its name."""
    ends = {name: [n + 0.5 for n in end[::-1]] for name, end in zip(("pointA", "pointB"), correction[1:], strict=True)}
    return {"type": "line", "id": str(correction), **ends}


def _without(lines: Sequence[State], correction: Correction) -> list[State]:
    return [each for each in lines if each["id"] != str(correction)]


@contextlib.contextmanager
def ends_in(export: Path, cuts: str | None = None) -> Iterator[EndAt]:
    """Yield a function that returns the nearest voxel of a segment to a place; None if it is too far away.

    A click on a mesh is on the surface, where the next voxel may be of the neighbour: in two of five places of
    FIB-25's labels. If the export has supervoxels, it is a voxel of one, or in the file of ``ffn cut``. Most of it must
    be in the segment: affinities give parts of supervoxels to others.
    """
    with contextlib.ExitStack() as stack:
        segmentation = stack.enter_context(open_volume(export / "segmentation"))
        path = export / "supervoxels"
        base = stack.enter_context(open_volume(path)) if path.exists() else segmentation
        base = base if base.box.contains(segmentation.box) else segmentation
        base = WithCuts(base, read_cuts(cuts)) if cuts else base

        @cache
        def end_at(place_zyx: ZYX, segment: int) -> End | None:
            def wanted(box: Box) -> np.ndarray:
                labels, supervoxels = segmentation.read(box), base.read(box)
                if not segment:  # of a line that is there already: many are looked up
                    return (labels > 0) & (supervoxels > 0)
                around = box.grow(steps_within(AROUND_NM, voxel_size_of(base))).intersect(segmentation.box)
                pairs = count_pairs(base.read(around), segmentation.read(around))
                most = largest_parts(pairs.a, pairs.b, pairs.voxels)
                owners = apply_groups(supervoxels, pairs.a[most], pairs.b[most])
                return (supervoxels > 0) & (labels == np.uint64(segment)) & (labels == owners)

            voxel = nearest_voxel(segmentation, place_zyx, wanted)
            return None if voxel is None else End(voxel, *(id_at(volume, voxel) for volume in (segmentation, base)))

        yield end_at


def corrections_in(state: State) -> list[Correction] | None:
    """Return the lines in the layers of `with_corrections`; None if a layer was closed."""
    layers = {layer["name"]: layer for layer in state.get("layers", [])}
    if not layers.keys() >= COLOURS.keys():
        return None
    return [
        Correction(action, _voxel(line["pointA"]), _voxel(line["pointB"]))
        for action in COLOURS
        for line in layers[action].get("annotations", [])
        if line["type"] == "line"
    ]


class Drawing:
    """What one person draws in a viewer, and its file."""

    def __init__(self, viewer: neuroglancer.Viewer, path: Path, end_at: EndAt, trials: Trials | None = None) -> None:
        self._viewer = viewer
        self._path = path
        self._end_at = end_at
        self._trials = trials
        self._tried: Correction | None = None  # neither kept nor discarded
        self._known = corrections_in(viewer.shared_state.raw_state) or []
        self._first: End | None = None  # of a line without another end
        self._drawn: list[Correction] = []  # here, without those that were taken back

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Listen to clicks and keys, and write what is drawn at once.

        The file is there from the start, which raises OSError if it cannot be written; later this is told.
        """
        rewrite(self._path)
        bind(self._viewer, "control+mousedown0", "ffn-end", self._click)
        bind(self._viewer, "keyu", "ffn-back", lambda _: self._back())
        bind(self._viewer, "keyk", "ffn-keep", lambda _: self._decide(True))
        self._colour()
        tell(self._viewer, HELP[JOIN])
        self._viewer.shared_state.add_changed_callback(self._keep)
        try:
            yield
        finally:
            self._viewer.shared_state.remove_changed_callback(self._keep)

    def _click(self, clicked: Any) -> None:
        """Take an end of a line; the second one draws it in the layer that is selected."""
        action = clicked.viewer_state.selected_layer.layer
        action = action if action in COLOURS else JOIN
        end = self._clicked(clicked)
        if corrections_in(self._viewer.shared_state.raw_state) is None:
            tell(self._viewer, "NOT SAVED: a layer of corrections was closed. Start ffn view again")
        elif action == TRACE:
            self._trace(clicked, end)
        elif end is None:
            tell(self._viewer, f"No segment of flood filling here. {HELP[action]}")
        elif self._first is None:
            self._first = end
            tell(self._viewer, f"{action} {end.segment} and … Ctrl-click in the other one, u forgets this one")
        else:
            first, self._first = self._first, None
            if shared := _shared(action, first, end):
                tell(self._viewer, f"Both ends are {shared}: not written. {HELP[action]}")
            else:
                self._propose(Correction(action, first.voxel_zyx, end.voxel_zyx))

    def _trace(self, clicked: Any, end: End | None) -> None:
        """Trace an object from a place in the background."""
        place = None if clicked.mouse_position is None else _voxel(clicked.mouse_position)
        if place is None or (end and end.voxel_zyx == place):
            tell(self._viewer, f"{f'Segment {end.segment} is' if end else 'Nothing is'} here. {HELP[TRACE]}")
            return
        self._propose(Correction(TRACE, place, place))

    def _propose(self, line: Correction) -> None:
        """Draw a line; one that the network decides on is tried first."""
        self._decide(False)
        if self._trials is None or line.action not in GROWN:
            self._draw(line)
            return
        self._tried = line
        tell(self._viewer, f"Trying to {line.action} … u discards")
        self._trials.begin(line, corrections_in(self._viewer.shared_state.raw_state) or [])

    def _decide(self, keeps: bool) -> bool:
        """Keep or discard what is tried; return whether anything was."""
        line, self._tried = self._tried, None
        if line is None or self._trials is None:
            return False
        self._trials.end(keeps)
        if keeps:
            self._draw(line)
        return True

    def _draw(self, line: Correction) -> None:
        self._drawn.append(line)
        self._edit(line.action, "annotations", lambda lines: [*_without(lines, line), _line(line)])

    def _clicked(self, clicked: Any) -> End | None:
        """Return the end where somebody clicked, in a section or on a mesh; None on background."""
        if clicked.mouse_position is None:
            return None
        value = getattr(clicked.selected_values.get("segmentation"), "value", None)
        return self._end_at(_voxel(clicked.mouse_position), int(getattr(value, "key", value) or 0))

    def _back(self) -> None:
        """Discard what is tried, forget the first end of a line, or take back the last line that was drawn here."""
        if self._decide(False):
            tell(self._viewer, f"Discarded. {HELP[JOIN]}")
            return
        first, self._first = self._first, None
        left = corrections_in(self._viewer.shared_state.raw_state) or []
        self._drawn = [each for each in self._drawn if each in left]  # others were deleted in the list
        if first is not None or not self._drawn:
            tell(self._viewer, f"To take an earlier line back, select and delete it. {HELP[JOIN]}")
            return
        line = self._drawn.pop()
        if self._trials and line.action in GROWN:
            self._trials.end(keeps=False)
        self._edit(line.action, "annotations", lambda lines: _without(lines, line))

    def _edit(self, name: str, key: str, change: Callable[[list[Any]], list[Any]]) -> None:
        """Change a list of a layer; one that was closed stays so."""
        edit_layers(
            self._viewer,
            lambda layers: [
                {**each, key: change(each.get(key, []))} if each["name"] == name else each for each in layers
            ],
        )

    def _keep(self) -> None:
        """Write the lines if they have changed; those that others add to the file stay. A deleted file gets all."""
        found = corrections_in(self._viewer.shared_state.raw_state)
        if found is None or found == self._known:
            return
        new = [each for each in found if each not in self._known]
        gone = [each for each in self._known if each not in found]
        try:
            number = rewrite(self._path, new if self._path.exists() else found, gone)
        except (OSError, FfnError) as reason:
            log.error("%s: %s. The next line that is drawn is another try", self._path, reason)
            tell(self._viewer, f"NOT SAVED: {self._path}: {reason}")
            return
        self._known = found
        said = DONE[new[-1].action].format(*self._segments(new[-1])) if new else "Taken back."
        tell(self._viewer, f"{said} {number} in {self._path}. {HELP[new[-1].action if new else JOIN]}")
        self._viewer.defer_callback(self._colour, [*new, *gone])  # the state is locked here

    def _segments(self, line: Correction) -> list[int]:
        """Return the segments at both ends of a line, 0 where there is none; none of a trace."""
        if line.action == TRACE:
            return []
        ends = [self._end_at(voxel_zyx, 0) for voxel_zyx in (line.a_zyx, line.b_zyx)]
        return [end.segment if end else 0 for end in ends]

    def _colour(self, changed: Iterable[Correction] = ()) -> None:
        """Give both sides of each join one colour, and select those of lines that have changed."""
        joins = [each for each in self._known if each.action == JOIN][-MOST_COLOURED:]
        pairs = [list(map(str, pair)) for pair in map(self._segments, joins) if all(pair)]
        self._edit("segmentation", "equivalences", lambda _: pairs)
        sides = {str(segment) for line in changed for segment in self._segments(line) if segment}
        self._edit("segmentation", "segments", lambda selected: [*selected, *sorted(sides.difference(selected))])


@contextlib.contextmanager
def drawn(
    viewer: neuroglancer.Viewer, base: str, path: Path, export: Path, inputs: TrialInputs | None = None
) -> Iterator[None]:
    """Keep what is drawn in a viewer of an export; see `Drawing.listening`. With a run, cuts and traces are tried."""
    with contextlib.ExitStack() as stack:
        end_at = stack.enter_context(ends_in(export, inputs.cuts if inputs else None))
        tried = inputs and stack.enter_context(contextlib.closing(Trials(viewer, inputs, partial(tell, viewer))))
        stack.enter_context(Drawing(viewer, path, end_at, tried).listening())
        yield


def bind(viewer: neuroglancer.Viewer, event: str, name: str, answer: Callable[[Any], object]) -> None:
    """Answer a key, or a click into a panel."""
    viewer.actions.add(name, answer)
    with viewer.config_state.txn() as config:
        bindings = config.input_event_bindings
        (bindings.viewer if event.startswith("key") else bindings.data_view)[event] = name


def tell(viewer: neuroglancer.Viewer, text: str) -> None:
    """Show a line at the bottom of the window."""
    with viewer.config_state.txn() as config:
        config.status_messages[STATUS] = text


def rewrite(path: Path, new: Iterable[Correction] = (), gone: Collection[Correction] = ()) -> int:
    """Add lines to a file of corrections, and remove others; return how many it has then."""
    lines = [each for each in [*known_corrections(path), *new] if each not in gone]
    atomic.write_text(path, corrections_text(lines))
    return len(lines)


def _shared(action: str, first: End, end: End) -> str | None:
    """Return what the ends of a line must not share, but do."""
    if action == JOIN and first.segment == end.segment:
        return f"in segment {end.segment}"
    if action == SEPARATE and first.supervoxel == end.supervoxel:
        return f"in supervoxel {end.supervoxel}, for layer cut"
    return "the same voxel" if first.voxel_zyx == end.voxel_zyx else None


def _voxel(point_xyz: Any) -> ZYX:
    return zyx(np.floor(point_xyz[::-1]).astype(int))
