"""Skeletons of segments with radii, computed block by block and written as sharded Neuroglancer skeletons.

Source of the format: Neuroglancer, ``src/datasource/precomputed/skeletons.md``. Method: TEASAR by kimimaro.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kimimaro
import numpy as np
from osteoid import Skeleton

from ffn.evaluation.skeletons import RADIUS, skeleton_from_precomputed
from ffn.geometry import ZYX, Box, Grid, cut
from ffn.io.block_log import Result
from ffn.io.coarser import Scale
from ffn.viewing.pieces import Piece, SegmentPieces
from ffn.viewing.precomputed import open_scale
from ffn.viewing.segments import number_segments
from ffn.viewing.shards import Item, write_shard
from ffn.viewing.swc import write_swc

FOLDER = "skeletons"  # in that of the volume
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


def blocks_of(box: Box) -> Grid:
    """Cut a box into blocks that each include the first layer of the next.

    kimimaro ends the paths of both at the same points of that layer.
    """
    ranges = cut(box, BLOCK_ZYX).ranges_zyx
    return Grid([[(a, min(b + 1, end)) for a, b in along] for along, end in zip(ranges, box.stop, strict=True)])


def skeletons_in(layer: Path, mip: int, scale: Scale, wanted: np.ndarray, block: Box) -> Iterator[Piece]:
    """Yield the skeletons of segments in one block, nm.

    Parameters
    ----------
    layer : Path
        Folder of the volume.
    mip : int
        Mip to read.
    scale : Scale
        Box and voxel size of that mip.
    wanted : uint64 ndarray of shape (N,)
        Segments to skeletonize, ascending.
    block : Box
        One of `blocks_of`.
    """
    labels = open_scale(layer, mip)[block.slices()].read().result()
    found = kimimaro.skeletonize(
        number_segments(labels, wanted).T,
        teasar_params=TEASAR,
        anisotropy=scale.voxel_size_zyx_nm[::-1],
        dust_threshold=0,
        fix_borders=True,
        progress=False,
        parallel=1,
    )
    # kimimaro measures from the centre of the first voxel.
    origin = (np.add(block.start, 0.5) * scale.voxel_size_zyx_nm)[::-1]
    for number, skeleton in sorted(found.items()):
        skeleton.vertices = (skeleton.vertices + origin).astype(np.float32)
        content = encode_skeleton(skeleton)
        yield Piece(int(wanted[number - 1]), content, len(content))


def write_skeletons(swc: Path | None, sharding: dict[str, Any], path: Path, pieces: SegmentPieces) -> Result:
    """Write the skeletons of one shard, see `ffn.viewing.pieces.Pieces.joined_by`, and as SWC into the folder `swc`.

    A segment without a piece gets an empty skeleton. Returns the lengths, nm.
    """
    lengths: dict[int, float] = {}

    def items() -> Iterator[tuple[int, Item]]:
        for owner, parts in pieces:
            content = encode_skeleton(_joined([*map(decode_skeleton, parts)]))
            skeleton = skeleton_from_precomputed(owner, content)
            if swc and len(skeleton.nodes_zyx_nm):
                write_swc(swc, skeleton)
            lengths[owner] = skeleton.length_nm
            yield owner, Item(content)

    write_shard(path, sharding, items())
    return {"ids": np.array(list(lengths), np.uint64), "lengths_nm": np.array(list(lengths.values()), np.float64)}


def skeleton_info(sharding: dict[str, Any]) -> dict[str, Any]:
    """Return the ``info`` of a folder of skeletons."""
    return {
        "@type": "neuroglancer_skeletons",
        "transform": [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0],
        "vertex_attributes": [RADIUS],
        "sharding": sharding,
    }


def encode_skeleton(skeleton: Skeleton) -> bytes:
    """Encode vertices (xyz, nm), edges and radii (nm)."""
    sizes = np.array([len(skeleton.vertices), len(skeleton.edges)], "<u4")
    parts = [sizes, skeleton.vertices.astype("<f4"), skeleton.edges.astype("<u4"), skeleton.radii.astype("<f4")]
    return b"".join(part.tobytes() for part in parts)


def decode_skeleton(content: bytes) -> Skeleton:
    """Return the skeleton that `encode_skeleton` encoded."""
    num_vertices, num_edges = np.frombuffer(content, "<u4", 2).tolist()
    edges_at, radii_at = 8 + 12 * num_vertices, 8 + 12 * num_vertices + 8 * num_edges
    return Skeleton(
        np.frombuffer(content, "<f4", 3 * num_vertices, 8).reshape(-1, 3),
        np.frombuffer(content, "<u4", 2 * num_edges, edges_at).reshape(-1, 2),
        np.frombuffer(content, "<f4", num_vertices, radii_at),
    )


def _joined(pieces: list[Skeleton]) -> Skeleton:
    """Join the pieces of a segment from all blocks into one skeleton."""
    if len(pieces) <= 1:
        return pieces[0] if pieces else Skeleton()
    return kimimaro.postprocess(Skeleton.simple_merge(pieces), dust_threshold=0, tick_threshold=0)
