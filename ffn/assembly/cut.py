"""Cut supervoxels between points of two neurons, and trace objects from points of no segment.

For a cut, the network grows both neurons again, and a watershed decides the rest.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from ffn.assembly.components import NO_ROWS, Components, connected_roots, label_pieces, pieces_of_block, same_voxel
from ffn.assembly.config import OF_CONTACTS, Agglomeration, require_window
from ffn.assembly.contacts import Scene, faces_in, open_scene, smoothed
from ffn.assembly.given import (
    CUT,
    CUT_COLUMNS,
    TRACE,
    Correction,
    CorrectionError,
    WithCuts,
    id_at,
    read_corrections,
    voxel_of,
    write_cuts,
)
from ffn.assembly.resegment import Judge
from ffn.config import PART_ZYX
from ffn.contingency import find_runs
from ffn.geometry import ZYX, Box, scale, steps_within, subtract, zyx
from ffn.inference.canvas import MASKED, Canvas, Frame, is_free
from ffn.inference.flood import ObjectGrower
from ffn.inference.inputs import AgglomerateInputs, Network, add_flood_inputs, flood_inputs
from ffn.inference.lanes import Lanes
from ffn.inference.movement import centres_across
from ffn.io.open import read_table
from ffn.io.section_faults import JUMPS
from ffn.io.shards import Shards
from ffn.io.volume import Volume, require_other_file, voxel_size_of
from ffn.options import add_masks_option, add_options, add_volume_option, from_arguments
from ffn.provenance import provenance

SIGMA_NM = 10.0  # smoothing of the image in which membranes are dark, as for `ffn.assembly.competitors`
MAX_VOXELS = 2**24  # of the box that a watershed cuts, or in which an object is traced; 1 GB. Our choice
FIRST_ID = 10**15  # new ids are this plus the flat index of a voxel: no two are equal, and spreadsheets keep them
NO_CUTS = np.empty((0, len(CUT_COLUMNS)), np.int64)
Sides = Sequence[Sequence[ZYX]]  # the points of both neurons
Watch = Callable[[Callable[[], np.ndarray]], object]  # gets a function that returns the rows of what has grown so far


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Apply corrections of the kinds 'cut' and 'trace'. The segmentation is not changed.

    A cut parts a supervoxel between two points: the network grows both sides again in a window around them. What it
    gives to both or to neither is decided by a seeded watershed of the image. A trace grows an object from a point that
    has none, around all others. 'ffn merge --cuts' and 'ffn sweep --cuts' apply the file.

    example:
      ffn cut --segmentation seg.zarr --image raw.zarr --model DIR --corrections c.csv --out cuts.csv
    """
    add_volume_option(parser, "--segmentation", "supervoxels, of ffn segment, reconcile or consensus")
    add_flood_inputs(parser)
    parser.add_argument("--corrections", required=True, metavar="FILE.csv", help="file with the places")
    parser.add_argument("--out", required=True, metavar="FILE.csv", help="voxels with new ids to write")
    add_masks_option(parser)
    add_options(parser, Agglomeration, skip=OF_CONTACTS)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    inputs = AgglomerateInputs(**flood_inputs(arguments), segmentation=arguments.segmentation)
    cut(inputs, arguments.corrections, arguments.out, from_arguments(Agglomeration, arguments))


def cut(inputs: AgglomerateInputs, corrections_path: str, out_path: str, config: Agglomeration) -> None:
    """Write the voxels that get new ids because people have cut their supervoxel, or traced an object there.

    Corrections of the kinds ``cut`` and ``trace`` count. Cuts of one supervoxel whose windows overlap are one cut with
    several points on each side: the first ends are of one neuron, the second ends of another. The largest part keeps
    its id. The CSV file is what `ffn.assembly.given.WithCuts` reads.

    Raises
    ------
    CorrectionError
        If there is no segment at a point of a cut, a point is on both sides, or both still touch somewhere else.

    Notes
    -----
    Bytes depend on neither the order of cuts nor on which end of a line comes first. In the window, a voxel that
    one side alone claims is of this side. All else is flooded from there: first in the window, and where both sides
    touch outside it, in a box that grows until they do not, up to `MAX_VOXELS`. An object is traced in a box of so many
    voxels as by ``ffn segment`` from this seed, and enters no segment and no object of an earlier line.
    """
    require_other_file(out_path, corrections_path, *inputs.files())
    network = inputs.network(config)
    with open_scene(inputs.segmentation, inputs.image, inputs.masks) as scene:
        cutter = Cutter(scene, network, config, read_table(inputs.image, JUMPS))
        rows = cutter.rows(read_corrections(corrections_path), corrections_path)
        record = provenance("cut", config, **inputs.about(network, cutter.lanes.name), corrections=corrections_path)
    write_cuts(out_path, rows, record)


