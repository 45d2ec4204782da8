"""Skeletons lie in their bodies."""

import numpy as np
import pytest

from ffn.cli import main
from ffn.errors import EvaluationError
from ffn.evaluation.config import SkeletonizeConfig
from ffn.evaluation.run_length import segments_at
from ffn.evaluation.skeletonize import skeletonize
from ffn.evaluation.skeletons import read_skeletons
from ffn.io import hdf5
from ffn.io.open import open_volume

from .conftest import TUBE_SIZE_NM


def test_skeletons_lie_in_their_bodies_and_have_their_length(tmp_path, tubes):
    out = str(tmp_path / "skeletons.h5")
    assert main(["skeletonize", "--labels", tubes[0], "--min-voxels", "500", "--out", out]) == 0
    skeletons = read_skeletons(out)
    with open_volume(tubes[0]) as volume:
        at = segments_at(volume.read, skeletons.voxels_zyx(TUBE_SIZE_NM), volume.box, (8, 8, 8))
    assert np.array_equal(at, skeletons.owners)
    for owner in (3, 4):
        length = skeletons.edge_lengths_nm()[skeletons.owners[skeletons.edges[:, 0]] == owner].sum()
        assert 900 < length < 1500  # 60 voxels of 20 nm


def test_a_volume_without_voxel_size_is_refused(tmp_path):
    hdf5.write_arrays(tmp_path / "labels.h5", {"labels": np.ones((4, 5, 6), np.uint64)}, {})
    with pytest.raises(EvaluationError, match="labels.h5:labels: has no voxel size, it is needed to measure lengths"):
        skeletonize(f"{tmp_path}/labels.h5:labels", tmp_path / "out.h5", SkeletonizeConfig())
    assert not (tmp_path / "out.h5").exists()
