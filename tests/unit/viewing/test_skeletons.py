"""Skeletons in the middle of their neurites, as long as they, whole across blocks; read by cloud-volume."""

import json

import numpy as np
import pytest

from ffn.geometry import Box
from ffn.io.coarser import Scale
from ffn.viewing import skeletons
from ffn.viewing.precomputed import LABELS

from .written import write_skeletons, write_volume

SIZE_NM = (40.0, 20.0, 10.0)
BOX = Box((11, -7, 300), (11 + 16, -7 + 40, 300 + 150))
BIG = 2**63 + 11
RADIUS_NM = 120.0


def two_tubes():
    """Round neurites along x, 240 nm thick, that end 100 nm before the volume does."""
    z, y, x = np.indices(BOX.shape)
    labels = np.zeros(BOX.shape, np.uint64)
    for segment_id, centre in ((5, 10), (BIG, 28)):
        inside = ((z - 8) * 40.0) ** 2 + ((y - centre) * 20.0) ** 2 < RADIUS_NM**2
        labels[inside & (x >= 10) & (x < 140)] = segment_id
    return labels


@pytest.fixture
def read_skeleton(tmp_path, cloud_volume):
    """Write the tubes and their skeletons, and return a function that reads one with cloud-volume."""
    scale, labels = Scale(BOX, SIZE_NM), two_tubes()
    write_volume(tmp_path / "a", LABELS, [scale], lambda block: labels[block.slices(BOX.start)])

    def read(segment_id, processes=1):
        write_skeletons(tmp_path / "a", 0, scale, [5, BIG, 99], [7], processes)
        info = json.loads((tmp_path / "a/info").read_text())
        (tmp_path / "a/info").write_text(json.dumps({**info, "skeletons": "skeletons"}))
        return cloud_volume(f"file://{tmp_path}/a", progress=False).skeleton.get(segment_id)

    return read


@pytest.mark.parametrize(("segment_id", "centre"), [(5, 10), (BIG, 28)])
def test_a_skeleton_reaches_both_ends_of_its_neurite(read_skeleton, segment_id, centre):
    skeleton = read_skeleton(segment_id)
    x, y, z = skeleton.vertices.T
    assert x.min() == 3105 and x.max() == 4395, "centres of the first and the last voxel"
    assert np.median(z) == (11 + 8.5) * 40 and np.median(y) == (-7 + centre + 0.5) * 20
    assert np.median(skeleton.radii) == pytest.approx(RADIUS_NM, abs=20)
    assert len(skeleton.edges) == len(skeleton.vertices) - 1


def test_blocks_are_joined_into_one_tree(read_skeleton, monkeypatch):
    """A skeleton may end 300 nm plus 1.5 radii early, as a branch may."""
    monkeypatch.setattr(skeletons, "BLOCK_ZYX", (256, 256, 47))
    skeleton = read_skeleton(5)
    x = skeleton.vertices[:, 0]
    assert x.min() <= 3105 + 480 and x.max() >= 4395 - 480
    assert len(skeleton.components()) == 1 and len(skeleton.edges) == len(skeleton.vertices) - 1
    assert skeleton.cable_length() == pytest.approx(np.ptp(x), abs=300)


def test_processes_make_the_same_bytes(read_skeleton, monkeypatch, tmp_path):
    monkeypatch.setattr(skeletons, "BLOCK_ZYX", (16, 40, 90))
    read_skeleton(5)
    first = {file.name: file.read_bytes() for file in (tmp_path / "a/skeletons").iterdir()}
    read_skeleton(5, processes=2)
    assert {file.name: file.read_bytes() for file in (tmp_path / "a/skeletons").iterdir()} == first


def test_the_radius_is_declared(read_skeleton, tmp_path):
    read_skeleton(5)
    info = json.loads((tmp_path / "a/skeletons/info").read_text())
    assert info["vertex_attributes"] == [{"id": "radius", "data_type": "float32", "num_components": 1}]
    assert {path.suffix or path.name for path in (tmp_path / "a/skeletons").iterdir()} == {".shard", "info"}


@pytest.mark.parametrize("segment_id", [99, 7])
def test_segments_too_small_have_an_empty_skeleton(read_skeleton, segment_id):
    assert len(read_skeleton(segment_id).vertices) == 0