class Cutter:
    """The network that cuts and traces in a scene."""

    def __init__(self, scene: Scene, network: Network, config: Agglomeration, jumps: np.ndarray | None) -> None:
        require_window(config.window_radius_zyx, network.model.config, "window_radius_zyx")
        self._judge = Judge(scene, network, config, jumps)
        size = voxel_size_of(scene.segmentation)
        radius = steps_within((MAX_VOXELS * math.prod(size)) ** (1 / 3) / 2, size)
        self._tracing = replace(self._judge, config=config.model_copy(update={"window_radius_zyx": radius}))

    @cached_property
    def lanes(self) -> Lanes:
        """The canvas of cuts."""
        return self._judge.open_lanes(1)

    @cached_property
    def _wide_lanes(self) -> Lanes:
        return self._tracing.open_lanes(1)

    def rows(
        self,
        corrections: Sequence[Correction],
        path: str,
        known: np.ndarray = NO_CUTS,
        watch: Watch = lambda rows: None,
    ) -> np.ndarray:
        """Return the rows of `WithCuts` of corrections, after those that are known."""
        scene = self._judge.scene
        base = WithCuts(scene.segmentation, known)
        for line in corrections:
            if line.action == TRACE and base.box.contains(Box.around(line.a_zyx)) and not id_at(base, line.a_zyx):
                base = WithCuts(scene.segmentation, np.concatenate([base.rows, self._traced(line.a_zyx, base, watch)]))
        for sides in _grouped([each for each in corrections if each.action == CUT], path, base, self._judge.config):
            ids = [{id_at(base, point): point for point in side} for side in sides]
            for segment in sorted(ids[0].keys() & ids[1].keys()):  # else another cut has parted the sides already
                own = [[point for point in side if id_at(base, point) == segment] for side in sides]
                if both := {*own[0]} & {*own[1]}:
                    text = f"{path}: {both.pop()} is on both sides of a cut, expected two neurons"
                    raise CorrectionError(f"{text}. Begin all lines there in the same neuron, or delete one")
                judge = replace(self._judge, scene=replace(scene, segmentation=base))
                frame = judge.frame(middle(own))
                claims = claims_of(judge, frame, segment, own, self.lanes, watch)
                rows = rows_of_parts(judge, frame, segment, own, claims)
                rows[:, 4] = id_at(scene.segmentation, own[0][0])
                base = WithCuts(scene.segmentation, np.concatenate([base.rows, rows]))
        return base.rows

    def _traced(self, seed_zyx: ZYX, base: Volume, watch: Watch) -> np.ndarray:
        """Return the rows of an object that grows from a voxel of no segment; none if it does not."""
        judge = replace(self._tracing, scene=replace(self._tracing.scene, segmentation=base))
        frame, at = judge.frame(seed_zyx), subtract(seed_zyx, base.box.start)
        number = FIRST_ID + int(np.ravel_multi_index(at, base.box.shape))
        canvas = canvas_of(judge, frame, 0, self._wide_lanes)
        seed = subtract(seed_zyx, frame.canvas.start)
        if canvas.is_refused(seed) or not canvas.reach.contains(Box.around(seed)):
            return NO_CUTS

        def rows() -> np.ndarray:
            box, mask = canvas.object_mask()
            mask &= is_free(canvas.segmentation[box.slices()])
            box, inside = box.shift(frame.canvas.start), box.shift(frame.canvas.start).intersect(frame.box)
            return rows_of(np.where(mask[inside.slices(box.start)], number, 0), inside.start, 0)

        return rows() if grow(canvas, seed, None, self._wide_lanes, lambda: watch(rows)) else NO_CUTS


def _grouped(lines: Sequence[Correction], path: str, base: Volume, config: Agglomeration) -> list[list[list[ZYX]]]:
    """Return the points of both sides of every cut, in an order that does not depend on that of the lines."""
    ends = [[voxel_of(base, place, f"{path}: {line}") for place in line[1:]] for line in lines]
    ids = [[id_at(base, voxel) for voxel in pair] for pair in ends]
    windows = [Box.around(middle([pair]), config.window_radius_zyx) for pair in ends]
    near = [
        (k, n)
        for k, n in itertools.combinations(range(len(lines)), 2)
        if ids[k] == ids[n] and not windows[k].intersect(windows[n]).is_empty
    ]
    roots, found = connected_roots(len(lines), np.array(near)), list[list[list[ZYX]]]()
    for root in np.unique(roots).tolist():
        pairs = [ends[k] for k in np.flatnonzero(roots == root).tolist() if ids[k][0] == ids[k][1]]
        found += [sorted(sorted(set(side)) for side in zip(*pairs, strict=True))] if pairs else []
    return sorted(found)


