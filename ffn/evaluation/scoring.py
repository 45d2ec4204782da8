"""Compare segmentations with the ground truth, block by block: contingency table, scores, run length."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy.ndimage import distance_transform_edt

from ffn.assembly.components import NO_ROWS, connected_roots, label_parts, same_voxel
from ffn.config import PART_ZYX
from ffn.contingency import (
    ContingencyTable,
    RowLookup,
    RowSum,
    count_pairs,
    is_inner,
    largest_parts,
    merge_tables,
    rows_of,
    table_of,
)
from ffn.errors import EvaluationError
from ffn.evaluation.errors import Scene
from ffn.evaluation.scores import BORDER_NM, CONVENTIONS, intervals, summarize
from ffn.evaluation.skeletonize import Skeletons, expected_run_length
from ffn.geometry import ZYX, Box, VoxelSize, zyx
from ffn.io.block_log import Result
from ffn.io.blocks import blocks_of
from ffn.io.masks import MaskedTruth
from ffn.io.store_names import MAIN
from ffn.io.volume import IGNORED, NO_SIZE, Placement, Read
from ffn.progress import track

ERL_TOLERANCE_NM = 200.0  # tolerant run length: a merger holds this much of a second skeleton; our choice


def tabulate(truth: Read, segmentation: Read, box: Box, block_size_zyx: ZYX) -> ContingencyTable:
    """Count the pairs of ids in `box`, block by block."""
    blocks = list(box.blocks(block_size_zyx))
    return merge_tables(
        count_pairs(truth(block), segmentation(block)) for block in track(blocks, len(blocks), "compare")
    )


class Compared(NamedTuple):
    """What the scores of a segmentation are computed from."""

    tables: dict[str, ContingencyTable]  # pairs of component of the truth and segment, by convention
    bodies: np.ndarray  # body of each component
    skeletons: Skeletons | None  # those that are neither outside nor masked
    components: np.ndarray  # at each of their nodes
    segments: np.ndarray  # at each of their nodes


@dataclass(frozen=True)
class Comparison:
    """Segmentations that are compared with the ground truth in a box, block by block. The seed fixes the intervals."""

    truth: MaskedTruth
    reads: Sequence[Read]  # of the segmentations
    box: Box
    voxel_size_zyx_nm: VoxelSize = NO_SIZE
    whole_skeletons: Skeletons | None = None
    rng_seed: int = 1
    conventions: Sequence[str] = tuple(CONVENTIONS)

    @cached_property
    def blocks(self) -> list[Box]:
        """The shards of a volume of labels there."""
        return blocks_of(Placement(self.box), {MAIN: np.uint64})

    @cached_property
    def _skeletons(self) -> Skeletons | None:
        return self.whole_skeletons and self.whole_skeletons.crop(self.box, self.voxel_size_zyx_nm)

    @cached_property
    def _nodes(self) -> np.ndarray:
        """Voxels of the skeletons' nodes."""
        return self._skeletons.voxels_zyx(self.voxel_size_zyx_nm) if self._skeletons else np.zeros((0, 3), np.int64)

    def run(self) -> list[dict[str, Any]]:
        """Compare all blocks, and return the scores of each segmentation."""
        blocks = track(self.blocks, len(self.blocks), "compare")
        return list(map(self.scores, self.add_up([self.look(block) for block in blocks])))

    def scores(self, compared: Compared) -> dict[str, Any]:
        """Score a segmentation: its summary and intervals, with skeletons also ``erl`` and ``erl_tolerant``.

        ``whole_bodies`` has the summary and run length for a truth that is not cut into components.
        """
        tables, bodies, skeletons = compared.tables, compared.bodies, compared.skeletons
        whole = {name: renamed(table, bodies) for name, table in tables.items()}
        return {
            **summarize(tables),
            "intervals": {name: intervals(table, name, self.rng_seed) for name, table in tables.items()},
            **run_lengths(skeletons and cut(skeletons, compared.components, bodies), compared.segments),
            "whole_bodies": {**summarize(whole), **run_lengths(skeletons, compared.segments)},
        }

    def look(self, block: Box) -> Result:
        """Compare one block: pairs of ids of each segmentation, and its segments at the skeletons' nodes there.

        The truth is cut into pieces, see `join_pieces`. The pairs of piece and segment of segmentation i are ``all{i}``
        and, without the border band, ``cremi{i}``. ``nodes`` are rows of nodes that are not masked; ``at_nodes`` has a
        row for the pieces there, and one for each segmentation.
        """
        sums: dict[str, RowSum] = defaultdict(lambda: RowSum(3, np.uint64))
        masks, near = self.truth.masks, np.flatnonzero(block.holds(self._nodes))
        bodies, links = [np.zeros(0, np.uint64)], [NO_ROWS]
        nodes, at_nodes = [np.zeros(0, np.int64)], [np.zeros((1 + len(self.reads), 0), np.uint64)]
        for part in label_parts(block, self.box, PART_ZYX, self.truth.read):
            bodies.append(part.objects.astype(np.uint64))
            links.append(part.links)
            kinds = {"all": (part.pieces + 1).astype(np.uint64)}
            if "cremi" in self.conventions:
                kinds["cremi"] = np.where(self._ignored(part.box), IGNORED, kinds["all"])
            labels = [read(part.box) for read in self.reads]
            for (kind, pieces), (number, one) in itertools.product(kinds.items(), enumerate(labels)):
                sums[f"{kind}{number}"].add(rows_of(count_pairs(pieces, one)))
            inside = near[part.box.holds(self._nodes[near])]
            if len(inside) and masks:
                inside = inside[~masks.read(part.box)[tuple((self._nodes[inside] - part.box.start).T)]]
            nodes.append(inside)
            at = tuple((self._nodes[inside] - part.box.start).T)
            at_nodes.append(np.stack([one[at].astype(np.uint64) for one in (kinds["all"], *labels)]))
        return {
            **{name: one.rows().T for name, one in sums.items()},
            "bodies": np.concatenate(bodies),
            "links": np.concatenate(links),
            "nodes": np.concatenate(nodes),
            "at_nodes": np.concatenate(at_nodes, axis=1),
        }

    def _ignored(self, part: Box) -> np.ndarray:
        """Return the voxels that the CREMI challenge leaves out: masked ones, and those near borders of bodies."""
        truth, size = self.truth, self.voxel_size_zyx_nm
        margin = (0, *(math.ceil(BORDER_NM / side) + 1 for side in size[1:]))
        wide = part.grow(zyx(margin)).intersect(truth.known)
        labels = truth.read_marked(wide)
        return ((labels == IGNORED) | near_border(labels, BORDER_NM, size))[part.slices(wide.start)]

    def add_up(self, results: Sequence[Result]) -> list[Compared]:
        """Combine the results of all blocks, for each segmentation."""
        components = join_pieces(results)
        if len(components.bodies) < 2:
            found = f"{self.truth.name}: has no labelled voxel in {self.box}, at least one is needed"
            raise EvaluationError(f"{found}. Choose another --box")
        sums: dict[str, RowSum] = defaultdict(lambda: RowSum(3, np.uint64))
        at_nodes = np.zeros((1 + len(self.reads), len(self._nodes)), np.uint64)
        is_scored = np.zeros(len(self._nodes), bool)
        for each, of_pieces in zip(results, components.of_blocks, strict=True):
            pieces, *segments = each["at_nodes"]
            at_nodes[:, each["nodes"]] = np.stack([of_pieces[pieces.astype(np.int64)], *segments])
            is_scored[each["nodes"]] = True
            for name in each.keys() - {"bodies", "links", "nodes", "at_nodes"}:
                sums[name].add(rows_of(renamed(table_of(each[name].T), of_pieces)))
        tables = {name: table_of(one.rows()) for name, one in sums.items()}
        skeletons = self._skeletons and self._skeletons.keep(is_scored)
        at_components, *at_segments = at_nodes[:, is_scored]
        return [
            Compared(
                {name: tables[f"cremi{i}" if name == "cremi" else f"all{i}"] for name in self.conventions},
                components.bodies,
                skeletons,
                at_components,
                segments,
            )
            for i, segments in enumerate(at_segments)
        ]

    def tables_of_last(self, results: Iterable[Result]) -> Iterator[tuple[Box, ContingencyTable]]:
        """Yield every block and its pairs of body and segment of the last segmentation."""
        for block, each in zip(self.blocks, results, strict=True):
            bodies = np.append(np.zeros(1, np.uint64), each["bodies"])
            yield block, renamed(table_of(each[f"all{len(self.reads) - 1}"].T), bodies)

    def scene(self) -> Scene:
        """Return the volumes in which errors of the last segmentation lie."""
        return Scene(self.truth.read, self.reads[-1], self.box, self.voxel_size_zyx_nm)


