"""The places of a run where a person's answer is worth most, without a truth, and the labels that answers confirm."""

from __future__ import annotations

import csv
import io
import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import ndimage

from ffn.assembly.contacts import OVERLAPS, overlap_rows, read_rows
from ffn.assembly.given import (
    JOIN,
    SEPARATE,
    Correction,
    CorrectionError,
    GraphInputs,
    WithCuts,
    constraints_of,
    known_corrections,
)
from ffn.assembly.merge import apply_groups
from ffn.assembly.merge_graph import read_graphs
from ffn.assembly.questions import Forest, Pair, Question, ask, gather
from ffn.config import PART_ZYX
from ffn.contingency import count_pairs, largest_parts, merge_tables
from ffn.errors import ExportError
from ffn.geometry import ZYX, Box, add, cell_shape, scale, subtract, zyx
from ffn.io.open import identity, open_segmentation, open_volume
from ffn.io.store import create_volume
from ffn.io.volume import IGNORED, Placement, Volume, voxel_size_of
from ffn.progress import track
from ffn.provenance import provenance
from ffn.viewing.inputs import read_groups
from ffn.viewing.segments import NM3_PER_UM3, read_segment_properties
from ffn.viewing.state import FOCUS, MARGIN, PANEL_WIDTH, SECTION_ZOOM, State, make_state

COLOURS = ("#ff9f1c", "#2ec4b6")  # of the two sides
# An object that touches no side of the volume ends in it. Of 29 such objects of 1000 voxels or more in the demo and in
# FIB-25, 23 lacked a tenth of their body or more. Of the ten largest of each of these and SNEMI3D, one in ten had a
# tenth of another body.
ENDS, LARGEST, WRONG = "ends", "largest", {"ends": 0.8, "largest": 0.1}
NUM_LARGEST = 10
SECTION_NM = 2000.0  # width of a panel at most; our choice: a contact of two neurites and what is around it
BORDER_VOXELS = 2  # where the network's field of view ends early, or sections are faulty; our choice
JOINED, APART = "joined", "apart"
# Probability of being wrong from which a contact is in doubt. In the demo, after 20 answers from the truth, 23 of 69
# objects have none left; 4 % of their voxels are in another body (two mergers inside of supervoxels). At 0.05, 17 have
# none and 6 % are.
DOUBT = 0.1
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class QueueInputs(GraphInputs):
    """What a queue is made from: a run's export, supervoxels, graph and mapping, and the answers so far."""

    export: Path
    mapping: str
    answers: Sequence[str] = ()  # files of corrections, of any number of people
    has_affinities: bool = False  # by which `fill` has joined segments, too


class Place(NamedTuple):
    """A place to look at, a row of the file."""

    kind: str  # whether two objects are `JOINED` or `APART`; or a segment that `ENDS`, or is one of the `LARGEST`
    wrong: float  # probability
    um3: float  # what would change: the smaller segment that touches, the smaller of two joined sides, or the object
    um: float  # the same of its skeleton, 0 where there is none
    position_zyx: ZYX
    sides: tuple[list[int], list[int]]  # supervoxels of both sides
    pair: Pair | None = None  # supervoxels that touch here
    ends_zyx: tuple[ZYX, ZYX] | None = None  # a voxel of each, for a correction
    single: bool = True  # whether nothing else joins the two sides

    @property
    def key(self) -> tuple[Any, ...]:
        """Tell a place from all others."""
        return self.pair or (self.kind, self.sides[0][0])

    def question(self) -> str:
        """Return the question for a person."""
        text = {
            APART: "Are these two one neuron?",
            JOINED: "These two are joined. Are they one neuron?",
            ENDS: "This object ends inside the volume (a key goes on).",
            LARGEST: "One of the largest objects (a key goes on).",
        }[self.kind]
        return f"{text} {self.um3:.3g} µm³, {self.wrong:.0%} likely to be wrong."

    def correction(self, is_same: bool) -> Correction:
        """Return the line that an answer adds to a file of corrections."""
        assert self.ends_zyx is not None
        return Correction(JOIN if is_same else SEPARATE, *self.ends_zyx)


