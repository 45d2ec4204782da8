"""Ctrl-C, and members of a group that fail, on batch jobs that do nothing but take time."""

import signal
import subprocess
import time

import pytest

from .conftest import ClusterWorkflow

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

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


@pytest.fixture
def run_of(idle, tmp_path):
    """Return a function that makes a run whose rules have these two commands."""

    def make(train, segment):
        workflow = ClusterWorkflow(tmp_path / "run", {"run": "batch"}, idle, "slurm-generic")
        workflow.snakefile = workflow.folder / "Snakefile"
        workflow.snakefile.write_text(SNAKEFILE.format(train=train, segment=segment))
        return workflow

    return make


def press_ctrl_c(process, folder):
    """Interrupt Snakemake as a user does: it ignores a Ctrl-C while it writes a log line, so press until it answers."""

    def has_answered():
        logs = folder.glob(".snakemake/log/*.log")
        return process.poll() is not None or any("Terminating processes" in path.read_text() for path in logs)

    while not has_answered():
        process.send_signal(signal.SIGINT)
        patience = time.monotonic() + 20
        while not has_answered() and time.monotonic() < patience:
            time.sleep(0.1)


def test_ctrl_c_cancels_what_was_submitted(run_of):
    run = run_of("touch started; sleep 600", "touch started{wildcards.i}; sleep 600")
    run.snakemake = "snakemake"  # which asks rarely: a Ctrl-C while it asks for the state of jobs cancels none
    command = run.command("--seconds-between-status-checks", "30")
    null = subprocess.DEVNULL
    process = subprocess.Popen(command, cwd=run.folder, env=run.environment(), stdout=null, stderr=null)
    while not ((run.folder / "started").exists() and list(run.folder.glob("started?"))):
        assert process.poll() is None
        time.sleep(0.1)
    press_ctrl_c(process, run.folder)
    process.wait()
    run.cluster.wait_until_idle()
    assert "0" not in [path.read_text().strip() for path in run.folder.glob(".snakemake/cluster/*.exit")]


def test_of_a_failed_group_only_what_is_missing_is_repeated(run_of):
    member = "echo {wildcards.i} >> done; touch {output}"
    run = run_of(
        "touch {output}", f"if [ {{wildcards.i}} = 2 ] && [ ! -e tried ]; then touch tried; exit 1; fi; {member}"
    )
    assert "Trying to restart" in run.succeed()
    assert sorted((run.folder / "done").read_text().split()) == ["0", "1", "2", "3"]
    assert len(list(run.folder.glob(".snakemake/cluster/ffn-segment-*.sh"))) == 3, "two groups, and one again"
