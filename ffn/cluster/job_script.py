"""The script that a scheduler runs: Snakemake's job script in the folder and environment of Snakemake."""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ffn.errors import ClusterError
from ffn.machine.schedulers import BatchJob, Scheduler

STATE = Path(".snakemake/cluster")  # in the folder that Snakemake works in
PRIVATE = 0o700  # mode of everything there
RECORD_SECONDS = 120  # that a job waits for its record: NFS shows a new file up to a minute late
PROXIES = ("http_proxy", "https_proxy", "no_proxy")  # through which compute nodes reach volumes outside the site
# Schedulers start jobs with a bare environment. Jobs also get these variables, and those with these prefixes, but none
# that holds a password: the scheduler keeps copies of scripts, and users send them along when they ask for help.
ENVIRONMENT = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "CUDA_HOME", "XLA_FLAGS", *PROXIES, *map(str.upper, PROXIES))
PREFIXES = ("FFN_", "FI_", "HOROVOD_", "MPICH_", "NCCL_", "OMPI_MCA_", "TF_")
SECRET_NAME = re.compile("TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|(API|ACCESS|PRIVATE)_?KEY", re.IGNORECASE)
SECRET_VALUE = re.compile(r"://\S*@")  # user and password in a URL

# A signal, at the walltime or from a cancel, is passed on to the whole job, which `set -m` makes one process group. The
# job then has the scheduler's grace period to write a checkpoint; training stops earlier (training/loop.py).
# A job that fails after a signal leaves no exit code: if it was preempted, the scheduler starts it again under the same
# id, and for Snakemake it is still running. If not, the scheduler soon no longer knows it, and Snakemake repeats it.
# After a Ctrl-C or a late answer of the scheduler, Snakemake may not know of a job. Such a job ends at once, because
# another one may do its work. (`ls` makes NFS update its list of files.)
SCRIPT = """#!/bin/bash
{exports}
export FFN_JOB_END_TIME=$(($(date +%s) + {seconds}))
cd {folder} || exit 1
job={state}/"${job_id}"
for second in {{1..{record_seconds}}}; do
  [[ -e $job.submitted ]] && break
  sleep 1; ls {state} >/dev/null
done
if [[ ! -e $job.submitted ]]; then echo "no Snakemake waits for this job" >&2; exit 1; fi
set -m
{on_node} sh {job_script} </dev/null &
trap 'told=1; kill -TERM -- -$! 2>/dev/null' TERM INT
wait $!; code=$?
while kill -0 $! 2>/dev/null; do wait $!; code=$?; done
if [[ $told && $code != 0 ]]; then exit $code; fi
echo $code > "$job.exit.tmp" && mv "$job.exit.tmp" "$job.exit"
exit $code
"""

# A shell that dies of SIGTERM leaves its children without a parent. The script would end, and the next attempt would
# start, before the children have ended; and a scheduler that follows parents would not find them. Children do not
# inherit traps.
SHELL_STAYS = "trap : TERM INT\n"

log = logging.getLogger(__name__)


def read_job(script: Path) -> BatchJob:
    """Read a job from the script that Snakemake wrote; account and queue may come from the environment."""
    mark = "# properties = "
    with script.open() as lines:
        values = json.loads(next(line for line in lines if line.startswith(mark)).removeprefix(mark))
    site = with_environment(values["resources"])
    return BatchJob(
        name=re.sub(r"[^\w-]", "-", f"ffn-{values.get('rule') or values.get('groupid')}")[:15],
        nodes=int(site.get("nodes", 1)),
        threads=int(values.get("threads", 1)),
        gpus=int(site.get("gpu", 0)),
        minutes=int(site["runtime"]),
        is_mpi=bool(site.get("mpi")),
        site=site,
        outputs=tuple(values.get("output", ())),
    )


def with_environment(resources: Mapping[str, Any]) -> dict[str, Any]:
    """Return resources with the account and the queue of the environment, where it names them."""
    named = {"account": os.environ.get("FFN_ACCOUNT"), "queue": os.environ.get("FFN_QUEUE")}
    return {**resources, **{key: value for key, value in named.items() if value}}


def exports() -> list[str]:
    """Return the lines of a script that set the variables of this process that jobs need."""
    return [f"export {name}={shlex.quote(os.environ[name])}" for name in _passed_on() if not _is_secret(name)]


def warn_of_secrets() -> None:
    """Say in one line which variables jobs would get if they held no password."""
    if names := [name for name in _passed_on() if _is_secret(name)]:
        log.warning(
            "%s: found a password or token, which no job script may hold. If the scheduler does not pass on the "
            "environment, set it on the compute nodes, see docs/cluster.md",
            ", ".join(names),
        )


def make_state() -> None:
    """Make the folder for scripts, logs and records of jobs, private to this user.

    Raises
    ------
    ClusterError
        If it belongs to another user, whose jobs cannot be seen, or cannot be made.
    """
    try:
        STATE.mkdir(parents=True, exist_ok=True)
        STATE.chmod(PRIVATE)  # it may be of an earlier version
    except OSError as reason:
        found = "belongs to another user" if isinstance(reason, PermissionError) else f"found {reason.strerror}"
        raise ClusterError(f"{STATE}: {found}, expected your own. Use another --directory") from None


def write_private(path: Path, text: str) -> None:
    """Write a new script that is private to this user from the start."""
    with open(path, "x", opener=lambda name, flags: os.open(name, flags, PRIVATE)) as file:
        file.write(text)


def write_script(job: BatchJob, job_script: Path, scheduler: Scheduler) -> Path:
    """Write the script that the scheduler starts: it runs the job's script and records its exit code."""
    stem = STATE.absolute() / f"{job.name}-{uuid.uuid4().hex[:8]}"
    copy, script = stem.with_suffix(".job"), stem.with_suffix(".sh")
    write_private(copy, f"{SHELL_STAYS}{job_script.read_text()}")
    text = SCRIPT.format(
        exports="\n".join(exports()),
        seconds=60 * job.minutes,
        record_seconds=RECORD_SECONDS,
        folder=shlex.quote(str(Path.cwd())),
        state=shlex.quote(str(STATE.absolute())),
        job_id=scheduler.JOB_ID,
        on_node="" if job.is_mpi else scheduler.on_node(job),
        job_script=shlex.quote(str(copy)),
    )
    write_private(script, text)
    return script


def _passed_on() -> list[str]:
    return sorted(name for name in os.environ if name in ENVIRONMENT or name.startswith(PREFIXES))


def _is_secret(name: str) -> bool:
    value = os.environ[name]
    has_user = "@" in value if name.lower() in PROXIES else SECRET_VALUE.search(value)  # a proxy needs no ://
    return bool(has_user or SECRET_NAME.search(name))
