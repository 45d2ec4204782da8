"""Meshes of segments in Neuroglancer's multi-resolution format, made block by block and joined shard by shard.

Marching cubes look at eight voxels at a time, a cell. Blocks that share their outermost voxels share no cell, so their
surfaces are parts of the surface of the whole, with the same vertices where they meet. Vertices are on a lattice of
half voxels, which makes them comparable.

A mesh has levels of detail, each cut into an octree of Draco fragments. Arrays are xyz, as in the files.
Source of the format: Neuroglancer, ``src/datasource/precomputed/meshes.md``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import DracoPy
import numpy as np
import scipy.sparse
import zmesh

from ffn.geometry import ZYX, Box, Grid, VoxelSize, add, cut, zyx
from ffn.io.block_log import Result
from ffn.viewing.segments import number_segments
from ffn.viewing.shards import SegmentFiles, SegmentPieces, Sharding, write_shard

BLOCK_ZYX: ZYX = (128, 128, 128)  # voxels of the mip, about; 32 bytes for each, with the surfaces of FIB-25
LATTICE = 2  # steps for each voxel
REDUCTION = 4  # triangles for one that is left; a surface at half the resolution has a quarter
ROUNDS = 5  # remove the steps between voxels, and the creases of simplification; more would remove spines
WEIGHTS = (0.5, -0.53)  # of a round: shrink, then inflate, which keeps the volume (Taubin 1995)
QUANTIZATION_BITS = 16
COMPRESSION_LEVEL = 7  # of 10; higher levels are slower to write and read, and hardly smaller
MAX_LODS = 6
MIN_FRAGMENT_VOXELS = 32  # length of the finest fragments; smaller ones cost more requests than they save

Node = tuple[int, int, int]
Fragments = dict[Node, bytes]


class Meshes(SegmentFiles):
    """The meshes of a layer. The same voxels give the same meshes, however they were cut into blocks."""

    name = "mesh"
    encoded = 1 / 12  # 1/16 to 1/11 on FIB-25
    info = {
        "@type": "neuroglancer_multilod_draco",
        "vertex_quantization_bits": QUANTIZATION_BITS,
        "transform": [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0],
        "lod_scale_multiplier": 1.0,
    }

    def cut(self) -> Grid:
        """Cut the cells of a volume into blocks of equal size, each at the place of its first voxel, even outside."""
        box = self.scale.box
        every = Box(box.grow((1, 1, 1)).start, box.stop)
        counts = [max(1, round(n / wanted)) for n, wanted in zip(box.shape, BLOCK_ZYX, strict=True)]
        return cut(every, zyx(-(-n // count) for n, count in zip(every.shape, counts, strict=True)))

    def pieces_in(self, wanted: np.ndarray, block: Box) -> Iterator[tuple[int, bytes]]:
        """Yield the surfaces of the `wanted` segments (ascending) in a block of cells."""
        labels = self.read(Box(block.start, add(block.stop, (1, 1, 1))))  # voxels of the last cells, too
        return ((owner, part.to_precomputed()) for owner, part in surfaces_of(labels, block.start, wanted))

    def write_joined(self, sharding: Sharding, path: Path, segments: SegmentPieces) -> Result:
        """Write the meshes of a shard."""
        write_shard(path, sharding, ((owner, *self._mesh(pieces)) for owner, pieces in segments))
        return {}

    def _mesh(self, pieces: list[bytes]) -> tuple[bytes, bytes]:
        if pieces:
            size = self.scale.voxel_size_zyx_nm
            mesh, origin = finish([*map(zmesh.Mesh.from_precomputed, pieces)], size)
            if len(mesh.faces):
                return encode_mesh(mesh, origin.tolist(), min(size))
        return EMPTY


def surfaces_of(labels: np.ndarray, start_zyx: ZYX, wanted: np.ndarray) -> Iterator[tuple[int, zmesh.Mesh]]:
    """Yield the surfaces of the `wanted` segments (ascending) in a block from `start_zyx` on, open where it ends.

    Vertices are xyz in steps of half a voxel from the outer corner of voxel 0, whole numbers.
    """
    numbers = number_segments(labels, wanted)
    if not numbers.any():
        return
    mesher = zmesh.Mesher((1, 1, 1))
    mesher.mesh(numbers.T)
    for number in sorted(mesher.ids()):
        mesh = mesher.get(number, voxel_centered=True)
        mesher.erase(number)
        yield int(wanted[number - 1]), zmesh.Mesh(np.rint(LATTICE * (mesh.vertices + start_zyx[::-1])), mesh.faces)


def join(parts: Sequence[zmesh.Mesh]) -> zmesh.Mesh:
    """Join parts at the vertices that they share. The result does not depend on how the surface was cut.

    >>> left = zmesh.Mesh([[0, 0, 0], [2, 0, 0], [2, 2, 0]], [[1, 2, 0]])
    >>> right = zmesh.Mesh([[2, 2, 0], [0, 0, 0], [0, 2, 0]], [[0, 2, 1]])
    >>> join([left, right]).faces.tolist(), join([right, left]).faces.tolist()
    ([[0, 2, 3], [0, 3, 1]], [[0, 2, 3], [0, 3, 1]])
    """
    every = zmesh.Mesh.concatenate(*parts)
    vertices = every.vertices.astype(np.int64)
    low, extent = vertices.min(0), np.ptp(vertices, axis=0) + 1
    places, number = np.unique(np.ravel_multi_index(tuple((vertices - low).T), extent), return_inverse=True)
    faces = number[every.faces]
    turned = (faces.argmin(1)[:, None] + np.arange(3)) % 3  # the lowest vertex first, which keeps the outside outside
    faces = np.take_along_axis(faces, turned, 1)
    joined = np.stack(np.unravel_index(places, extent), axis=1) + low
    return zmesh.Mesh(joined, faces[np.lexsort(faces.T[::-1])])


def finish(parts: Sequence[zmesh.Mesh], voxel_size_zyx_nm: VoxelSize) -> tuple[zmesh.Mesh, np.ndarray]:
    """Return the smooth, simplified surface of all parts of a segment, and its origin.

    Vertices are xyz in nm from the origin, which is separate because float32 vertices far away lose precision. They
    move by less than the longest side of a voxel. A tiny segment is left without triangles.
    """
    whole = join(parts)
    step = np.array(voxel_size_zyx_nm[::-1]) / LATTICE
    low = whole.vertices.min(0)
    mesh = zmesh.Mesh(((whole.vertices - low) * step).astype(np.float32), whole.faces, None)
    simple = simplify(smooth(mesh))
    # From the edges where the volume ends, smoothing overshoots: by two voxels for 4 of 92 segments of FIB-25.
    simple.vertices = np.clip(simple.vertices, 0, mesh.vertices.max(0))
    return simple, low * step


def simplify(mesh: zmesh.Mesh) -> zmesh.Mesh:
    """Return a closed surface with a quarter of the triangles, smoothed."""
    return smooth(zmesh.simplify_fqmr(mesh, target_count=len(mesh.faces) // REDUCTION))


def smooth(mesh: zmesh.Mesh) -> zmesh.Mesh:
    """Return a closed surface whose vertices are moved to where their neighbours are, on average."""
    own = np.arange(len(mesh.vertices))  # a vertex is a neighbour of itself, so that one without triangles stays
    # Closed surfaces have every edge in both directions, once in each of two triangles.
    ends = np.concatenate([np.stack([own, own], 1), *(mesh.faces[:, pair] for pair in ([0, 1], [1, 2], [2, 0]))])
    neighbours = scipy.sparse.csr_array((np.ones(len(ends), np.float32), ends.T), shape=(len(own), len(own)))
    degrees = neighbours.sum(axis=1)[:, None]
    vertices = mesh.vertices.astype(np.float32)
    for weight in WEIGHTS * ROUNDS:
        vertices += weight * (neighbours @ vertices / degrees - vertices)
    return zmesh.Mesh(vertices, mesh.faces, None)


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
        levels.append(_fragments(level, lod, low, shape, levels[-1] if levels else {}))
    manifest = _manifest(levels, low + origin_xyz_nm, shape, [_spacing(level) for level in lods])
    return b"".join(data for level in levels for data in level.values()), manifest


def _levels_of_detail(mesh: zmesh.Mesh, extent_voxels: float) -> list[zmesh.Mesh]:
    """Simplify repeatedly while the finest fragments stay large enough."""
    lods = [mesh]
    num_lods = min(MAX_LODS, 1 + int(np.log2(max(1, extent_voxels / MIN_FRAGMENT_VOXELS))))
    low, high = mesh.vertices.min(0), mesh.vertices.max(0)
    while len(lods) < num_lods:
        coarse = simplify(lods[-1])
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
