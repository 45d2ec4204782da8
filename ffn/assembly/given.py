"""Inputs of `merge` and `sweep`: a graph, what ``ffn cut`` has cut of supervoxels, and corrections.

Corrections are pairs of places whose segments are joined or kept apart.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import itertools
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ffn.assembly.components import connected_roots
from ffn.assembly.contacts import MAX_GAP_NM, ranges
from ffn.assembly.merge_graph import MergeEdge, MergeGraphError, read_graphs
from ffn.errors import FfnError, under
from ffn.geometry import ZYX, Box, steps_within, zyx
from ffn.io.atomic import unreadable, write_text
from ffn.io.open import open_segmentation
from ffn.io.volume import Derived, Volume, voxel_size_of
from ffn.options import add_volume_option

log = logging.getLogger(__name__)

JOIN = "join"
SEPARATE = "separate"
CUT = "cut"  # separates two places of one supervoxel
TRACE = "trace"  # an object from a place where none is; both ends are the same
GROWN = (CUT, TRACE)  # by ``ffn cut``
COLUMNS = ("action", "z_a", "y_a", "x_a", "z_b", "y_b", "x_b")
REACH_NM = 100.0  # from a place to its supervoxel: fill grows segments, and people draw what they see
MAX_CORRECTIONS = 300_000  # 2 s and 250 MB; each then reads its surroundings. Our choice
CUT_COLUMNS = ("z", "y", "x", "voxels", "segment", "part")


class WithCuts(Derived):
    """A segmentation in which some voxels have other ids.

    `rows` (int64, (N, 6)) are runs along x, ascending and disjoint: first voxel z, y, x in the full volume, number of
    voxels, id before and after.
    """

    def __init__(self, source: Volume, rows: np.ndarray) -> None:
        super().__init__(source, np.dtype(np.uint64))
        self.rows = rows

    def _read(self, box: Box) -> np.ndarray:
        labels = self.source.read(box).astype(np.uint64)
        z, y, x, voxels = self.rows[:, :4].T
        (z0, y0, x0), (z1, y1, x1) = box.start, box.stop
        near = self.rows[(z >= z0) & (z < z1) & (y >= y0) & (y < y1) & (x < x1) & (x + voxels > x0)]
        row, at = ranges(near[:, 2], near[:, 3])
        row, at = row[(at >= x0) & (at < x1)], at[(at >= x0) & (at < x1)]
        labels[near[row, 0] - z0, near[row, 1] - y0, at - x0] = near[row, 5]
        return labels

    def moved(self, edge: MergeEdge) -> MergeEdge:
        """Return an edge of the graph of `source`; that of a segment that was cut is of its part at the place."""
        pair = edge.segment_a, edge.segment_b
        if not np.isin(pair, self.rows[:, 4].astype(np.uint64)).any():
            return edge
        near = Box.around((edge.z, edge.y, edge.x), steps_within(MAX_GAP_NM, voxel_size_of(self))).intersect(self.box)
        before, after = self.source.read(near), self.read(near)
        places = np.moveaxis(np.indices(near.shape), 0, -1) + near.start
        distance = np.linalg.norm((places - (edge.z, edge.y, edge.x)) * voxel_size_of(self), axis=-1)
        ids = []
        for each in pair:
            of = before == np.uint64(each)
            ids.append(int(after[of][distance[of].argmin()]) if of.any() else each)
        return replace(edge, segment_a=min(ids), segment_b=max(ids))


def write_cuts(path: str, rows: np.ndarray, record: dict[str, Any]) -> None:
    """Write the file of `WithCuts`, with its provenance."""
    lines = "".join(f"{','.join(map(str, row))}\n" for row in rows.tolist())
    write_text(Path(path), f"# {json.dumps(record, sort_keys=True)}\n{','.join(CUT_COLUMNS)}\n{lines}")


def read_cuts(path: str) -> np.ndarray:
    """Read the rows of `WithCuts`."""
    with unreadable(path, "a file of ffn cut", MergeGraphError), open(path) as file:
        next(file)
        if next(file) != ",".join(CUT_COLUMNS) + "\n":
            raise ValueError(f"no columns {','.join(CUT_COLUMNS)}")
        return np.array([line.split(",") for line in file], np.int64).reshape(-1, len(CUT_COLUMNS))


class CorrectionError(FfnError):
    """Corrections that cannot be read or applied."""


class Correction(NamedTuple):
    """One correction."""

    action: str  # `JOIN`, `SEPARATE`, `CUT` or `TRACE`
    a_zyx: ZYX  # A voxel of each of the two segments, in the full volume. Places stay valid when ids change
    b_zyx: ZYX

    def __str__(self) -> str:
        """Return the line of the file."""
        return ",".join(map(str, (self.action, *self.a_zyx, *self.b_zyx)))


class Constraints(NamedTuple):
    """Corrections in terms of supervoxels."""

    # pairs of supervoxels that are in one group, and pairs that are not
    joined: np.ndarray = np.empty((0, 2), np.uint64)
    apart: np.ndarray = np.empty((0, 2), np.uint64)


NOTHING_GIVEN = Constraints()


@dataclass(frozen=True, kw_only=True)
class GraphInputs:
    """A segmentation, its agglomeration graph, and manual corrections."""

    segmentation: str  # supervoxels
    graphs: Sequence[str]  # files of `ffn agglomerate` for these supervoxels
    corrections: str | None = None  # joins and separations by hand, see `Correction`
    cuts: str | None = None  # file of `ffn cut` with parts of supervoxels, for the corrections

    @property
    def given(self) -> dict[str, str]:
        """Corrections and cuts, by their names in provenance."""
        return {name: spec for name in ("corrections", "cuts") if (spec := getattr(self, name))}

    @contextlib.contextmanager
    def open_base(self) -> Iterator[Volume]:
        """Open the supervoxels, with the ids of cut ones."""
        with open_segmentation(self.segmentation) as base:
            yield WithCuts(base, read_cuts(self.cuts)) if self.cuts else base

    def edges(self) -> Iterator[MergeEdge]:
        """Yield the edges of the graph; those of a supervoxel that was cut are of its part at their place."""
        edges = read_graphs(self.graphs)
        with self.open_base() as base:
            yield from map(base.moved, edges) if isinstance(base, WithCuts) else edges

    def constraints(self) -> Constraints:
        """Read the corrections, and find their supervoxels."""
        if self.corrections is None:
            return NOTHING_GIVEN
        corrections = read_corrections(self.corrections)
        if self.cuts is None and any(each.action in GROWN for each in corrections):
            raise CorrectionError(f"{self.corrections}: has cuts or traces, expected --cuts, too. Run ffn cut first")
        with self.open_base() as base:
            found = constraints_of(corrections, self.corrections, base)
        log.info("%s: joins %d pairs, separates %d", self.corrections, len(found.joined), len(found.apart))
        return found


def add_graph_options(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the options that `graph_options` reads."""
    add_volume_option(parser, "--segmentation", "supervoxels")
    text = "joins and separations by hand; 'ffn view RUN --corrections FILE.csv' writes them"
    parser.add_argument("--corrections", metavar="FILE.csv", help=text)
    parser.add_argument("--cuts", metavar="FILE.csv", help="of 'ffn cut', parts of supervoxels")


