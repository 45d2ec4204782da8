"""Skeletons of segments with radii, made block by block, as sharded Neuroglancer skeletons and as SWC.

Method: TEASAR by kimimaro. Sources of the formats: Neuroglancer, ``src/datasource/precomputed/skeletons.md``; Cannon et
al. 1998, J. Neurosci. Methods 84. SWC names micrometres, but skeletons of electron microscopy come in nm, and navis
reads the unit from the line ``# Meta``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import kimimaro
import numpy as np
import osteoid
from scipy.sparse import coo_array
from scipy.sparse.csgraph import breadth_first_order, connected_components

from ffn.evaluation.skeletons import RADIUS, Skeleton, skeleton_from_precomputed
from ffn.geometry import ZYX, Box, Grid, cut
from ffn.io.atomic import atomic_path, this_job
from ffn.io.block_log import Result
from ffn.viewing.segments import number_segments
from ffn.viewing.shards import SegmentFiles, SegmentPieces, Sharding, write_shard

BLOCK_ZYX: ZYX = (256, 256, 256)  # voxels of the mip; kimimaro needs about 30 bytes for each
# kimimaro's defaults, nm. A path invalidates all voxels within scale · radius + const of it.
TEASAR = {
    "scale": 1.5,
    "const": 300,
    "pdrf_scale": 100_000,
    "pdrf_exponent": 4,
    "soma_detection_threshold": 750,
    "soma_acceptance_threshold": 3500,
    "soma_invalidation_scale": 2,
    "soma_invalidation_const": 300,
}
UNDEFINED = 0  # type of a node in SWC: neither soma, axon nor dendrite is known
NO_PARENT = -1


class Skeletons(SegmentFiles):
    """The skeletons of a layer, in nm."""

    name = "skeletons"
    encoded = 1.0
    info = {
        "@type": "neuroglancer_skeletons",
        "transform": [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0],
        "vertex_attributes": [RADIUS],
    }

    def cut(self) -> Grid:
        """Cut it into blocks that include the first layer of the next, where kimimaro ends the paths of both."""
        box = self.scale.box
        ranges = cut(box, BLOCK_ZYX).ranges_zyx
        return Grid([[(a, min(b + 1, end)) for a, b in along] for along, end in zip(ranges, box.stop, strict=True)])

    def pieces_in(self, wanted: np.ndarray, block: Box) -> Iterator[tuple[int, bytes]]:
        """Yield the skeletons of the `wanted` segments (ascending) in a block."""
        found = kimimaro.skeletonize(
            number_segments(self.read(block), wanted).T,
            teasar_params=TEASAR,
            anisotropy=self.scale.voxel_size_zyx_nm[::-1],
            dust_threshold=0,
            fix_borders=True,
            progress=False,
            parallel=1,
        )
        # kimimaro measures from the centre of the first voxel.
        origin = (np.add(block.start, 0.5) * self.scale.voxel_size_zyx_nm)[::-1]
        for number, skeleton in sorted(found.items()):
            skeleton.vertices = (skeleton.vertices + origin).astype(np.float32)
            yield int(wanted[number - 1]), _encode(skeleton)

    def write_joined(self, sharding: Sharding, path: Path, segments: SegmentPieces) -> Result:
        """Write the skeletons of a shard; return their ids and lengths, nm."""
        lengths: dict[int, float] = {}

        def items() -> Iterator[tuple[int, bytes, bytes]]:
            for owner, pieces in segments:
                content = _encode(_joined([*map(_decode, pieces)]))
                skeleton = skeleton_from_precomputed(owner, content)
                if self.has_swc and len(skeleton.nodes_zyx_nm):
                    write_swc(self.layer / "swc", skeleton)
                lengths[owner] = skeleton.length_nm
                yield owner, b"", content

        write_shard(path, sharding, items())
        return {"ids": np.array(list(lengths), np.uint64), "nm": np.array(list(lengths.values()))}


def _joined(pieces: list[osteoid.Skeleton]) -> osteoid.Skeleton:
    """Join the pieces of a segment from all blocks into one skeleton."""
    if len(pieces) <= 1:
        return pieces[0] if pieces else osteoid.Skeleton()
    return kimimaro.postprocess(osteoid.Skeleton.simple_merge(pieces), dust_threshold=0, tick_threshold=0)


def _encode(skeleton: osteoid.Skeleton) -> bytes:
    """Encode vertices (xyz, nm), edges and radii (nm)."""
    skeleton.extra_attributes = [RADIUS]
    return skeleton.to_precomputed()


def _decode(content: bytes) -> osteoid.Skeleton:
    return osteoid.Skeleton.from_precomputed(content, vertex_attributes=[RADIUS])


def write_swc(folder: Path, skeleton: Skeleton) -> None:
    """Write a skeleton with nodes as ``ID.swc``."""
    order, parents = trees(skeleton)
    rows = np.column_stack([skeleton.nodes_zyx_nm[:, ::-1], _radii(skeleton)])[order]
    meta = {"name": str(skeleton.owner), "id": skeleton.owner, "units": "1 nanometer"}
    with atomic_path(folder / f"{skeleton.owner}.swc", this_job()) as temporary, temporary.open("w") as file:
        file.write(f"# Segment {skeleton.owner}. Positions and radii are nm from the origin of the full volume.\n")
        file.write(f"# Meta: {json.dumps(meta)}\n# node type x y z radius parent\n")
        for number, ((x, y, z, radius), parent) in enumerate(zip(rows.tolist(), parents.tolist(), strict=True), 1):
            file.write(f"{number} {UNDEFINED} {x:.2f} {y:.2f} {z:.2f} {radius:.2f} {parent}\n")


def trees(skeleton: Skeleton) -> tuple[np.ndarray, np.ndarray]:
    """Return the order of nodes with parents before their children, and the place of the parent of each.

    Places count from 1, and -1 is that of a root: the thickest node of a part, where a soma is. Of every loop, one edge
    is left out.

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
