"""Submit, query and cancel Snakemake's jobs on a scheduler; the batch profiles call this.

``python -m ffn.cluster.batch submit SCHEDULER SCRIPT`` prints the job's id, ``… status SCHEDULER ID`` prints running,
success or failed, ``… cancel SCHEDULER ID…`` cancels jobs.

Schedulers forget finished jobs, and asking about every job every second overloads a login node. So every job writes its
exit code to ``.snakemake/cluster``, and one query to the scheduler serves all jobs for some seconds.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ffn.errors import ClusterError
from ffn.io import atomic
from ffn.machine.schedulers import SCHEDULERS, BatchJob, Scheduler, slurm

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

MODULE = ("-m", "ffn.cluster.batch")
QUEUE_SECONDS = 10.0  # how long one answer of the scheduler is used
LOST_SECONDS = 120.0  # NFS shows a new file up to a minute late
COMMAND_SECONDS = 60.0  # limit for a command of the scheduler

log = logging.getLogger(__name__)


def submit(scheduler: Scheduler, arguments: Sequence[str]) -> int:
    """Submit a job script of Snakemake and print the job's id; return 1 if the scheduler refused it."""
    make_state()
    _write_cancel(scheduler)
    job = read_job(Path(arguments[0]))
    script = write_script(job, Path(arguments[0]), scheduler)
    done = run_command(scheduler.submit_command(job, str(script), str(script.with_suffix(".log"))))
    job_id = scheduler.job_id(done.stdout) if done.returncode == 0 else None
    if job_id is None:
        command = shlex.join(done.args)
        sys.stderr.write(f"{done.stderr}{command}: exit code {done.returncode}, no job id in {done.stdout!r}\n")
        return 1
    for kind in ("exit", "gone"):  # of an earlier job with this id; this one does nothing before it is recorded
        _record(job_id, kind).unlink(missing_ok=True)
    atomic.write_text(_record(job_id, "submitted"), "\n".join(job.outputs))
    sys.stdout.write(f"{job_id}\n")
    return 0


def status(scheduler: Scheduler, arguments: Sequence[str]) -> int:
    """Print running, success or failed for one job; never fail, because that would end Snakemake.

    A job has failed if the scheduler has not known it for `FFN_LOST_SECONDS` and it has left no exit code.
    """
    try:
        word = _status(scheduler, arguments[0])
    except Exception as reason:  # the next query may succeed
        sys.stderr.write(f"status of {arguments}: {reason!r}\n")
        word = "running"
    sys.stdout.write(f"{word}\n")
    return 0


def cancel(scheduler: Scheduler, arguments: Sequence[str]) -> int:
    """Cancel jobs; the scheduler's command outlives this process, which a second Ctrl-C may end."""
    subprocess.Popen(scheduler.cancel_command(arguments), start_new_session=True)
    return 0


COMMANDS = {"submit": submit, "status": status, "cancel": cancel}


def scheduler_of(submit_command: str) -> Scheduler:
    """Return the scheduler that a profile's submit command names.

    Examples
    --------
    >>> scheduler_of("python -m ffn.cluster.batch submit pbs").JOB_ID
    'PBS_JOBID'
    """
    match shlex.split(submit_command):
        case [_, *module, "submit", name] if tuple(module) == MODULE and name in SCHEDULERS:
            return SCHEDULERS[name]
    expected = f"'python {shlex.join(MODULE)} submit' with one of {', '.join(SCHEDULERS)}"
    raise ClusterError(f"cluster-generic-submit-cmd: found {submit_command!r}, expected {expected}")


def check_commands(executor: str, submit: str | None) -> None:
    """Raise ClusterError if this machine lacks a command that the profile submits jobs with."""
    scheduler = scheduler_of(submit) if submit else slurm if executor == slurm.name else None
    if scheduler is not None:
        require_commands(scheduler)


def require_commands(scheduler: Scheduler) -> None:
    """Raise ClusterError if this machine lacks a command of a scheduler."""
    if missing := [name for name in scheduler.commands if shutil.which(name) is None]:
        raise ClusterError(
            f"profile: no {' and no '.join(missing)} on this machine, expected {' '.join(scheduler.commands)}. Use a "
            "login node of the profile's site, load the site's module, or choose another profile"
        )


