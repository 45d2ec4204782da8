"""Cut supervoxels between points of two neurons: the network grows both again, and a watershed decides the rest."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ffn.assembly.components import Components
from ffn.assembly.config import OF_CONTACTS, Agglomeration, require_window
from ffn.assembly.connected import NO_ROWS, connected_roots, label_pieces, pieces_of_block, same_voxel
from ffn.assembly.contacts import open_scene
from ffn.assembly.cuts import COLUMNS, WithCuts, write_cuts
from ffn.assembly.gaps import smoothed
from ffn.assembly.given import CUT, Correction, CorrectionError, id_at, read_corrections, voxel_of
from ffn.assembly.resegment import Judge
from ffn.config import PART_ZYX
from ffn.contingency import find_runs
from ffn.geometry import ZYX, Box, scale, subtract, zyx
from ffn.inference.canvas import MASKED, Frame
from ffn.inference.grower import ObjectGrower
from ffn.inference.inputs import AgglomerateInputs, add_flood_inputs, flood_inputs
from ffn.inference.lanes import Lanes
from ffn.inference.movement import centres_across
from ffn.io.open import read_table
from ffn.io.section_faults import JUMPS
from ffn.io.shards import Shards
from ffn.io.volume import Volume, require_other_file, voxel_size_of
from ffn.options import add_masks_option, add_options, add_volume_option, from_arguments
from ffn.provenance import provenance

SIGMA_NM = 10.0  # smoothing of the image in which membranes are dark, as for `ffn.assembly.competitors`
MAX_VOXELS = 2**24  # of the box that a watershed cuts; 1 GB. Our choice
FIRST_ID = 10**15  # new ids are this plus the flat index of a voxel: no two are equal, and spreadsheets keep them
Sides = Sequence[Sequence[ZYX]]  # the points of both neurons


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Cut supervoxels between the two points of corrections of the kind 'cut'. The segmentation is not changed.

    The network grows both sides again in a window around the points. What it gives to both or to neither is decided by
    a seeded watershed of the image. 'ffn merge --cuts' and 'ffn sweep --cuts' apply the file.
    """
    add_volume_option(parser, "--segmentation", "supervoxels, of ffn segment, reconcile or consensus")
    add_flood_inputs(parser)
    parser.add_argument("--corrections", required=True, metavar="FILE.csv", help="file with the places of cuts")
    parser.add_argument("--out", required=True, metavar="FILE.csv", help="voxels with new ids to write")
    add_masks_option(parser)
    add_options(parser, Agglomeration, skip=OF_CONTACTS)
    parser.set_defaults(function=_run)


def _run(arguments: argparse.Namespace) -> None:
    inputs = AgglomerateInputs(**flood_inputs(arguments), segmentation=arguments.segmentation)
    cut(inputs, arguments.corrections, arguments.out, from_arguments(Agglomeration, arguments))


def cut(inputs: AgglomerateInputs, corrections_path: str, out_path: str, config: Agglomeration) -> None:
    """Write the voxels that get new ids because people have cut their supervoxel.

    Parameters
    ----------
    inputs : AgglomerateInputs
        Supervoxels, image and network.
    corrections_path : str
        File of `Correction`; those of the kind ``cut`` count. Cuts of one supervoxel whose windows overlap are one cut
        with several points on each side: the first ends are of one neuron, the second ends of another.
    out_path : str
        CSV file to write, see `ffn.assembly.cuts.WithCuts`. The largest part keeps its id.
    config : Agglomeration
        Window and flood filling.

    Raises
    ------
    CorrectionError
        If there is no segment at a point, a point is on both sides, or both still touch somewhere else.

    Notes
    -----
    Bytes depend on neither the order of the lines nor on which end of a line comes first. In the window, a voxel that
    one side alone claims is of this side. All else is flooded from there: first in the window, and where both sides
    touch outside it, in a box that grows until they do not, up to `MAX_VOXELS`.
    """
    require_other_file(out_path, corrections_path, *inputs.files())
    lines = [each for each in read_corrections(corrections_path) if each.action == CUT]
    network = inputs.network(config)
    require_window(config.window_radius_zyx, network.model.config, "window_radius_zyx")
    with open_scene(inputs.segmentation, inputs.image, inputs.masks) as scene:
        lanes = Judge(scene, network, config).open_lanes(1)
        base = WithCuts(scene.segmentation, np.empty((0, len(COLUMNS)), np.int64))
        for sides in _grouped(lines, corrections_path, base, config):
            ids = [{id_at(base, point): point for point in side} for side in sides]
            for segment in sorted(ids[0].keys() & ids[1].keys()):  # else another cut has parted the sides already
                own = [[point for point in side if id_at(base, point) == segment] for side in sides]
                if both := {*own[0]} & {*own[1]}:
                    text = f"{corrections_path}: {both.pop()} is on both sides of a cut, expected two neurons"
                    raise CorrectionError(f"{text}. Begin all lines there in the same neuron, or delete one")
                judge = Judge(replace(scene, segmentation=base), network, config, read_table(inputs.image, JUMPS))
                frame = judge.frame(middle(own))
                claims = claims_of(judge, frame, segment, own, lanes)
                rows = rows_of_parts(judge, frame, segment, own, claims)
                rows[:, 4] = id_at(scene.segmentation, own[0][0])
                base = WithCuts(scene.segmentation, np.concatenate([base.rows, rows]))
        record = provenance("cut", config, **inputs.about(network, lanes.name), corrections=corrections_path)
    write_cuts(out_path, base.rows, record)


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


