"""Inputs of `merge` and `sweep` besides a graph: corrections by people, and nuclei of which no score joins two.

Corrections are pairs of places whose segments are joined or kept apart, in a CSV file.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ffn.assembly.connected import connected_roots
from ffn.assembly.cuts import WithCuts, read_cuts
from ffn.assembly.merge_graph import MergeEdge, read_graphs
from ffn.config import PART_ZYX
from ffn.contingency import ContingencyTable, count_pairs, largest_parts, merge_tables
from ffn.errors import ConfigError, FfnError, VolumeError, under
from ffn.geometry import ZYX, Box, VoxelSize, steps_within, zyx
from ffn.io.block_log import Result
from ffn.io.blocks import Job, blocks_of, reduce_step
from ffn.io.faults import unreadable
from ffn.io.masks import reaches, read_nearest, require_labels_in
from ffn.io.open import identity, open_segmentation, open_truth
from ffn.io.scratch import Tables
from ffn.io.volume import Placement, Volume, have_same_voxel_size, require_labels, voxel_size_of
from ffn.provenance import fingerprint

log = logging.getLogger(__name__)

JOIN = "join"
SEPARATE = "separate"
CUT = "cut"  # separates two places of one supervoxel
TRACE = "trace"  # an object from a place where none is; both ends are the same
GROWN = (CUT, TRACE)  # by ``ffn cut``
COLUMNS = ("action", "z_a", "y_a", "x_a", "z_b", "y_b", "x_b")
REACH_NM = 100.0  # from a place to its supervoxel: fill grows segments, and people draw what they see
MAX_CORRECTIONS = 300_000  # 2 s and 250 MB; each then reads its surroundings. Our choice
NUCLEI = "nuclei"  # step before the mapping
SEGMENTS = "segments"  # its table
MIN_SHARE = 0.25  # our choice: pieces of a nucleus that was cut count, a neighbour that touches its rim does not
NO_NUCLEI = np.empty((0, 2), np.uint64)


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
    """A segmentation, its agglomeration graph, and manual corrections and nuclei.

    Parameters
    ----------
    segmentation : str
        Supervoxels.
    graphs : sequence of str
        Files of ``ffn agglomerate`` for these supervoxels.
    corrections : str, optional
        Joins and separations by hand, see `Correction`.
    nuclei : str, optional
        Labels of nuclei, of any resolution. No score joins two of them.
    cuts : str, optional
        File of ``ffn cut`` with parts of supervoxels, for the corrections.
    """

    segmentation: str
    graphs: Sequence[str]
    corrections: str | None = None
    nuclei: str | None = None
    cuts: str | None = None

    @property
    def given(self) -> dict[str, str]:
        """Corrections, nuclei and cuts, by their names in provenance."""
        return {name: spec for name in ("corrections", "nuclei", "cuts") if (spec := getattr(self, name))}

    @contextlib.contextmanager
    def open_base(self) -> Iterator[Volume]:
        """Open the supervoxels, with the ids of cut ones."""
        with open_segmentation(self.segmentation) as base:
            yield WithCuts(base, read_cuts(self.cuts)) if self.cuts else base

    def edges(self) -> Iterator[MergeEdge]:
        """Yield the edges of the graph; those of a supervoxel that was cut are of its part at their place."""
        edges = read_graphs(self.graphs)
        if self.cuts is None:
            yield from edges
            return
        with open_segmentation(self.segmentation) as base:
            yield from map(WithCuts(base, read_cuts(self.cuts)).moved, edges)

    def read_corrections(self) -> list[Correction]:
        """Return the corrections; without a file, there are none."""
        return read_corrections(self.corrections) if self.corrections else []

    def constraints(self, corrections: Sequence[Correction]) -> Constraints:
        """Find the supervoxels of corrections."""
        if self.corrections is None:
            return NOTHING_GIVEN
        if self.cuts is None and any(each.action in GROWN for each in corrections):
            raise CorrectionError(f"{self.corrections}: has cuts or traces, expected --cuts, too. Run ffn cut first")
        with self.open_base() as base:
            found = constraints_of(corrections, self.corrections, base)
        log.info("%s: joins %d pairs, separates %d", self.corrections, len(found.joined), len(found.apart))
        return found


def add_given_options(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the options ``--corrections`` and ``--nuclei``."""
    text = "joins and separations by hand; 'ffn view RUN --corrections FILE.csv' writes them"
    parser.add_argument("--corrections", metavar="FILE.csv", help=text)
    parser.add_argument("--cuts", metavar="FILE.csv", help="of 'ffn cut', parts of supervoxels")
    text = "labels of any resolution, one id for each nucleus or soma: no score joins two of them"
    parser.add_argument("--nuclei", metavar="VOLUME", help=text)


