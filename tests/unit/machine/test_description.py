"""What a machine has for a network, and what makes it slow."""

import dataclasses

import pytest

from ffn.machine.description import Machine, this_machine
from ffn.machine.gpu_evidence import Card

FAST = Machine(8, "Xeon", "AMX", memory_mb=32_000, threads=8, all_cores=64)


def test_a_machine_is_one_line():
    gpus = (Card("NVIDIA A100", "550", (8, 0)),) * 2
    assert FAST.title == "8 cores (Xeon, AMX), no GPU, 32 GB of memory"
    assert dataclasses.replace(FAST, cards=gpus).title == "8 cores (Xeon, AMX), 2 GPUs (NVIDIA A100), 32 GB of memory"
    limited = dataclasses.replace(FAST, quota=1.5)
    assert limited.title == "the time of 1.5 of 8 cores (Xeon, AMX), no GPU, 32 GB of memory"
    assert "\n" not in this_machine().title


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"units": "AVX-512"}, "the CPU has no AMX"),
        ({"units": "AVX2"}, "the CPU has neither AMX nor AVX-512"),
        ({"units": ""}, "the CPU has neither AMX nor AVX-512 nor AVX2"),
        ({"units": "AVX2", "isa_limit": "AVX2"}, "ONEDNN_MAX_CPU_ISA=AVX2 holds the CPU back"),
        ({"quota": 1.5}, "the container may use the time of 1.5 of 8 cores. Raise the quota, or set OMP_NUM_THREADS=1"),
        ({"threads": 2}, "OMP_NUM_THREADS=2 of 8 cores"),
        ({"load": 17.0}, "other processes keep about 17.0 of 64 cores of the machine busy"),
        ({"load": 99.0}, "other processes keep about 64.0 of 64 cores of the machine busy"),
    ],
)
def test_what_makes_it_slow_is_named(changes, reason):
    assert FAST.slowed_by == []
    (found,) = dataclasses.replace(FAST, **changes).slowed_by
    assert found.startswith(reason)


@pytest.mark.parametrize(("quota", "threads"), [(2.0, 2), (1.5, 1), (0.5, 1)])
def test_threads_that_fit_a_quota_are_no_fault(quota, threads):
    (found,) = dataclasses.replace(FAST, quota=quota, threads=threads).slowed_by
    assert found == f"the container may use the time of {quota:g} of 8 cores. Raise the quota"


@pytest.mark.parametrize("change", [{"load": 15.0}, {"isa_limit": "ALL"}, {"isa_limit": "DEFAULT"}])
def test_what_does_not_slow_it_is_not_named(change):
    assert dataclasses.replace(FAST, **change).slowed_by == []