def check_none_left(submit: str, folder: str) -> None:
    """Raise ClusterError if a job of an earlier, killed Snakemake still works on a run: two would write one file."""
    waiting = [path for path in STATE.glob("*.submitted") if _exit_code(path.stem) is None]
    ids = [path.stem for path in waiting if f"\n{folder}/" in f"\n{path.read_text()}"]
    if not ids:
        return
    scheduler = scheduler_of(submit)
    queued = scheduler.queued(run_command(scheduler.queue_command(sorted(ids))))
    left = sorted(job_id for job_id in ids if queued is None or job_id in queued)
    for job_id in set(ids) - set(left):
        _record(job_id, "submitted").unlink(missing_ok=True)
    if left:
        raise ClusterError(
            f"{folder}: {len(left)} jobs of an earlier Snakemake are still working on it. Wait for them, or cancel "
            f"them, which keeps what they have done: {shlex.join(scheduler.cancel_command(left))}"
        )


def is_answering(scheduler: Scheduler) -> bool:
    """Return whether the scheduler answers a query about its queue."""
    return scheduler.queued(run_command(scheduler.queue_command(["1"]))) is not None


def run_command(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command; the exit code is 127 if it cannot be started or takes too long."""
    # Snakemake may itself run in a job of Slurm, and its jobs must not inherit that one's description.
    environment = slurm.outside_job(os.environ)
    try:
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=COMMAND_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as reason:
        return subprocess.CompletedProcess(command, 127, "", f"{reason}\n")


def _write_cancel(scheduler: Scheduler) -> None:
    """Write the script that cancels jobs.

    Snakemake runs its cancel command without a shell, so it must be one word, and kills it after two seconds, which
    Python may need to start on a busy node, so it returns at once.
    """
    path = STATE / "cancel"
    command = shlex.join([sys.executable, *MODULE, "cancel", scheduler.name])
    text = f'#!/bin/sh\n{command} "$@" </dev/null >>{STATE}/cancel.log 2>&1 &\n'
    if not path.exists() or path.read_text() != text:
        with atomic.atomic_path(path) as temporary:
            write_private(temporary, text)


def _status(scheduler: Scheduler, job_id: str) -> str:
    if _exit_code(job_id) is None and not _is_lost(scheduler, job_id):
        return "running"
    code = _exit_code(job_id)  # again, because the job may have written it between the two checks
    for kind in ("submitted", "gone"):  # the scheduler need not be asked about it any more
        _record(job_id, kind).unlink(missing_ok=True)
    return "success" if code == 0 else "failed"


def _is_lost(scheduler: Scheduler, job_id: str) -> bool:
    """Return whether the scheduler has not known the job for so long that no exit code can still appear."""
    queued, gone = _queued(scheduler), _record(job_id, "gone")
    if queued is None:
        return False
    if job_id in queued:
        gone.unlink(missing_ok=True)
        return False
    if not gone.exists():
        # not the time of the file: the clock of a file server may be minutes off
        atomic.write_text(gone, str(time.time()))  # whole: an empty one, of a full disk, would keep the job running
    return time.time() - float(gone.read_text()) > _seconds("FFN_LOST_SECONDS", LOST_SECONDS)


def _queued(scheduler: Scheduler) -> set[str] | None:
    """Return the jobs that the scheduler had when it was last asked, None if it did not answer."""
    path = STATE / "queue.json"
    age = time.time() - path.stat().st_mtime if path.exists() else math.inf
    if age > _seconds("FFN_QUEUE_SECONDS", QUEUE_SECONDS):
        ids = sorted(p.stem for p in STATE.glob("*.submitted") if not _record(p.stem, "exit").exists())
        queued = scheduler.queued(run_command(scheduler.queue_command(ids))) if ids else set()
        text = json.dumps(None if queued is None else sorted(queued))
        atomic.write_text(path, text, atomic.this_job())  # of several runs in one folder
    answer = json.loads(path.read_text())
    return None if answer is None else set(answer)


def _record(job_id: str, kind: str) -> Path:
    """Return the path of a job's record: submitted, exit or gone."""
    return STATE / f"{job_id}.{kind}"


def _exit_code(job_id: str) -> int | None:
    try:
        return int(_record(job_id, "exit").read_text())
    except (OSError, ValueError):
        return None


def _seconds(variable: str, default: float) -> float:
    return float(os.environ.get(variable, default))


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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that a profile calls."""
    parser = argparse.ArgumentParser(prog=f"python {shlex.join(MODULE)}", description="Snakemake's jobs on a scheduler")
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("scheduler", choices=SCHEDULERS)
    parser.add_argument("arguments", nargs="+", metavar="JOB", help="the script to submit, or the ids of jobs")
    given = parser.parse_args(arguments)
    try:
        return COMMANDS[given.command](SCHEDULERS[given.scheduler], given.arguments)
    except ClusterError as error:
        sys.stderr.write(f"{error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())
