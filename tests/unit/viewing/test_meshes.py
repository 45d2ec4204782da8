"""Meshes: closed, smooth, at their place, with levels of detail, however they are cut; read by cloud-volume."""

import shutil

import numpy as np
import pytest

from ffn.geometry import Box, add, subtract
from ffn.io.coarser import Scale
from ffn.viewing import meshes
from ffn.viewing.meshes import finish, join, surfaces_of
from ffn.viewing.precomputed import LABELS

from .conftest import write_meshes, write_volume

SIZE_NM = (40.0, 20.0, 10.0)
BIG = 2**63 + 11


@pytest.fixture
def make_layer(tmp_path, cloud_volume):
    """Write a volume of one mip with meshes, and open it with cloud-volume."""

    def make(box, labels, segment_ids):
        scale, path = Scale(box, SIZE_NM), tmp_path / "labels"
        write_volume(path, LABELS, [scale], lambda block: labels[block.slices(box.start)])
        write_meshes(path, 0, scale, segment_ids)
        return cloud_volume(f"file://{path}", progress=False)

    return make


def num_lods(volume, segment_id):
    return volume.mesh.get_manifest(segment_id).num_lods


@pytest.mark.parametrize("segment_id", [BIG, 5])
def test_meshes_have_the_extent_of_their_voxels_at_every_level_of_detail(make_layer, segment_id):
    """A box inside the volume and a bar that leaves it on one side, at an odd offset."""
    box = Box((101, -3, 57), (101 + 20, -3 + 30, 57 + 150))
    labels = np.zeros(box.shape, np.uint64)
    labels[4:9, 6:12, 10:30], labels[12:16, 10:15, 40:] = BIG, 5
    volume = make_layer(box, labels, [5, BIG])
    inside = np.argwhere(labels == segment_id) + box.start
    low, high = (inside.min(0) * SIZE_NM)[::-1], ((inside.max(0) + 1) * SIZE_NM)[::-1]
    for lod in range(num_lods(volume, segment_id)):
        vertices = volume.mesh.get(segment_id, lod=lod)[segment_id].vertices
        assert np.abs(vertices.min(0) - low).max() <= max(SIZE_NM)
        assert np.abs(vertices.max(0) - high).max() <= max(SIZE_NM)


def random_layer(path):
    """Write random blobs that touch each other and all sides of the volume; return its only mip and the ids."""
    box = Box.from_shape((18, 34, 46), (5, -33, 1000))
    small = np.array([0, 3, 7, BIG], np.uint64)[np.random.default_rng(0).integers(0, 4, (5, 9, 12))]
    labels = small.repeat(4, 0).repeat(4, 1).repeat(4, 2)[:18, :34, :46]
    scale = Scale(box, SIZE_NM)
    write_volume(path, LABELS, [scale], lambda block: labels[block.slices(box.start)])
    return scale, [3, 7, BIG]


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("block", [(9, 14, 13), (18, 34, 9)])
def test_meshes_do_not_depend_on_the_blocks_whose_memory_they_need(tmp_path, monkeypatch, block):
    scale, ids = random_layer(tmp_path / "a")
    write_meshes(tmp_path / "a", 0, scale, ids)
    whole = content(tmp_path / "a/mesh")
    shutil.rmtree(tmp_path / "a/mesh")
    shapes, real = [], meshes.surfaces_of
    monkeypatch.setattr(meshes, "BLOCK_ZYX", block)
    monkeypatch.setattr(meshes, "surfaces_of", lambda labels, *rest: shapes.append(labels.shape) or real(labels, *rest))
    write_meshes(tmp_path / "a", 0, scale, ids)
    assert content(tmp_path / "a/mesh") == whole
    assert (np.max(shapes, axis=0) <= np.add(block, 5)).all() and len(shapes) > 4


def z_order(position):
    """Interleave the bits of x, y, z as text, most significant first."""
    x, y, z = (f"{n:08b}" for n in position)
    return "".join(c + b + a for a, b, c in zip(x, y, z, strict=True))


@pytest.fixture
def wavy_tube(make_layer):
    """A long tube whose mesh has several levels of detail."""
    box = Box.from_shape((24, 40, 260))
    z, y, x = np.indices(box.shape)
    wave = 20 + 8 * np.sin(x / 20)
    return make_layer(box, ((z - 12) ** 2 * 4 + (y - wave) ** 2 < 90).astype(np.uint64) * 7, [7])


def test_large_meshes_have_levels_of_detail_that_say_how_large_their_triangles_are(wavy_tube):
    levels = [wavy_tube.mesh.get(7, lod=lod)[7] for lod in range(num_lods(wavy_tube, 7))]
    assert len(levels) >= 3
    assert all(len(b.faces) < len(a.faces) for a, b in zip(levels, levels[1:], strict=False))
    assert all(np.ptp(mesh.vertices[:, 0]) == pytest.approx(2600, abs=40) for mesh in levels)
    # Neuroglancer chooses a level by that; with less than the truth, its first picture is crumpled.
    for lod, scale in enumerate(wavy_tube.mesh.get_manifest(7).lod_scales):
        mesh = wavy_tube.mesh.get(7, lod=lod)[7]
        corners = mesh.vertices[mesh.faces]
        lengths = np.linalg.norm(corners - np.roll(corners, 1, axis=1), axis=2)
        assert lengths.mean() < scale < 3 * lengths.mean()  # the borders of the octree cut them


