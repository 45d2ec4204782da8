"""Two runs: one at mip 1 of a source without mips, and one at full resolution that begins with its segments."""

import numpy as np
import pytest

from ffn.cli import main

from ..small_run import SMALL_RUN, Workflow, shown
from ..unit.volumes import read

SOURCE = {"image": "raw.npy", "voxel_size_zyx_nm": [10, 10, 10]}
LABELLED = {**SOURCE, "labels": "labels.npy", "mip": 1, "evaluate_box": "none"}


@pytest.mark.slow
def test_a_coarse_run_guides_a_fine_one(tmp_path):
    made = [f"{tmp_path}/{name}.zarr" for name in ("raw", "labels")]
    assert main(["synth", "--shape", "64", "56", "72", "--out-image", made[0], "--out-labels", made[1]]) == 0
    for store in made:
        np.save(store.replace(".zarr", ".npy"), read(store))
    trained = {"train": {**SMALL_RUN["train"], "num_workers": 1, "max_steps": 240, "engine": "jax"}}
    coarse = Workflow(tmp_path, {**SMALL_RUN, **trained, "run": "coarse", "volumes": {"cube": LABELLED}})
    shown(coarse.fork("reconcile_all"))
    segments = coarse.results / "segmentation/cube/segmentation.zarr"

    volume = {**SOURCE, "init_segmentation": str(segments.relative_to(tmp_path))}
    untrained = {"init": "results/coarse/model", "train": {"max_steps": 0, "permutable_axes": []}}
    fine = Workflow(tmp_path, {**SMALL_RUN, **untrained, "run": "fine", "volumes": {"cube": volume}})
    shown(fine.fork("reconcile_all"))
    given = read(segments).repeat(2, 0).repeat(2, 1).repeat(2, 2)
    found = read(fine.results / "segmentation/cube/segmentation.zarr")
    assert given.shape == found.shape == (64, 56, 72) and given.any()
    smallest = 1e6 * SMALL_RUN["reconcile"]["min_component_um3"]
    for segment in np.unique(given[given > 0]).tolist():
        voxels = found[given == segment]
        if len(voxels) >= smallest:  # a number of coarse voxels is rounded, so a given one may be a bit smaller
            assert len(np.unique(voxels[voxels > 0])) == 1
        # what a border of subvolumes cuts off is dropped if it is small
        assert np.count_nonzero(voxels == 0) < smallest
    assert found[given == 0].any()