def rows_of_parts(judge: Judge, frame: Frame, segment: int, sides: Sides, claims: Sequence[np.ndarray]) -> np.ndarray:
    """Cut a segment; return the rows of `WithCuts` of all parts but that which keeps its id.

    `claims` are the masks of `claims_of`.
    """
    scene, radius, base = judge.scene, judge.config.window_radius_zyx, judge.scene.segmentation
    box = Box.hull([frame.box, *map(Box.around, itertools.chain(*sides))])
    while box.num_voxels <= MAX_VOXELS:
        own = base.read(box) == np.uint64(segment)
        markers = np.zeros(box.shape, np.int32)
        inner = markers[frame.box.slices(box.start)]
        inner[claims[0] & ~claims[1]], inner[claims[1] & ~claims[0]] = 1, 2
        height = -smoothed(scene.image.read(box), SIGMA_NM, voxel_size_of(base))
        pieces = Pieces(base, segment, box, divided(height, own, markers, [_within(side, box) for side in sides]))
        if pieces.are_apart:
            return pieces.rows()
        larger = box.grow(radius).intersect(base.box)
        if larger == box:
            break
        box, radius = larger, scale(radius, 2)
    raise CorrectionError(
        f"corrections: both sides of the cut of supervoxel {segment} at {','.join(map(str, sides[0][0]))} also touch "
        f"beyond {box}, expected a watershed of {MAX_VOXELS} voxels at most. Cut there as well, from the same side"
    )


def claims_of(
    judge: Judge, frame: Frame, segment: int, sides: Sides, lanes: Lanes, watch: Watch = lambda rows: None
) -> list[np.ndarray]:
    """Grow both sides from their points in a window; return their objects as masks of the window."""
    canvas = canvas_of(judge, frame, segment, lanes)
    near = [[point for point in side if frame.box.contains(Box.around(point))] for side in sides]
    found = []
    for side in near:
        mask = np.zeros(canvas.shape, bool)
        for seed in _within(side, frame.canvas):
            grow(canvas, seed, judge.config.max_fovs, lanes, lambda: watch(lambda: NO_CUTS))
            box, grown = canvas.object_mask()
            mask[box.slices()] |= grown
        found.append(mask[frame.wanted.slices()])
    return without_overrun(found, [_within(side, frame.box) for side in near])


def canvas_of(judge: Judge, frame: Frame, segment: int, lanes: Lanes) -> Canvas:
    """Return the canvas of a window in which objects may enter one segment, or 0, and voxels of none."""
    raw, labels, masked = judge.read(frame)
    occupied = np.where(masked | ((labels != 0) & (labels != np.uint64(segment))), np.int32(MASKED), np.int32(0))
    canvas = lanes.canvas(0, frame.mirrored(raw), frame.masked(occupied), frame.inside)
    canvas.refuse(centres_across(judge.jumps, frame.canvas, judge.network.model.config.fov_radius_zyx))
    return canvas


def grow(canvas: Canvas, seed: ZYX, max_fovs: int | None, lanes: Lanes, watch: Callable[[], object]) -> bool:
    """Grow an object to its end, watched after each move; return whether it still includes its seed."""
    grower = ObjectGrower(canvas, seed, max_fovs)
    while grower.next_position() is not None:
        lanes.advance([grower])
        watch()
    return grower.is_strong


def rows_of(new: np.ndarray, start_zyx: ZYX, before: int) -> np.ndarray:
    """Return the rows of `WithCuts` of an array of new ids at a place; 0 is left out."""
    starts, lengths = find_runs(new, within_rows=True)
    after = new.ravel()[starts]
    places = np.stack(np.unravel_index(starts, new.shape), axis=1) + start_zyx
    return np.column_stack([places, lengths, np.full(len(starts), before), after])[after != 0]


def without_overrun(claims: Sequence[np.ndarray], sides: Sides) -> list[np.ndarray]:
    """Empty each mask that takes a point of the other side: there, the network has joined the neurons once more.

    Examples
    --------
    >>> [mask.sum() for mask in without_overrun([np.array([1, 1, 1]), np.array([0, 0, 1])], [[0], [2]])]
    [np.int64(0), np.int64(1)]
    """
    both = zip(claims, sides[::-1], strict=True)
    return [np.zeros_like(mask) if any(mask[at] for at in other) else mask for mask, other in both]


