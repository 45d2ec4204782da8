"""One process works in a folder: on one machine and on several, with and without locks of the kernel."""

import errno
import logging
import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace

import pytest

from ffn.errors import ConfigError
from ffn.machine import heartbeat, runlock
from ffn.machine.process_id import this_process
from ffn.machine.runlock import take_lock

from ...lock_holders import lock_held, started
from ...pauses import Pause

HERE = socket.gethostname().split(".")[0]
ELSEWHERE, THIRD = "0e15e000", "0e15e001"  # kernels of other machines


@pytest.fixture(params=["flock", "no flock"])
def with_and_without_flock(request, monkeypatch):
    """Locks of the kernel work, or they do not, as on Lustre without the mount option."""

    def unsupported(*_):
        raise OSError(errno.ENOTSUP, "Operation not supported")

    if request.param == "no flock":
        monkeypatch.setattr("fcntl.flock", unsupported)


@pytest.fixture
def no_waiting(monkeypatch):
    """A test fails that waits for another process."""
    monkeypatch.setattr(runlock.time, "sleep", lambda seconds: pytest.fail("waits"))


@pytest.fixture
def looks(monkeypatch):
    """Set how many looks at a silent holder are a lease."""

    def set_looks(number):
        monkeypatch.setattr(runlock, "POLL_SECONDS", 0.01)
        monkeypatch.setattr(runlock, "LEASE_SECONDS", number * 0.01)

    return set_looks


def lease_of(folder, process):
    """The lease of a process that has ended without giving it back."""
    (folder / ".lease").mkdir()
    (folder / ".lease" / str(process)).touch()


def dead_process():
    with subprocess.Popen(["true"]) as process:
        pass
    return replace(this_process(), pid=process.pid)


@pytest.mark.usefixtures("with_and_without_flock", "no_waiting")
def test_the_second_is_refused_and_told_who_is_first(tmp_path):
    with take_lock(tmp_path), pytest.raises(ConfigError, match=rf": process {os.getpid()} on {HERE} works on it"):
        take_lock(tmp_path)
    take_lock(tmp_path).close()
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_the_lock_is_taken_when_its_holder_ends_in_time(tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    holder = take_lock(tmp_path)
    monkeypatch.setattr("ffn.machine.runlock.time.sleep", lambda seconds: holder.close())
    take_lock(tmp_path, seconds=60).close()
    assert [message.split()[1] for message in caplog.messages] == ["waiting"]


@pytest.mark.usefixtures("with_and_without_flock", "no_waiting")
@pytest.mark.parametrize(
    "changes", [{}, {"pid": os.getpid(), "start": 1}], ids=["it has ended", "its number has another"]
)
def test_a_dead_holder_on_this_machine_is_replaced_at_once(tmp_path, changes):
    lease_of(tmp_path, replace(dead_process(), **changes))
    take_lock(tmp_path).close()


@pytest.mark.usefixtures("with_and_without_flock")
def test_a_living_holder_on_another_machine_is_named(tmp_path, looks, caplog):
    looks(10**9)
    with lock_held(tmp_path, ELSEWHERE) as holder:
        with pytest.raises(ConfigError, match=rf": process {holder.pid} on {HERE} works on it, expected only one"):
            take_lock(tmp_path)
        assert f"process {holder.pid} on {HERE} has locked it. Waiting up to" in caplog.text
        holder.communicate("\n")
    take_lock(tmp_path).close()


@pytest.mark.usefixtures("with_and_without_flock")
def test_a_dead_holder_on_another_machine_is_replaced_after_its_lease(tmp_path, looks, monkeypatch):
    with lock_held(tmp_path, ELSEWHERE) as holder:
        holder.kill()
    looks(5)
    waits = []
    monkeypatch.setattr(runlock.time, "sleep", waits.append)
    with take_lock(tmp_path), pytest.raises(ConfigError, match=f"process {os.getpid()} "):
        take_lock(tmp_path)
    assert len(waits) == 5


def test_a_machine_that_is_gone_may_still_have_the_locks_of_the_kernel(tmp_path, looks, monkeypatch):
    """As the server of NFS may see it."""

    def held(*_):
        raise BlockingIOError

    lease_of(tmp_path, replace(this_process(), kernel=ELSEWHERE))
    monkeypatch.setattr("fcntl.flock", held)
    looks(3)
    take_lock(tmp_path).close()


def test_a_process_in_another_container_lives_while_it_has_the_lock_of_the_kernel(tmp_path, looks):
    looks(3)
    with take_lock(tmp_path):
        (tmp_path / ".lease" / str(this_process())).rename(
            tmp_path / ".lease" / str(replace(this_process(), namespace="1"))
        )
        with pytest.raises(ConfigError, match="works on it"):
            take_lock(tmp_path)


def test_a_holder_that_wakes_up_too_late_ends(tmp_path, looks):
    with lock_held(tmp_path, ELSEWHERE) as holder:
        holder.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, holder.pid, os.WSTOPPED)
        looks(5)
        with take_lock(tmp_path):
            holder.send_signal(signal.SIGCONT)
            assert holder.wait() == 2
            assert f"process {os.getpid()} on {HERE} has taken over" in holder.stderr.read()
            assert (tmp_path / ".lease" / str(this_process())).exists()


@pytest.mark.parametrize("point", ["ffn.machine.lease:Lease.claim", "pathlib:Path.rename"])
def test_of_those_who_take_over_at_the_same_time_one_succeeds(tmp_path, point):
    """All have found the same holder dead; at the second point, each has also removed its file."""
    lease_of(tmp_path, replace(this_process(), kernel="00000000"))
    pause = Pause("take_lock", point, before=True)
    environment = {**os.environ, **pause.variables()}
    with (
        started(tmp_path, ELSEWHERE, looks=3, **environment) as one,
        started(tmp_path, THIRD, looks=3, **environment) as other,
    ):
        pause.wait(one, number=2)
        one.send_signal(signal.SIGCONT)
        assert one.stdout.readline() == "locked\n"
        other.send_signal(signal.SIGCONT)
        _, told = other.communicate()
        assert other.returncode == 1
        assert f": process {one.pid} on {HERE} works on it" in told


def test_a_lost_claim_leaves_nothing(tmp_path):
    """A process that was killed between its two steps has left something; the next holder removes it."""
    (tmp_path / f".lease-{dead_process()}").mkdir()
    take_lock(tmp_path).close()
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_a_fork_of_the_holder_does_not_release_the_lock(tmp_path, monkeypatch):
    with take_lock(tmp_path) as lock:
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: 1)
            lock.close()
        assert (tmp_path / ".lease" / str(this_process())).exists()


def test_a_lock_of_an_earlier_version_is_respected(tmp_path):
    """It has no lease."""
    with take_lock(tmp_path):
        (tmp_path / ".lease" / str(this_process())).unlink()
        (tmp_path / ".lease").rmdir()
        with pytest.raises(ConfigError, match="another process works on it"):
            take_lock(tmp_path)


def test_a_folder_that_cannot_be_locked_is_an_error_in_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"file: cannot be locked \(.*\), expected a folder to write to"):
        take_lock(tmp_path / "file")


def test_the_lock_of_a_run_ends_with_its_process(tmp_path):
    code = f"from ffn.machine.runlock import lock_run; lock_run({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]
    assert heartbeat.BEAT_SECONDS < runlock.LEASE_SECONDS / 5
