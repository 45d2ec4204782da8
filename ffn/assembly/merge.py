"""Apply an agglomeration graph: join the supervoxels whose edges reach the threshold."""

from __future__ import annotations

import argparse
import hashlib
import heapq
import logging
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ffn.assembly.config import MergeConfig
from ffn.assembly.connected import connected_roots
from ffn.assembly.given import (
    NO_NUCLEI,
    NOTHING_GIVEN,
    NUCLEI,
    SEGMENTS,
    Constraints,
    GraphInputs,
    add_given_options,
    count_nuclei,
)
from ffn.assembly.merge_graph import DIGITS, MergeEdge, MergeGraphError
from ffn.config import PART_ZYX
from ffn.contingency import RowLookup, add_up, count_ids
from ffn.geometry import Box
from ffn.io import atomic
from ffn.io.block_log import Result
from ffn.io.blocks import WHOLE, Job, Writers, add_job_options, job_of, map_blocks, no_result, reduce_step
from ffn.io.open import identity
from ffn.io.scratch import Tables
from ffn.io.store import require_replaceable
from ffn.io.store_names import MAIN
from ffn.io.volume import Placement, require_labels, require_other_file, voxel_size_of
from ffn.options import add_options, add_store_option, add_volume_option, from_arguments
from ffn.provenance import fingerprint, provenance

log = logging.getLogger(__name__)

