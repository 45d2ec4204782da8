"""Slurm: scripts run on the first compute node."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping, Sequence

from ffn.machine.schedulers import BatchJob

JOB_ID = "SLURM_JOB_ID"
JOB_END_TIME = "SLURM_JOB_END_TIME"  # seconds since 1970
# Resources that the site names, and the options of sbatch for them.
SITE_NAMES = {"queue": "partition"} | {name: name for name in ("account", "constraint", "qos", "reservation")}
ACTIVE = "PENDING,CONFIGURING,RUNNING,COMPLETING,SUSPENDED,REQUEUED,RESIZING,SIGNALING,STAGE_OUT,STOPPED"


def submit_command(job: BatchJob, script: str, log: str) -> list[str]:
    """Return the sbatch command of a job; a failure is for Snakemake, unless `slurm_extra` has --requeue."""
    log = log.replace("%", "%%")  # a single one starts a pattern such as %j
    command = ["sbatch", "--parsable", "--no-requeue", f"--job-name={job.name}", f"--output={log}"]
    command += [f"--nodes={job.nodes}", f"--ntasks={job.site.get('tasks', 1) if job.is_mpi else 1}"]
    command += [f"--cpus-per-task={job.threads}", f"--time={job.minutes}"]
    if job.site.get("mem_mb"):  # not where the profile says 0, because some sites refuse the option
        command.append(f"--mem={job.site['mem_mb']}")
    if job.gpus:
        command.append(f"--gpus-per-node={job.gpus}")  # --ntasks-per-gpu would start more processes
    command += [f"--{option}={job.site[name]}" for name, option in SITE_NAMES.items() if job.site.get(name)]
    return [*command, *shlex.split(str(job.site.get("slurm_extra", ""))), script]


def job_id(output: str) -> str | None:
    """Return the id in ``ID`` or ``ID;CLUSTER``."""
    number = output.strip().split(";")[0]
    return number if number.isdigit() else None


def on_node(job: BatchJob) -> str:
    """Return nothing: scripts run on a compute node."""
    return ""


def queue_command(ids: Sequence[str]) -> list[str]:
    """Return the squeue command for all jobs of this user; with ids, it would fail if one of them is unknown."""
    return ["squeue", "--noheader", "--me", f"--states={ACTIVE}", "--format=%i"]


def queued(done: subprocess.CompletedProcess[str]) -> set[str] | None:
    """Return the listed jobs."""
    return set(done.stdout.split()) if done.returncode == 0 else None


def cancel_command(ids: Sequence[str]) -> list[str]:
    """Return the scancel command for these jobs."""
    return ["scancel", *ids]


def outside_job(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the variables that describe the job this process runs in.

    Examples
    --------
    >>> outside_job({"SLURM_JOB_ID": "7", "SLURM_CONF": "/etc/slurm.conf"})
    {'SLURM_CONF': '/etc/slurm.conf'}
    """
    return {name: v for name, v in environment.items() if not name.startswith("SLURM_") or name == "SLURM_CONF"}
