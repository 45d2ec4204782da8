"""Every profile is found by its name from the repository's root, is complete, and does not change results."""

from pathlib import Path

import pytest
import yaml

from ffn.cluster.batch import STATE, scheduler_of

from ...small_run import fork_snakemake, shown

ROOT = Path(__file__).parents[3]
PROFILES = ["local", "theta", "polaris", "slurm", "slurm-generic"]
SCHEDULERS = {"theta": "cobalt", "polaris": "pbs", "slurm-generic": "slurm"}


def profile(name):
    return yaml.safe_load((ROOT / name / "config.yaml").read_text())


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_is_linked_from_the_root_and_sets_no_configuration(name):
    assert (ROOT / name).is_symlink() and (ROOT / name).resolve() == ROOT / "profiles" / name
    assert not {"configfile", "config", "default"} & profile(name).keys()


@pytest.mark.parametrize("name", PROFILES[1:])
def test_a_cluster_profile_is_complete(name):
    values = profile(name)
    train = values["set-resources"]["train"]
    assert {"launcher", "ranks_per_node", "cores_per_node"} <= train.keys()
    assert values["retries"] >= 1 and values["latency-wait"] >= 60 and values["jobs"] <= 100


@pytest.mark.parametrize(("name", "scheduler"), SCHEDULERS.items())
def test_a_batch_profile_names_its_scheduler_in_its_commands(name, scheduler):
    values = profile(name)
    submit, status = (values[f"cluster-generic-{command}-cmd"] for command in ("submit", "status"))
    assert scheduler_of(submit).name == scheduler
    assert status == submit.replace(" submit ", " status ")
    assert values["cluster-generic-cancel-cmd"] == str(STATE / "cancel"), "the script that submitting writes"


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("local", "ffn launch --num-ranks 2 --launcher local -- ffn train "),
        ("theta", "aprun -n 2 -N 1 -d 64 -j 1 -cc depth -e OMP_NUM_THREADS=64 -e KMP_BLOCKTIME=0 ffn train "),
        ("polaris", "mpiexec -n 2 --ppn 2 --depth 16 --cpu-bind depth --env OMP_NUM_THREADS=16"),
    ],
)
def test_a_profile_works_by_its_name(name, line):
    arguments = ["--profile", name, "-n", "-p", "--nolock", "--forceall", "train"]
    assert line in shown(fork_snakemake(arguments, ROOT))
