"""Cobalt: scripts run on a service node, and qstat does not know jobs that have ended."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence

from ffn.machine.schedulers import BatchJob

JOB_ID = "COBALT_JOBID"


def submit_command(job: BatchJob, script: str, log: str) -> list[str]:
    """Return the qsub command of a job."""
    command = ["qsub", "-n", str(job.nodes), "-t", str(job.minutes), "--mode", "script"]
    command += ["--jobname", job.name, "-o", log, "-e", log]
    return [*command, *job.options({"-q": "queue", "-A": "account", "--attrs": "cobalt_attrs"}), script]


def job_id(output: str) -> str | None:
    r"""Return the last line that is a number; qsub may print remarks before it.

    Examples
    --------
    >>> job_id("Job routed to queue.\n415733\n")
    '415733'
    """
    numbers = re.findall(r"^\s*(\d+)\s*$", output, re.MULTILINE)
    return numbers[-1] if numbers else None


def on_node(job: BatchJob) -> str:
    """Return the launcher of one process, without binding, so that the jobs of a group share all cores."""
    return f"aprun -n 1 -N 1 -d {job.threads} -j 1 -cc none"


def queue_command(ids: Sequence[str]) -> list[str]:
    """Return the qstat command for these jobs."""
    return ["qstat", "--header", "JobID:State", *ids]


def queued(done: subprocess.CompletedProcess[str]) -> set[str] | None:
    """Return the listed jobs; if all jobs have ended, qstat prints nothing and exits with 1."""
    if done.returncode != 0 and done.stderr.strip():
        return None
    return set(re.findall(r"^\s*(\d+)\s+\S", done.stdout, re.MULTILINE))


def cancel_command(ids: Sequence[str]) -> list[str]:
    """Return the qdel command for these jobs."""
    return ["qdel", *ids]
