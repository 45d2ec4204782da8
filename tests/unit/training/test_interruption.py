"""A job stops by signal or by clock, and restores the signal handlers."""

import signal

import pytest

from ffn.errors import ConfigError
from ffn.training.loop import JOB_END_VARIABLES, Interruption


@pytest.fixture(autouse=True)
def no_slurm(monkeypatch):
    for name in JOB_END_VARIABLES:
        monkeypatch.delenv(name, raising=False)


class Clock:
    """Stands for the module `time`; the test moves it."""

    def __init__(self, now):
        self.now = now

    def time(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    """Clock of a process that has just started."""
    clock = Clock(5000.0)
    monkeypatch.setattr("ffn.training.loop.time", clock)
    return clock


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_signals_are_recorded_and_then_reach_the_previous_handler_again(number):
    seen = []
    before = signal.signal(number, lambda *_: seen.append("handled"))
    try:
        with Interruption() as interruption:
            assert not interruption.requested and interruption.reason is None
            signal.raise_signal(number)
            assert interruption.requested and interruption.reason == signal.Signals(number).name and seen == []
        signal.raise_signal(number)
        assert seen == ["handled"]
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("name", JOB_END_VARIABLES)
def test_a_job_stops_a_margin_before_its_walltime(name, monkeypatch, clock):
    monkeypatch.setenv(name, "5600")
    interruption = Interruption()
    clock.now += 479
    assert not interruption.requested
    clock.now += 71
    assert interruption.requested and interruption.reason.startswith("its walltime, ")


def test_ends_of_jobs_come_from_script_or_slurm_and_are_numbers(monkeypatch, clock):
    ours, slurm = JOB_END_VARIABLES
    monkeypatch.setenv(slurm, "5100")
    monkeypatch.setenv(ours, "6000")
    assert not Interruption().requested
    monkeypatch.setenv(JOB_END_VARIABLES[0], "12:30")
    with pytest.raises(ConfigError, match="FFN_JOB_END_TIME: .*'12:30'"):
        Interruption()


@pytest.mark.parametrize("name", JOB_END_VARIABLES)
def test_an_end_before_the_start_of_the_process_is_ignored(name, monkeypatch, caplog):
    monkeypatch.setenv(name, "1700000000")
    assert not Interruption().requested
    assert f"{name}: 1700000000" in caplog.text
