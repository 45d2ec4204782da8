"""Cuts and traces that the network of a run makes while somebody waits, shown in a layer until they are kept or not."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import NamedTuple

import neuroglancer
import numpy as np
from neuroglancer.trackable_state import ConcurrentModificationError

from ffn.assembly.config import Agglomeration
from ffn.assembly.contacts import open_scene
from ffn.assembly.cut import NO_CUTS, Cutter
from ffn.assembly.given import CUT, TRACE, Correction, WithCuts, id_at, read_cuts, voxel_of
from ffn.errors import FfnError
from ffn.geometry import Box, scale, zyx
from ffn.inference.inputs import AgglomerateInputs
from ffn.io.open import read_table
from ffn.io.section_faults import JUMPS
from ffn.io.volume import Volume, voxel_size_of
from ffn.viewing.queue import COLOURS
from ffn.viewing.state import FOCUS, State, dimensions

log = logging.getLogger(__name__)

LAYER = "preview"
FIRST_PICTURE = 1.0  # seconds; each later one takes twice the time. Our choice: a picture of a neurite takes 0.1 s
MARGIN = 2  # windows around the points of a cut that are shown


class TrialInputs(NamedTuple):
    """What ``ffn cut`` works on in a run, and its file, if there is one."""

    flood: AgglomerateInputs
    config: Agglomeration
    cuts: str | None = None


class _Stop(Exception):
    """Nobody waits for the trial any more."""


class Trials:
    """Trials of one person, one at a time, in a thread of their own: the viewer goes on to answer.

    `tell` gets what has been found.
    """

    def __init__(self, viewer: neuroglancer.Viewer, inputs: TrialInputs, tell: Callable[[str], None]) -> None:
        self._viewer = viewer
        self._inputs = inputs
        self._tell = tell
        self._number = 0  # of the present trial; others stop
        self._rows: dict[Correction, np.ndarray] = {}  # of traces here
        self._open = contextlib.ExitStack()
        self._thread = ThreadPoolExecutor(1)

    def begin(self, line: Correction, kept: Sequence[Correction]) -> None:
        """Try a line; `kept` are those that are kept already."""
        self._number += 1
        self._thread.submit(self._try, line, kept, self._number)

    def end(self, keeps: bool) -> None:
        """Stop, or leave the picture of what is kept until the next trial."""
        self._number += 1
        if not keeps:
            edit_layers(self._viewer, lambda layers: [each for each in layers if each["name"] != LAYER])

    def close(self) -> None:
        """Stop all, and close the files."""
        self._number += 1
        self._thread.submit(self._open.close)
        self._thread.shutdown()

    def _try(self, line: Correction, kept: Sequence[Correction], number: int) -> None:
        started, due = time.monotonic(), FIRST_PICTURE
        if number != self._number:
            return

        def watch(rows: Callable[[], np.ndarray]) -> None:
            nonlocal due
            if number != self._number:
                raise _Stop
            if (seconds := time.monotonic() - started) >= due and line.action == TRACE:
                due = 2 * seconds
                self._show(line, rows(), f"Growing, {seconds:.0f} s", number)

        try:
            rows = self._found(line, kept, watch)
            if number == self._number:
                self._rows[line] = rows
                self._show(line, rows, f"{time.monotonic() - started:.0f} s", number)
        except _Stop:
            return
        except Exception as reason:  # of a thread, nobody would see it
            log.warning("%s: no preview: %s", line, reason, exc_info=not isinstance(reason, FfnError | OSError))
            if number == self._number:
                self._tell(f"No preview: {reason}. k keeps the line, u discards it")

    def _found(self, line: Correction, kept: Sequence[Correction], watch: Callable[..., None]) -> np.ndarray:
        """Return the rows of a line that go beyond what earlier traces took."""
        cutter, base = self._loaded
        known = read_cuts(self._inputs.cuts) if self._inputs.cuts else NO_CUTS
        traced = [rows for each, rows in self._rows.items() if each in kept and each.action == TRACE]
        known = np.concatenate([known[known[:, 4] == 0], *traced])
        lines, uncut = [line], WithCuts(base, known)
        if line.action == CUT:  # lines near each other are one cut
            own = _ids(line, uncut)
            lines += [each for each in kept if each.action == CUT and each != line and own & _ids(each, uncut)]
        return cutter.rows(lines, "corrections", known, watch)[len(known) :]

    @cached_property
    def _loaded(self) -> tuple[Cutter, Volume]:
        """The network and the supervoxels, once they are needed."""
        self._tell("Loading the network …")
        flood, config, _ = self._inputs
        network = flood.network(config)
        scene = self._open.enter_context(open_scene(flood.segmentation, flood.image, flood.masks))
        return Cutter(scene, network, config, read_table(flood.image, JUMPS)), scene.segmentation

    def _show(self, line: Correction, rows: np.ndarray, text: str, number: int) -> None:
        """Show all that has new ids, and what is left of a supervoxel that was cut, unless the trial has ended."""
        voxels = int(rows[:, 3].sum())
        nothing = "the ends are in two supervoxels already" if line.action == CUT else "nothing grows here"
        self._tell(f"{text}: {f'{voxels:,} voxels' if voxels else nothing}. k keeps, u discards")
        if not voxels:
            return
        _, base = self._loaded
        first, last = rows[:, :3], rows[:, :3] + np.outer(rows[:, 3] - 1, (0, 0, 1))
        box = Box(zyx(first.min(axis=0).tolist()), zyx((last.max(axis=0) + 1).tolist()))
        if line.action == CUT:
            radius = self._inputs.config.window_radius_zyx
            near = Box.hull(map(Box.around, line[1:])).grow(scale(radius, MARGIN))
            box = box.grow(radius).intersect(near).intersect(base.box)
        ids, labels = np.setdiff1d(rows[:, 4:], 0).astype(np.uint64), WithCuts(base, rows).read(box)
        found = np.where(np.isin(labels, ids), np.searchsorted(ids, labels) + 1, 0)
        layer = _layer(found.astype(np.uint8), box, base)
        edit_layers(self._viewer, lambda layers: [*layers, layer] if number == self._number else layers)


def _ids(line: Correction, base: Volume) -> set[int]:
    return {id_at(base, voxel_of(base, place, str(line))) for place in line[1:]}


def _layer(labels: np.ndarray, box: Box, base: Volume) -> State:
    """Return a layer of labels from 1."""
    volume = neuroglancer.LocalVolume(
        labels.transpose(),
        neuroglancer.CoordinateSpace(dimensions(voxel_size_of(base))),
        volume_type="segmentation",
        voxel_offset=box.start[::-1],
    )
    ids = [str(each) for each in np.unique(labels) if each]
    shown = {"segments": ids, "segmentColors": dict(zip(ids, COLOURS, strict=False)), **FOCUS}
    return {"type": "segmentation", "name": LAYER, "source": volume, **shown}


def edit_layers(viewer: neuroglancer.Viewer, change: Callable[[list[State]], list[State]]) -> None:
    """Change the layers of a viewer; of those that have one name, the last one counts."""
    shared, is_done = viewer.shared_state, False
    while not is_done:
        now, generation = shared.raw_state_and_generation
        layers = list({each["name"]: each for each in change(now.get("layers", []))}.values())
        with contextlib.suppress(ConcurrentModificationError):
            # the wrapper, which is not looked into, has Neuroglancer serve arrays in it
            shared.set_state(neuroglancer.ViewerState({**now, "layers": layers}), existing_generation=generation)
            is_done = True
