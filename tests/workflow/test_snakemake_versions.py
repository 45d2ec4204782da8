"""The oldest Snakemake that pyproject.toml allows, and the newest, complete a run; today's finds nothing left to do."""

import os
import subprocess
import sys

import h5py
import numpy as np
import pytest
import snakemake

from ffn.cli import main

from ..small_run import SMALL_RUN, Workflow
from .stubbed import write_stub

OLDEST = ["snakemake==9.17.0", "appdirs"]  # with what only older versions need
NEWEST = ["snakemake<10"]
NAME, SHAPE = "-a 'ü'$HOME;", (48, 40, 56)
REAL = ("ingest", "skeletonize")  # they open the files of such a name; Snakemake knows only that they are there


class OtherSnakemake(Workflow):
    """A workflow with another Snakemake than the installed one, and stages that only write files, but for `REAL`."""

    def environment(self):
        variables = super().environment()
        path = f"{write_stub(self.folder, REAL)}:{variables['PATH']}"
        return {**variables, "PATH": path, "PYTHONPATH": f"{self.folder}/other:{os.environ.get('PYTHONPATH', '')}"}


def write_mask(folder, dtype):
    with h5py.File(folder / "mask.h5", "w") as file:
        file["mask"] = np.zeros(SHAPE, dtype)


def config_of(folder):
    """Write volumes under a name that shells take apart, and configure a small run with them."""
    stores = [f"{folder}/{name}.zarr" for name in ("raw", NAME)]
    main(["synth", "--shape", *map(str, SHAPE), "--out-image", stores[0], "--out-labels", stores[1]])
    write_mask(folder, np.uint8)
    volume = {
        **{"image": f"{NAME}/raw.zarr", "labels": f"{NAME}/{NAME}.zarr", "masks": [{"path": f"{NAME}/mask.h5:mask"}]},
        **{"train_box": "0:28,0:40,0:56", "evaluate_box": "28:48,0:40,0:56"},
    }
    subvolumes = {"size_zyx": [48, 40, 35], "overlap_zyx": [14, 14, 14]}  # two
    return {**SMALL_RUN, "volumes": {"0-a_B": volume}, "subvolumes": subvolumes}


@pytest.mark.slow
@pytest.mark.parametrize("packages", [OLDEST, NEWEST], ids=["oldest", "newest"])
def test_a_run_of_another_snakemake_is_complete_and_watches_files_of_any_name(tmp_path, packages):
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", f"{tmp_path}/other"]
    if subprocess.run([*pip, *packages]).returncode != 0:
        pytest.skip("packages cannot be fetched here")
    (tmp_path / NAME).mkdir()
    workflow = OtherSnakemake(tmp_path, config_of(tmp_path / NAME))
    if (tmp_path / f"other/snakemake-{snakemake.__version__}.dist-info").exists():
        return  # it makes the runs of all other tests
    workflow.succeed()
    assert "Nothing to be" in workflow.plan()
    names = (workflow.results / "lists").glob("segment-0-a_B-*.txt")
    files = workflow.results.glob("segmentation/0-a_B/subvolumes/*.zarr")
    assert next(names).read_text().split() == sorted(str(file.relative_to(tmp_path)) for file in files)
    write_mask(tmp_path / NAME, np.uint16)
    assert "rule segment:" in workflow.plan()
