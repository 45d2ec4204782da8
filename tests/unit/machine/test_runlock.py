"""One process works in a folder, with and without locks of the kernel."""

import errno
import logging
import os
import signal
import subprocess
import sys

import pytest

from ffn.errors import ConfigError
from ffn.machine import runlock
from ffn.machine.runlock import take_lock

HOLDER = "import sys; from ffn.machine.runlock import take_lock; lock = take_lock(sys.argv[1]); print(1, flush=True)"


def test_the_second_is_told_who_is_first_and_does_not_wait(tmp_path, monkeypatch):
    monkeypatch.setattr(runlock.time, "sleep", lambda seconds: pytest.fail("waits"))
    with take_lock(tmp_path), pytest.raises(ConfigError, match=f"process {os.getpid()} on "):
        take_lock(tmp_path)
    take_lock(tmp_path).close()


def test_the_second_waits_as_long_as_it_is_told_to(tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    holder = take_lock(tmp_path)
    monkeypatch.setattr(runlock.time, "sleep", lambda seconds: holder.close())
    take_lock(tmp_path, seconds=60).close()
    assert f"process {os.getpid()}" in caplog.text


def test_the_lock_ends_with_a_killed_process(tmp_path):
    command = [sys.executable, "-c", f"{HOLDER}; input()", str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        with pytest.raises(ConfigError, match=f"process {process.pid} on "):
            take_lock(tmp_path)
        process.send_signal(signal.SIGKILL)
        process.wait()
    take_lock(tmp_path).close()


def test_a_file_system_without_locks_is_told_of(tmp_path, monkeypatch, caplog):
    def unsupported(*_):
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", unsupported)
    assert take_lock(tmp_path) is None
    assert str(tmp_path) in caplog.text


def test_a_folder_that_cannot_be_locked_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=f"{tmp_path}/file"):
        take_lock(tmp_path / "file")
