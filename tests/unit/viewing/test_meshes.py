"""Meshes at the right place, readable by cloud-volume, as detailed as their size deserves."""

import json

import numpy as np
import pytest
import tensorstore as ts

from ffn.geometry import Box
from ffn.viewing.meshes import surfaces, write_meshes
from ffn.viewing.precomputed import LABELS, Scale, write_volume
from ffn.viewing.shards import Item, write_shards

SIZE_NM = (40.0, 20.0, 10.0)
BIG = 2**63 + 11


@pytest.fixture
def make_layer(tmp_path, cloud_volume):
    """Write a volume of one mip with meshes, and open it with cloud-volume."""

    def make(box, labels, segment_ids):
        scale, path = Scale(box, SIZE_NM), tmp_path / "labels"
        write_volume(path, LABELS, [scale], lambda block: labels[block.slices(box.start)])
        write_meshes(path / "mesh", labels, scale, segment_ids)
        info = json.loads((path / "info").read_text())
        (path / "info").write_text(json.dumps({**info, "mesh": "mesh"}))
        return cloud_volume(f"file://{path}", progress=False)

    return make


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
    return (low * SIZE_NM)[::-1], (high * SIZE_NM)[::-1]


def num_lods(volume, segment_id):
    return volume.mesh.get_manifest(segment_id).num_lods


def z_order(position):
    """Interleave the bits of x, y, z as text, most significant first."""
    x, y, z = (f"{n:08b}" for n in position)
    return "".join(c + b + a for a, b, c in zip(x, y, z, strict=True))


@pytest.mark.parametrize("segment_id", [BIG, 5])
def test_meshes_end_where_their_voxels_end_at_every_level_of_detail(make_layer, segment_id):
    box, labels = two_boxes()
    volume = make_layer(box, labels, [5, BIG])
    low, high = extent_nm(box, labels, segment_id)
    for lod in range(num_lods(volume, segment_id)):
        vertices = volume.mesh.get(segment_id, lod=lod)[segment_id].vertices
        assert np.abs(vertices.min(0) - low).max() <= max(SIZE_NM)
        assert np.abs(vertices.max(0) - high).max() <= max(SIZE_NM)


def test_large_meshes_have_levels_of_detail_of_fewer_triangles(make_layer):
    """A long wavy tube; each level keeps its length."""
    box = Box.from_shape((24, 40, 260))
    z, y, x = np.indices(box.shape)
    wave = 20 + 8 * np.sin(x / 20)
    labels = ((z - 12) ** 2 * 4 + (y - wave) ** 2 < 90).astype(np.uint64) * 7
    volume = make_layer(box, labels, [7])
    levels = [volume.mesh.get(7, lod=lod)[7] for lod in range(num_lods(volume, 7))]
    assert len(levels) >= 3
    assert all(len(b.faces) < len(a.faces) for a, b in zip(levels, levels[1:], strict=False))
    assert all(np.ptp(mesh.vertices[:, 0]) == pytest.approx(2600, abs=40) for mesh in levels)


def test_octree_nodes_are_in_z_order_and_have_parents(make_layer):
    box = Box.from_shape((40, 80, 160))
    labels = np.full(box.shape, 3, np.uint64)
    labels[10:, 20:, 30:] = 0
    volume = make_layer(box, labels, [3])
    manifest = volume.mesh.get_manifest(3)
    assert manifest.num_lods > 1
    for lod, positions in enumerate(manifest.fragment_positions):
        codes = [z_order(position) for position in positions.astype(int)]
        assert codes == sorted(set(codes))
        if lod:
            parents = {tuple(p // 2) for p in manifest.fragment_positions[lod - 1].astype(int)}
            assert parents <= {tuple(p) for p in positions.astype(int)}


def test_surfaces_are_closed_and_of_wanted_segments_only():
    _, labels = two_boxes()
    found = dict(surfaces(labels, SIZE_NM, [5, 99]))
    assert list(found) == [5]
    faces = np.sort(np.concatenate([found[5].faces[:, pair] for pair in ([0, 1], [1, 2], [2, 0])]), axis=1)
    _, times = np.unique(faces, axis=0, return_counts=True)
    assert (times == 2).all(), "an edge without two triangles is a hole"


def test_a_volume_without_segments_has_an_empty_mesh_folder(tmp_path):
    box = Box.from_shape((4, 5, 6))
    write_meshes(tmp_path / "mesh", np.zeros(box.shape, np.uint64), Scale(box, SIZE_NM), [])
    assert [path.name for path in (tmp_path / "mesh").iterdir()] == ["info"]


def test_shards_return_every_value_with_its_prefix(tmp_path, monkeypatch):
    """Read with TensorStore, from several files with several minishards each."""
    monkeypatch.setattr("ffn.viewing.shards.SHARD_BYTES", 2000)
    monkeypatch.setattr("ffn.viewing.shards.MINISHARD_ITEMS", 4)
    rng = np.random.default_rng(3)
    ids = [1, BIG, *(int(i) for i in rng.integers(1, 2**63, 60))]
    items = {i: Item(rng.bytes(rng.integers(1, 90)), rng.bytes(rng.integers(0, 50))) for i in ids}
    spec = write_shards(tmp_path, items)
    assert spec["shard_bits"] >= 1 and spec["minishard_bits"] >= 1
    base = {"driver": "file", "path": f"{tmp_path}/"}
    reader = ts.KvStore.open({"driver": "neuroglancer_uint64_sharded", "metadata": spec, "base": base}).result()
    contents = b"|".join(path.read_bytes() for path in tmp_path.iterdir())
    for segment_id, item in items.items():
        assert reader.read(segment_id.to_bytes(8, "big")).result().value == item.value
        assert item.prefix + item.value in contents
    assert reader.read((2).to_bytes(8, "big")).result().state == "missing"
