"""Write skeletons as SWC, one file for each segment, for navis, Vaa3D, neuTube and others.

Source of the format: Cannon et al. 1998, J. Neurosci. Methods 84. It names micrometres, but skeletons of electron
microscopy come in nm, and navis reads the unit from the line ``# Meta``.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import breadth_first_order, connected_components

from ffn.evaluation.skeletons import Skeleton
from ffn.io.atomic import atomic_path

UNDEFINED = 0  # type of a node: neither soma, axon nor dendrite is known
NO_PARENT = -1


def write_swc(folder: Path, skeleton: Skeleton) -> None:
    """Write the file of one segment, ``ID.swc``, whole or not at all.

    Parameters
    ----------
    folder : Path
        Created if it is missing.
    skeleton : Skeleton
        With at least one node.
    """
    order, parents = trees(skeleton)
    rows = np.column_stack([skeleton.nodes_zyx_nm[:, ::-1], _radii(skeleton)])[order]
    meta = {"name": str(skeleton.owner), "id": skeleton.owner, "units": "1 nanometer"}
    with atomic_path(folder / f"{skeleton.owner}.swc") as temporary, temporary.open("w") as file:
        file.write(f"# Segment {skeleton.owner}. Positions and radii are nm from the origin of the full volume.\n")
        file.write(f"# Meta: {json.dumps(meta)}\n# node type x y z radius parent\n")
        for number, ((x, y, z, radius), parent) in enumerate(zip(rows.tolist(), parents.tolist(), strict=True), 1):
            file.write(f"{number} {UNDEFINED} {x:.2f} {y:.2f} {z:.2f} {radius:.2f} {parent}\n")


def trees(skeleton: Skeleton) -> tuple[np.ndarray, np.ndarray]:
    """Order the nodes so that parents come before their children; of every loop, one edge is left out.

    Parameters
    ----------
    skeleton : Skeleton
        May have several parts, each of which becomes a tree. Its root is the thickest node, where a soma is.

    Returns
    -------
    order : int64 ndarray of shape (N,)
        Nodes of the skeleton.
    parents : int64 ndarray of shape (N,)
        For each node in this order, the place of its parent, counted from 1; -1 for a root.

    Examples
    --------
    >>> nodes, edges = np.zeros((4, 3)), np.array([[0, 1], [1, 2]])
    >>> [part.tolist() for part in trees(Skeleton(7, nodes, edges, np.array([1, 1, 5, 1])))]
    [[2, 3, 1, 0], [-1, -1, 1, 3]]
    """
    num = len(skeleton.nodes_zyx_nm)
    a, b = np.asarray(skeleton.edges, np.int64).reshape(-1, 2).T
    _, part = connected_components(_graph(a, b, num), directed=False)
    thickest_first = np.lexsort((np.arange(num), -_radii(skeleton)))
    roots = thickest_first[np.unique(part[thickest_first], return_index=True)[1]]
    start = np.full(len(roots), num)  # a further node, before all roots, so that one search finds all trees
    order, before = breadth_first_order(_graph(np.append(a, start), np.append(b, roots), num + 1), num, directed=False)
    place = np.full(num + 1, NO_PARENT, np.int64)
    place[order[1:]] = np.arange(1, num + 1)
    return order[1:].astype(np.int64), place[before[order[1:]]]


def _graph(a: np.ndarray, b: np.ndarray, num_nodes: int) -> coo_array:
    return coo_array((np.ones(len(a)), (a, b)), shape=(num_nodes, num_nodes)).tocsr()


def _radii(skeleton: Skeleton) -> np.ndarray:
    """Return the radii, 0 where none are known."""
    return np.zeros(len(skeleton.nodes_zyx_nm)) if skeleton.radii_nm is None else np.asarray(skeleton.radii_nm)
