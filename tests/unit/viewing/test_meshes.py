"""Meshes are where their segments are; cloud-volume reads them."""

import json
import shutil

import numpy as np
import pytest

from ffn.geometry import Box
from ffn.io.coarser import Scale
from ffn.viewing import meshes, shards, surfaces
from ffn.viewing.precomputed import LABELS

from .conftest import MESH_SIZE_NM, num_lods
from .written import write_meshes, write_volume

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


def random_layer(path, seed=0):
    """Write random blobs that touch each other and all sides of the volume; return its only mip and the ids."""
    rng = np.random.default_rng(seed)
    box = Box.from_shape((18, 34, 46), (5, -33, 1000))
    small = np.array([0, 3, 7, BIG], np.uint64)[rng.integers(0, 4, (5, 9, 12))]
    labels = small.repeat(4, 0).repeat(4, 1).repeat(4, 2)[:18, :34, :46]
    scale = Scale(box, MESH_SIZE_NM)
    write_volume(path, LABELS, [scale], lambda block: labels[block.slices(box.start)])
    return scale, [3, 7, BIG]


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("block", [(9, 14, 13), (18, 34, 9), (300, 300, 300)])
def test_meshes_do_not_depend_on_the_blocks(tmp_path, monkeypatch, block):
    scale, ids = random_layer(tmp_path / "a")
    write_meshes(tmp_path / "a", 0, scale, ids)
    whole = content(tmp_path / "a/mesh")
    shutil.rmtree(tmp_path / "a/mesh")
    monkeypatch.setattr(meshes, "BLOCK_ZYX", block)
    write_meshes(tmp_path / "a", 0, scale, ids)
    assert content(tmp_path / "a/mesh") == whole


def test_memory_is_that_of_a_block(tmp_path, monkeypatch):
    """No read covers more than a block and the voxels that it shares with its neighbours."""
    monkeypatch.setattr(meshes, "BLOCK_ZYX", (9, 14, 13))
    scale, ids = random_layer(tmp_path / "a")
    shapes, real = [], surfaces.block_pieces

    def watched(labels, *others):
        shapes.append(labels.shape)
        return real(labels, *others)

    monkeypatch.setattr(surfaces, "block_pieces", watched)
    write_meshes(tmp_path / "a", 0, scale, ids)
    assert len(shapes) == 2 * 2 * 4 and np.max(shapes, axis=0).tolist() == [11, 19, 13]


def test_processes_and_shards_make_the_same_meshes(tmp_path, monkeypatch, cloud_volume):
    scale, ids = random_layer(tmp_path / "a")
    monkeypatch.setattr(meshes, "BLOCK_ZYX", (18, 34, 23))
    monkeypatch.setattr(shards, "SHARD_BYTES", 2000)  # many

    def read():
        info = json.loads((tmp_path / "a/info").read_text())
        (tmp_path / "a/info").write_text(json.dumps({**info, "mesh": "mesh"}))
        volume = cloud_volume(f"file://{tmp_path}/a", progress=False)
        return {one: volume.mesh.get(one)[one] for one in ids}

    write_meshes(tmp_path / "a", 0, scale, ids, [99], processes=2)
    assert len(list((tmp_path / "a/mesh").glob("*.shard"))) > 1
    several = read()
    shutil.rmtree(tmp_path / "a/mesh")
    monkeypatch.undo()
    write_meshes(tmp_path / "a", 0, scale, ids, [99])
    for segment_id, mesh in read().items():
        assert np.array_equal(mesh.vertices, several[segment_id].vertices)
        assert np.array_equal(mesh.faces, several[segment_id].faces)


def test_a_volume_without_segments_has_an_empty_mesh_folder(tmp_path):
    scale, _ = random_layer(tmp_path / "a")
    write_meshes(tmp_path / "a", 0, scale, [])
    assert [path.name for path in (tmp_path / "a/mesh").iterdir()] == ["info"]