def graph_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of `GraphInputs`."""
    return {name: getattr(arguments, name) for name in ("segmentation", "graphs", "corrections", "cuts")}


def check(box: Box, corrections_path: str) -> None:
    """Refuse corrections that cannot be read, or do not lie in the box of the segmentation."""
    with under("corrections"):
        for each in read_corrections(corrections_path):
            if not box.holds(np.array([each.a_zyx, each.b_zyx])).all():
                raise CorrectionError(f"{corrections_path}: {each} leaves the segmentation, {box}. Delete it")


def read_corrections(path: str | Path) -> list[Correction]:
    """Read a file of corrections."""
    expected = "a file of 'ffn view RUN --corrections'"
    with unreadable(path, expected, CorrectionError), Path(path).open(encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file)  # behind a spreadsheet's byte order mark
        columns = next(rows, [])
        if tuple(columns) != COLUMNS:
            found = ",".join(columns) or "nothing"
            raise CorrectionError(f"{path}: starts with {found!r:.200}, expected the columns {','.join(COLUMNS)}")
        lines = ((number, row) for number, row in enumerate(rows, 2) if row)
        kept = [_parse(row, f"{path}: line {n}") for n, row in itertools.islice(lines, MAX_CORRECTIONS + 1)]
    if len(kept) > MAX_CORRECTIONS:
        size = Path(path).stat().st_size
        found = f"{path}: has {size:,} bytes with more than {MAX_CORRECTIONS:,} corrections, expected at most so many"
        raise CorrectionError(f"{found}. Delete those of small segments")
    return kept


def known_corrections(path: Path) -> list[Correction]:
    """Read a file of corrections; one that does not exist yet has none."""
    return read_corrections(path) if path.exists() else []


def _parse(row: Sequence[str], where: str) -> Correction:
    try:
        action, *numbers = row
        first, second = np.array(numbers, np.int64).reshape(2, 3)
        if action not in (JOIN, SEPARATE, *GROWN):
            raise ValueError
    except (ValueError, OverflowError):
        raise CorrectionError(
            f"{where} is {','.join(row)!r}, expected {JOIN}, {SEPARATE}, {CUT} or {TRACE}, and z,y,x of two voxels"
        ) from None
    return Correction(action, zyx(first), zyx(second))


def corrections_text(corrections: Iterable[Correction]) -> str:
    """Return the text of a file of corrections."""
    return "".join(f"{line}\n" for line in (",".join(COLUMNS), *corrections))


def constraints_of(corrections: Sequence[Correction], path: str | Path, base: Volume) -> Constraints:
    """Look up the supervoxels that corrections name."""
    corrections = [each for each in corrections if each.action != TRACE]
    found = [[id_at(base, voxel_of(base, place, f"{path}: {each}")) for place in each[1:]] for each in corrections]
    pairs = np.array(found, np.uint64).reshape(-1, 2)
    is_join, is_cut = (np.array([each.action == action for each in corrections], bool) for action in (JOIN, CUT))
    is_parted = is_cut & (pairs[:, 0] == pairs[:, 1])  # by ffn cut; until then, other lines are of a part of these
    is_apart, is_whole = ~is_join & ~is_parted, ~np.isin(pairs, pairs[is_parted]).any(axis=1)
    ids, index = np.unique(pairs, return_inverse=True)
    index = index.reshape(-1, 2)
    roots = connected_roots(len(ids), index[is_join & is_whole])[index]
    for row in np.flatnonzero(is_apart & is_whole & (roots[:, 0] == roots[:, 1])).tolist():
        a, b = found[row]
        what = f"two places of supervoxel {a}, which only a cut parts" if a == b else f"{a} from {b}, joined by others"
        raise CorrectionError(f"{path}: {corrections[row]} separates {what}. Delete it, or those that contradict it")
    return Constraints(pairs[is_join], pairs[is_apart])


def corrected(path: str | None, segmentation: Volume) -> Constraints:
    """Return the segments that a file of corrections joins and separates."""
    return NOTHING_GIVEN if path is None else constraints_of(read_corrections(path), path, segmentation)


def nearest_voxel(volume: Volume, place_zyx: ZYX, wanted: Callable[[Box], np.ndarray]) -> ZYX | None:
    """Return the wanted voxel of a volume that is nearest to a place; None if there is none within `REACH_NM`."""
    size = voxel_size_of(volume)
    box = Box.around(place_zyx, steps_within(REACH_NM, size)).intersect(volume.box)
    if box.is_empty:
        return None
    voxels = np.argwhere(wanted(box)) + box.start
    distances = np.linalg.norm((voxels - place_zyx) * size, axis=1)
    return zyx(voxels[distances.argmin()]) if (distances <= REACH_NM).any() else None


def voxel_of(base: Volume, place_zyx: ZYX, where: str) -> ZYX:
    """Return the nearest voxel of a supervoxel, at most `REACH_NM` away."""
    voxel = nearest_voxel(base, place_zyx, lambda box: base.read(box) > 0)
    if voxel is None:
        raise CorrectionError(f"{where}: there is no segment near {','.join(map(str, place_zyx))}, expected one")
    return voxel


def id_at(volume: Volume, voxel_zyx: ZYX) -> int:
    """Return the id of a voxel."""
    return int(volume.read(Box.around(voxel_zyx)).item())
