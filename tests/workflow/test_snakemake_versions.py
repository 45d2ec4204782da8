"""The oldest Snakemake that pyproject.toml allows, and the newest, run the small pipeline to the same bytes."""

import os
import subprocess
import sys

import pytest
import snakemake

from ..small_run import SMALL_RUN, Workflow, digest

OLDEST = ["snakemake==9.17.0", "appdirs"]  # with what only older versions need
NEWEST = ["snakemake<10"]
FINAL = ["model/weights.h5", "segmentation/phantom/segmentation.zarr/zarr.json", "evaluation/phantom.json"]


class OtherSnakemake(Workflow):
    """A workflow with another Snakemake than the installed one."""

    def environment(self):
        return {**super().environment(), "PYTHONPATH": f"{self.folder}/other:{os.environ.get('PYTHONPATH', '')}"}


@pytest.mark.slow
@pytest.mark.parametrize("packages", [OLDEST, NEWEST], ids=["oldest", "newest"])
def test_another_snakemake_makes_the_same(finished, tmp_path, packages):
    workflow = OtherSnakemake(tmp_path / "run", SMALL_RUN)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", f"{workflow.folder}/other"]
    if subprocess.run([*pip, *packages]).returncode != 0:
        pytest.skip("packages cannot be fetched here")
    version = subprocess.run(
        [sys.executable, "-m", "snakemake", "--version"],
        env=workflow.environment(),
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    if version == snakemake.__version__:
        return  # it made the run to compare with
    workflow.succeed()
    for name in FINAL:
        assert digest(workflow.results / name) == digest(finished.results / name), name
