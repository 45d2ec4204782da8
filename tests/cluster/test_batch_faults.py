"""Ctrl-C, jobs that vanish, and members of a group that fail, on jobs that do nothing but take time."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable

import pytest

from ..small_run import ROOT
from .batch import Site

# Grouped by the profile like the rules of the same name.
SNAKEFILE = """
from ffn.workflow import snakemake_patches
snakemake_patches.apply(workflow)

rule all:
    input:
        "single",
        expand("member{{i}}", i=range(4)),

rule train:
    output: "single"
    resources: runtime=5
    shell: {train!r}

rule segment:
    output: "member{{i}}"
    resources: runtime=5
    shell: {segment!r}
"""
QUICK = "echo {wildcards.i} >> done; touch {output}"


def site_with(tmp_path, train: str, segment: str = QUICK) -> Site:
    """Return a site whose Snakefile has these two commands; groups are treated as the pipeline treats them."""
    site = Site(tmp_path / "run")
    (site.folder / "Snakefile").write_text(SNAKEFILE.format(train=train, segment=segment))
    return site


def press_ctrl_c(process, site: Site) -> None:
    """Interrupt Snakemake as a user does: it ignores a Ctrl-C while it writes a log line, so press until it answers."""

    def has_answered() -> bool:
        logs = site.folder.glob(".snakemake/log/*.log")
        return process.poll() is not None or any("Terminating processes" in path.read_text() for path in logs)

    while not has_answered():
        process.send_signal(signal.SIGINT)
        patience = time.monotonic() + 20
        while not has_answered() and time.monotonic() < patience:
            time.sleep(0.1)


def wait_until(condition: Callable[[], object]) -> None:
    """Wait, as long as a test may take: how busy the machine is decides nothing."""
    while not condition():
        time.sleep(0.1)


@pytest.mark.slow
def test_ctrl_c_cancels_what_was_submitted(tmp_path):
    site = site_with(tmp_path, "touch started; sleep 600", "touch started{wildcards.i}; sleep 600")
    process = site.start()
    wait_until(lambda: (site.folder / "started").exists() and list(site.folder.glob("started?")))
    press_ctrl_c(process, site)
    process.wait()
    wait_until(lambda: not list(site.state.glob("*.job")))
    listed = subprocess.run(["pgrep", "-f", str(site.folder)], capture_output=True, text=True).stdout
    assert listed == "", "jobs survived"
    codes = [path.read_text().strip() for path in site.folder.glob(".snakemake/cluster/*.exit")]
    assert "0" not in codes
    cancelled = " ".join(site.transcript("qdel")).split()
    assert sorted(word.split(".")[0] for word in cancelled if word != "qdel") == ["1001", "1002"]


@pytest.mark.slow
def test_a_lost_job_is_repeated(tmp_path):
    once = "if [ ! -e tried ]; then touch tried; sleep 600; fi; touch {output}"
    site = site_with(tmp_path, once)
    process = site.start("single")
    wait_until(lambda: (site.folder / "tried").exists())
    strike(site, "lose")
    assert process.wait() == 0
    assert len(site.transcript("qsub")) == 2


@pytest.mark.slow
def test_a_preempted_job_goes_on_and_has_not_failed(tmp_path):
    """It is killed without a warning, and started again by its scheduler: no new submission, no doubled memory."""
    once = "if [ ! -e tried ]; then touch tried; sleep 600; fi; touch {output}"
    site = site_with(tmp_path, once)
    process = site.start("single", "--retries", "0")
    wait_until(lambda: (site.folder / "tried").exists())
    strike(site, "preempt")
    assert process.wait() == 0
    (submitted,) = site.transcript("qsub")
    assert " -r y " in submitted


def strike(site: Site, blow: str) -> None:
    """Do something to the site's first job, by a method of the shims' local backend."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); import backend; getattr(backend.Local(), sys.argv[2])('1001')"
    command = ["python3", "-c", code, str(ROOT / "tests/cluster/shims"), blow]
    subprocess.run(command, env=site.environment(), check=True)


@pytest.mark.slow
def test_of_a_failed_group_only_what_is_missing_is_repeated(tmp_path):
    once = "if [ {wildcards.i} = 2 ] && [ ! -e tried ]; then touch tried; exit 1; fi; " + QUICK
    site = site_with(tmp_path, "touch {output}", once)
    output = site.run()
    assert "Trying to restart" in output
    assert sorted((site.folder / "done").read_text().split()) == ["0", "1", "2", "3"]
    assert sum("ffn-segment" in line for line in site.transcript("qsub")) == 2


@pytest.mark.slow
def test_a_scheduler_that_is_away_is_waited_for(tmp_path):
    """Its qstat fails for a while: no job is given up."""
    site = site_with(tmp_path, "sleep 3; touch {output}")
    away = tmp_path / "away"
    away.mkdir()
    (away / "qstat").write_text("#!/bin/sh\necho 'cannot connect to server' >&2\nexit 1\n")
    (away / "qstat").chmod(0o755)
    environment = site.environment()
    environment["PATH"] = f"{away}:{environment['PATH']}"
    done = subprocess.run(site.command("single"), cwd=site.folder, env=environment, capture_output=True)
    assert done.returncode == 0
    assert len(site.transcript("qsub")) == 1
