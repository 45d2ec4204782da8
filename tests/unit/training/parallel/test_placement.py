"""Processes on one machine divide its cores, unless the launcher already did."""

import os
import subprocess
import sys
import textwrap
from typing import NamedTuple

import pytest

from ffn.training.config import TrainConfig
from ffn.training.parallel import joining
from ffn.training.parallel.joining import assign_cores, configure_libraries, share_of_cores
from ffn.training.parallel.process_group import ProcessGroup


def shares(masks):
    frozen = {process: frozenset(mask) for process, mask in masks.items()}
    return {process: sorted(share_of_cores(frozen, process)) for process in masks}


def test_cores_of_all_processes_are_divided_without_parting_hyperthreads(monkeypatch):
    monkeypatch.setattr(joining, "_location_in_machine", lambda core: core)
    everything = range(8)
    assert shares({30: everything, 10: everything, 20: everything}) == {10: [0, 1], 20: [2, 3, 4], 30: [5, 6, 7]}

    def location(core):  # two sockets of two cores of two threads, numbered as by Linux
        return core % 4 // 2, core % 2, core

    monkeypatch.setattr(joining, "_location_in_machine", location)
    assert shares({1: range(8), 2: range(8)}) == {1: [0, 1, 4, 5], 2: [2, 3, 6, 7]}
    bound = {1: [0, 1], 2: [2, 3], 3: [4], 4: [5, 6, 7]}
    assert shares(bound) == bound


PROCESS = textwrap.dedent(
    """
    import os, sys, threading
    from ffn.training.parallel.process_group import ProcessGroup
    from ffn.training.parallel.joining import assign_cores

    group = ProcessGroup()
    group.size = group.local_size = 2
    group.rank = -1
    threading.Thread(target=threading.Event().wait, daemon=True).start()  # like Horovod's, it keeps all cores
    print(flush=True)
    sys.stdin.readline()
    mine = assign_cores(group)
    print(sorted(mine), sorted(os.sched_getaffinity(0)), flush=True)
    sys.stdin.readline()
    """
)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core cannot be divided")
def test_two_processes_of_a_job_find_each_other(tmp_path):
    command = [sys.executable, "-c", PROCESS, str(tmp_path)]  # no other job on this machine has this line
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    everything = sorted(os.sched_getaffinity(0))
    with subprocess.Popen(command, **pipes) as one, subprocess.Popen(command, **pipes) as other:
        for process in (one, other):
            process.stdout.readline()
        lines = []
        for process in (one, other):  # the first is already bound when the second decides
            process.stdin.write("go\n")
            process.stdin.flush()
            lines.append(process.stdout.readline().strip())
    half = len(everything) // 2
    share = [everything[:half], everything[half:]]
    if len(everything) == 2:  # with more cores, hyperthreads decide what a half is
        assert sorted(lines) == [f"{share[i]} {share[i]}" for i in range(2)]
    assert len(set(lines)) == 2


def test_processes_without_a_group_are_not_bound_one_after_the_other(monkeypatch):
    everything = sorted(os.sched_getaffinity(0))
    masks = {0: frozenset(everything[:1]), os.getpid(): frozenset(everything)}  # as the second of two finds them
    monkeypatch.setattr(joining, "_masks_of_local_ranks", lambda: masks)
    monkeypatch.setattr(os, "cpu_count", lambda: len(everything))
    group = ProcessGroup()
    group.local_rank, group.local_size = 1, 2
    halves = share_of_cores(dict.fromkeys(range(2), frozenset(everything)), 1)
    assert assign_cores(group) == halves
    assert sorted(os.sched_getaffinity(0)) == everything


class Gpu(NamedTuple):
    name: str


GPUS = [Gpu("GPU:0"), Gpu("GPU:1"), Gpu("GPU:2")]
growing: list[tuple[Gpu, bool]] = []


class SecondRank(ProcessGroup):
    rank = local_rank = 1
    size = 2


def too_late(*_):
    raise RuntimeError("TensorFlow is already initialized")


@pytest.fixture
def visible(monkeypatch):
    """GPUs that TensorFlow sees, in a process where it has already fixed its threads."""
    growing.clear()
    import keras
    import tensorflow as tf

    visible = list(GPUS)
    monkeypatch.setattr(keras.utils, "set_random_seed", lambda seed: None)
    monkeypatch.setattr(tf.config.experimental, "enable_op_determinism", lambda: None)
    monkeypatch.setattr(tf.config.threading, "set_intra_op_parallelism_threads", too_late)
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: GPUS)
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: visible)
    monkeypatch.setattr(tf.config, "set_visible_devices", lambda gpus, kind: visible.__setitem__(slice(None), gpus))
    monkeypatch.setattr(tf.config.experimental, "set_memory_growth", lambda gpu, grows: growing.append((gpu, grows)))
    for name in ("PJRT_NPROC", "XLA_FLAGS", "XLA_PYTHON_CLIENT_PREALLOCATE"):
        monkeypatch.setenv(name, "")  # so that they are restored
        monkeypatch.delenv(name)
    return visible


def test_a_rank_takes_its_own_gpu_and_tensorflow_leaves_those_of_jax(visible):
    configure_libraries(SecondRank(), TrainConfig(engine="jax"), 1)
    assert visible == growing == []
    configure_libraries(SecondRank(), TrainConfig(), 1)
    assert visible == [GPUS[1]] and growing == [(GPUS[1], True)]  # or two ranks could not share a GPU


def test_jax_is_to_be_deterministic_to_keep_to_the_threads_and_to_leave_memory_to_others(visible, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=x")
    configure_libraries(ProcessGroup(), TrainConfig(intra_op_threads=3), 1)
    assert os.environ["XLA_FLAGS"] == "--xla_dump_to=x --xla_gpu_deterministic_ops=true"
    assert (os.environ["PJRT_NPROC"], os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"]) == ("3", "false")
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_deterministic_ops=false")  # what a user gave stays
    configure_libraries(ProcessGroup(), TrainConfig(), 1)
    assert os.environ["XLA_FLAGS"] == "--xla_gpu_deterministic_ops=false"
