"""Apply an agglomeration graph: join the supervoxels whose edges reach the threshold."""

from __future__ import annotations

import argparse
import hashlib
import logging
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ffn.assembly.components import connected_roots
from ffn.assembly.config import MergeConfig
from ffn.assembly.given import NOTHING_GIVEN, Constraints, GraphInputs, add_graph_options, graph_options
from ffn.assembly.merge_graph import DIGITS, Linkage, MergeEdge, MergeGraphError
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
from ffn.options import add_options, add_store_option, from_arguments
from ffn.provenance import fingerprint, provenance

log = logging.getLogger(__name__)

MAPPING = "mapping"  # step before the blocks
LINKED_AT_ONCE = 2**18  # scores, if no cluster has more; our choice
ABSTAINED = 2**63  # instead of a score
WARN_SHARE = 0.2  # of the labelled voxels in one group; our choice: the largest body of FIB-25's 250³ has a tenth


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Join the segments whose edges in the graph reach the threshold. The segmentation itself is not changed.

    example:
      ffn merge graph.csv --segmentation seg.zarr --out agglomerated.zarr
    """
    parser.add_argument("graphs", nargs="+", metavar="GRAPH.csv", help="files of ffn agglomerate")
    add_store_option(parser, "--out", "uint64 segmentation")
    add_graph_options(parser)
    parser.add_argument("--mapping", metavar="FILE.csv", help="also write base_id,group_id of every joined segment")
    add_job_options(parser, (MAPPING,))
    add_options(parser, MergeConfig)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    inputs, config = GraphInputs(**graph_options(arguments)), from_arguments(MergeConfig, arguments)
    merge(inputs, arguments.out, config, arguments.mapping, job_of(arguments))


def merge(
    inputs: GraphInputs, out: str, config: MergeConfig, mapping_path: str | None = None, job: Job = WHOLE
) -> None:
    """Write a copy of the supervoxels with joined ids, block by block.

    The step `MAPPING` reads graph and corrections, once for all jobs. A group gets the smallest id of its members. The
    file at `mapping_path` is a CSV file with ``base_id,group_id`` of every joined segment.
    """
    read = {"segmentation": inputs.segmentation, **inputs.given}
    for written in filter(None, (out, mapping_path)):
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
            _warn_of_largest(group_ids, voxels, out)

        record = provenance("merge", config, **read, graphs=len(inputs.graphs), joined=len(base_ids))
        placement = Placement(base.box, voxel_size_of(base), record)
        map_blocks(out, {MAIN: np.uint64}, placement, work, key, job, at_end=at_end)


def _mapping(inputs: GraphInputs, out: str, config: MergeConfig, job: Job) -> tuple[Tables, dict[str, Any]] | None:
    """Return the segments that graphs and people join, with their groups, and the key of all that follows from them."""

    def joined(_: object) -> dict[str, np.ndarray]:
        scores, abstained = pair_scores(inputs.edges())
        base_ids, group_ids = merge_groups(scores, config.threshold, inputs.constraints())
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
        expected = "expected all that the graph joins. Was the graph made from another segmentation? Rerun agglomerate"
        raise MergeGraphError(f"{spec}: lacks segment {missing[0]}, {expected}")


def _warn_of_largest(group_ids: np.ndarray, voxels: np.ndarray, out: str) -> None:
    """Warn if a group has taken a large part of the volume; the last of `voxels` is that of all other segments."""
    groups, index, numbers = np.unique(group_ids, return_inverse=True, return_counts=True)
    shares = np.bincount(index, voxels[:-1]) / voxels.sum()
    if shares.max(initial=0) > WARN_SHARE:
        largest = shares.argmax()
        log.warning(
            "%s: group %d has %d segments and %.0f %% of all labelled voxels, one neuron rarely has more than %.0f %%. "
            "Merging may have run away: look at it, and raise merge.threshold",
            *(out, groups[largest], numbers[largest], 100 * shares[largest], 100 * WARN_SHARE),
        )


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
    scores: np.ndarray, threshold: float, constraints: Constraints = NOTHING_GIVEN
) -> tuple[np.ndarray, np.ndarray]:
    """Join segments by average linkage: two groups are joined if the mean score between them reaches a threshold.

    So one wrong edge joins two segments, but not two groups that other edges hold apart.

    `scores` are those of `pair_scores`. Some pairs are joined before the first score counts, and some by no score, as
    the constraints say. The result has the ids of joined segments alone, ascending, and their groups, which have the
    smallest ids of their members.

    Notes
    -----
    See `Linkage`. A mean is no better than the best of its scores, so a group lies in one cluster of segments, which
    scores of at least the threshold connect. Other scores are left out. Dictionaries are made of some clusters at a
    time.
    """
    limit = threshold * 10**DIGITS
    ids, clusters = _connected(np.concatenate([scores[scores[:, 2] >= limit, :2], constraints.joined]))
    joined, roots = _connected(constraints.joined)
    by_hand = np.column_stack([joined[roots], joined])[joined[roots] != joined]
    links = np.column_stack([scores, np.ones(len(scores), np.uint64)])
    tables = [_within(clusters, ids, rows) for rows in (links, by_hand, constraints.apart)]
    bounds = np.unique(tables[0][0][LINKED_AT_ONCE::LINKED_AT_ONCE])
    joins = []
    for near, pairs, apart in zip(*(np.split(rows, np.searchsorted(of, bounds)) for of, rows in tables), strict=True):
        linkage = Linkage(near, apart)
        for one, other in pairs.tolist():
            linkage.join(one, other)
        joins.append(linkage.run(lambda one, other: limit))
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
