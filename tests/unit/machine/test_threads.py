import os

import pytest

from ffn.errors import ConfigError
from ffn.machine.limits import threads_here


@pytest.mark.parametrize(("value", "threads"), [("2", 2), ("2,1", 2), (" 03 ", 3), ("9999", 9999)])
def test_the_variable_decides(monkeypatch, value, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    assert threads_here() == threads_here(num_cores=8) == threads


@pytest.mark.parametrize("value", ["", None])
def test_without_the_variable_every_core_gets_a_thread(monkeypatch, value):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if value is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", value)
    assert threads_here() == len(os.sched_getaffinity(0))
    assert threads_here(num_cores=8) == 8


@pytest.mark.parametrize("value", ["two", "0", "-1", "1.5", ",2", "10000"])
def test_another_value_is_refused(monkeypatch, value):
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    with pytest.raises(ConfigError, match=f"OMP_NUM_THREADS: found '{value}', expected a number from 1 to 9999"):
        threads_here()