class Queue:
    """Places to look at; `answers` may be changed."""

    def __init__(self, inputs: QueueInputs) -> None:
        self._inputs = inputs
        if not (inputs.export / "supervoxels").is_dir():
            raise ExportError(f"{inputs.export}: has no supervoxels, expected an export with agglomerate.enabled")
        base = read_segment_properties(inputs.export / "supervoxels")
        self._sizes: dict[int, int] = dict(zip(base["id"], base["voxels"], strict=True))
        self._boxes = _boxes(base)
        objects = read_segment_properties(inputs.export / "segmentation")
        self._lengths = dict(zip(objects["id"], objects["length_um"], strict=True))
        self._groups = self._objects = dict(np.stack(read_groups(inputs.mapping), axis=1).tolist())
        with open_segmentation(inputs.segmentation) as volume, open_volume(inputs.export / "segmentation") as exported:
            self._volume_box, self._voxel_size = volume.box, voxel_size_of(volume)
            if inputs.has_affinities:
                self._objects = dict(np.stack(names_in(exported, volume.read), axis=1).tolist())
        claims, filled = read_rows(inputs.segmentation, OVERLAPS, 6), self._objects if inputs.has_affinities else None
        self._pairs = gather(read_graphs(inputs.graphs), overlap_rows(claims), self._sizes, filled)
        with inputs.open_base() as cut:
            self._given = read_answers(inputs.answers, cut)
            self._parts = np.unique(cut.rows[:, 4:], axis=0).tolist() if isinstance(cut, WithCuts) else []
        whole = {part: segment for segment, part in self._parts}  # 0 of traced objects, which are in no contact
        self.answers: dict[Pair, bool] = {}
        for ends, is_same in self._given.items():
            a, b = sorted(whole.get(end, end) for end in ends)
            if 0 < a < b:
                self.answers[a, b] = is_same
        self._um3 = math.prod(self._voxel_size) / NM3_PER_UM3

    def places(self, most: int | None = None, without: Collection[tuple[Any, ...]] = ()) -> list[Place]:
        """Return the places whose answer is worth most, µm³ that are expected to be wrong, but those of some keys."""
        questions, forest = self._questions(self._objects)
        with open_segmentation(self._inputs.segmentation) as volume:
            left = (question for question in questions if self._pair(question.row) not in without)
            asked = (place for each in left if (place := self._place(each, forest, volume)))
            suspicious = (place for place in self._segments(forest) if place.key not in without)
            found = [*islice(asked, most), *suspicious]
        return sorted(found, key=lambda place: -place.wrong * place.um3)[:most]

    def confirmed(self) -> set[int]:
        """Return the objects that people have answered about, and of which no contact is in doubt any more.

        Raises
        ------
        CorrectionError
            If an answer is not applied.
        """

        def objects_of(segments: Iterable[int]) -> set[int]:
            return {self._groups.get(segment, segment) for segment in segments}

        for pair, is_same in self._given.items():
            if (len(objects_of(pair)) == 1) != is_same:
                text = f"{self._inputs.mapping}: does not have the answer on {pair}, expected all to be applied"
                raise CorrectionError(f"{text}. Run ffn correct first")
        pairs = (self._pair(question.row) for question in self._questions(self._groups)[0] if question.wrong >= DOUBT)
        doubtful = set(chain(*pairs))
        doubtful |= {part for segment, part in self._parts if segment in doubtful}  # a contact may be of any of them
        return objects_of(chain(*self._given)) - objects_of(doubtful)

    def _questions(self, objects: Mapping[int, int]) -> tuple[list[Question], Forest]:
        return ask(self._pairs, self._pairs.probabilities(self.answers), self.answers, objects, self._sizes)

    def _place(self, question: Question, forest: Forest, volume: Volume) -> Place | None:
        """Return the place of a question; None where an object of several parts claimed voxels with another part."""
        a, b = pair = self._pair(question.row)
        ends = _nearest(volume, zyx(self._pairs.place_zyx[question.row]), pair)
        if ends is None:
            return None
        sides = forest.side(a, b), forest.side(b, a)
        length = self._length(min(sides, key=self._voxels), question)
        middle = zyx((np.array(ends[0]) + ends[1]) // 2)
        kind = JOINED if question.joined else APART
        um3 = question.voxels * self._um3
        return Place(kind, question.wrong, um3, length, middle, sides, pair, ends, question.single)

    def _pair(self, row: int) -> Pair:
        a, b = self._pairs.ids[row].tolist()
        return a, b

    def _voxels(self, segments: Sequence[int]) -> int:
        return sum(self._sizes.get(each, 0) for each in segments)

    def _length(self, side: Sequence[int], question: Question) -> float:
        """Return the skeleton's length of a side, µm; of a part of an object, in proportion to its voxels."""
        of_object = self._objects.get(side[0], side[0])
        length = self._lengths.get(of_object, 0.0)
        if not question.joined:
            return length
        others = sum(size for each, size in self._sizes.items() if self._objects.get(each, each) == of_object)
        return length * self._voxels(side) / max(1, others)

    def _segments(self, forest: Forest) -> list[Place]:
        """Return the suspicious objects: the largest, and those that end inside the volume."""
        members: dict[int, list[int]] = {}
        for segment in self._sizes:
            members.setdefault(forest.root(segment), []).append(segment)
        largest = set(sorted(members, key=lambda root: -forest.sizes[root])[:NUM_LARGEST])
        inside = self._volume_box.grow((-BORDER_VOXELS,) * 3)
        found = []
        for root, segments in members.items():
            box = Box.hull(self._boxes[each] for each in segments)
            for kind in [ENDS] * inside.contains(box) + [LARGEST] * (root in largest):
                length = self._lengths.get(self._objects.get(root, root), 0.0)
                middle = zyx((np.array(box.start) + box.stop) // 2)
                um3 = forest.sizes[root] * self._um3
                found.append(Place(kind, WRONG[kind], um3, length, middle, (segments, [])))
        return found

    def state(self, whole: State, place: Place) -> State:
        """Return the state of an export that shows a place: both sides in their colours, and nothing else."""
        members = [each for side in place.sides for each in side]
        colours = {str(each): colour for side, colour in zip(place.sides, COLOURS, strict=True) for each in side}
        shown = {
            "visible": True,
            "segments": list(map(str, members)),
            "equivalences": [list(map(str, side)) for side in place.sides if len(side) > 1],
            "segmentColors": colours,
            **FOCUS,
        }
        layers = [
            {**layer, **shown}
            if layer["name"] == "supervoxels"
            else {**layer, "visible": layer["type"] == "image" and layer["name"] == "image"}
            for layer in whole["layers"]
        ]
        box, shortest = Box.hull(self._boxes[each] for each in members), min(self._voxel_size)
        return {
            **whole,
            "layers": layers,
            "position": [n + 0.5 for n in place.position_zyx[::-1]],
            "crossSectionScale": min(SECTION_ZOOM * whole["crossSectionScale"], SECTION_NM / PANEL_WIDTH / shortest),
            "projectionScale": MARGIN * make_state([], box, self._voxel_size)["projectionScale"],
        }


def _nearest(volume: Volume, place_zyx: ZYX, pair: Pair) -> tuple[ZYX, ZYX] | None:
    """Return the nearest voxels of two segments, around a place or the cell that begins there."""
    size = voxel_size_of(volume)
    cell = cell_shape(size)
    box = Box(subtract(place_zyx, cell), add(place_zyx, scale(cell, 2))).intersect(volume.box)
    labels = volume.read(box)
    of_a, of_b = (labels == np.uint64(segment) for segment in pair)
    if not (of_a.any() and of_b.any()):
        return None
    distance, nearest = ndimage.distance_transform_edt(~of_b, sampling=size, return_indices=True)
    at = np.unravel_index(np.where(of_a, distance, np.inf).argmin(), box.shape)
    return add(zyx(at), box.start), add(zyx(nearest[(slice(None), *at)]), box.start)


def _boxes(properties: Mapping[str, list]) -> dict[int, Box]:
    """Return the bounding box of each segment."""
    columns = np.array([properties[f"{axis}_{end}"] for end in ("start", "stop") for axis in "zyx"]).T
    return {i: Box(zyx(row[:3]), zyx(row[3:])) for i, row in zip(properties["id"], columns, strict=True)}


def read_answers(paths: Sequence[str], base: Volume) -> dict[Pair, bool]:
    """Return the pairs of supervoxels in files of corrections, and whether they are to be joined.

    Raises
    ------
    CorrectionError
        If a file cannot be read, or two corrections contradict each other.
    """
    read = [each for path in paths for each in known_corrections(Path(path))]
    joined, apart = constraints_of(read, ", ".join(paths), base)
    return {(a, b): is_same for pairs, is_same in ((joined, True), (apart, False)) for a, b in np.sort(pairs).tolist()}


def places_text(places: Sequence[Place]) -> str:
    """Return the places as CSV."""
    text = io.StringIO()
    names = ["name", "kind", "p_wrong", "change_um3", "change_um", "single", "z", "y", "x", "segment_a", "segment_b"]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*names, *(f"{axis}_{end}" for end in "ab" for axis in "zyx")])
    for name, place in named(places).items():
        segments: tuple[Any, ...] = place.pair or (place.sides[0][0], "")
        voxels = [n for end in place.ends_zyx for n in end] if place.ends_zyx else [""] * 6
        figures = [f"{place.wrong:.4f}", f"{place.um3:.6g}", f"{place.um:.6g}", int(place.single)]
        writer.writerow([name, place.kind, *figures, *place.position_zyx, *segments, *voxels])
    return text.getvalue()