MAPPING = "mapping"  # step before the blocks
LINKED_AT_ONCE = 2**18  # scores, if no cluster has more; our choice
NUM_LISTED = 50
ABSTAINED = 2**63  # instead of a score
WARN_SHARE = 0.2  # of the labelled voxels in one group; our choice: the largest body of FIB-25's 250³ has a tenth


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Join the segments whose edges in the graph reach the threshold. The segmentation itself is not changed.

    example:
      ffn merge graph.csv --segmentation seg.zarr --out agglomerated.zarr
    """
    parser.add_argument("graphs", nargs="+", metavar="GRAPH.csv", help="files of ffn agglomerate")
    add_volume_option(parser, "--segmentation", "supervoxels")
    add_store_option(parser, "--out", "uint64 segmentation")
    add_given_options(parser)
    parser.add_argument("--mapping", metavar="FILE.csv", help="also write base_id,group_id of every joined segment")
    parser.add_argument(
        "--groups", metavar="FILE.csv", help="also write the largest groups, to check for runaway merging"
    )
    add_job_options(parser, (NUCLEI, MAPPING))
    add_options(parser, MergeConfig)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    inputs = GraphInputs(
        segmentation=arguments.segmentation,
        graphs=arguments.graphs,
        corrections=arguments.corrections,
        nuclei=arguments.nuclei,
        cuts=arguments.cuts,
    )
    config = from_arguments(MergeConfig, arguments)
    merge(inputs, arguments.out, config, arguments.mapping, arguments.groups, job_of(arguments))


def merge(
    inputs: GraphInputs,
    out: str,
    config: MergeConfig,
    mapping_path: str | None = None,
    groups_path: str | None = None,
    job: Job = WHOLE,
) -> None:
    """Write a copy of the supervoxels with joined ids, block by block.

    Parameters
    ----------
    inputs : GraphInputs
        Supervoxels and graph. The step `NUCLEI` reads nuclei, the step `MAPPING` graph and corrections, once for all
        jobs.
    out : str
        ``NAME.zarr``, uint64. A group gets the smallest id of its members.
    config : MergeConfig
        Threshold.
    mapping_path : str, optional
        CSV file to write, with ``base_id,group_id`` of every joined segment.
    groups_path : str, optional
        CSV file to write, with ``group_id,segments,voxels,share`` of the largest groups.
    job : Job
        Which blocks to write, see `ffn.io.blocks`.
    """
    read = {"segmentation": inputs.segmentation, **inputs.given}
    for written in filter(None, (out, mapping_path, groups_path)):
        require_other_file(written, *read.values(), *inputs.graphs, *({out} - {written}))
    require_replaceable(out, {MAIN})
    made = _mapping(inputs, out, config, job)
    if made is None:
        return
    mapping, key = made
    base_ids, group_ids = mapping.read("base_ids"), mapping.read("group_ids")
    lookup = RowLookup(base_ids)
    with inputs.open_base() as base:
        require_labels(base)

        def work(block: Box, writers: Writers) -> Result:
            found = []
            for part in block.blocks(PART_ZYX):
                labels = base.read(part).astype(np.uint64)
                ids, sizes = count_ids(labels[labels != 0])
                found.append(np.stack([lookup.find(ids), sizes], axis=1))
                writers[MAIN].write(part, apply_groups(labels, base_ids, group_ids))
            return {"voxels": add_up(np.concatenate(found))}  # of each row of the mapping, and of all other segments

        def at_end(results: Iterable[Result]) -> None:
            voxels = np.zeros(len(base_ids) + 1, np.int64)  # the last number is that of row -1
            for each in results:
                voxels[each["voxels"][:, 0]] += each["voxels"][:, 1]
            _require_held(base_ids[voxels[:-1] == 0], inputs.segmentation)
            if mapping_path is not None:
                atomic.write_text(mapping_path, mapping_text(base_ids.tolist(), group_ids.tolist()))
            _report(_largest(group_ids, voxels[:-1], int(voxels.sum())), out, groups_path)

        record = provenance("merge", config, **read, graphs=len(inputs.graphs), joined=len(base_ids))
        placement = Placement(base.box, voxel_size_of(base), record)
        map_blocks(out, {MAIN: np.uint64}, placement, work, key, job, at_end=at_end)


def _mapping(inputs: GraphInputs, out: str, config: MergeConfig, job: Job) -> tuple[Tables, dict[str, Any]] | None:
    """Return the segments that graphs and people join, with their groups, and the key of all that follows from them."""
    corrections, nuclei = inputs.read_corrections(), count_nuclei(inputs, out, job)
    if nuclei is None:
        return None

    def joined(_: object) -> dict[str, np.ndarray]:
        scores, abstained = pair_scores(inputs.edges())
        constraints = inputs.constraints(corrections)
        base_ids, group_ids = merge_groups(scores, config.threshold, constraints, nuclei.read(SEGMENTS))
        numbers = np.unique(group_ids, return_counts=True)[1]
        counts = (100 * abstained, len(scores), len(base_ids), len(numbers), numbers.max(initial=0))
        text = "no answer at %.0f %% of the points, %d pairs with a score, %d segments in %d groups, %d in the largest"
        log.info(text, *counts)
        return {"base_ids": base_ids, "group_ids": group_ids}

    names = hashlib.sha256("\n".join(inputs.graphs).encode()).hexdigest()
    contents = {name: identity(spec) for name, spec in {"segmentation": inputs.segmentation, **inputs.given}.items()}
    key = fingerprint("merge", config, graphs=names, **contents)
    mapping = reduce_step(out, MAPPING, [], no_result, joined, key, job)
    return None if mapping is None else (mapping, {**key, "mapping": mapping.digest})


def _require_held(missing: np.ndarray, spec: str) -> None:
    if len(missing):
        raise MergeGraphError(
            f"{spec}: lacks segment {missing[0]}, expected all that the graph joins. "
            "Was the graph made from another segmentation? Rerun agglomerate"
        )


def _report(largest: list[tuple[int, int, int, float]], out: str, groups_path: str | None) -> None:
    """Write the largest groups, and warn if one has taken a large part of the volume."""
    if groups_path is not None:
        lines = "".join(f"{group},{number},{size},{share:.4f}\n" for group, number, size, share in largest)
        atomic.write_text(groups_path, f"group_id,segments,voxels,share\n{lines}")
    if largest and largest[0][3] > WARN_SHARE:
        group, number, _, share = largest[0]
        log.warning(
            "%s: group %d has %d segments and %.0f %% of all labelled voxels, one neuron rarely has more than %.0f %%. "
            "Merging may have run away: look at it, and raise merge.threshold",
            *(out, group, number, 100 * share, 100 * WARN_SHARE),
        )


def _largest(group_ids: np.ndarray, voxels: np.ndarray, num_labelled: int) -> list[tuple[int, int, int, float]]:
    """Return the largest groups: id, number of segments, voxels, share of all labelled voxels."""
    groups, index, numbers = np.unique(group_ids, return_inverse=True, return_counts=True)
    sizes = np.zeros(len(groups), np.int64)
    np.add.at(sizes, index, voxels)
    order = np.argsort(-sizes, kind="stable")[:NUM_LISTED]
    return [(int(groups[k]), int(numbers[k]), int(sizes[k]), sizes[k] / num_labelled) for k in order]


def pair_scores(edges: Iterable[MergeEdge]) -> tuple[np.ndarray, float]:
    """Return the score of every pair of segments, from all answers about it, and the share of points without an answer.

    Of n points, some score high by chance. With 1 - s as the chance that one of them scores s or more between two
    neurons, the pair's score is 1 less the smallest chance, over all k, that k of n score as high as the k best do. It
    is no higher than the best score, and that of a pair with one point is the point's.

    Rows (uint64, (N, 3)) are smaller id, larger id, score in steps of 10⁻⁶: whole numbers add up in any order.
    """
    from scipy.special import betainc

    found = (
        (e.segment_a, e.segment_b, ABSTAINED if math.isnan(e.score) else round(e.score * 10**DIGITS)) for e in edges
    )
    points = np.fromiter(found, np.dtype((np.uint64, 3)))
    rows = points[points[:, 2] != ABSTAINED]
    a, b, score = rows.T
    rows = rows[np.lexsort((-score.astype(np.int64), b, a))]
    first = np.flatnonzero(np.append(True, (rows[1:, :2] != rows[:-1, :2]).any(axis=1))[: len(rows)])
    number = np.diff(np.append(first, len(rows)))
    k, n = np.arange(len(rows)) - np.repeat(first, number) + 1, np.repeat(number, number)
    chance = betainc(k, n - k + 1, 1 - rows[:, 2] / 10**DIGITS)  # of k of n, a sum of binomial probabilities
    least = np.minimum.reduceat(chance, first) if len(rows) else chance
    pairs = rows[first]
    pairs[:, 2] = np.minimum(pairs[:, 2], np.rint((1 - least) * 10**DIGITS).astype(np.uint64))
    return pairs, (len(points) - len(rows)) / max(1, len(points))


def merge_groups(
    scores: np.ndarray, threshold: float, constraints: Constraints = NOTHING_GIVEN, nuclei: np.ndarray = NO_NUCLEI
) -> tuple[np.ndarray, np.ndarray]:
    """Join segments by average linkage: two groups are joined if the mean score between them reaches a threshold.

    So one wrong edge joins two segments, but not two groups that other edges hold apart.

    Parameters
    ----------
    scores : uint64 ndarray of shape (N, 3)
        Of `pair_scores`.
    threshold : float
        Smallest mean score that joins.
    constraints : Constraints
        Pairs that are joined before the first score counts, and pairs that no score joins.
    nuclei : uint64 ndarray of shape (N, 2)
        Segments, and the nucleus that each is of. No score joins two groups of different nuclei.

    Returns
    -------
    base_ids, group_ids : uint64 ndarrays of shape (N,)
        Only segments that were joined, by ascending id. A group has the smallest id of its members.

    Notes
    -----
    The best mean is joined first; of equal ones, that with the smallest ids. Segments without an edge between them say
    nothing about their groups. A mean is no better than the best of its scores, so a group lies in one cluster of
    segments, which scores of at least the threshold connect. Dictionaries are made of some clusters at a time.
    """
    limit = threshold * 10**DIGITS
    ids, clusters = _connected(np.concatenate([scores[scores[:, 2] >= limit, :2], constraints.joined]))
    rows_of_two = scores, constraints.joined, constraints.apart, nuclei[:, [0, 0, 1]]
    tables = [_within(clusters, ids, rows) for rows in rows_of_two]
    bounds = np.unique(tables[0][0][LINKED_AT_ONCE::LINKED_AT_ONCE])
    parts = (np.split(rows, np.searchsorted(numbers, bounds)) for numbers, rows in tables)
    linkages = (_Linkage(part, Constraints(*pairs), of) for part, *pairs, of in zip(*parts, strict=True))
    joins = [linkage.join(limit) for linkage in linkages]
    base_ids, roots = _connected(np.concatenate(joins))
    return base_ids, base_ids[roots]


def _connected(pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids that are in pairs, ascending, and for each the place of the smallest that it is connected with."""
    ids, ends = np.unique(pairs, return_inverse=True)
    return ids, connected_roots(len(ids), ends.reshape(-1, 2))


