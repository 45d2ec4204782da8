"""Meshes of segments in Neuroglancer's multi-resolution format, made block by block and joined shard by shard.

A mesh has levels of detail, each cut into an octree of Draco fragments. Arrays are xyz, as in the files.
Source of the format: Neuroglancer, ``src/datasource/precomputed/meshes.md``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import DracoPy
import numpy as np
import zmesh

from ffn.geometry import ZYX, Box, Grid, add, cut, zyx
from ffn.io.coarser import Scale
from ffn.viewing import surfaces
from ffn.viewing.precomputed import open_scale
from ffn.viewing.shards import SegmentPieces, Sharding, write_shard

BLOCK_ZYX: ZYX = (128, 128, 128)  # voxels of the mip, about; 32 bytes for each, with the surfaces of FIB-25
ENCODED = 1 / 12  # bytes of a mesh for a byte of its pieces, 1/16 to 1/11 on FIB-25; decides the number of shards
QUANTIZATION_BITS = 16
COMPRESSION_LEVEL = 7  # of 10; higher levels are slower to write and read, and hardly smaller
MAX_LODS = 6
MIN_FRAGMENT_VOXELS = 32  # length of the finest fragments; smaller ones cost more requests than they save

Node = tuple[int, int, int]
Fragments = dict[Node, bytes]


def blocks_of(box: Box) -> Grid:
    """Cut the cells of a volume into blocks of equal size. A cell has the place of its first voxel, even outside."""
    every = Box(box.grow((1, 1, 1)).start, box.stop)
    counts = [max(1, round(n / wanted)) for n, wanted in zip(box.shape, BLOCK_ZYX, strict=True)]
    return cut(every, zyx(-(-n // count) for n, count in zip(every.shape, counts, strict=True)))


def pieces_in(layer: Path, mip: int, scale: Scale, wanted: np.ndarray, cells: Box) -> Iterator[tuple[int, bytes]]:
    """Yield the surfaces of the `wanted` segments (ascending) in one of `blocks_of` a mip of a volume."""
    voxels = Box(cells.start, add(cells.stop, (1, 1, 1)))  # those of the last cells, too; 0 outside the volume
    inside = voxels.intersect(scale.box)
    labels = np.zeros(voxels.shape, np.uint64)
    labels[inside.slices(voxels.start)] = open_scale(layer, mip)[inside.slices()].read().result()
    return ((owner, part.encode()) for owner, part in surfaces.surfaces_of(labels, voxels.start, wanted))


def write_joined(scale: Scale, sharding: Sharding, path: Path, segments: SegmentPieces) -> dict:
    """Write the meshes of one shard. The same voxels give the same meshes, however they were cut into blocks."""
    write_shard(path, sharding, ((owner, *_mesh(pieces, scale)) for owner, pieces in segments))
    return {}


def info(sharding: Sharding) -> dict[str, Any]:
    """Return the ``info`` of a folder of meshes."""
    return {
        "@type": "neuroglancer_multilod_draco",
        "vertex_quantization_bits": QUANTIZATION_BITS,
        "transform": [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0],
        "lod_scale_multiplier": 1.0,
        "sharding": sharding,
    }


def _mesh(pieces: list[bytes], scale: Scale) -> tuple[bytes, bytes]:
    if pieces:
        mesh, origin = surfaces.finish([*map(surfaces.Surface.decode, pieces)], scale.voxel_size_zyx_nm)
        if len(mesh.faces):
            return encode_mesh(mesh, origin.tolist(), min(scale.voxel_size_zyx_nm))
    return EMPTY


def encode_mesh(mesh: zmesh.Mesh, origin_xyz_nm: Sequence[float], voxel_nm: float) -> tuple[bytes, bytes]:
    """Encode a closed surface, xyz in nm from an origin, made of voxels whose shortest side is `voxel_nm`.

    Returns the fragments of all levels of detail, whose number depends on the size of the mesh, and the manifest.
    """
    low, extent = np.floor(mesh.vertices.min(0)), np.ptp(mesh.vertices, axis=0)
    lods = _levels_of_detail(mesh, extent.max() / voxel_nm)
    # Slightly larger than needed, so that no vertex on the far border falls into the next node.
    shape = np.ceil((extent + 2) / 2 ** (len(lods) - 1)).astype(np.float32)
    levels: list[Fragments] = []
    for lod, level in enumerate(lods):
        children = levels[-1] if levels else {}
        levels.append(_fragments(level, lod, low, shape, children))
    manifest = _manifest(levels, low + origin_xyz_nm, shape, [_spacing(level) for level in lods])
    return b"".join(data for level in levels for data in level.values()), manifest


def _levels_of_detail(mesh: zmesh.Mesh, extent_voxels: float) -> list[zmesh.Mesh]:
    """Simplify repeatedly while the finest fragments stay large enough."""
    lods = [mesh]
    num_lods = min(MAX_LODS, 1 + int(np.log2(max(1, extent_voxels / MIN_FRAGMENT_VOXELS))))
    low, high = mesh.vertices.min(0), mesh.vertices.max(0)
    while len(lods) < num_lods:
        coarse = surfaces.simplify(lods[-1])
        if not len(coarse.faces):
            break
        coarse.vertices = np.clip(coarse.vertices, low, high)
        lods.append(coarse)
    return lods


def _spacing(mesh: zmesh.Mesh) -> float:
    """Mean length of an edge, nm: Neuroglancer draws the coarsest level on which it spans at most ten pixels.

    Anything smaller would be a promise that the level does not keep: large triangles in the first picture.
    """
    a, b, c = (mesh.vertices[mesh.faces[:, corner]] for corner in range(3))
    return float(np.linalg.norm([a - b, b - c, c - a], axis=-1).mean())


def _fragments(mesh: zmesh.Mesh, lod: int, low: np.ndarray, shape: np.ndarray, children: Fragments) -> Fragments:
    """Cut one level into octree nodes, in Z order. A node with children but without triangles is empty.

    Nodes of coarser levels are also cut in the middle, because Neuroglancer draws them by octant.
    """
    cell = shape * 2.0 ** max(lod - 1, 0)
    parts: dict[Node, list[zmesh.Mesh]] = defaultdict(list)
    for node, part in zmesh.chunk_mesh(mesh, tuple(map(float, cell)), tuple(map(float, low))).items():
        parts[_parent(node) if lod else _node(node)].append(part)
    fragments: Fragments = {_parent(node): b"" for node in children}
    for node, meshes in parts.items():
        size = shape * 2.0**lod
        encoded = _draco(zmesh.Mesh.concatenate(*meshes), low + np.array(node) * size, size)
        if encoded or node in fragments:
            fragments[node] = encoded
    return dict(sorted(fragments.items(), key=lambda item: _morton(item[0])))


def _draco(mesh: zmesh.Mesh, origin: np.ndarray, size: np.ndarray) -> bytes:
    """Compress a mesh with integer vertices in the frame of its node; empty if rounding leaves no triangle."""
    scaled = (mesh.vertices - origin) / size * (2**QUANTIZATION_BITS - 1)
    rounded = np.clip(np.round(scaled), 0, 2**QUANTIZATION_BITS - 1).astype(np.uint32)
    points, index = np.unique(rounded, axis=0, return_inverse=True)
    faces = index.reshape(-1)[mesh.faces].astype(np.uint32)
    a, b, c = faces.T
    faces = faces[(a != b) & (b != c) & (c != a)]
    return DracoPy.encode(points, faces, compression_level=COMPRESSION_LEVEL) if len(faces) else b""


def _manifest(levels: list[Fragments], origin: np.ndarray, shape: np.ndarray, spacings_nm: Sequence[float]) -> bytes:
    num_lods = len(levels)
    words = [
        shape.astype("<f4"),
        origin.astype("<f4"),
        np.array([num_lods], "<u4"),
        np.array(spacings_nm, "<f4"),
        np.zeros((num_lods, 3), "<f4"),
        np.array([len(level) for level in levels], "<u4"),
    ]
    for level in levels:
        words.append(np.array(list(level), "<u4").reshape(-1, 3).T)
        words.append(np.array([len(data) for data in level.values()], "<u4"))
    return b"".join(np.ascontiguousarray(part).tobytes() for part in words)


def _node(values: Sequence[int]) -> Node:
    x, y, z = (int(v) for v in values)
    return x, y, z


def _parent(node: Sequence[int]) -> Node:
    return _node([n // 2 for n in node])


def _morton(node: Node) -> int:
    """Position on the Z-order curve: interleaved bits, x lowest."""
    return sum((n >> bit & 1) << (3 * bit + axis) for axis, n in enumerate(node) for bit in range(MAX_LODS + 1))


# One level of detail with a single node and no triangles: Neuroglancer reports an error for a missing mesh, and its
# screenshots would wait for it forever.
EMPTY = b"", _manifest([{(0, 0, 0): b""}], np.zeros(3), np.ones(3), [1.0])
