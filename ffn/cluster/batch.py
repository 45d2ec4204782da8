"""Jobs of Snakemake on a scheduler: submit, ask, cancel; the scripts of the profiles call this.

Schedulers forget the jobs that are over, and a login node is no place for a question per job and second. So every job
leaves its exit code in ``.snakemake/cluster``, and one question to the scheduler serves all jobs for some seconds.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ffn.io import atomic

STATE = Path(".snakemake/cluster")  # in the folder that Snakemake works in
QUEUE_SECONDS = 10.0  # how long one answer of the scheduler serves
LOST_SECONDS = 120.0  # NFS shows a new file up to a minute late
NOTED_SECONDS = 120  # until a job finds that it was submitted: as for the above
COMMAND_SECONDS = 60.0  # for a command of the scheduler
SUBMIT_PAUSES = (5.0, 20.0)  # before a job that was refused is submitted again: a busy server, a limit of the queue
NO_ANSWER = 127
PROXIES = ("http_proxy", "https_proxy", "no_proxy")  # by which compute nodes reach volumes outside of the site
# Schedulers start jobs with a bare environment; these go on to them, the last ones by their beginnings.
ENVIRONMENT = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", *PROXIES, *map(str.upper, PROXIES))
SETTINGS = ("FFN_", "HOROVOD_", "NCCL_", "OMPI_MCA_", "TF_")

# A signal, at the walltime or by cancelling, goes on to all that runs (`set -m` makes it a process group), which then
# has the scheduler's grace to write a checkpoint. Training stops before the job's end (ffn/training/interruption.py).
# A job that Snakemake was not told of, because of a Ctrl-C or a scheduler that answered too late, does nothing: another
# one may do its work. (`ls` makes NFS look anew.)
SCRIPT = """#!/bin/bash
{exports}
export FFN_JOB_END_TIME=$(($(date +%s) + {seconds}))
cd {folder} || exit 1
job={state}/"${job_id}"
for second in {{1..{noted_seconds}}}; do
  [[ -e $job.submitted ]] && break
  sleep 1; ls {state} >/dev/null