def check(box: Box, voxel_size_zyx_nm: VoxelSize, corrections_path: str | None, nuclei_spec: str | None) -> None:
    """Refuse corrections and nuclei that cannot be read, or do not lie in the box of the segmentation."""
    if corrections_path is not None:
        with under("corrections"):
            for each in read_corrections(corrections_path):
                if not box.holds(np.array([each.a_zyx, each.b_zyx])).all():
                    raise CorrectionError(f"{corrections_path}: {each} leaves the segmentation, {box}. Delete it")
    if nuclei_spec is not None:
        with under("nuclei"):
            require_labels_in(nuclei_spec, box, voxel_size_zyx_nm)


def count_nuclei(inputs: GraphInputs, out_path: str, job: Job) -> Tables | None:
    """Do the part of `job` in the step `NUCLEI`; return its table `SEGMENTS`, or None if `job` ends with this step."""
    spec, base_spec = inputs.nuclei, inputs.segmentation
    if spec is None:
        if job.step == NUCLEI:
            raise ConfigError(f"--step: {NUCLEI} needs --nuclei")
        return Tables({SEGMENTS: NO_NUCLEI})
    with open_truth(spec) as nuclei, inputs.open_base() as base:
        require_labels(base)
        size = None if have_same_voxel_size(nuclei, base) else base.voxel_size_zyx_nm
        if not reaches(nuclei, base.box, size):
            found = f"{spec}: covers {nuclei.box}, expected some of {base_spec}, {base.box}"
            raise VolumeError(f"{found}. Correct its offset or voxel size")

        def work(block: Box) -> Result:
            return vars(merge_tables(_shared(nuclei, base, part, size) for part in block.blocks(PART_ZYX)))

        def combine(results: Iterable[Result]) -> dict[str, np.ndarray]:
            return {SEGMENTS: segments_of(merge_tables(ContingencyTable(**each) for each in results), spec)}

        cuts = {"cuts": identity(inputs.cuts)} if inputs.cuts else {}
        key = fingerprint("merge", None, segmentation=identity(base_spec), nuclei=identity(spec), **cuts)
        blocks = blocks_of(Placement(base.box), {SEGMENTS: np.uint64})
        return reduce_step(out_path, NUCLEI, blocks, work, combine, key, job)


def segments_of(table: ContingencyTable, where: str = "nuclei") -> np.ndarray:
    """Return the supervoxels of nuclei.

    Examples
    --------
    A nucleus in two pieces, and a neurite that touches it:

    >>> segments_of(count_pairs(np.repeat(5, 100), np.repeat([7, 8, 9], [60, 38, 2]))).tolist()
    [[7, 5], [8, 5]]
    """
    _, index = np.unique(table.a, return_inverse=True)
    large = table.keep(table.voxels >= MIN_SHARE * np.bincount(index, table.voxels)[index])
    rows = largest_parts(large.b, large.a, large.voxels)
    found = np.stack([large.b[rows], large.a[rows]], axis=1)
    log.info("%s: %d nuclei in %d supervoxels", where, len(np.unique(large.a)), len(found))
    if len(rows) < len(large.b):
        ids, numbers = np.unique(large.b, return_counts=True)
        example = ids[numbers.argmax()], numbers.max()
        log.warning(
            "%s: %d supervoxels hold several nuclei, such as segment %d, which holds %d. Merge cuts none, so they "
            "count for their largest nucleus",
            *(where, (numbers > 1).sum(), *example),
        )
    return found


def _shared(nuclei: Volume, base: Volume, part: Box, voxel_size_zyx_nm: VoxelSize | None) -> ContingencyTable:
    """Count the voxels that nuclei and supervoxels share; where no nucleus is, segments are not read."""
    found = read_nearest(nuclei, part, voxel_size_zyx_nm, outside=0)
    return count_pairs(found, base.read(part) if found.any() else found).foreground()


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
        some = itertools.islice(lines, MAX_CORRECTIONS + 1)
        kept = [_parse(row, f"{path}: line {number}") for number, row in some]
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
        raise CorrectionError(
            f"{path}: {corrections[row]} separates {what}. Delete it, or the corrections that contradict it"
        )
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
