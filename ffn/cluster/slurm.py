"""Slurm, for jobs that start their processes themselves: a job's script runs on its first node."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence

from ffn.cluster.batch import Job

JOB_ID = "SLURM_JOB_ID"
# Resources whose values the site names, and sbatch's options for them.
SITE_NAMES = {"queue": "partition"} | {name: name for name in ("account", "constraint", "qos", "reservation")}
ACTIVE = "PENDING,CONFIGURING,RUNNING,COMPLETING,SUSPENDED,REQUEUED,RESIZING,SIGNALING,STAGE_OUT,STOPPED"


def submit_command(job: Job, script: str, log: str) -> list[str]:
    """Return the sbatch command of a job; after a failure Snakemake, not Slurm, starts it again."""
    log = log.replace("%", "%%")  # else the beginning of a pattern such as %j
    command = ["sbatch", "--parsable", "--no-requeue", f"--job-name={job.name}", f"--output={log}"]
    command += [f"--nodes={job.nodes}", f"--ntasks={job.site.get('tasks', 1) if job.is_mpi else 1}"]
    command += [f"--cpus-per-task={job.threads}", f"--time={job.minutes}", f"--mem={job.site['mem_mb']}"]
    if job.gpus:
        command.append(f"--gpus-per-node={job.gpus}")  # not --ntasks-per-gpu, which would start more processes
    command += [f"--{option}={job.site[name]}" for name, option in SITE_NAMES.items() if job.site.get(name)]
    return [*command, *shlex.split(str(job.site.get("slurm_extra", ""))), script]


def job_id(output: str) -> str | None:
    """Return the id in ``ID`` or ``ID;CLUSTER``."""
    number = output.strip().split(";")[0]
    return number if number.isdigit() else None


def on_node(job: Job) -> str:
    """Return nothing: scripts run on a compute node."""
    return ""


def queue_command(ids: Sequence[str]) -> list[str]:
    """Return the squeue command for all jobs of this user; it fails as a whole if one of several named is unknown."""
    return ["squeue", "--noheader", "--me", f"--states={ACTIVE}", "--format=%i"]


def queued(done: subprocess.CompletedProcess[str]) -> set[str] | None:
    """Return the jobs that are listed."""
    return set(done.stdout.split()) if done.returncode == 0 else None


def cancel_command(ids: Sequence[str]) -> list[str]:
    """Return the scancel command for these jobs."""
    return ["scancel", *ids]
