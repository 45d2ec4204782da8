"""A profile that does not fit this machine, on Snakemake itself."""

import shutil

import pytest

from ..small_run import ROOT, SMALL_RUN, Workflow, fork_snakemake

# What each profile submits, lists and cancels jobs with, and what starts its ranks.
NEEDED = {
    "theta": ["qsub", "qstat", "qdel", "aprun"],
    "polaris": ["qsub", "qstat", "qdel", "mpiexec"],
    "slurm": ["sbatch", "squeue", "scancel", "srun"],
    "slurm-generic": ["sbatch", "squeue", "scancel", "ffn"],
    "local": ["mpirun"],
}
LAUNCHER = ["--set-resources", "train:launcher=KMP_BLOCKTIME=0 mpirun -np {ranks}"]  # instead of our own


@pytest.mark.parametrize("name", NEEDED)
def test_a_profile_of_another_machine_stops_before_the_first_job_with_one_line(name, tmp_path):
    path = tmp_path / "bin"
    path.mkdir()
    for tool in ("bash", "which"):
        (path / tool).symlink_to(shutil.which(tool))
    workflow = Workflow(tmp_path / "run", SMALL_RUN)
    places = ["--directory", str(workflow.folder), "--configfile", str(workflow.folder / "run.yaml")]
    arguments = ["train_all", "--snakefile", str(ROOT / "Snakefile"), "--profile", str(ROOT / "profiles" / name)]
    arguments += [*places, *(LAUNCHER if name == "local" else [])]
    done = fork_snakemake(arguments, workflow.folder, {"PATH": str(path)})
    missing = " and no ".join(command for command in NEEDED[name] if command != "ffn")  # which Snakemake brings
    line = f"profile: no {missing} on this machine, expected {' '.join(NEEDED[name])}. Start Snakemake on a login node "
    assert (done.returncode, done.stdout.count(line)) == (1, 1), done.stdout
    assert "Traceback" not in done.stdout and "Submitted" not in done.stdout
    assert not workflow.results.exists()
