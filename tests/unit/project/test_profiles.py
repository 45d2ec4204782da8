"""Every profile is found by its name from the repository's root, and says the same about the science: nothing."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
PROFILES = ["local", "theta", "polaris", "slurm", "slurm-generic"]


def profile(name):
    return yaml.safe_load((ROOT / name / "config.yaml").read_text())


@pytest.mark.parametrize("name", PROFILES)
def test_profiles_are_linked_from_the_root(name):
    assert (ROOT / name).is_symlink() and (ROOT / name).resolve() == ROOT / "profiles" / name
    assert not {"configfile", "config", "default"} & profile(name).keys()


@pytest.mark.parametrize("name", PROFILES[1:])
def test_cluster_profiles_are_complete(name):
    values = profile(name)
    train = values["set-resources"]["train"]
    assert {"launcher", "ranks_per_node", "cores_per_node"} <= train.keys()
    assert values["retries"] >= 1 and values["latency-wait"] >= 60 and values["jobs"] <= 100


def test_there_is_no_default_profile():
    """Snakemake would load it silently, beside any other."""
    assert not (ROOT / "profiles/default").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("local", "ffn launch --num-ranks 2 --launcher local -- ffn train "),
        ("theta", "aprun -n 2 -N 1 -d 64 -j 1 -cc depth -e OMP_NUM_THREADS=64 -e KMP_BLOCKTIME=0 ffn train "),
        ("polaris", "mpiexec -n 2 --ppn 2 --depth 16 --cpu-bind depth --env OMP_NUM_THREADS=16"),
    ],
)
def test_a_profile_is_a_name(name, line):
    command = [sys.executable, "-m", "snakemake", "--profile", name, "-n", "-p", "--nolock", "--forceall", "train"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert line in done.stdout + done.stderr


@pytest.mark.slow
def test_variables_of_the_staging_folder_are_those_of_each_node(tmp_path):
    """The shell would stop at one that it does not know, and fill in those of the first node."""
    shutil.copytree(ROOT / "profiles/slurm", tmp_path / "site")
    place = tmp_path / "site/config.yaml"
    values = yaml.safe_load(place.read_text())
    values["set-resources"]["train"]["stage_to"] = "$NODE_DISK"
    place.write_text(yaml.safe_dump(values))
    command = [sys.executable, "-m", "snakemake", "--profile", str(place.parent), "-n", "-p", "--forceall", "train"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert "--stage-to '$NODE_DISK' " in done.stdout + done.stderr
