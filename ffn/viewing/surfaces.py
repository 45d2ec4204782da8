"""Surfaces of segments, cut where blocks meet, joined again, smoothed and simplified.

Marching cubes look at eight voxels at a time, a cell. Blocks that share their outermost voxels share no cell, so their
surfaces are parts of the surface of the whole, with the same vertices where they meet. Vertices are on a lattice of
half voxels, which makes them comparable. All arrays are xyz.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import scipy.sparse
import zmesh

from ffn.geometry import ZYX, VoxelSize
from ffn.viewing.segments import number_segments

LATTICE = 2  # steps for each voxel
REDUCTION = 4  # triangles for one that is left; a surface at half the resolution has a quarter
ROUNDS = 5  # remove the steps between voxels, and the creases of simplification; more would remove spines
WEIGHTS = (0.5, -0.53)  # of a round: shrink, then inflate, which keeps the volume (Taubin 1995)


class Surface(NamedTuple):
    """A part of a surface: int32 vertices, in steps of half a voxel from the outer corner of voxel 0; uint32 faces."""

    vertices: np.ndarray
    faces: np.ndarray

    def encode(self) -> bytes:
        """Return the number of vertices, the vertices and the faces."""
        parts = np.array([len(self.vertices)], "<u4"), self.vertices.astype("<i4"), self.faces.astype("<u4")
        return b"".join(part.tobytes() for part in parts)

    @classmethod
    def decode(cls, content: bytes) -> Surface:
        """Return the part that `encode` encoded."""
        numbers = np.frombuffer(content, "<u4")
        end = 1 + 3 * int(numbers[0])
        return cls(numbers[1:end].view("<i4").reshape(-1, 3), numbers[end:].reshape(-1, 3))


def surfaces_of(labels: np.ndarray, start_zyx: ZYX, wanted: np.ndarray) -> Iterator[tuple[int, Surface]]:
    """Yield the surfaces of the `wanted` segments (ascending) in a block from `start_zyx` on, open where it ends."""
    numbers = number_segments(labels, wanted)
    if not numbers.any():
        return
    mesher = zmesh.Mesher((1, 1, 1))
    mesher.mesh(numbers.T)
    for number in sorted(mesher.ids()):
        mesh = mesher.get(number, voxel_centered=True)
        mesher.erase(number)
        vertices = np.rint(LATTICE * (mesh.vertices + start_zyx[::-1]))
        yield int(wanted[number - 1]), Surface(vertices.astype(np.int32), mesh.faces.astype(np.uint32))


def join(parts: Sequence[Surface]) -> Surface:
    """Join parts at the vertices that they share. The result does not depend on how the surface was cut.

    >>> left = Surface(np.array([[0, 0, 0], [2, 0, 0], [2, 2, 0]]), np.array([[1, 2, 0]]))
    >>> right = Surface(np.array([[2, 2, 0], [0, 0, 0], [0, 2, 0]]), np.array([[0, 2, 1]]))
    >>> join([left, right]).faces.tolist(), join([right, left]).faces.tolist()
    ([[0, 2, 3], [0, 3, 1]], [[0, 2, 3], [0, 3, 1]])
    """
    vertices = np.concatenate([part.vertices for part in parts])
    firsts = np.cumsum([0, *(len(part.vertices) for part in parts)])
    faces = np.concatenate([part.faces + first for part, first in zip(parts, firsts, strict=False)])
    low = vertices.min(0)
    extent = np.ptp(vertices, axis=0) + 1
    places, number = np.unique(np.ravel_multi_index(tuple((vertices - low).T), extent), return_inverse=True)
    faces = number[faces]
    turned = (faces.argmin(1)[:, None] + np.arange(3)) % 3  # the lowest vertex first, which keeps the outside outside
    faces = np.take_along_axis(faces, turned, 1)
    joined = np.stack(np.unravel_index(places, extent), axis=1) + low
    return Surface(joined.astype(np.int32), faces[np.lexsort(faces.T[::-1])].astype(np.uint32))


def finish(parts: Sequence[Surface], voxel_size_zyx_nm: VoxelSize) -> tuple[zmesh.Mesh, np.ndarray]:
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
