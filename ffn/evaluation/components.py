"""The truth cut into the connected components of the scored box, as every segment is: in blocks, joined in the end."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from ffn.assembly.connected import NO_ROWS, LabelledPart, connected_roots, same_voxel
from ffn.contingency import ContingencyTable, RowLookup, count_pairs, largest_parts, merge_tables
from ffn.evaluation.skeletons import Skeletons
from ffn.io.block_log import Result
from ffn.io.volume import IGNORED


class Components(NamedTuple):
    """Components of bodies, numbered from 1 by ascending body; 0 is none.

    `bodies` has the body of each component, and `of_blocks` for each block the component of each of its pieces, which
    are numbered from 1, too.
    """

    bodies: np.ndarray
    of_blocks: list[np.ndarray]


def bodies_of(part: LabelledPart) -> np.ndarray:
    """Return the body of each piece in a part of a block."""
    known = part.pieces >= 0
    numbers = part.pieces[known] - part.first
    bodies = np.zeros(int(numbers.max(initial=-1)) + 1, np.uint64)
    bodies[numbers] = part.labels[known].astype(np.uint64)
    return bodies


def join_pieces(results: Iterable[Result]) -> Components:
    """Join the pieces of all blocks, from ``bodies`` of each piece and ``links`` between them; see `LabelledPart`."""
    bodies, links, first = [np.zeros(0, np.uint64)], [NO_ROWS], [0]
    for each in results:
        links.append(each["links"][:, ::-1] + (0, first[-1]))
        bodies.append(each["bodies"])
        first.append(first[-1] + len(each["bodies"]))
    body_of = np.concatenate(bodies)
    roots = connected_roots(len(body_of), same_voxel(np.concatenate(links)))
    known = np.unique(roots)
    known = known[np.argsort(body_of[known], kind="stable")]
    numbers = np.zeros(len(body_of), np.uint64)
    numbers[known] = np.arange(1, len(known) + 1)
    none = np.zeros(1, np.uint64)
    of_blocks = [np.append(none, numbers[roots[start:stop]]) for start, stop in itertools.pairwise(first)]
    return Components(np.append(none, body_of[known]), of_blocks)


def renamed(table: ContingencyTable, ids: np.ndarray) -> ContingencyTable:
    """Return a table in which row i of `ids` replaces id i of the truth; `IGNORED` stays."""
    known = table.a != IGNORED
    a = np.full(len(table.a), IGNORED)
    a[known] = ids[table.a[known].astype(np.int64)]
    return merge_tables([ContingencyTable(a, table.b, table.voxels)])


def cut(skeletons: Skeletons, components: np.ndarray, bodies: np.ndarray) -> Skeletons:
    """Return the skeletons of components: those of a body that a box cuts into several are several.

    `components` are those at the nodes, 0 outside of bodies, where a skeleton by hand may run: it is cut only where the
    box cuts it, and where it goes from one component of a body to another.
    """
    body = bodies[components.astype(np.int64)]
    (a, b), (body_a, body_b) = (each[skeletons.edges].T for each in (components, body))
    edges = skeletons.edges[(a == b) | (body_a != body_b)]
    table = count_pairs(skeletons.owners, body).foreground()
    own = table.keep(largest_parts(table.a, table.b, table.voxels))  # the body that most nodes of a skeleton lie in
    lookup = RowLookup(own.a, own.b)
    inside = np.flatnonzero(lookup.find(skeletons.owners, body) >= 0)
    pairs = np.unique(np.stack([skeletons.owners, components])[:, inside], axis=1, return_inverse=True)[1].ravel()
    links = np.stack([inside, len(body) + pairs], axis=1)  # nodes of a skeleton in one component of its body
    roots = connected_roots(2 * len(body), np.concatenate([edges, links]))
    return Skeletons(skeletons.nodes_zyx_nm, edges, roots[: len(body)].astype(np.uint64))
