"""PBS Professional: scripts run on the first compute node, and qstat complains about jobs that have ended."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence

from ffn.machine.schedulers import BatchJob

JOB_ID = "PBS_JOBID"
ENDED = ("F", "X")  # finished and expired, listed only where the site keeps a history
FORGOTTEN = ("Unknown Job Id", "has finished")


def submit_command(job: BatchJob, script: str, log: str) -> list[str]:
    """Return the qsub command of a job; after a preemption or the loss of a node, PBS starts it again."""
    hours, minutes = divmod(job.minutes, 60)
    command = ["qsub", "-l", _chunk(job), "-l", "place=scatter", "-l", f"walltime={hours:02d}:{minutes:02d}:00"]
    if job.site.get("pbs_filesystems"):
        command += ["-l", f"filesystems={job.site['pbs_filesystems']}"]
    command += ["-r", "y", "-N", job.name, "-j", "oe", "-o", log]
    return [*command, *job.options({"-q": "queue", "-A": "account"}), script]


def job_id(output: str) -> str | None:
    r"""Return the id; qsub may print remarks before it.

    Examples
    --------
    >>> job_id("2041881.polaris-pbs-01.hsn\n")
    '2041881.polaris-pbs-01.hsn'
    """
    ids = re.findall(r"^\s*(\d+\.\S+)\s*$", output, re.MULTILINE)
    return ids[-1] if ids else None


def on_node(job: BatchJob) -> str:
    """Return nothing: scripts run on a compute node."""
    return ""


def queue_command(ids: Sequence[str]) -> list[str]:
    """Return the qstat command for these jobs."""
    return ["qstat", "-f", *ids]


def queued(done: subprocess.CompletedProcess[str]) -> set[str] | None:
    """Return the jobs that have not ended; qstat fails if it has forgotten one of them.

    Notes
    -----
    This reads text because the JSON of `qstat -F json` is broken where a job's environment has quotes or backslashes
    (openpbs issue 2541; seen on Polaris, balsam issue 324), and because qstat's table cuts long ids.
    """
    complaints = [line for line in done.stderr.splitlines() if line.strip()]
    only_forgotten = complaints and all(any(words in line for words in FORGOTTEN) for line in complaints)
    if done.returncode != 0 and not only_forgotten:
        return None
    states = re.findall(r"^Job Id: *(\S+)$.*?^ +job_state = (\w)$", done.stdout, re.MULTILINE | re.DOTALL)
    return {job for job, state in states if state not in ENDED}


def cancel_command(ids: Sequence[str]) -> list[str]:
    """Return the qdel command for these jobs."""
    return ["qdel", *ids]


def _chunk(job: BatchJob) -> str:
    """Return the resources of the job, equal for each of its nodes."""
    ranks = -(-int(job.site["tasks"]) // job.nodes) if job.is_mpi else 1
    chunk = [f"select={job.nodes}", f"ncpus={job.site.get('cores_per_node', job.threads * ranks)}"]
    if job.is_mpi:
        chunk.append(f"mpiprocs={ranks}")  # lines for each node in the list of nodes, which are Open MPI's slots
    if job.gpus:
        chunk.append(f"ngpus={job.gpus}")
    if job.site.get("pbs_select"):
        chunk.append(str(job.site["pbs_select"]))
    return ":".join(chunk)
