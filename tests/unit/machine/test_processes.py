"""Processes that end together."""

import os
import sys
import time

from ffn.machine.processes import dying_with_parent, run_together


def test_the_first_failure_gives_the_exit_code_is_logged_and_ends_the_others(caplog):
    code = "import os, sys, time; sys.exit(7) if os.environ['N'] == '1' else time.sleep(600)"
    start = time.monotonic()
    environments = [{**os.environ, "N": str(number)} for number in range(3)]
    assert run_together([sys.executable, "-c", code], environments, own_groups=True) == 7
    assert caplog.messages == ["process 1 ended with exit code 7, so all end"]
    assert time.monotonic() - start < 60


def test_a_process_that_ignores_sigterm_is_killed():
    code = "import os, signal, sys, time; signal.signal(15, signal.SIG_IGN); n = os.environ"
    code += "['N']; time.sleep(int(n) or 1); sys.exit(3)"
    environments = [{**os.environ, "N": number} for number in ("0", "600")]
    assert run_together([sys.executable, "-c", code], environments, grace=0.5) == 3


def test_a_setpriv_without_pdeathsig_is_not_used(tmp_path, monkeypatch):
    """With that of util-linux 2.32, on Enterprise Linux 8, every job would end at once."""
    (tmp_path / "setpriv").write_text("#!/bin/sh\necho \"setpriv: unrecognized option '$1'\" >&2; exit 1\n")
    (tmp_path / "setpriv").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    dying_with_parent.cache_clear()
    try:
        assert dying_with_parent() == ()
    finally:
        dying_with_parent.cache_clear()
