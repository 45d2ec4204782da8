"""The costliest splits and mergers, and faults of labels that people painted, with a voxel at which to look at each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from scipy.ndimage import binary_dilation, distance_transform_edt, find_objects

from ffn.assembly.components import label_pieces
from ffn.config import PART_ZYX
from ffn.contingency import ContingencyTable, RowLookup, count_pairs, find_runs, largest_parts, merge_tables
from ffn.geometry import ZYX, Box, VoxelSize, zyx
from ffn.io.volume import Read, is_ignored

# Voxels around a piece in which the main part is looked for; our choice. In 60 splits of three runs on real tissue, 9
# of the parts lay beyond 8 voxels, 2 beyond 48.
REACH_ZYX = (24, 24, 24)
KINDS = ("split", "merge")
RIM = 2  # voxels; what lies in there alone is no centre of an example. Our choice

Ends: TypeAlias = tuple[ZYX, ZYX | None]  # of a gap: a voxel of the piece, and the nearest of a main part in reach


class Error(NamedTuple):
    """A piece that should be joined to the main part, or separated from it; `voi` are the bits that this would save.

    They are segments of a body, the owner, in a split, and bodies of a segment in a merger.
    """

    name: str
    kind: str
    owner: int
    main: int
    piece: int
    voxels: int
    voi: float

    def ids(self, part: int) -> tuple[int, int]:
        """Return body and segment of a part."""
        return (self.owner, part) if self.kind == "split" else (part, self.owner)

    def entry(self, position_zyx: ZYX, other_zyx: ZYX | None) -> dict[str, Any]:
        """Return the entry of a score file; of the ids, that of the main part comes first."""
        ids = [self.owner], [self.main, self.piece]
        truth, segments = ids if self.kind == "split" else ids[::-1]
        return {
            "name": self.name,
            "kind": self.kind,
            "position_zyx": list(position_zyx),
            "other_zyx": other_zyx and list(other_zyx),
            "truth_ids": truth,
            "segment_ids": segments,
            "voxels": self.voxels,
            "voi": self.voi,
        }


class Scene(NamedTuple):
    """The volumes that are compared."""

    truth: Read
    segmentation: Read
    box: Box
    voxel_size_zyx_nm: VoxelSize


def worst_errors(table: ContingencyTable, bodies: np.ndarray, count: int) -> list[Error]:
    """List at most `count` splits, then mergers, whose correction would save the most VOI; each by falling VOI.

    The table is one of components of `bodies`. Components of one body in a segment are no merger: the box cut the body.
    """
    both = table.foreground()
    owners = bodies[both.a.astype(np.int64)]
    splits = _pieces("split", both.a, both.b, both.voxels, count)
    whole = merge_tables([ContingencyTable(owners, both.b, both.voxels)])
    mergers = _pieces("merge", whole.b, whole.a, whole.voxels, count)
    return [*(error._replace(owner=int(bodies[error.owner])) for error in splits), *mergers]


def _pieces(kind: str, owners: np.ndarray, parts: np.ndarray, voxels: np.ndarray, count: int) -> Iterator[Error]:
    """Yield the costliest parts that are not the largest of their owner, from rows of owner and part."""
    order = np.lexsort((parts, -voxels, owners))  # the first row of each owner is its main part
    owners, parts, voxels = owners[order], parts[order], voxels[order]
    main = np.repeat(*find_runs(owners))
    a, b = voxels[main].astype(np.float64), voxels.astype(np.float64)  # bits that are saved when they become one
    saved = ((a + b) * np.log2(a + b) - a * np.log2(a) - b * np.log2(b)) / max(voxels.sum(), 1)
    pieces = np.flatnonzero(main != np.arange(len(main)))
    worst = pieces[np.argsort(-saved[pieces], kind="stable")[:count]]
    for rank, i in enumerate(worst, start=1):
        found = int(owners[i]), int(parts[main[i]]), int(parts[i])
        yield Error(f"{kind}-{rank:02d}", kind, *found, int(voxels[i]), float(saved[i]))


def locate(errors: Sequence[Error], tables: Iterable[tuple[Box, ContingencyTable]], scene: Scene) -> list[Ends]:
    """Find the ends of the gap between each piece and its main part: where they touch or come closest.

    Of all voxels of the piece that are as close, it is the middle one. A piece that has no main part within
    `REACH_ZYX` is located in its own middle, and its gap has one end.

    `tables` are of the blocks that tile the box, each with its pairs of body and segment: only blocks with a piece are
    read.
    """
    pairs = list(dict.fromkeys(error.ids(part) for error in errors for part in (error.main, error.piece)))
    lookup = RowLookup(*np.array(pairs, np.uint64).reshape(-1, 2).T)
    mains = [pairs.index(error.ids(error.main)) for error in errors]
    pieces = [pairs.index(error.ids(error.piece)) for error in errors]
    found: list[list[tuple[float, int, ZYX, ZYX | None]]] = [[] for _ in errors]
    for block, table in tables:
        if not np.isin(pieces, lookup.find(table.a, table.b)).any():
            continue
        for part in block.blocks(PART_ZYX):
            wide = part.grow(REACH_ZYX).intersect(scene.box)
            rows = lookup.of_voxels(scene.truth(wide), scene.segmentation(wide))
            boxes = find_objects(rows[part.slices(wide.start)] + 1, max_label=len(pairs))
            for main, piece, places in zip(mains, pieces, found, strict=True):
                if (inside := boxes[piece]) is not None:
                    box = Box(zyx(s.start for s in inside), zyx(s.stop for s in inside)).shift(part.start)
                    around = box.grow(REACH_ZYX).intersect(wide)
                    near = rows[around.slices(wide.start)]
                    of_piece = np.zeros(near.shape, bool)
                    of_piece[box.slices(around.start)] = rows[box.slices(wide.start)] == piece
                    distance, count, voxel, other = _closest(of_piece, near == main, scene.voxel_size_zyx_nm)
                    across = None if other is None else zyx(other + around.start)
                    places.append((distance, -count, zyx(voxel + around.start), across))
    return [min(places)[2:] for places in found]


def _closest(
    piece: np.ndarray, main: np.ndarray, voxel_size_zyx_nm: VoxelSize
) -> tuple[float, int, np.ndarray, np.ndarray | None]:
    """Return how close a piece comes to the main part, nm, with how many voxels, the middle one, and its neighbour."""
    closest, distance = piece & binary_dilation(main), 0.0
    if not closest.any():  # the two do not touch
        distances = distance_transform_edt(~main, voxel_size_zyx_nm) if main.any() else np.full(piece.shape, np.inf)
        distance = float(distances[piece].min())
        closest = piece & (distances == distance)
    voxels = np.argwhere(closest)
    from_middle = np.square((voxels - voxels.mean(axis=0)) * voxel_size_zyx_nm).sum(axis=1)
    voxel = voxels[np.argmin(from_middle)]
    if not np.isfinite(distance):
        return distance, len(voxels), voxel, None
    reach = np.ceil(distance / np.array(voxel_size_zyx_nm)).astype(int) + 1
    start = np.maximum(voxel - reach, 0)
    others = np.argwhere(main[tuple(map(slice, start, voxel + reach + 1))]) + start
    nearest = np.argmin(np.square((others - voxel) * voxel_size_zyx_nm).sum(axis=1))
    return distance, len(voxels), voxel, others[nearest]


def worst_of_each_kind(entries: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """Return the first `count` splits and the first `count` mergers of a score file."""
    return [entry for kind in KINDS for entry in [one for one in entries if one["kind"] == kind][:count]]


def gap_ends(entry: Mapping[str, Any]) -> list[np.ndarray]:
    """Return the centres of the voxels at the known ends of an error's gap, zyx in voxels: one or two."""
    return [np.add(end, 0.5) for end in (entry["position_zyx"], entry.get("other_zyx")) if end is not None]


