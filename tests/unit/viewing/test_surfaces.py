"""Surfaces of segments: closed, smooth, and the same however they are cut."""

import numpy as np
import pytest

from ffn.geometry import Box, add, subtract
from ffn.viewing.surfaces import block_pieces, join, surface

SIZE_NM = (40.0, 20.0, 10.0)
BIG = 2**63 + 11


def pieces(labels, start, wanted, box=None):
    """Return the surfaces of the cells of a box by segment; voxels outside `labels` are 0."""
    padded = np.pad(labels, 1)
    box = box or Box.from_shape(padded.shape)
    first = subtract(add(start, box.start), (1, 1, 1))
    return dict(block_pieces(padded[box.slices()], first, wanted))


def surfaces(labels, size_nm, segment_ids):
    """Return the mesh of each segment, its vertices in nm."""
    found = pieces(labels, (0, 0, 0), np.array(sorted(segment_ids), np.uint64))
    return {one: surface([piece], size_nm) for one, piece in found.items()}


def times_of_edges(faces):
    edges = np.sort(np.concatenate([faces[:, pair] for pair in ([0, 1], [1, 2], [2, 0])]), axis=1)
    return np.unique(edges, axis=0, return_counts=True)[1]


def test_surfaces_are_closed_and_only_those_of_the_given_segments():
    labels = np.zeros((20, 30, 150), np.uint64)
    labels[4:9, 6:12, 10:30] = BIG
    labels[12:16, 10:15, 40:] = 5
    found = surfaces(labels, SIZE_NM, [5, 99])
    assert list(found) == [5]
    assert (times_of_edges(found[5][0].faces) == 2).all(), "an edge without two triangles is a hole"


def test_surfaces_are_as_smooth_as_what_they_show():
    """A ball has neither the steps between its voxels nor the facets of too few triangles."""
    size, centre, radius = np.array([20.0, 10.0, 10.0]), np.array([300.0, 220.0, 250.0]), 150.0
    offsets = (np.argwhere(np.ones((30, 44, 50))) + 0.5) * size - centre
    labels = (np.linalg.norm(offsets, axis=1) < radius).reshape(30, 44, 50).astype(np.uint64)
    mesh, origin = surfaces(labels, tuple(size), [1])[1]
    corners = mesh.vertices[mesh.faces].astype(float) + origin - centre[::-1]
    normals = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    areas, outwards = np.linalg.norm(normals, axis=1), corners.mean(axis=1)
    cosines = (normals * outwards).sum(axis=1) / areas / np.linalg.norm(outwards, axis=1)
    assert np.degrees(np.average(np.arccos(cosines), weights=areas)) < 8
    assert np.abs(np.linalg.norm(corners, axis=2) - radius).max() < 10


def test_smoothing_does_not_reach_beyond_the_voxels():
    """A neurite that leaves through a corner of the volume has edges there, from which smoothing would overshoot."""
    labels = ((np.indices((40, 50, 60)) ** 2).sum(0) < 35**2).astype(np.uint64)
    mesh, origin = surfaces(labels, (16.0, 16.0, 16.0), [1])[1]
    vertices = mesh.vertices + origin
    assert vertices.min() >= 0 and vertices.max() <= 35 * 16 + 1e-3
    assert vertices.min(0).max() < 16 and vertices.max(0).min() > 34 * 16


@pytest.mark.parametrize("seed", range(6))
def test_pieces_of_blocks_join_to_the_surface_of_the_whole(seed):
    rng = np.random.default_rng(seed)
    labels = np.array([0, 4, 9], np.uint64)[rng.integers(0, 3, rng.integers(3, 12, 3))].repeat(2, 0).repeat(2, 2)
    start, wanted = (-7, 100, 3), np.array([4, 9], np.uint64)
    whole = pieces(labels, start, wanted)
    every = Box.from_shape(tuple(n + 1 for n in labels.shape))  # cells of the padded voxels
    parts = [
        pieces(labels, start, wanted, Box(cells.start, tuple(n + 1 for n in cells.stop)))
        for cells in every.blocks(tuple(rng.integers(2, 9, 3).tolist()))
    ]
    rng.shuffle(parts)
    for segment_id, piece in whole.items():
        joined = join([part[segment_id] for part in parts if segment_id in part])
        assert len(joined.vertices) == len(np.unique(piece.vertices, axis=0))
        assert (times_of_edges(joined.faces) % 2 == 0).all(), "open where blocks meet"
        for found, expected in zip(joined, join([piece]), strict=True):
            assert np.array_equal(found, expected)


def test_a_surface_far_away_is_the_same():
    labels = np.zeros((9, 9, 9), np.uint64)
    labels[2:7, 3:6, 2:8] = 1
    near, far = (surface([pieces(labels, (z, 0, 0), np.array([1], np.uint64))[1]], SIZE_NM) for z in (0, 10**8))
    assert np.array_equal(near[0].vertices, far[0].vertices)
    assert (far[1] - near[1]).tolist() == [0, 0, 40 * 10**8]
