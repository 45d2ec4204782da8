import logging
import os
import signal
import sys

import pytest

from ffn.machine.processes import dying_with_parent, exit_code, run_together


def environments(number, **variables):
    return [{**os.environ, **variables, "N": str(n)} for n in range(number)]


def python(code):
    return [sys.executable, "-c", f"import os, signal, sys, time; n = int(os.environ['N']); {code}"]


def test_all_processes_run_in_their_own_environment(tmp_path):
    code = "open(os.path.join(os.environ['FOLDER'], str(n)), 'w').close()"
    assert run_together(python(code), environments(3, FOLDER=str(tmp_path))) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2"]


def test_the_first_failure_ends_the_others_and_gives_the_exit_code(caplog):
    code = "sys.exit(7) if n == 1 else time.sleep(600)"
    with caplog.at_level(logging.ERROR):
        assert run_together(python(code), environments(3), own_groups=True) == 7
    assert len(caplog.messages) == 1 and "process 1 " in caplog.text


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
