"""The agglomeration graph: scored edges between supervoxels, in a CSV file; and average linkage of groups by edges."""

from __future__ import annotations

import heapq
import itertools
import json
import math
import operator
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from ffn.assembly.config import AgglomerateConfig
from ffn.assembly.contacts import Contact
from ffn.errors import FfnError
from ffn.io.atomic import unreadable
from ffn.io.store_names import how_to_make

DIGITS = 6
ONE_SIDED = 0.6  # our choice: a threshold above it needs both sides


class MergeGraphError(FfnError):
    """An agglomeration graph that cannot be used."""


@dataclass(frozen=True)
class Evidence:
    """Result of growing both sides of a contact, where FOVs of its window are centred: only their rims see the rest."""

    voxels_a: int  # size of each segment
    voxels_b: int
    radius_a: float  # largest distance of a voxel of the segment from its surface, in smallest voxel sides
    radius_b: float
    tries_a: int  # seeds tried; 0 if no voxel of the side can be a seed, or there was no answer without it
    tries_b: int
    fovs_a: int  # network evaluations from the seed that counts
    fovs_b: int
    recovered_aa: float  # share of each segment that its own object covers again
    recovered_ab: float  # share of b that the object grown from a covers
    recovered_ba: float
    recovered_bb: float
    agreement: float  # voxels in both objects, as a share of the smaller object
    iou: float  # voxels in both objects, as a share of the voxels in either
    deleted_a: float  # share of the object that it lost again as it grew (POM from 0.8 or more to less than 0.5)
    deleted_b: float
    lost: float  # share of both segments that neither object covers

    def score(self, config: AgglomerateConfig) -> float:
        """Return how much the two sides agree.

        The agreement, or `ONE_SIDED` of it if only one side grew into the other, 0 if neither did, and in between where
        they entered each other by less than `min_crossing`. NaN, no answer, if a side did not recover itself or lost
        too much of its object.
        """
        own = min(self.recovered_aa, self.recovered_bb)
        if own < config.min_recovered or max(self.deleted_a, self.deleted_b) > config.max_deleted:
            return math.nan
        limit = config.min_crossing
        less, more = (1.0 if share >= limit else share / limit for share in self.crossing)
        return self.agreement * more * (ONE_SIDED + (1 - ONE_SIDED) * less)

    @property
    def crossing(self) -> list[float]:
        """How far each side entered the other, the smaller share first: as a share of what that recovers of itself."""
        shares = ((self.recovered_ab, self.recovered_bb), (self.recovered_ba, self.recovered_aa))
        return sorted(min(1.0, entered / own) if own else 0.0 for entered, own in shares)


@dataclass(frozen=True, slots=True)
class MergeEdge:
    """One decision point between two segments, a row of the file."""

    segment_a: int  # supervoxels, the smaller id first
    segment_b: int
    score: float  # from 0 to 1: how sure the network is that they are one object; NaN if it gave no answer
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
    expected = f"a file of ffn agglomerate. {how_to_make(Path(path))}"
    with unreadable(path, expected, MergeGraphError), open(path) as file:
        numbered = [(n, line.rstrip("\n")) for n, line in enumerate(file, 1) if line.strip() and line[0] != "#"]
    if not numbered or numbered[0][1].split(",") != list(COLUMNS):
        found = numbered[0][1] if numbered else "nothing"
        raise MergeGraphError(f"{path}: starts with {found!r}, expected the columns {','.join(COLUMNS)}")
    return [parse_edge(line, f"{path}: line {n}") for n, line in numbered[1:]]


def read_graphs(paths: Sequence[str | Path]) -> Iterator[MergeEdge]:
    """Read the edges of a graph, one part at a time, since those of a large volume do not fit in memory."""
    return itertools.chain.from_iterable(map(read_graph, paths))


def parse_edge(line: str, where: str) -> MergeEdge:
    """Read one line."""
    try:
        texts = zip(COLUMNS.items(), line.split(","), strict=True)
        values: dict[str, Any] = {name: kind(text) for (name, kind), text in texts}
        evidence = Evidence(**{field.name: values.pop(field.name) for field in fields(Evidence)})
        edge = MergeEdge(**values, evidence=evidence)
        is_score = math.isnan(edge.score) or 0 <= edge.score <= 1
        if not (0 < edge.segment_a < edge.segment_b < 2**64 and is_score):
            raise ValueError("expected ids 0 < a < b and a score from 0 to 1, or nan")
    except ValueError as reason:
        raise MergeGraphError(
            f"{where}: {line!r} is not an edge ({reason}). Delete the file and rerun agglomerate"
        ) from None
    return edge


class Linkage:
    """Groups of nodes and the links between them; a group is named by its smallest node.

    The two with the best score are joined first; of equal scores, those with the smallest names. Groups without a link
    between them say nothing about each other.

    `links` (int or uint64, (N, 2 + 2 K)) are two nodes, then the sum and the number of their links of each of K kinds;
    pairs may repeat. No link joins the groups of two nodes in a row of `apart`.
    """

    def __init__(self, links: np.ndarray, apart: np.ndarray) -> None:
        self._links: dict[int, dict[int, Sequence[int]]] = defaultdict(dict)  # of each group, with another
        for a, b, *link in links.tolist():
            if a != b:
                self._link(a, b, link)
        self._apart: dict[int, set[int]] = defaultdict(set)
        for a, b in apart.tolist():
            self._apart[a].add(b)
            self._apart[b].add(a)
        self._joins: list[tuple[int, int]] = []

    def _link(self, a: int, b: int, link: Sequence[int]) -> None:
        own = self._links[a]
        own[b] = self._links[b][a] = [*map(operator.add, own[b], link)] if b in own else link

    def score(self, a: int, b: int) -> float:
        """Return the mean of the links between two groups, or the mean of the means of their kinds."""
        link = self._links[a][b]
        means = [total / number for total, number in zip(link[::2], link[1::2], strict=True) if number]
        return sum(means) / len(means)

    def run(self, least: Callable[[int, int], float]) -> np.ndarray:
        """Join groups as long as their score is `least` of their names or more; return the joined pairs (uint64)."""
        queue: list[tuple[float, int, int]] = []

        def enter(a: int, b: int) -> None:
            if (score := self.score(a, b)) >= least(a, b):
                heapq.heappush(queue, (-score, a, b))

        for a, b in ((a, b) for a, others in self._links.items() for b in others if a < b):
            enter(a, b)
        while queue:
            score, a, b = entry = heapq.heappop(queue)
            while queue and queue[0] == entry:  # a pair that was entered again for each of its changes
                heapq.heappop(queue)
            may_join = b in self._links[a] and b not in self._apart[a]
            if may_join and self.score(a, b) == -score:
                for other in self.join(a, b):
                    enter(min(a, other), max(a, other))
            elif may_join:  # one of them has grown since
                enter(a, b)
        return np.array(self._joins, np.uint64).reshape(-1, 2)

    def join(self, a: int, b: int) -> list[int]:
        """Make group `b` a part of `a`, the smaller name, and return the groups with other links to it now."""
        self._joins.append((a, b))
        gone = self._links.pop(b, {})
        self._links[a].pop(b, None)
        gone.pop(a, None)
        for other, link in gone.items():
            del self._links[other][b]
            self._link(a, other, link)
        for other in self._apart.pop(b, set()):
            self._apart[other].discard(b)
            self._apart[other].add(a)
            self._apart[a].add(other)
        return list(gone)
