"""Connected components of a graph."""

from __future__ import annotations

import numpy as np


class Forest:
    """Connected components of a graph whose edges arrive a part at a time; no more of them are in memory."""

    def __init__(self, num_nodes: int) -> None:
        self._parents = np.arange(num_nodes)  # of the same component, and never larger than the node

    def join(self, edges: np.ndarray) -> None:
        """Join pairs of nodes: int array of shape (E, 2), in any order."""
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        edges = np.asarray(edges, np.int64).reshape(-1, 2)
        nodes, ends = np.unique(self._roots_of(edges), return_inverse=True)
        a, b = ends.reshape(-1, 2).T
        graph = coo_array((np.ones(len(a), np.int8), (a, b)), shape=(len(nodes), len(nodes)))
        _, component = connected_components(graph, directed=False)
        self._parents[nodes] = nodes[np.unique(component, return_index=True)[1]][component]

    def roots(self) -> np.ndarray:
        """Return a representative for every node, the smallest of its component: int64 of shape (num_nodes,)."""
        while not np.array_equal(above := self._parents[self._parents], self._parents):
            self._parents = above
        return self._parents

    def _roots_of(self, nodes: np.ndarray) -> np.ndarray:
        above = self._parents[nodes]
        while not np.array_equal(above, nodes):
            nodes, above = above, self._parents[above]
        return nodes


def connected_roots(num_nodes: int, edges: np.ndarray) -> np.ndarray:
    """Return a representative for every node: the smallest index of its component.

    Examples
    --------
    >>> connected_roots(4, np.array([[3, 1]])).tolist()
    [0, 1, 2, 1]
    """
    forest = Forest(num_nodes)
    forest.join(edges)
    return forest.roots()