def run_lengths(skeletons: Skeletons | None, segments: np.ndarray) -> dict[str, Any]:
    """Return the expected run length, strict and tolerant; nothing without edges."""
    if skeletons is None or not skeletons.edge_lengths_nm().any():
        return {}
    tolerant = expected_run_length(skeletons, segments, ERL_TOLERANCE_NM)
    return {
        "erl": expected_run_length(skeletons, segments),
        "erl_tolerant": {"tolerance_nm": ERL_TOLERANCE_NM, **tolerant},
    }


def near_border(labels: np.ndarray, border_nm: float, voxel_size_zyx_nm: VoxelSize) -> np.ndarray:
    """Mark voxels within `border_nm` of a voxel that differs from one of its 4 neighbours in the xy section.

    Background, 0, counts as a label. The convention ``cremi`` leaves this band out, as the challenge does.
    """
    near = np.zeros(labels.shape, dtype=bool)
    for z, section in enumerate(labels):
        interior = is_inner(section)
        if not interior.all():
            near[z] = distance_transform_edt(interior, voxel_size_zyx_nm[1:]) <= border_nm
    return near


class Components(NamedTuple):
    """Components of bodies, numbered from 1 by ascending body; 0 is none.

    `bodies` has the body of each component, and `of_blocks` for each block the component of each of its pieces, which
    are numbered from 1, too.
    """

    bodies: np.ndarray
    of_blocks: list[np.ndarray]


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
    inside = np.flatnonzero(RowLookup(own.a, own.b).find(skeletons.owners, body) >= 0)
    pairs = np.unique(np.stack([skeletons.owners, components])[:, inside], axis=1, return_inverse=True)[1].ravel()
    links = np.stack([inside, len(body) + pairs], axis=1)  # nodes of a skeleton in one component of its body
    roots = connected_roots(2 * len(body), np.concatenate([edges, links]))
    return Skeletons(skeletons.nodes_zyx_nm, edges, roots[: len(body)].astype(np.uint64))
