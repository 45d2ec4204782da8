"""Cores and memory in containers and jobs, from the files of control groups of both versions."""

import math
import os
from pathlib import Path

import pytest
import yte

from ffn.cluster.doctor import read_site
from ffn.errors import ConfigError
from ffn.machine import limits
from ffn.machine.limits import threads_here

PROFILE = Path(__file__).parents[3] / "profiles/local/config.yaml"


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Function that writes files of control groups on a machine of 8 cores."""
    monkeypatch.setattr(limits, "CGROUPS", tmp_path)
    monkeypatch.setattr(limits, "OWN_CGROUPS", tmp_path / "own")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    for name in ("OMP_NUM_THREADS", limits.SLURM_CORES):
        monkeypatch.delenv(name, raising=False)

    def write(own, texts):
        (tmp_path / "own").write_text(own)
        for name, text in texts.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(f"{text}\n")

    return write


VERSION_2 = (
    "0::/pod/job\n",
    {"pod/job/cpu.max": "max 100000", "pod/cpu.max": "250000 100000", "pod/memory.max": "2000000000"},
)
VERSION_1 = (
    "4:memory:/slurm/job_1\n2:cpu,cpuacct:/docker/of-the-host\n0::/\n",
    {
        "cpu/cpu.cfs_quota_us": "250000",
        "cpu/cpu.cfs_period_us": "100000",
        "memory/slurm/job_1/memory.limit_in_bytes": "2000000000",
        "memory/memory.limit_in_bytes": "9223372036854771712",
    },
)


@pytest.mark.parametrize("version", [VERSION_1, VERSION_2])
def test_limits_of_containers_count(files, version):
    files(*version)
    assert (limits.quota(), limits.memory_mb()) == (2.5, 2000)
    assert (threads_here(), threads_here(num_cores=1)) == (2, 1), "more would stand still for part of each period"
    assert (limits.cores_here(), threads_here()) == (8, 2)


@pytest.mark.parametrize("version", [VERSION_1, VERSION_2])
def test_the_local_profile_keeps_to_the_limits(files, version):
    files(*version)
    profile = yte.process_yaml(PROFILE.read_text())
    assert (profile["cores"], profile["resources"]["mem_mb"]) == (2, 2000)
    assert read_site("local", 1).layout.depth == 1, "what the doctor expects"


def test_limits_that_are_absent_or_cannot_be_read_do_not_count(files, monkeypatch):
    files("0::/\n", {"cpu.max": "max 100000", "cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"})
    assert (limits.quota(), threads_here()) == (math.inf, 8)
    files(*VERSION_2)

    def refused(path):
        raise PermissionError(path)

    monkeypatch.setattr(Path, "read_text", lambda path: "0::/pod/job" if path.name == "own" else refused(path))
    assert limits.quota() == math.inf and limits.usable_cores() == 8 and limits.memory_mb() > 2000


def test_a_job_of_slurm_takes_its_own_cores_where_the_site_binds_it_to_none(files, monkeypatch):
    files("", {})
    monkeypatch.setenv(limits.SLURM_CORES, "4")
    assert threads_here() == limits.cores_here() == 4
    assert threads_here(num_cores=8) == 8, "a launcher gave these cores to the process"


@pytest.mark.parametrize(
    ("listed", "expected"), [(None, 3), ("0,2", 2), ("GPU-8a2b", 1), ("", 0), ("-1", 0), ("1,-1,2", 1), ("0,1,2,3", 3)]
)
def test_gpus_that_are_hidden_do_not_count(tmp_path, monkeypatch, listed, expected):
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidiactl"):
        (tmp_path / name).touch()
    monkeypatch.setattr(limits, "DEVICES", tmp_path)
    if listed is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    profile = yte.process_yaml(PROFILE.read_text())
    assert limits.gpus_here() == profile["resources"]["gpu"] == expected


@pytest.mark.parametrize(("value", "threads"), [("2", 2), ("2,1", 2), (" 03 ", 3), ("", 8)])
def test_the_variable_decides_on_the_threads(files, monkeypatch, value, threads):
    files("", {})
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    assert threads_here() == threads_here(num_cores=8) == threads


@pytest.mark.parametrize("value", ["two", "0", "-1", "1.5"])
def test_another_value_is_refused(monkeypatch, value):
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    with pytest.raises(ConfigError, match=f"OMP_NUM_THREADS: found '{value}'"):
        threads_here()