def test_octree_nodes_are_in_z_order_and_have_parents(make_layer):
    labels = np.full((40, 80, 160), 3, np.uint64)
    labels[10:, 20:, 30:] = 0
    manifest = make_layer(Box.from_shape(labels.shape), labels, [3]).mesh.get_manifest(3)
    assert manifest.num_lods > 1
    for lod, positions in enumerate(manifest.fragment_positions):
        codes = [z_order(position) for position in positions.astype(int)]
        assert codes == sorted(set(codes))
        if lod:
            parents = {tuple(p // 2) for p in manifest.fragment_positions[lod - 1].astype(int)}
            assert parents <= {tuple(p) for p in positions.astype(int)}


def parts_of(labels, start, wanted, box=None):
    """Return the surfaces of the cells of a box by segment; voxels outside `labels` are 0."""
    padded = np.pad(labels, 1)
    box = box or Box.from_shape(padded.shape)
    first = subtract(add(start, box.start), (1, 1, 1))
    return dict(surfaces_of(padded[box.slices()], first, np.array(wanted, np.uint64)))


def times_of_edges(faces):
    edges = np.sort(np.concatenate([faces[:, pair] for pair in ([0, 1], [1, 2], [2, 0])]), axis=1)
    return np.unique(edges, axis=0, return_counts=True)[1]


def test_surfaces_are_closed_and_smoothed_within_their_voxels():
    labels = np.zeros((20, 30, 150), np.uint64)
    labels[4:9, 6:12, 10:30], labels[12:16, 10:15, 40:] = BIG, 5
    found = parts_of(labels, (0, 0, 0), [5, 99])
    assert list(found) == [5]
    assert (times_of_edges(finish([found[5]], SIZE_NM)[0].faces) == 2).all(), "an edge without two triangles is a hole"
    # A neurite that leaves through a corner of the volume has edges there, from which smoothing would overshoot.
    labels = ((np.indices((40, 50, 60)) ** 2).sum(0) < 35**2).astype(np.uint64)
    mesh, origin = finish([parts_of(labels, (0, 0, 0), [1])[1]], (16.0, 16.0, 16.0))
    vertices = mesh.vertices + origin
    assert vertices.min() >= 0 and vertices.max() <= 35 * 16 + 1e-3
    assert vertices.min(0).max() < 16 and vertices.max(0).min() > 34 * 16


def test_surfaces_are_as_smooth_as_what_they_show():
    """A ball has neither the steps between its voxels nor the facets of too few triangles."""
    size, centre, radius = np.array([20.0, 10.0, 10.0]), np.array([300.0, 220.0, 250.0]), 150.0
    offsets = (np.argwhere(np.ones((30, 44, 50))) + 0.5) * size - centre
    labels = (np.linalg.norm(offsets, axis=1) < radius).reshape(30, 44, 50).astype(np.uint64)
    mesh, origin = finish([parts_of(labels, (0, 0, 0), [1])[1]], tuple(size))
    corners = mesh.vertices[mesh.faces].astype(float) + origin - centre[::-1]
    normals = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    areas, outwards = np.linalg.norm(normals, axis=1), corners.mean(axis=1)
    cosines = (normals * outwards).sum(axis=1) / areas / np.linalg.norm(outwards, axis=1)
    assert np.degrees(np.average(np.arccos(cosines), weights=areas)) < 8
    assert np.abs(np.linalg.norm(corners, axis=2) - radius).max() < 10


@pytest.mark.parametrize("seed", range(4))
def test_parts_of_blocks_join_to_the_surface_of_the_whole(seed):
    rng = np.random.default_rng(seed)
    labels = np.array([0, 4, 9], np.uint64)[rng.integers(0, 3, rng.integers(3, 12, 3))].repeat(2, 0).repeat(2, 2)
    start = (-7, 100, 3)
    every = Box.from_shape(tuple(n + 1 for n in labels.shape))  # cells of the padded voxels
    parts = [
        parts_of(labels, start, [4, 9], Box(cells.start, tuple(n + 1 for n in cells.stop)))
        for cells in every.blocks(tuple(rng.integers(2, 9, 3).tolist()))
    ]
    rng.shuffle(parts)
    for segment_id, whole in parts_of(labels, start, [4, 9]).items():
        joined = join([part[segment_id] for part in parts if segment_id in part])
        assert len(joined.vertices) == len(np.unique(whole.vertices, axis=0))
        assert (times_of_edges(joined.faces) % 2 == 0).all(), "open where blocks meet"
        assert joined == join([whole])
