"""Skeletons lie in their bodies."""

import numpy as np
import pytest

from ffn.assembly.components import connected_roots
from ffn.cli import main
from ffn.errors import EvaluationError
from ffn.evaluation.config import SkeletonizeConfig
from ffn.evaluation.skeletonize import expected_run_length, read_skeletons, read_thinned, skeletonize, step_for
from ffn.geometry import Box
from ffn.io import hdf5
from ffn.io.open import open_volume

from ...jobs import require_same_files, running
from .conftest import TUBE_SIZE_NM


def test_skeletons_lie_in_their_bodies_and_have_their_length(tmp_path, tubes):
    out = str(tmp_path / "skeletons.h5")
    assert main(["skeletonize", "--labels", tubes[0], "--min-voxels", "500", "--out", out]) == 0
    skeletons = read_skeletons(out)
    with open_volume(tubes[0]) as volume:
        z, y, x = (skeletons.voxels_zyx(TUBE_SIZE_NM) - volume.box.start).T
        assert np.array_equal(volume.read()[z, y, x], skeletons.owners)
    for owner in (3, 4):
        length = skeletons.edge_lengths_nm()[skeletons.owners[skeletons.edges[:, 0]] == owner].sum()
        assert 900 < length < 1500  # 60 voxels of 20 nm


@pytest.mark.parametrize("block_zyx", [(256, 256, 30), (12, 5, 9), (3, 4, 60)])
def test_blocks_give_about_the_skeletons_of_the_whole_volume(tmp_path, tubes, monkeypatch, block_zyx):
    """The least size is that of a tube, of which each block has a part."""
    found = []
    for block in (None, block_zyx):
        if block:
            monkeypatch.setattr("ffn.evaluation.skeletonize.BLOCK_ZYX", block)
        skeletons = skeletonize(tubes[0], tmp_path / f"{block}.h5", SkeletonizeConfig(min_voxels=4300))
        roots = connected_roots(len(skeletons.owners), skeletons.edges)
        segments = np.where(skeletons.nodes_zyx_nm[:, 2] > 1100, 40, skeletons.owners)  # the tubes begin at 600 nm
        scores = expected_run_length(skeletons, segments)
        found.append((len(np.unique(roots)), np.unique(skeletons.owners).tolist(), scores["nerl"]))
    assert found[0][:2] == found[1][:2] == (2, [3, 4])
    assert abs(found[0][2] - found[1][2]) < 0.05


def test_thin_stacks_keep_a_section_and_need_a_voxel_size(tmp_path):
    hdf5.write_arrays(tmp_path / "labels.h5", {"labels": np.ones((4, 5, 6), np.uint64)}, {})
    with pytest.raises(EvaluationError, match="labels.h5:labels"):
        skeletonize(f"{tmp_path}/labels.h5:labels", tmp_path / "out.h5", SkeletonizeConfig())
    assert not (tmp_path / "out.h5").exists()
    volume = Labels(np.arange(24).reshape(2, 3, 4), (0, 0, 0))
    step = step_for(40, (8.0, 8.0, 30.0), (2, 3, 4))
    assert step == (2, 3, 1)
    assert read_thinned(volume, volume.box, step).tolist() == [[volume.voxels[1, 1].tolist()]]


def test_jobs_and_killed_ones_give_the_bytes_of_one_process(tmp_path, tubes, monkeypatch):
    monkeypatch.setattr("ffn.evaluation.skeletonize.BLOCK_ZYX", (6, 12, 31))
    command = ["skeletonize", "--labels", tubes[0], "--min-voxels", "500", "--masks", "#box=10:22,20:60,30:33"]
    made = require_same_files(running(command, "skeletons.h5"), tmp_path, ["2-of-2", "1-of-2", ""])
    assert list(made) == ["skeletons.h5"]
    assert len(read_skeletons(tmp_path / "one/skeletons.h5").edges)


class Labels:
    """A volume in memory."""

    def __init__(self, voxels, start):
        self.voxels, self.box, self.dtype = voxels, Box.from_shape(voxels.shape, start), voxels.dtype

    def read(self, box):
        return self.voxels[box.slices(self.box.start)]


def test_the_middle_voxel_of_every_step_is_read_whatever_the_blocks(monkeypatch):
    rng = np.random.default_rng(0)
    volume = Labels(rng.integers(0, 99, (11, 23, 30)).astype(np.uint64), (3, -5, 8))
    expected = volume.voxels[1::3, 2::5, 0::1]
    assert np.array_equal(read_thinned(volume, volume.box, (3, 5, 1)), expected)
    monkeypatch.setattr("ffn.evaluation.skeletonize.READ_AT_ONCE", 6)
    assert np.array_equal(read_thinned(volume, volume.box, (3, 5, 1)), expected)
    assert step_for(40, (30.0, 10.0, 90.0), volume.box.shape) == (1, 4, 1)
