"""Connected components."""

import numpy as np

from ffn.assembly.unionfind import connected_roots


def test_roots_do_not_depend_on_the_order_of_edges():
    edges = np.array([[5, 2], [2, 0], [3, 4]])
    assert connected_roots(6, edges).tolist() == [0, 1, 0, 3, 3, 0]
    assert connected_roots(6, edges[::-1, ::-1]).tolist() == [0, 1, 0, 3, 3, 0]


def test_nodes_without_edges_are_their_own_roots():
    assert connected_roots(3, np.zeros((0, 2))).tolist() == [0, 1, 2]
    assert connected_roots(0, np.zeros((0, 2))).tolist() == []
