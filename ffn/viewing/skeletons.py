"""Skeletons of segments with radii, computed block by block and written as sharded Neuroglancer skeletons.

Source of the format: Neuroglancer, ``src/datasource/precomputed/skeletons.md``. Method: TEASAR by kimimaro.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import kimimaro
import numpy as np
from osteoid import Skeleton

from ffn.evaluation.skeletons import RADIUS
from ffn.geometry import ZYX, Box
from ffn.progress import track
from ffn.viewing.blockwise import spread
from ffn.viewing.mips import Scale
from ffn.viewing.precomputed import open_scale
from ffn.viewing.segments import number_segments
from ffn.viewing.shards import Item, write_shards

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


def write_skeletons(
    layer: Path, mip: int, scale: Scale, segment_ids: list[int], empty_ids: Sequence[int] = (), processes: int = 1
) -> None:
    """Write the skeletons of segments into the folder ``skeletons`` of a label volume.

    Neighbouring blocks share a layer of voxels, where kimimaro ends the paths of both at the same points. Memory: one
    block for each process, and all skeletons.

    Parameters
    ----------
    layer : Path
        Folder of the volume.
    mip : int
        Mip to read.
    scale : Scale
        Box and voxel size of that mip.
    segment_ids : list of int
        Segments to skeletonize. A segment without voxels at this mip gets an empty skeleton.
    empty_ids : sequence of int
        Further segments that get an empty skeleton; see `ffn.viewing.meshes.write_meshes`.
    processes : int
        Number of blocks processed in parallel.
    """
    folder = layer / "skeletons"
    folder.mkdir(exist_ok=True)
    blocks = list(_blocks(scale.box))
    wanted = np.array(sorted(segment_ids), np.uint64)
    work = partial(_block_skeletons, layer, mip, scale, wanted)
    pieces: dict[int, list[Skeleton]] = defaultdict(list)
    for found in track(spread(work, blocks, processes), len(blocks), f"{layer.name} skeletons"):
        for segment_id, skeleton in found.items():
            pieces[segment_id].append(skeleton)
    items = dict.fromkeys([*segment_ids, *empty_ids], Item(encode_skeleton(Skeleton())))
    items |= {segment_id: Item(encode_skeleton(_joined(pieces.pop(segment_id)))) for segment_id in sorted(pieces)}
    info = {
        "@type": "neuroglancer_skeletons",
        "transform": [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0],
        "vertex_attributes": [RADIUS],
        "sharding": write_shards(folder, items),
    }
    (folder / "info").write_text(json.dumps(info))


def encode_skeleton(skeleton: Skeleton) -> bytes:
    """Encode vertices (xyz, nm), edges and radii (nm)."""
    sizes = np.array([len(skeleton.vertices), len(skeleton.edges)], "<u4")
    parts = [sizes, skeleton.vertices.astype("<f4"), skeleton.edges.astype("<u4"), skeleton.radii.astype("<f4")]
    return b"".join(part.tobytes() for part in parts)


def _blocks(box: Box) -> Iterator[Box]:
    """Cut a box into blocks that each include the first layer of the next."""
    for block in box.blocks(BLOCK_ZYX):
        z, y, x = block.stop
        yield Box(block.start, (z + 1, y + 1, x + 1)).intersect(box)


def _block_skeletons(layer: Path, mip: int, scale: Scale, wanted: np.ndarray, block: Box) -> dict[int, Skeleton]:
    """Return the skeletons of one block by segment id, in nm."""
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
    for skeleton in found.values():
        skeleton.vertices = (skeleton.vertices + origin).astype(np.float32)
    return {int(wanted[number - 1]): skeleton for number, skeleton in found.items()}


def _joined(pieces: list[Skeleton]) -> Skeleton:
    """Join the pieces of a segment from all blocks into one skeleton."""
    if len(pieces) == 1:
        return pieces[0]
    return kimimaro.postprocess(Skeleton.simple_merge(pieces), dust_threshold=0, tick_threshold=0)
