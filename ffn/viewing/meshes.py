"""Multi-resolution Neuroglancer meshes of segments, made block by block and joined shard by shard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ffn.geometry import ZYX, Box, Grid, add, cut, zyx
from ffn.io.block_log import Result
from ffn.io.coarser import Scale
from ffn.viewing import surfaces
from ffn.viewing.multires import EMPTY_MESH, QUANTIZATION_BITS, encode_mesh
from ffn.viewing.pieces import Piece, SegmentPieces
from ffn.viewing.precomputed import open_scale
from ffn.viewing.shards import Item, write_shard

FOLDER = "mesh"  # in that of the volume
BLOCK_ZYX: ZYX = (128, 128, 128)  # voxels of the mip, about; 32 bytes for each, with the surfaces of FIB-25
BYTES_PER_TRIANGLE = 1.5  # encoded, for one of marching cubes; 1.1 to 1.7 on FIB-25; decides how many shards there are


def blocks_of(box: Box) -> Grid:
    """Cut the cells of a volume into blocks of equal size. A cell has the place of its first voxel, even outside."""
    every = Box(box.grow((1, 1, 1)).start, box.stop)
    counts = [max(1, round(n / wanted)) for n, wanted in zip(box.shape, BLOCK_ZYX, strict=True)]
    return cut(every, zyx(-(-n // count) for n, count in zip(every.shape, counts, strict=True)))


def surfaces_in(layer: Path, mip: int, scale: Scale, wanted: np.ndarray, cells: Box) -> Iterator[Piece]:
    """Yield the surfaces of segments in one block. The same voxels give the same meshes, however they are cut.

    Parameters
    ----------
    layer : Path
        Folder of the volume.
    mip : int
        Mip to read.
    scale : Scale
        Box and voxel size of that mip.
    wanted : uint64 ndarray of shape (N,)
        Segments to mesh, ascending.
    cells : Box
        One of `blocks_of`.
    """
    voxels = Box(cells.start, add(cells.stop, (1, 1, 1)))  # those of the last cells, too; 0 outside the volume
    inside = voxels.intersect(scale.box)
    labels = np.zeros(voxels.shape, np.uint64)
    labels[inside.slices(voxels.start)] = open_scale(layer, mip)[inside.slices()].read().result()
    for segment_id, part in surfaces.block_pieces(labels, voxels.start, wanted):
        numbers = np.array([len(part.vertices)], "<u4").tobytes()
        content = numbers + part.vertices.astype("<i4").tobytes() + part.faces.astype("<u4").tobytes()
        yield Piece(segment_id, content, BYTES_PER_TRIANGLE * len(part.faces))


def write_meshes(scale: Scale, sharding: dict[str, Any], path: Path, pieces: SegmentPieces) -> Result:
    """Write the meshes of one shard, see `ffn.viewing.pieces.Pieces.joined_by`.

    A segment without a piece gets an empty mesh: Neuroglancer reports an error for a missing one, and its screenshots
    would wait for it forever.
    """
    write_shard(path, sharding, ((segment_id, _mesh(parts, scale)) for segment_id, parts in pieces))
    return {}


def mesh_info(sharding: dict[str, Any]) -> dict[str, Any]:
    """Return the ``info`` of a folder of meshes."""
    return {
        "@type": "neuroglancer_multilod_draco",
        "vertex_quantization_bits": QUANTIZATION_BITS,
        "transform": [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0],
        "lod_scale_multiplier": 1.0,
        "sharding": sharding,
    }


def _mesh(parts: list[bytes], scale: Scale) -> Item:
    if not parts:
        return EMPTY_MESH
    mesh, origin = surfaces.surface([_decoded(part) for part in parts], scale.voxel_size_zyx_nm)
    return encode_mesh(mesh, origin.tolist(), min(scale.voxel_size_zyx_nm)) if len(mesh.faces) else EMPTY_MESH


def _decoded(content: bytes) -> surfaces.SurfacePart:
    numbers = np.frombuffer(content, "<u4")
    end = 1 + 3 * int(numbers[0])
    return surfaces.SurfacePart(numbers[1:end].view("<i4").reshape(-1, 3), numbers[end:].reshape(-1, 3))
