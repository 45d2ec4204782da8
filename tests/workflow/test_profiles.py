"""A profile that does not fit this machine, on Snakemake itself."""

import re
import shutil

import pytest

from ..small_run import ROOT, SMALL_RUN, Workflow, fork_snakemake

# What each profile submits, lists and cancels jobs with.
NEEDED = {"polaris": ["qsub", "qstat", "qdel"], "slurm": ["sbatch", "squeue", "scancel"]}


def fork_with(name, workflow, *arguments, **variables):
    """Run Snakemake for a workflow with a profile of ours."""
    places = ["--directory", str(workflow.folder), "--configfile", str(workflow.folder / "run.yaml")]
    chosen = ["--snakefile", str(ROOT / "Snakefile"), "--profile", str(ROOT / "profiles" / name)]
    return fork_snakemake([*arguments, *chosen, *places], workflow.folder, variables)


@pytest.mark.parametrize("name", NEEDED)
def test_a_profile_of_another_machine_stops_before_the_first_job_with_one_line(name, tmp_path):
    path = tmp_path / "bin"
    path.mkdir()
    for tool in ("bash", "which"):
        (path / tool).symlink_to(shutil.which(tool))
    workflow = Workflow(tmp_path / "run", SMALL_RUN)
    done = fork_with(name, workflow, "train_all", PATH=str(path))
    missing = " and no ".join(NEEDED[name])
    line = f"profile: no {missing} on this machine, expected {' '.join(NEEDED[name])}. Use a login node "
    assert (done.returncode, done.stdout.count(line)) == (1, 1), done.stdout
    assert "Traceback" not in done.stdout and "Submitted" not in done.stdout
    assert not workflow.results.exists()


@pytest.mark.parametrize("name", ["polaris", "slurm"])
def test_a_volume_of_several_shards_is_planned_with_every_profile(name, tmp_path):
    synthetic = {**SMALL_RUN["volumes"]["phantom"]["synthetic"], "shape_zyx": [64, 600, 600]}
    volumes = {"phantom": {"synthetic": synthetic}}
    config = {**SMALL_RUN, "volumes": volumes, "subvolumes": {"size_zyx": [64, 400, 400], "overlap_zyx": [14, 14, 14]}}
    config["agglomerate"] = {"enabled": True}
    workflow = Workflow(tmp_path / "run", config)
    done = fork_with(name, workflow, "all", "-n")
    assert done.returncode == 0 and "fill_blocks" in done.stdout, done.stdout[-2000:]


def test_without_a_limit_of_memory_no_job_asks_for_any(tmp_path):
    """Some sites refuse `--mem`; their profile says `mem_mb: 0`, and neither the plugin nor our module asks for 0."""
    output = Workflow(tmp_path, SMALL_RUN).plan("reconcile_all", "--resources", "mem_mb=0")
    assert set(re.findall(r"mem_mb=(\d+)", output)) == {"0"}
