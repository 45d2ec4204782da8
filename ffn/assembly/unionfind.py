"""Connected components of a graph."""

from __future__ import annotations

import numpy as np


def connected_roots(num_nodes: int, edges: np.ndarray) -> np.ndarray:
    """Return a representative for every node: the smallest index of its component.

    Parameters
    ----------
    num_nodes : int
        Nodes are numbered 0 … num_nodes - 1.
    edges : int ndarray of shape (E, 2)
        Pairs of nodes to join, in any order.

    Returns
    -------
    int64 ndarray of shape (num_nodes,)
        Independent of the order of `edges`.

    Examples
    --------
    >>> connected_roots(4, np.array([[3, 1]])).tolist()
    [0, 1, 2, 1]
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    edges = np.asarray(edges, np.int64).reshape(-1, 2)
    graph = coo_array((np.ones(len(edges), np.int8), (edges[:, 0], edges[:, 1])), shape=(num_nodes, num_nodes))
    _, component = connected_components(graph, directed=False)
    first = np.full(component.max(initial=-1) + 1, num_nodes, np.int64)
    np.minimum.at(first, component, np.arange(num_nodes))
    return first[component]
