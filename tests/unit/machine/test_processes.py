import errno
import logging
import os
import shutil
import signal
import subprocess
import sys

import pytest

from ffn.errors import ConfigError
from ffn.machine import processes
from ffn.machine.processes import dying_with_parent, exit_code, run_together, take_lock


def environments(number, **variables):
    return [{**os.environ, **variables, "N": str(n)} for n in range(number)]


def python(code):
    return [sys.executable, "-c", f"import os, signal, sys, time; n = int(os.environ['N']); {code}"]


def test_processes_have_environments_of_their_own_and_end_with_the_first_failure(tmp_path, caplog):
    code = "open(os.path.join(os.environ['FOLDER'], str(n)), 'w').close()"
    assert run_together(python(code), environments(3, FOLDER=str(tmp_path))) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2"]
    code = "sys.exit(7) if n == 1 else time.sleep(600)"
    with caplog.at_level(logging.ERROR):
        assert run_together(python(code), environments(3), own_groups=True) == 7
    assert len(caplog.messages) == 1 and "process 1 " in caplog.text


@pytest.mark.parametrize("first", [0, 3])
def test_processes_that_may_lose_others_end_with_the_first(tmp_path, monkeypatch, first):
    """It goes on until the loss of process 1 is logged."""
    code = (
        "told = os.environ['TOLD']\n"
        "while n == 0 and not os.path.exists(told): time.sleep(0.02)\n"
        f"time.sleep((0, 0, 600)[n]); sys.exit(({first}, 7, 0)[n])"
    )
    monkeypatch.setattr(processes.log, "error", lambda text, number, code: (tmp_path / f"{number}").touch())
    assert run_together(python(code), environments(3, TOLD=str(tmp_path / "1")), may_lose=True) == first


def test_a_process_that_ignores_sigterm_is_killed(tmp_path):
    code = (
        "ready = os.environ['READY']\n"
        "if n: signal.signal(signal.SIGTERM, signal.SIG_IGN); open(ready, 'w').close(); time.sleep(600)\n"
        "while not os.path.exists(ready): time.sleep(0.02)\n"
        "sys.exit(3)"
    )
    assert run_together(python(code), environments(2, READY=str(tmp_path / "ready")), grace=0.1) == 3


@pytest.mark.parametrize(("returncode", "code"), [(0, 0), (3, 3), (-signal.SIGKILL, 137), (-signal.SIGTERM, 143)])
def test_a_signal_becomes_an_exit_code_as_in_a_shell(returncode, code):
    assert exit_code(returncode) == code


@pytest.fixture
def _forget():
    dying_with_parent.cache_clear()
    yield
    dying_with_parent.cache_clear()


@pytest.mark.usefixtures("_forget")
def test_a_setpriv_without_pdeathsig_is_not_used(tmp_path, monkeypatch):
    """With util-linux 2.32, as on Enterprise Linux 8, every job would end at once."""
    (tmp_path / "setpriv").write_text("#!/bin/sh\necho \"setpriv: unrecognized option '$1'\" >&2; exit 1\n")
    (tmp_path / "setpriv").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert dying_with_parent() == ()


HOLDER = "import sys; from ffn.machine.processes import take_lock; lock = take_lock(sys.argv[1]); print(1, flush=True)"


def test_the_second_is_told_who_is_first_and_does_not_wait(tmp_path, monkeypatch):
    monkeypatch.setattr(processes.time, "sleep", lambda seconds: pytest.fail("waits"))
    with take_lock(tmp_path / "run"):
        with pytest.raises(ConfigError, match=f"process {os.getpid()} on "):
            take_lock(tmp_path / "run")
        shutil.copytree(tmp_path / "run", tmp_path / "copy")
        take_lock(tmp_path / "copy").close()
    take_lock(tmp_path / "run").close()


def test_the_second_waits_as_long_as_it_is_told_to(tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    holder = take_lock(tmp_path)
    monkeypatch.setattr(processes.time, "sleep", lambda seconds: holder.close())
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


def test_a_folder_without_locks_is_told_of(tmp_path, monkeypatch, caplog):
    def unsupported(*_):
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", unsupported)
    assert take_lock(tmp_path) is None
    assert str(tmp_path) in caplog.text
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=f"{tmp_path}/file"):
        take_lock(tmp_path / "file")
