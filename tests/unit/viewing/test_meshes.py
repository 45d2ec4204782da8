"""Meshes are where their segments are; cloud-volume reads them."""

import numpy as np
import pytest

from ffn.geometry import Box
from ffn.viewing.meshes import surfaces, write_meshes
from ffn.viewing.mips import Scale

from .conftest import MESH_SIZE_NM, num_lods

BIG = 2**63 + 11


def two_boxes():
    """A box inside the volume and a bar that leaves it on one side, at an odd offset."""
    box = Box((101, -3, 57), (101 + 20, -3 + 30, 57 + 150))
    labels = np.zeros(box.shape, np.uint64)
    labels[4:9, 6:12, 10:30] = BIG
    labels[12:16, 10:15, 40:] = 5
    return box, labels


def extent_nm(box, labels, segment_id):
    inside = np.argwhere(labels == segment_id)
    low, high = inside.min(0) + box.start, inside.max(0) + 1 + box.start
    return (low * MESH_SIZE_NM)[::-1], (high * MESH_SIZE_NM)[::-1]


@pytest.mark.parametrize("segment_id", [BIG, 5])
def test_meshes_have_the_extent_of_their_voxels_at_every_level_of_detail(make_layer, segment_id):
    box, labels = two_boxes()
    volume = make_layer(box, labels, [5, BIG])
    low, high = extent_nm(box, labels, segment_id)
    for lod in range(num_lods(volume, segment_id)):
        vertices = volume.mesh.get(segment_id, lod=lod)[segment_id].vertices
        assert np.abs(vertices.min(0) - low).max() <= max(MESH_SIZE_NM)
        assert np.abs(vertices.max(0) - high).max() <= max(MESH_SIZE_NM)


def test_surfaces_are_closed_and_only_those_of_the_given_segments():
    _, labels = two_boxes()
    found = dict(surfaces(labels, MESH_SIZE_NM, [5, 99]))
    assert list(found) == [5]
    faces = np.sort(np.concatenate([found[5].faces[:, pair] for pair in ([0, 1], [1, 2], [2, 0])]), axis=1)
    _, times = np.unique(faces, axis=0, return_counts=True)
    assert (times == 2).all(), "an edge without two triangles is a hole"


def test_surfaces_are_as_smooth_as_what_they_show():
    """A ball has neither the steps between its voxels nor the facets of too few triangles."""
    size, centre, radius = np.array([20.0, 10.0, 10.0]), np.array([300.0, 220.0, 250.0]), 150.0
    offsets = (np.argwhere(np.ones((30, 44, 50))) + 0.5) * size - centre
    labels = (np.linalg.norm(offsets, axis=1) < radius).reshape(30, 44, 50).astype(np.uint64)
    (_, mesh), *_ = surfaces(labels, tuple(size), [1])
    corners = mesh.vertices[mesh.faces].astype(float) - centre[::-1]
    normals = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    areas, outwards = np.linalg.norm(normals, axis=1), corners.mean(axis=1)
    cosines = (normals * outwards).sum(axis=1) / areas / np.linalg.norm(outwards, axis=1)
    assert np.degrees(np.average(np.arccos(cosines), weights=areas)) < 8
    assert np.abs(np.linalg.norm(corners, axis=2) - radius).max() < 10


def test_a_volume_without_segments_has_an_empty_mesh_folder(tmp_path):
    box = Box.from_shape((4, 5, 6))
    write_meshes(tmp_path / "mesh", np.zeros(box.shape, np.uint64), Scale(box, MESH_SIZE_NM), [])
    assert [path.name for path in (tmp_path / "mesh").iterdir()] == ["info"]