def best_bodies(table: ContingencyTable) -> dict[int, int]:
    """Map each segment to the body that it shares most voxels with; leave out segments that share none."""
    both = table.foreground()
    best = both.keep(largest_parts(both.b, both.a, both.voxels))
    return dict(zip(best.b.tolist(), best.a.tolist(), strict=True))


class Fault(NamedTuple):
    """A place to correct."""

    kind: str
    label: int
    voxels: int
    place_zyx: ZYX  # a voxel of it

    def __str__(self) -> str:
        """Return a line for people."""
        return f"id {self.label}: {self.kind}, {self.voxels} voxels, at {','.join(map(str, self.place_zyx))}"


def faults(labels: np.ndarray, box: Box) -> list[Fault]:
    """Return the faults of labels in a box, the largest of each kind first; 40 bytes of memory per voxel."""
    bodies = np.where(is_ignored(labels), 0, labels)
    found = [*_apart(bodies), *_gaps(bodies), *_rim(bodies), *_holes(labels)]
    moved = [each._replace(place_zyx=zyx(np.add(each.place_zyx, box.start))) for each in found]
    return sorted(moved, key=lambda each: (each.kind, -each.voxels))


def _apart(bodies: np.ndarray) -> Iterator[Fault]:
    """Yield the pieces of each id but the largest."""
    pieces = label_pieces(bodies)
    table = count_pairs(bodies, pieces).foreground()
    for row in np.setdiff1d(np.arange(len(table.a)), largest_parts(table.a, table.b, table.voxels)).tolist():
        place = np.unravel_index((pieces == table.b[row]).argmax(), bodies.shape)
        yield Fault("a piece apart from the rest", int(table.a[row]), int(table.voxels[row]), zyx(place))


def _gaps(bodies: np.ndarray) -> Iterator[Fault]:
    """Yield sections in which an id is missing that the sections before and after have."""
    present = [set(np.unique(section).tolist()) - {0} for section in bodies]
    for z in range(1, len(present) - 1):
        for label in sorted((present[z - 1] & present[z + 1]) - present[z]):
            before = np.argwhere(bodies[z - 1] == label)
            yield Fault("missing in a section", label, len(before), (z, *before[0].tolist()))


def _rim(bodies: np.ndarray) -> Iterator[Fault]:
    """Yield ids that lie within `RIM` voxels of the faces alone; a few sections have no rim along z."""
    inner = bodies[tuple(slice(RIM, n - RIM) if n > 2 * RIM else slice(n) for n in bodies.shape)]
    for label in np.setdiff1d(bodies, [*np.unique(inner), 0]).tolist():
        places = np.argwhere(bodies == label)
        yield Fault("only at the rim", label, len(places), zyx(places[0]))


def _holes(labels: np.ndarray) -> Iterator[Fault]:
    """Yield unlabelled voxels that one id encloses."""
    holes = label_pieces(labels == 0)
    for number, slices in enumerate(find_objects(holes), 1):
        if any(part.start == 0 or part.stop == n for part, n in zip(slices, labels.shape, strict=True)):
            continue
        around = tuple(slice(part.start - 1, part.stop + 1) for part in slices)
        is_hole = holes[around] == number
        enclosing = np.unique(labels[around][binary_dilation(is_hole) & ~is_hole])
        if len(enclosing) == 1:
            place = np.argwhere(is_hole)[0] + [part.start for part in around]
            yield Fault("a hole", int(enclosing[0]), int(is_hole.sum()), zyx(place))