def divided(height: np.ndarray, own: np.ndarray, markers: np.ndarray, sides: Sides) -> np.ndarray:
    """Divide the voxels of a segment, `own`, between two sides, which meet where `height` is high.

    `markers` (int32) are 1 and 2 where the side is known. Each must be connected with a point (zyx) of its side, or it
    does not count. The result has 1 and 2 as well; 0 outside the segment, and in pieces of it without a point.
    """
    from skimage.segmentation import watershed

    for number, side in enumerate(sides, 1):
        for point in side:
            markers[point] = number
    found = watershed(height, np.where(own, markers, 0), mask=own)
    pieces = label_pieces(found)
    held = [pieces[point] for point in itertools.chain(*sides)]
    return watershed(height, np.where(np.isin(pieces, held), found, 0), mask=own)


class Pieces:
    """What remains connected of a segment after a cut, found from block to block, from those of the cut.

    `sides` are those of the voxels in a box, of `divided`. Beyond the box, a side is all that is connected with it.
    """

    def __init__(self, base: Volume, segment: int, box: Box, sides: np.ndarray) -> None:
        self._base, self._segment, self._box, self._sides = base, segment, box, sides
        crossings, shards, count = self._crossings(), Shards(base.box, PART_ZYX), 0
        todo, self._pieces = list(shards.touched_by(box)), dict[Box, np.ndarray]()
        found, rows = list[dict[str, np.ndarray]](), list[np.ndarray]([NO_ROWS])
        while todo:
            block = todo.pop()
            if block in self._pieces:
                continue
            each = pieces_of_block(block, base.box, PART_ZYX, self._read)
            self._pieces[block] = count + np.arange(len(each["objects"]))
            found.append(each)
            rows.append(each["links"][:, ::-1] + (0, count))
            inside = crossings[block.holds(crossings[:, 1:])]
            if len(inside):
                piece = label_pieces(self._read(block))[tuple((inside[:, 1:] - block.start).T)] - 1
                rows.append(np.column_stack([-1 - inside[:, 0], count + piece]))
            count += len(each["objects"])
            voxels = np.unravel_index(np.unique(each["links"][:, 1]), base.box.shape)
            for voxel in (np.stack(voxels, axis=1) + base.box.start).tolist():
                todo += shards.touched_by(Box.around(zyx(voxel), (1, 1, 1)).intersect(base.box))
        pieces = Components(
            *(np.concatenate([each[name] for each in found]) for name in ("objects", "voxels", "first"))
        )
        roots = connected_roots(count, same_voxel(np.concatenate(rows)))
        self._number = np.unique(roots, return_inverse=True)[1]
        self._parts = Components.of_pieces(pieces, self._number)
        of_side = [self._number[pieces.objects == 1 + side] for side in (1, 2)]
        self.are_apart = not np.intersect1d(*of_side).size

    def rows(self) -> np.ndarray:
        """Return the rows of `WithCuts` of all parts but the largest, which keeps the id."""
        ids, order = FIRST_ID + self._parts.first, np.lexsort((self._parts.first, -self._parts.voxels))
        kept = np.flatnonzero(ids == self._segment)  # a part of an earlier cut
        ids[kept[0] if len(kept) else order[0]] = self._segment
        found = [NO_CUTS]
        for block, pieces in self._pieces.items():
            new = np.append(0, np.where(ids == self._segment, 0, ids)[self._number[pieces]])
            found.append(rows_of(new[label_pieces(self._read(block))], block.start, self._segment))
        rows = np.concatenate(found)
        return rows[np.lexsort(rows.T[2::-1])]

    def _read(self, box: Box) -> np.ndarray:
        """Return 2 and 3 where the sides are, 1 elsewhere in the segment."""
        found = (self._base.read(box) == np.uint64(self._segment)).astype(np.int64)
        common = box.intersect(self._box)
        if not common.is_empty:
            found[common.slices(box.start)] += self._sides[common.slices(self._box.start)]
        return found

    def _crossings(self) -> np.ndarray:
        """Return the voxels of both ends of each place where a side leaves the box: number of the place, z, y, x."""
        outer, found = self._box.grow((1, 1, 1)).intersect(self._base.box), [np.empty((0, 2, 3), np.int64)]
        for values, places, step in faces_in(self._read(outer), outer, outer):
            ends = np.stack([places, places + step], axis=1)
            is_side, leaves = values[:, 1] > 1, self._box.holds(ends[:, 0]) != self._box.holds(ends[:, 1])
            found.append(ends[is_side & leaves])
        places = np.concatenate(found)
        return np.column_stack([np.repeat(np.arange(len(places)), 2), places.reshape(-1, 3)])


def middle(sides: Sides) -> ZYX:
    """Return the mean of the points of both sides."""
    return zyx(np.mean([*itertools.chain(*sides)], axis=0).astype(int))


def _within(points: Sequence[ZYX], box: Box) -> list[ZYX]:
    return [subtract(point, box.start) for point in points]
