"""PBS Professional's commands: scripts run on the first compute node, qstat complains about jobs that are over."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence

from ffn.cluster.batch import Job

JOB_ID = "PBS_JOBID"
OVER = ("F", "X")  # finished and expired, listed only where the site keeps a history
FORGOTTEN = ("Unknown Job Id", "has finished")


def submit_command(job: Job, script: str, log: str) -> list[str]:
    """Return the qsub command of a job; after a failure Snakemake, not PBS, starts it again."""
    per_node = -(-int(job.site["tasks"]) // job.nodes) if job.is_mpi else 1
    chunk = [f"select={job.nodes}", f"ncpus={job.site.get('cores_per_node', job.threads * per_node)}"]
    chunk += [f"mpiprocs={per_node}"] * job.is_mpi  # lines of a node in the list of nodes, Open MPI's slots
    chunk += [f"ngpus={job.gpus}"] * bool(job.gpus) + [str(job.site.get("pbs_select", ""))]
    hours, minutes = divmod(job.minutes, 60)
    command = ["qsub", "-l", ":".join(filter(None, chunk)), "-l", "place=scatter"]
    command += ["-l", f"walltime={hours:02d}:{minutes:02d}:00"]
    if job.site.get("pbs_filesystems"):
        command += ["-l", f"filesystems={job.site['pbs_filesystems']}"]
    command += ["-r", "n", "-N", job.name, "-j", "oe", "-o", log]
    return [*command, *job.options({"-q": "queue", "-A": "account"}), script]


def job_id(output: str) -> str | None:
    r"""Return the id; remarks may come before it.

    Examples
    --------
    >>> job_id("2041881.polaris-pbs-01.hsn\n")
    '2041881.polaris-pbs-01.hsn'
    """
    ids = re.findall(r"^\s*(\d+\.\S+)\s*$", output, re.MULTILINE)
    return ids[-1] if ids else None


def on_node(job: Job) -> str:
    """Return nothing: the script is on a compute node already."""
    return ""


def queue_command(ids: Sequence[str]) -> list[str]:
    """Return the qstat command for these jobs."""
    return ["qstat", "-f", *ids]


def queued(done: subprocess.CompletedProcess[str]) -> set[str] | None:
    """Return the jobs that are not over; for those that it has forgotten, qstat complains and fails.

    Notes
    -----
    Text, because the JSON of `qstat -F json` cannot be read where a job's environment has quotes or backslashes
    (openpbs issue 2541; seen on Polaris, balsam issue 324), and its table cuts long ids.
    """
    complaints = [line for line in done.stderr.splitlines() if line.strip()]
    only_forgotten = complaints and all(any(words in line for words in FORGOTTEN) for line in complaints)
    if done.returncode != 0 and not only_forgotten:
        return None
    states = re.findall(r"^Job Id: *(\S+)$.*?^ +job_state = (\w)$", done.stdout, re.MULTILINE | re.DOTALL)
    return {job for job, state in states if state not in OVER}


def cancel_command(ids: Sequence[str]) -> list[str]:
    """Return the qdel command for these jobs."""
    return ["qdel", *ids]
