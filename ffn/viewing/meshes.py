"""Surfaces of segments, written as multi-resolution Neuroglancer meshes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import zmesh

from ffn.geometry import VoxelSize
from ffn.progress import track
from ffn.viewing.mips import Scale
from ffn.viewing.multires import EMPTY_MESH, QUANTIZATION_BITS, encode_mesh
from ffn.viewing.segments import number_segments
from ffn.viewing.shards import write_shards
from ffn.viewing.simplify import simplify, smooth


def write_meshes(
    folder: Path, labels: np.ndarray, scale: Scale, segment_ids: list[int], empty_ids: Sequence[int] = ()
) -> None:
    """Write the meshes of segments.

    Memory: about twice the size of `labels`, which is why a coarser mip is used for large volumes.

    Parameters
    ----------
    folder : Path
        Folder to create, or one left by an interrupted call.
    labels : uint64 ndarray of shape (Z, Y, X)
        Voxels of one mip.
    scale : Scale
        Box and voxel size of `labels`.
    segment_ids : list of int
        Segments to mesh. A segment without voxels at this mip gets an empty mesh.
    empty_ids : sequence of int
        Further segments that get an empty mesh. Neuroglancer reports an error for a missing mesh, and its screenshots
        would wait for it forever.
    """
    folder.mkdir(parents=True, exist_ok=True)
    voxel_nm = min(scale.voxel_size_zyx_nm)
    origin = [n * side for n, side in zip(scale.box.start, scale.voxel_size_zyx_nm, strict=True)]
    meshes = surfaces(labels, scale.voxel_size_zyx_nm, segment_ids)
    items = dict.fromkeys([*segment_ids, *empty_ids], EMPTY_MESH)
    items |= {
        segment_id: encode_mesh(mesh, origin[::-1], voxel_nm)
        for segment_id, mesh in track(meshes, len(segment_ids), f"{folder.parent.name} meshes", "mesh")
    }
    info = {
        "@type": "neuroglancer_multilod_draco",
        "vertex_quantization_bits": QUANTIZATION_BITS,
        "transform": [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0],
        "lod_scale_multiplier": 1.0,
        "sharding": write_shards(folder, items),
    }
    (folder / "info").write_text(json.dumps(info))


def surfaces(
    labels: np.ndarray, voxel_size_zyx_nm: VoxelSize, segment_ids: list[int]
) -> Iterator[tuple[int, zmesh.Mesh]]:
    """Yield the smooth, simplified surface of each segment.

    Marching cubes place the surface halfway between voxel centres, on the face that two voxels share. Surfaces are
    closed where the array ends. Smoothing and simplification move them by less than the longest side of a voxel.

    Parameters
    ----------
    labels : uint64 ndarray of shape (Z, Y, X)
        Segment ids.
    voxel_size_zyx_nm : tuple of float
        Sides of a voxel, nm.
    segment_ids : list of int
        Segments to mesh.

    Yields
    ------
    int, zmesh.Mesh
        Segment id, and its surface. Vertices are xyz in nm from the outer corner of the first voxel.
    """
    wanted = np.array(sorted(segment_ids), np.uint64)
    mesher = zmesh.Mesher(voxel_size_zyx_nm[::-1])
    mesher.mesh(number_segments(labels, wanted, border=1).T)
    padding = np.array(voxel_size_zyx_nm[::-1])
    for rank in sorted(mesher.ids()):
        mesh = mesher.get(rank, voxel_centered=True)
        mesher.erase(rank)
        mesh.vertices = (mesh.vertices - padding).astype(np.float32)
        mesh = simplify(smooth(mesh))
        if len(mesh.faces):
            yield int(wanted[rank - 1]), mesh
