"""Signals that come more than once: schedulers send them to every process, and a dying parent once for each thread."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SNAKEFILE = """
include: {rules!r}

rule long:
    output: "never"
    shell: "touch started; until [ -e enough ]; do sleep 0.1; done; exit 1"
"""


@pytest.mark.slow
def test_snakemake_ends_after_any_number_of_sigterms(tmp_path):
    """Its own handler waits for a lock that an earlier signal holds: without ours no try of many ended."""
    (tmp_path / "Snakefile").write_text(SNAKEFILE.format(rules=str(ROOT / "rules/cluster.smk")))
    command = [sys.executable, "-m", "snakemake", "--cores", "1", "--nolock", "never"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "started").exists():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        for _ in range(1000):
            process.send_signal(signal.SIGTERM)
            time.sleep(0.001)
        (tmp_path / "enough").touch()  # a signal that comes when Python has ended would be the exit code
        assert process.wait(timeout=60) == 1
    finally:
        process.kill()