def _within(clusters: np.ndarray, ids: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows whose first two ids are in one cluster, after its number, by which they are sorted."""
    lookup = RowLookup(ids)
    a, b = (np.append(clusters, -1)[lookup.find(column)] for column in rows.T[:2])  # -1 for ids that are in none
    kept = np.flatnonzero((a >= 0) & (a == b))
    kept = kept[np.argsort(a[kept], kind="stable")]
    return a[kept], rows[kept]


class _Linkage:
    """Groups of segments and the scores between them; a group is named by its smallest id."""

    def __init__(self, scores: np.ndarray, constraints: Constraints, nuclei: np.ndarray) -> None:
        self._links: dict[int, dict[int, tuple[int, int]]] = {}  # of each group: sum and number of scores with another
        for a, b, score in scores.tolist():
            self._links.setdefault(a, {})[b] = self._links.setdefault(b, {})[a] = score, 1
        self._apart: dict[int, set[int]] = {}
        for a, b in constraints.apart.tolist():
            self._apart.setdefault(a, set()).add(b)
            self._apart.setdefault(b, set()).add(a)
        self._nuclei = {segment: {nucleus} for segment, _, nucleus in nuclei.tolist()}
        self._joins: list[tuple[int, int]] = []
        ids, roots = _connected(constraints.joined)
        for a, b in zip(ids[roots].tolist(), ids.tolist(), strict=True):
            if a != b:
                self._join(a, b)

    def join(self, threshold: float) -> np.ndarray:
        """Join groups, the best mean first, and return the joined pairs: uint64 (N, 2)."""
        pairs = ((a, b) for a, others in self._links.items() for b in others if a < b)
        queue = [entry for a, b in pairs if (entry := self._entry(a, b, threshold))]
        heapq.heapify(queue)
        while queue:
            _, a, b, total, number = heapq.heappop(queue)
            if self._links.get(a, {}).get(b) != (total, number) or self._are_apart(a, b):
                continue  # one of them has grown since, or they are kept apart
            for other in self._join(a, b):
                entry = self._entry(min(a, other), max(a, other), threshold)
                if entry:
                    heapq.heappush(queue, entry)
        return np.array(self._joins, np.uint64).reshape(-1, 2)

    def _entry(self, a: int, b: int, threshold: float) -> tuple[float, int, int, int, int] | None:
        total, number = self._links[a][b]
        return (-total / number, a, b, total, number) if total >= threshold * number else None

    def _are_apart(self, a: int, b: int) -> bool:
        """Whether two groups are separated by hand or of different nuclei; those joined by hand may hold several."""
        one, other = (self._nuclei.get(group, set()) for group in (a, b))
        return b in self._apart.get(a, ()) or not (one <= other or other <= one)

    def _join(self, a: int, b: int) -> list[int]:
        """Make group `b` a part of `a`, and return the groups that may be joined with it now."""
        self._joins.append((a, b))
        changed = [other for other in self._links.get(b, {}) if other != a]
        own = self._links.setdefault(a, {})
        own.pop(b, None)
        for other, (more, others) in self._links.pop(b, {}).items():
            if other == a:
                continue
            del self._links[other][b]
            before, count = own.get(other, (0, 0))
            own[other] = self._links[other][a] = before + more, count + others
        for other in self._apart.pop(b, set()):
            self._apart[other].discard(b)
            self._apart[other].add(a)
            self._apart.setdefault(a, set()).add(other)
        if b in self._nuclei:
            self._nuclei[a] = self._nuclei.get(a, set()) | self._nuclei.pop(b)
            changed = list(own)  # some were of another nucleus before
        return changed


def apply_groups(labels: np.ndarray, base_ids: np.ndarray, group_ids: np.ndarray) -> np.ndarray:
    """Return `labels`, unsigned integers of any shape, with the ids of supervoxels replaced by those of their groups.

    Examples
    --------
    >>> apply_groups(np.array([0, 3, 5, 9]), np.array([3, 9]), np.array([3, 3])).tolist()
    [0, 3, 5, 3]
    """
    if not len(base_ids):
        return labels
    position = np.searchsorted(base_ids, labels).clip(max=len(base_ids) - 1)
    return np.where(base_ids[position] == labels, group_ids[position], labels)


def mapping_text(base_ids: Sequence[int], group_ids: Sequence[int]) -> str:
    """Return the text of a mapping file: ``base_id,group_id`` of each joined segment."""
    return "base_id,group_id\n" + "".join(f"{a},{b}\n" for a, b in zip(base_ids, group_ids, strict=True))
