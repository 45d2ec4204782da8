"""Average linkage: groups of nodes are joined as long as the mean of the links between two of them is high enough."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable

import numpy as np

Entry = tuple[float, int, int, int, int]  # negative mean, both groups, sum, number of links


class Linkage:
    """Groups of nodes and the links between them; a group is named by its smallest node.

    The two with the best mean are joined first; of equal means, those with the smallest names. Groups without a link
    between them say nothing about each other.

    Parameters
    ----------
    links : int or uint64 ndarray of shape (N, 4)
        Two nodes, the sum of the links between them, and their number. Pairs may repeat.
    apart : int or uint64 ndarray of shape (M, 2)
        Nodes whose groups no link joins.
    """

    def __init__(self, links: np.ndarray, apart: np.ndarray) -> None:
        self._links: dict[int, dict[int, tuple[int, int]]] = defaultdict(dict)  # of each group, with another
        for a, b, total, number in links.tolist():
            if a != b:
                before, count = self._links[a].get(b, (0, 0))
                self._links[a][b] = self._links[b][a] = before + total, count + number
        self._apart: dict[int, set[int]] = defaultdict(set)
        for a, b in apart.tolist():
            self._apart[a].add(b)
            self._apart[b].add(a)
        self._joins: list[tuple[int, int]] = []

    def run(self, least: Callable[[int, int], float]) -> np.ndarray:
        """Join groups as long as their mean is `least` of their names or more; return the joined pairs (uint64)."""

        def entries(a: int, b: int) -> list[Entry]:
            total, number = self._links[a][b]
            return [(-total / number, a, b, total, number)] if total >= least(a, b) * number else []

        queue = [entry for a, others in self._links.items() for b in others if a < b for entry in entries(a, b)]
        heapq.heapify(queue)
        while queue:
            _, a, b, total, number = heapq.heappop(queue)
            if self._links[a].get(b) == (total, number) and b not in self._apart[a]:  # neither has grown since
                for other in self.join(a, b):
                    for entry in entries(min(a, other), max(a, other)):
                        heapq.heappush(queue, entry)
        return np.array(self._joins, np.uint64).reshape(-1, 2)

    def join(self, a: int, b: int) -> list[int]:
        """Make group `b` a part of `a`, the smaller name, and return the groups with other links to it now."""
        self._joins.append((a, b))
        own, gone = self._links[a], self._links.pop(b, {})
        own.pop(b, None)
        gone.pop(a, None)
        for other, (more, number) in gone.items():
            del self._links[other][b]
            before, count = own.get(other, (0, 0))
            own[other] = self._links[other][a] = before + more, count + number
        for other in self._apart.pop(b, set()):
            self._apart[other].discard(b)
            self._apart[other].add(a)
            self._apart[a].add(other)
        return list(gone)
