"""The agglomeration graph: scored edges between supervoxels, in a CSV file with its provenance."""

from __future__ import annotations

import heapq
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from ffn.assembly.connected import connected_roots
from ffn.assembly.contacts import Contact
from ffn.assembly.corrections import NOTHING_GIVEN, Constraints
from ffn.assembly.evidence import Evidence
from ffn.contingency import RowLookup
from ffn.errors import FfnError
from ffn.io.store_names import how_to_make

DIGITS = 6
LINKED_AT_ONCE = 2**18  # scores, if no cluster has more; our choice
NO_NUCLEI = np.empty((0, 2), np.uint64)


class MergeGraphError(FfnError):
    """An agglomeration graph that cannot be used."""


@dataclass(frozen=True, slots=True)
class MergeEdge:
    """One decision point between two segments, a row of the file."""

    segment_a: int  # supervoxels, the smaller id first
    segment_b: int
    score: float  # from 0 to 1: how sure the network is that they are one object
    z: int  # decision point, full-volume voxels
    y: int
    x: int
    overlap_voxels: int  # voxels around the decision point that both claimed during flood filling
    contact_faces: int  # size of the contact around the decision point
    brightness: float  # smoothed image at the decision point
    evidence: Evidence  # result of growing both sides; each field is a column of the file

    @classmethod
    def of(cls, contact: Contact, evidence: Evidence, score: float) -> MergeEdge:
        """Return the edge of a contact."""
        place = contact.position_zyx
        return cls(*contact.pair, score, *place, contact.overlap, contact.faces, contact.brightness, evidence)

    def row(self) -> str:
        """Return the edge as a line of the file."""
        *place, evidence = astuple(self)
        return ",".join(f"{v:.{DIGITS}f}" if isinstance(v, float) else str(v) for v in (*place, *evidence))


COLUMNS = {f.name: float if f.type == "float" else int for f in (*fields(MergeEdge)[:-1], *fields(Evidence))}


def header(record: dict[str, Any]) -> str:
    """Return the first lines of a file: its provenance as a comment, and the column names."""
    return f"# {json.dumps(record, sort_keys=True)}\n{','.join(COLUMNS)}\n"


def read_graph(path: str | Path) -> list[MergeEdge]:
    """Read the edges of a graph."""
    numbered = [(n, line) for n, line in enumerate(_lines(path), 1) if line and not line.startswith("#")]
    if not numbered or numbered[0][1].split(",") != list(COLUMNS):
        found = numbered[0][1] if numbered else "nothing"
        raise MergeGraphError(f"{path}: starts with {found!r}, expected the columns {','.join(COLUMNS)}")
    return [parse_edge(line, f"{path}: line {n}") for n, line in numbered[1:]]


def read_graphs(paths: Sequence[str | Path]) -> Iterator[list[MergeEdge]]:
    """Read the parts of a graph one at a time, since those of a large volume do not fit in memory."""
    makers = list(map(_maker, paths))
    for path, maker in zip(paths, makers, strict=True):
        if maker != makers[0]:
            raise MergeGraphError(
                f"{path}: differs in model, options or segmentation from {paths[0]}, expected the same. "
                "Rerun agglomerate for all"
            )
    return map(read_graph, paths)


def parse_edge(line: str, where: str) -> MergeEdge:
    """Read one line."""
    try:
        texts = zip(COLUMNS.items(), line.split(","), strict=True)
        values: dict[str, Any] = {name: kind(text) for (name, kind), text in texts}
        evidence = Evidence(**{field.name: values.pop(field.name) for field in fields(Evidence)})
        edge = MergeEdge(**values, evidence=evidence)
        if not (0 < edge.segment_a < edge.segment_b < 2**64 and 0 <= edge.score <= 1):
            raise ValueError("expected ids 0 < a < b and a score from 0 to 1")
    except ValueError as reason:
        raise MergeGraphError(
            f"{where}: {line!r} is not an edge ({reason}). Delete the file and rerun agglomerate"
        ) from None
    return edge


def _lines(path: str | Path, most: int | None = None) -> list[str]:
    try:
        with open(path) as file:
            return [line.rstrip("\n") for line in itertools.islice(file, most)]
    except FileNotFoundError:
        found = f"{path}: no such file, expected one of ffn agglomerate"
        raise MergeGraphError(f"{found}. {how_to_make(Path(path))}") from None
    except (OSError, UnicodeDecodeError) as reason:
        raise MergeGraphError(f"{path}: cannot be read ({reason}), expected a file of ffn agglomerate") from None


def _maker(path: str | Path) -> Any:
    """Return the options, weights and segmentation in the first line of a graph; None if it does not say."""
    try:
        record = json.loads(_lines(path, 1)[0].removeprefix("#"))
        return record["config"], record["inputs"]["weights"], record["inputs"].get("segmentation")
    except (IndexError, ValueError, KeyError, TypeError, AttributeError):
        return None


def best_scores(edges: Iterable[MergeEdge]) -> np.ndarray:
    """Return the best score of every pair of segments, which may have several decision points.

    Rows (uint64, (N, 3)) are smaller id, larger id, score in steps of 10⁻⁶: whole numbers add up in any order.
    """
    found = ((edge.segment_a, edge.segment_b, round(edge.score * 10**DIGITS)) for edge in edges)
    rows = np.fromiter(found, np.dtype((np.uint64, 3)))
    rows = rows[np.lexsort(rows.T[::-1])]
    is_last = np.append((rows[1:, :2] != rows[:-1, :2]).any(axis=1), True)[: len(rows)]
    return rows[is_last]


def merge_groups(
    scores: np.ndarray, threshold: float, constraints: Constraints = NOTHING_GIVEN, nuclei: np.ndarray = NO_NUCLEI
) -> tuple[np.ndarray, np.ndarray]:
    """Join segments by average linkage: two groups are joined if the mean score between them reaches a threshold.

    So one wrong edge joins two segments, but not two groups that other edges hold apart.

    Parameters
    ----------
    scores : uint64 ndarray of shape (N, 3)
        Of `best_scores`.
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
