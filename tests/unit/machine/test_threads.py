import os

from ffn.machine.threads import threads_here


def test_the_environment_sets_the_threads_else_there_is_one_per_core(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert threads_here(8) == threads_here() == 3
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert threads_here(8) == 8
    assert threads_here() == len(os.sched_getaffinity(0))