done
if [[ ! -e $job.submitted ]]; then echo "no Snakemake waits for this job" >&2; exit 1; fi
set -m
{on_node} sh {job_script} </dev/null &
trap 'kill -TERM -- -$! 2>/dev/null' TERM INT
wait $!; code=$?
while kill -0 $! 2>/dev/null; do wait $!; code=$?; done
echo $code > "$job.exit.tmp" && mv "$job.exit.tmp" "$job.exit"
exit $code
"""

# A shell that died of SIGTERM would leave what it started without a parent: the script would end, and another attempt
# start, before it has; and a scheduler that follows parents would not find it. Traps are not inherited.
SHELL_STAYS = "trap : TERM INT\n"


@dataclass(frozen=True)
class Job:
    """What a scheduler has to know about a job.

    Parameters
    ----------
    name : str
        For people who look at the queue.
    nodes, threads, gpus, minutes : int
        Nodes, threads of a job without processes of its own, GPUs of a node, walltime.
    is_mpi : bool
        Whether the job starts its processes itself.
    site : mapping
        All resources, among them those that only this scheduler knows.
    outputs : tuple of str
        Files that it makes.
    """

    name: str
    nodes: int
    threads: int
    gpus: int
    minutes: int
    is_mpi: bool
    site: Mapping[str, Any]
    outputs: tuple[str, ...] = ()

    def options(self, names: Mapping[str, str]) -> list[str]:
        """Return the options of a command, given with the names of their resources, that the site has values for."""
        given = ((option, self.site.get(name)) for option, name in names.items())
        return [word for option, value in given if value for word in (option, str(value))]


class Scheduler(Protocol):
    """The commands of one scheduler; a module such as `ffn.cluster.pbs` is one."""

    JOB_ID: str  # the variable that holds the id inside of a job

    def submit_command(self, job: Job, script: str, log: str) -> list[str]:
        """Return the command line that submits a script."""
        ...

    def job_id(self, output: str) -> str | None:
        """Return the id in what that command printed, None if there is none."""
        ...

    def on_node(self, job: Job) -> str:
        """Return what starts one process on a compute node, where scripts run elsewhere."""
        ...

    def queue_command(self, ids: Sequence[str]) -> list[str]:
        """Return the command line that lists these jobs."""
        ...

    def queued(self, done: subprocess.CompletedProcess[str]) -> set[str] | None:
        """Return the ids of those that are not over, None if the scheduler could not be asked."""
        ...

    def cancel_command(self, ids: Sequence[str]) -> list[str]:
        """Return the command line that ends these jobs."""
        ...


def submit(scheduler: Scheduler, arguments: Sequence[str]) -> int:
    """Submit a job script of Snakemake and print the id.

    Parameters
    ----------
    scheduler : Scheduler
        Whose commands to use.
    arguments : sequence of str
        The job script.

    Returns
    -------
    int
        Exit code: 1 if the scheduler refused the job, and its reason is on standard error.
    """
    STATE.mkdir(parents=True, exist_ok=True)
    job = read_job(Path(arguments[0]))
    script = _write_script(job, Path(arguments[0]), scheduler)
    done = _submit(scheduler.submit_command(job, str(script), str(script.with_suffix(".log"))))
    job_id = scheduler.job_id(done.stdout) if done.returncode == 0 else None
    if job_id is None:
        sys.stderr.write(f"{shlex.join(done.args)}: exit code {done.returncode}, no job id in {done.stdout!r}\n")
        return 1
    for path in (_record(job_id, kind) for kind in ("exit", "gone", "cancelled")):
        if (_modified(path) or math.inf) < script.stat().st_mtime:
            path.unlink()  # of an earlier job with this number: of another cluster, or of a scheduler set up anew
    atomic.write_text(_record(job_id, "submitted"), "\n".join(job.outputs))
    sys.stdout.write(f"{job_id}\n")
    return 0


def status(scheduler: Scheduler, arguments: Sequence[str]) -> int:
    """Print running, success or failed for one job; never fails, which would end Snakemake.

    A job that the scheduler no longer knows, and that has left no exit code for `FFN_LOST_SECONDS`, has failed.
    """
    try:
        word = _status(scheduler, arguments[0])
    except Exception as reason:  # whatever it is, the next question may be answered
        sys.stderr.write(f"status of {arguments}: {reason!r}\n")
        word = "running"
    sys.stdout.write(f"{word}\n")
    return 0


def cancel(scheduler: Scheduler, arguments: Sequence[str]) -> int:
    """Cancel jobs; return at once, because Snakemake waits two seconds and schedulers take longer."""
    for job_id in arguments:
        _record(job_id, "cancelled").touch()
    null = subprocess.DEVNULL
    subprocess.Popen(scheduler.cancel_command(arguments), start_new_session=True, stdin=null, stdout=null, stderr=null)
    return 0


def makers_of(folder: str) -> list[str]:
    """Return the submitted jobs whose end nobody has noticed yet and that make files in a folder."""
    makers = {p.stem: p.read_text().splitlines() for p in STATE.glob("*.submitted") if _exit_code(p.stem) is None}
    return sorted(job_id for job_id, paths in makers.items() if any(path.startswith(f"{folder}/") for path in paths))


def still_queued(scheduler: Scheduler, ids: Sequence[str]) -> list[str]:
    """Return those of these jobs that are not over, all where the scheduler does not answer; the rest is forgotten."""
    queued = scheduler.queued(run_command(scheduler.queue_command(ids)))
    left = [job_id for job_id in ids if queued is None or job_id in queued]
    for job_id in set(ids) - set(left):
        _record(job_id, "submitted").unlink(missing_ok=True)
    return left


def read_job(script: Path) -> Job:
    """Return what Snakemake says about a job in its script; account and queue may come from the environment."""
    mark = "# properties = "
    with script.open() as lines:
        values = json.loads(next(line for line in lines if line.startswith(mark)).removeprefix(mark))
    site = with_environment(values["resources"])
    return Job(
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
    """Return resources with the account and the queue that the environment names, if it does."""
    named = {"account": os.environ.get("FFN_ACCOUNT"), "queue": os.environ.get("FFN_QUEUE")}
    return {**resources, **{key: value for key, value in named.items() if value}}


def exports() -> list[str]:
    """Return lines of a script that set what jobs need of this process's environment."""
    names = [name for name in os.environ if name in ENVIRONMENT or name.startswith(SETTINGS)]
    return [f"export {name}={shlex.quote(os.environ[name])}" for name in sorted(names)]


