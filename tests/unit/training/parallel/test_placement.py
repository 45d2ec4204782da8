"""Processes on one machine get cores of their own, unless the launcher has seen to it."""

import os
import subprocess
import sys
import textwrap

import pytest

from ffn.machine.threads import threads_here
from ffn.training.parallel.placement import assign_cores, share_of_cores
from ffn.training.parallel.process_group import ProcessGroup


def shares(masks, key=None):
    frozen = {process: frozenset(mask) for process, mask in masks.items()}
    return {process: sorted(share_of_cores(frozen, process, key)) for process in masks}


def by_number(core):
    return core


def test_what_all_may_use_is_divided():
    everything = range(8)
    assert shares({30: everything, 10: everything, 20: everything}, by_number) == {
        10: [0, 1],
        20: [2, 3, 4],
        30: [5, 6, 7],
    }


def test_hyperthreads_of_a_core_stay_together():
    def place_in_machine(core):  # two sockets of two cores of two threads; threads numbered as Linux does
        return core % 4 // 2, core % 2, core

    both = shares({1: range(8), 2: range(8)}, place_in_machine)
    assert both == {1: [0, 1, 4, 5], 2: [2, 3, 6, 7]}


def test_what_a_launcher_gave_to_one_process_alone_is_never_made_smaller():
    bound = {1: [0, 1], 2: [2, 3], 3: [4], 4: [5, 6, 7]}
    assert shares(bound, by_number) == bound


def test_processes_bound_to_one_socket_divide_it():
    assert shares({1: [0, 1], 2: [2, 3], 3: [0, 1], 4: [2, 3]}, by_number) == {1: [0], 2: [2], 3: [1], 4: [3]}


def test_more_processes_than_cores_share_them():
    assert shares({1: [0, 1], 2: [0, 1], 3: [0, 1]}, by_number) == dict.fromkeys((1, 2, 3), [0, 1])


def test_the_machine_tells_how_its_cores_lie():
    cores = frozenset(os.sched_getaffinity(0))
    assert set().union(*shares({1: cores, 2: cores}).values()) == cores


def test_a_process_alone_on_its_machine_keeps_its_cores():
    before = os.sched_getaffinity(0)
    assert assign_cores(ProcessGroup(), pin_threads=True) == before == os.sched_getaffinity(0)


PROCESS = textwrap.dedent(
    """
    import os, sys, threading
    from ffn.training.parallel.process_group import ProcessGroup
    from ffn.training.parallel.placement import assign_cores

    group = ProcessGroup()
    group.local_size, group.rank = 2, -1
    threading.Thread(target=threading.Event().wait, daemon=True).start()  # Horovod's, which keeps all cores
    print(flush=True)
    sys.stdin.readline()
    mine = assign_cores(group, pin_threads=sys.argv[1] == "pin")
    print(sorted(mine), sorted(os.sched_getaffinity(0)), flush=True)
    sys.stdin.readline()
    """
)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core cannot be divided")
@pytest.mark.parametrize("pin", ["pin", "leave"])
def test_two_processes_of_a_job_find_each_other(pin):
    command = [sys.executable, "-c", PROCESS, pin]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    everything = sorted(os.sched_getaffinity(0))
    with subprocess.Popen(command, **pipes) as one, subprocess.Popen(command, **pipes) as other:
        for process in (one, other):
            process.stdout.readline()
        lines = []
        for process in (one, other):  # the second decides after the first has moved
            process.stdin.write("go\n")
            process.stdin.flush()
            lines.append(process.stdout.readline().strip())
    half = len(everything) // 2
    share = [everything[:half], everything[half:]]
    kept = share if pin == "pin" else [everything] * 2
    if len(everything) == 2:  # else hyperthreads decide what a half is
        assert sorted(lines) == [f"{share[i]} {kept[i]}" for i in range(2)]
    assert len(set(lines)) == 2


def test_threads_are_those_of_the_environment_else_one_a_core(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert threads_here(8) == threads_here() == 3
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert threads_here(8) == 8
    assert threads_here() == len(os.sched_getaffinity(0))
