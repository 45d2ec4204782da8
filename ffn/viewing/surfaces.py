"""Surfaces of segments, cut where blocks meet and joined again.

Marching cubes look at eight voxels at a time, a cell. Blocks that share their outermost voxels share no cell, so their
surfaces are parts of the surface of the whole, with the same vertices where they meet. Vertices are on a lattice of
half voxels, which makes them comparable. All arrays are xyz.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import zmesh

from ffn.geometry import ZYX, VoxelSize
from ffn.viewing.segments import number_segments
from ffn.viewing.simplify import simplify, smooth

LATTICE = 2  # steps for each voxel


class SurfacePart(NamedTuple):
    """A part of a surface.

    Parameters
    ----------
    vertices : int32 ndarray of shape (N, 3)
        In steps of half a voxel from the outer corner of voxel 0.
    faces : uint32 ndarray of shape (F, 3)
        Triangles: rows of `vertices`.
    """

    vertices: np.ndarray
    faces: np.ndarray


def block_pieces(labels: np.ndarray, start_zyx: ZYX, wanted: np.ndarray) -> Iterator[tuple[int, SurfacePart]]:
    """Yield the surfaces of segments in one block, open where the block ends.

    Parameters
    ----------
    labels : uint64 ndarray of shape (Z, Y, X)
        Segment ids.
    start_zyx : tuple of int
        First voxel of `labels`.
    wanted : uint64 ndarray of shape (N,)
        Segments to mesh, ascending.
    """
    numbers = number_segments(labels, wanted)
    if not numbers.any():
        return
    mesher = zmesh.Mesher((1, 1, 1))
    mesher.mesh(numbers.T)
    for number in sorted(mesher.ids()):
        mesh = mesher.get(number, voxel_centered=True)
        mesher.erase(number)
        vertices = np.rint(LATTICE * (mesh.vertices + start_zyx[::-1]))
        yield int(wanted[number - 1]), SurfacePart(vertices.astype(np.int32), mesh.faces.astype(np.uint32))


def join(pieces: Sequence[SurfacePart]) -> SurfacePart:
    """Join pieces at the vertices that they share. The result does not depend on how the surface was cut.

    Examples
    --------
    >>> left = SurfacePart(np.array([[0, 0, 0], [2, 0, 0], [2, 2, 0]]), np.array([[1, 2, 0]]))
    >>> right = SurfacePart(np.array([[2, 2, 0], [0, 0, 0], [0, 2, 0]]), np.array([[0, 2, 1]]))
    >>> join([left, right]).faces.tolist(), join([right, left]).faces.tolist()
    ([[0, 2, 3], [0, 3, 1]], [[0, 2, 3], [0, 3, 1]])
    """
    vertices = np.concatenate([piece.vertices for piece in pieces])
    firsts = np.cumsum([0, *(len(piece.vertices) for piece in pieces)])
    faces = np.concatenate([piece.faces + first for piece, first in zip(pieces, firsts, strict=False)])
    low = vertices.min(0)
    extent = np.ptp(vertices, axis=0) + 1
    places, number = np.unique(np.ravel_multi_index(tuple((vertices - low).T), extent), return_inverse=True)
    faces = number[faces]
    turned = (faces.argmin(1)[:, None] + np.arange(3)) % 3  # the lowest vertex first, which keeps the outside outside
    faces = np.take_along_axis(faces, turned, 1)
    joined = np.stack(np.unravel_index(places, extent), axis=1) + low
    return SurfacePart(joined.astype(np.int32), faces[np.lexsort(faces.T[::-1])].astype(np.uint32))


def surface(pieces: Sequence[SurfacePart], voxel_size_zyx_nm: VoxelSize) -> tuple[zmesh.Mesh, np.ndarray]:
    """Return the smooth, simplified surface of a segment. Both moves it by less than the longest side of a voxel.

    Parameters
    ----------
    pieces : sequence of SurfacePart
        All of the segment, so that the surface is closed.
    voxel_size_zyx_nm : tuple of float
        Sides of a voxel, nm.

    Returns
    -------
    mesh : zmesh.Mesh
        Vertices are xyz in nm from `origin`; without triangles if the segment is tiny.
    origin : float64 ndarray of shape (3,)
        xyz, nm from the outer corner of voxel 0. It is separate because float32 vertices far away lose precision.
    """
    whole = join(pieces)
    step = np.array(voxel_size_zyx_nm[::-1]) / LATTICE
    low = whole.vertices.min(0)
    mesh = zmesh.Mesh(((whole.vertices - low) * step).astype(np.float32), whole.faces, None)
    simple = simplify(smooth(mesh))
    # From the edges where the volume ends, smoothing overshoots: by two voxels for 4 of 92 segments of FIB-25.
    simple.vertices = np.clip(simple.vertices, 0, mesh.vertices.max(0))
    return simple, low * step
