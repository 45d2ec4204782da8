"""Two runs: one at mip 1 of a source without mips, and one at full resolution that begins with its segments."""

import numpy as np
import pytest

from ..small_run import SMALL_RUN, Workflow, shown
from ..unit.volumes import read

SOURCE = {"image": "raw.npy", "voxel_size_zyx_nm": [10, 10, 10]}
COARSE = {**SOURCE, "mip": 1}


@pytest.mark.slow
def test_a_coarse_run_guides_a_fine_one(finished, tmp_path):
    np.save(tmp_path / "raw.npy", read(finished.results / "volumes/phantom/raw.zarr"))
    given = {**SMALL_RUN, "init": str(finished.results / "model"), "train": {"max_steps": 0, "permutable_axes": []}}
    coarse = Workflow(tmp_path, {**given, "run": "coarse", "volumes": {"cube": COARSE}})
    shown(coarse.fork("reconcile_all"))
    segments = coarse.results / "segmentation/cube/segmentation.zarr"

    volume = {**SOURCE, "init_segmentation": str(segments.relative_to(tmp_path))}
    fine = Workflow(tmp_path, {**given, "run": "fine", "volumes": {"cube": volume}})
    shown(fine.fork("reconcile_all"))
    coarse_ids = read(segments).repeat(2, 0).repeat(2, 1).repeat(2, 2)
    found = read(fine.results / "segmentation/cube/segmentation.zarr")
    assert coarse_ids.shape == found.shape == (64, 56, 72) and coarse_ids.any()
    smallest = 1e6 * SMALL_RUN["reconcile"]["min_component_um3"]
    for segment in np.unique(coarse_ids[coarse_ids > 0]).tolist():
        voxels = found[coarse_ids == segment]
        if len(voxels) >= smallest:  # a number of coarse voxels is rounded, so a given one may be a bit smaller
            assert len(np.unique(voxels[voxels > 0])) == 1
        # what a border of subvolumes cuts off is dropped if it is small
        assert np.count_nonzero(voxels == 0) < smallest
    assert found[coarse_ids == 0].any()