def _write_script(job: Job, job_script: Path, scheduler: Scheduler) -> Path:
    """Write what the scheduler starts: the job's script in this environment and folder, its exit code on record."""
    stem = STATE.absolute() / f"{job.name}-{uuid.uuid4().hex[:8]}"
    copy, script = stem.with_suffix(".job"), stem.with_suffix(".sh")
    copy.write_text(f"{SHELL_STAYS}{job_script.read_text()}")
    text = SCRIPT.format(
        exports="\n".join(exports()),
        seconds=60 * job.minutes,
        noted_seconds=NOTED_SECONDS,
        folder=shlex.quote(str(Path.cwd())),
        state=shlex.quote(str(STATE.absolute())),
        job_id=scheduler.JOB_ID,
        on_node="" if job.is_mpi else scheduler.on_node(job),
        job_script=shlex.quote(str(copy)),
    )
    script.write_text(text)
    script.chmod(0o755)
    return script


def _submit(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Submit, again where it was refused, but not where there was no answer: the job may be in the queue."""
    for pause in (*SUBMIT_PAUSES, None):
        done = run_command(command)
        sys.stderr.write(done.stderr)
        if done.returncode in (0, NO_ANSWER) or pause is None:
            break
        time.sleep(pause)
    return done


def _status(scheduler: Scheduler, job_id: str) -> str:
    code = _exit_code(job_id)
    if code is None and not _is_lost(scheduler, job_id):
        return "running"
    if code is None:
        code = _exit_code(job_id)  # written between the two questions, or not at all
    for kind in ("submitted", "gone"):  # nobody has to ask the scheduler for it any more
        _record(job_id, kind).unlink(missing_ok=True)
    return "success" if code == 0 else "failed"


def _is_lost(scheduler: Scheduler, job_id: str) -> bool:
    """Whether the scheduler has not known the job for so long that no record of its end can be on its way."""
    answer, submitted, gone = _listing(scheduler), _modified(_record(job_id, "submitted")), _record(job_id, "gone")
    if answer is None or (submitted is not None and answer[0] <= submitted):
        return False
    if job_id in answer[1]:
        gone.unlink(missing_ok=True)
        return False
    since = _modified(gone)
    if since is None:
        gone.touch()
        since = _modified(gone) or math.inf
    waited = _now() - since > _seconds("FFN_LOST_SECONDS", LOST_SECONDS)
    return waited or _record(job_id, "cancelled").exists()


def _listing(scheduler: Scheduler) -> tuple[float, set[str]] | None:
    """When the scheduler was asked and the jobs it had then; None where it does not answer."""
    path = STATE / "queue.json"
    asked = _modified(path)
    now = _now()
    if asked is None or now - asked > _seconds("FFN_QUEUE_SECONDS", QUEUE_SECONDS):
        ids = sorted(p.stem for p in STATE.glob("*.submitted") if not _record(p.stem, "exit").exists())
        queued = scheduler.queued(run_command(scheduler.queue_command(ids))) if ids else set()
        atomic.write_text(path, json.dumps({"asked": now, "queued": None if queued is None else sorted(queued)}))
    answer = json.loads(path.read_text())
    return None if answer["queued"] is None else (answer["asked"], set(answer["queued"]))


def is_answering(scheduler: Scheduler) -> bool:
    """Whether the scheduler says anything about its queue."""
    return scheduler.queued(run_command(scheduler.queue_command(["1"]))) is not None


def run_command(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command; exit code `NO_ANSWER` where it cannot be started or takes too long."""
    # Snakemake may run in a job itself: its own jobs must not inherit what describes that one
    environment = {name: v for name, v in os.environ.items() if not name.startswith("SLURM_") or name == "SLURM_CONF"}
    try:
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=COMMAND_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as reason:
        return subprocess.CompletedProcess(command, NO_ANSWER, "", f"{reason}\n")


def _record(job_id: str, kind: str) -> Path:
    """Path of what is on record about a job: submitted, exit, gone or cancelled."""
    return STATE / f"{job_id}.{kind}"


def _exit_code(job_id: str) -> int | None:
    try:
        return int(_record(job_id, "exit").read_text())
    except (OSError, ValueError):
        return None


def _now() -> float:
    """Return the time by the clock of the file system, with which times of files are compared."""
    clock = STATE / "clock"
    clock.touch()
    return clock.stat().st_mtime


def _modified(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def _seconds(variable: str, default: float) -> float:
    return float(os.environ.get(variable, default))