def named(places: Sequence[Place]) -> dict[str, Place]:
    """Return the places by the names of their links."""
    return {f"queue-{number:03}": place for number, place in enumerate(places, 1)}


def write_confirmed(inputs: QueueInputs, objects: Sequence[int], out: str | Path) -> Box:
    """Write the confirmed objects of a run as labels, and return their box: that of the segmentation.

    All other segments are 0: as a confirmed object is complete, no voxel of them belongs to it. Voxels of no segment,
    those of other segments at the border, and those that affinities alone gave to the object are `IGNORED`, because
    nobody has told whose they are.

    The run has applied all answers. `objects` are ids of more objects that a person has found to be right.

    Raises
    ------
    CorrectionError
        If nothing is confirmed, or an answer is not applied.
    """
    if wrong := [each for each in objects if not 0 < each < int(IGNORED)]:
        raise CorrectionError(f"{inputs.mapping}: has no object {wrong[0]}, expected its id")
    confirmed = np.array(sorted(Queue(inputs).confirmed() | set(objects)), np.uint64)
    if not len(confirmed):
        found = f"{inputs.mapping}: no object is confirmed, expected answers on all its doubtful contacts"
        raise CorrectionError(f"{found}. Answer more (ffn view RUN --queue FILE.csv), apply them, or name objects")
    groups = read_groups(inputs.mapping)
    with inputs.open_base() as base, open_volume(inputs.export / "segmentation") as filled:

        def read(box: Box) -> np.ndarray:
            return apply_groups(base.read(box).astype(np.uint64), *groups)

        made_by = provenance("labels", None, segmentation=inputs.segmentation, mapping=identity(inputs.mapping))
        blocks = list(base.box.blocks(PART_ZYX))
        known, names = names_in(filled, read)
        if len(absent := np.setdiff1d(confirmed, known)):
            raise CorrectionError(f"{inputs.mapping}: has no object {absent[0]}, expected its id")
        names = names[np.isin(known, confirmed)]  # of what affinities have joined to them
        with create_volume(str(out), np.uint64, Placement(base.box, voxel_size_of(base), made_by)) as writer:
            for block in track(blocks, len(blocks), "labels"):
                seen = block.grow((1, 1, 1)).intersect(base.box)
                labels = labels_of(read(seen), confirmed)[block.slices(seen.start)]
                labels[(labels == 0) & np.isin(filled.read(block), names)] = IGNORED
                writer.write(block, labels)
        log.info("%s: %d objects", out, len(confirmed))
        return base.box


def names_in(filled: Volume, read: Callable[[Box], np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return all ids that a box has, ascending, and the filled object that has most of each."""
    blocks = filled.box.blocks(PART_ZYX)
    parts = merge_tables(count_pairs(read(block), filled.read(block)) for block in blocks)
    rows = largest_parts(parts.a, parts.b, parts.voxels)
    return parts.a[rows], parts.b[rows]


def labels_of(objects: np.ndarray, confirmed: np.ndarray) -> np.ndarray:
    """Return the labels of a box of objects.

    Examples
    --------
    >>> labels_of(np.array([7, 7, 0, 0, 8, 8, 9, 9], np.uint64), np.array([8])).astype(np.int64).tolist()
    [0, 0, -1, -1, 8, 8, -1, 0]
    """
    is_body = np.isin(objects, confirmed)
    labels = np.where(is_body, objects, np.uint64(0))
    labels[((objects == 0) | ndimage.binary_dilation(is_body)) & ~is_body] = IGNORED
    return labels
