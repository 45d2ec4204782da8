"""A job that has to stop knows it by signal or by clock, and leaves signals as it found them."""

import os
import signal
import time

import pytest

from ffn.training.interruption import JOB_END_VARIABLE, Interruption


@pytest.fixture(autouse=True)
def no_slurm(monkeypatch):
    monkeypatch.delenv(JOB_END_VARIABLE, raising=False)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_is_noted_and_a_later_one_does_what_it_did_before(number, monkeypatch):
    seen = []
    before = signal.signal(number, lambda *_: seen.append("handled"))
    try:
        with Interruption(None, 0) as interruption:
            assert not interruption.requested and interruption.reason is None
            for _ in range(2):  # the second through the launcher
                os.kill(os.getpid(), number)
                assert interruption.requested and interruption.reason == signal.Signals(number).name
                assert seen == []
            later = time.monotonic() + 5
            monkeypatch.setattr("time.monotonic", lambda: later)
            os.kill(os.getpid(), number)
            assert seen == ["handled"]
        os.kill(os.getpid(), number)
        assert seen == ["handled"] * 2
    finally:
        signal.signal(number, before)


def test_ctrl_c_stays_an_exception():
    with pytest.raises(KeyboardInterrupt), Interruption(None, 0):
        os.kill(os.getpid(), signal.SIGINT)


def test_it_stops_some_time_before_the_walltime():
    left = 3600.0  # of this test process, which started a while ago
    assert not Interruption(left, 60).requested
    late = Interruption(left, 3600 * 60 - 1)
    assert late.requested and late.reason.startswith("its walltime, of which ")


def test_the_end_that_slurm_tells_wins(monkeypatch):
    monkeypatch.setenv(JOB_END_VARIABLE, str(int(time.time()) + 100))
    assert not Interruption(None, 60).requested
    assert Interruption(None, 120).requested
    assert not Interruption(0.001, 60).requested


def test_without_limit_it_never_stops():
    assert not Interruption(None, 1e9).requested