def claims_of(judge: Judge, frame: Frame, segment: int, sides: Sides, lanes: Lanes) -> list[np.ndarray]:
    """Grow both sides from their points in a window; return their objects as masks of the window."""
    raw, labels, masked = judge.read(frame)
    occupied = np.where((masked | (labels != 0)) & (masked | (labels != np.uint64(segment))), MASKED, 0)
    canvas = lanes.canvas(0, frame.mirrored(raw), frame.masked(occupied), frame.inside)
    canvas.refuse(centres_across(judge.jumps, frame.canvas, judge.network.model.config.fov_radius_zyx))
    found = []
    for side in sides:
        mask = np.zeros(canvas.shape, bool)
        for seed in _within([point for point in side if frame.box.contains(Box.around(point))], frame.canvas):
            grower = ObjectGrower(canvas, seed, judge.config.max_fovs)
            while grower.next_position() is not None:
                lanes.advance([grower])
            box, grown = canvas.object_mask()
            mask[box.slices()] |= grown
        found.append(mask[frame.wanted.slices()])
    near = [[point for point in side if frame.box.contains(Box.around(point))] for side in sides]
    return without_overrun(found, [_within(side, frame.box) for side in near])


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
    """Divide a segment between two sides.

    Parameters
    ----------
    height : float ndarray of shape (Z, Y, X)
        Where it is high, the sides meet.
    own : bool ndarray of shape (Z, Y, X)
        The segment.
    markers : int32 ndarray of shape (Z, Y, X)
        1 and 2 where the side is known. Each must be connected with a point of its side, or it does not count.
    sides : pair of sequences
        Points (zyx) of each side.

    Returns
    -------
    int32 ndarray of shape (Z, Y, X)
        1 and 2; 0 outside the segment, and in pieces of it without a point.
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
            seeds = crossings[block.holds(crossings[:, 1:])]
            each = pieces_of_block(block, base.box, PART_ZYX, self._read, seeds)
            self._pieces[block] = count + np.arange(len(each["objects"]))
            found.append(each)
            rows += [each["links"][:, ::-1] + (0, count), each["seeds"] * (-1, 1) + (-1, count)]
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
        found = [np.empty((0, len(COLUMNS)), np.int64)]
        for block, pieces in self._pieces.items():
            new = np.append(self._segment, ids[self._number[pieces]])[label_pieces(self._read(block))]
            starts, lengths = find_runs(new, within_rows=True)
            after = new.ravel()[starts]
            places = np.stack(np.unravel_index(starts, block.shape), axis=1) + block.start
            rows = np.column_stack([places, lengths, np.full(len(starts), self._segment), after])
            found.append(rows[after != self._segment])
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
        inside, outside = [np.empty((0, 3), np.int64)], [np.empty((0, 3), np.int64)]
        for axis, step in itertools.product(range(3), (-1, 1)):
            ends = list(zip(self._box.start, self._box.stop, strict=True))
            at = ends[axis][0] if step < 0 else ends[axis][1] - 1
            ends[axis] = (at, at + 1)
            plane = Box(*map(zyx, zip(*ends, strict=True)))
            by = zyx(step * (k == axis) for k in range(3))
            if self._base.box.contains(plane.shift(by)):
                goes_on = self._base.read(plane.shift(by)) == np.uint64(self._segment)
                voxels = np.argwhere(goes_on & (self._sides[plane.slices(self._box.start)] > 0)) + plane.start
                inside.append(voxels)
                outside.append(voxels + by)
        both = [np.concatenate(voxels) for voxels in (inside, outside)]
        return np.concatenate([np.column_stack([np.arange(len(voxels)), voxels]) for voxels in both])


def middle(sides: Sides) -> ZYX:
    """Return the mean of the points of both sides."""
    return zyx(np.mean([*itertools.chain(*sides)], axis=0).astype(int))


def _within(points: Sequence[ZYX], box: Box) -> list[ZYX]:
    return [subtract(point, box.start) for point in points]
