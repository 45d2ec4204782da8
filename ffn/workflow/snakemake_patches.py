"""Everything that touches Snakemake's internals: questions that the rules ask, and a few patches.

Each patch names the fault that it mends and where that was reported. Attributes that a version of Snakemake lacks are
not patched, and nothing is when another workflow uses this one as a `module`, because the jobs of that workflow are not
ours.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import functools
import itertools
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TextIO

import psutil
import snakemake.persistence
import snakemake_executor_plugin_slurm
from snakemake.api import Workflow  # of snakemake.workflow, which only imports after this module
from snakemake.deployment.env_modules import EnvModules
from snakemake.jobs import GroupJob, Job
from snakemake.logging import DefaultFormatter
from snakemake.rules import Rule
from snakemake.scheduling.job_scheduler import JobScheduler

from ffn.errors import without_secrets
from ffn.io.atomic import AGAIN, full_disk
from ffn.workflow.stages import STAGES, revisions_of

_format = DefaultFormatter.format
_handle_error = getattr(JobScheduler, "_handle_error", lambda scheduler, job, **options: None)
_exit_gracefully = getattr(JobScheduler, "exit_gracefully", lambda scheduler: None)
_group = Rule.group
_records: Any = getattr(snakemake.persistence, "PersistenceBase", getattr(snakemake.persistence, "Persistence", None))
_finished: Any = getattr(_records, "finished", lambda persistence, job: None)


def apply(workflow: Workflow) -> None:
    """Patch Snakemake, unless another workflow uses this one as a module; a second call changes nothing."""
    if is_module(workflow):
        return
    logging.raiseExceptions = False  # a full disk under Snakemake's log would show a traceback for each line
    _replace(GroupJob, "get_target_spec", _unfinished)
    _replace(JobScheduler, "exit_gracefully", _told_to_end)
    _replace(JobScheduler, "_handle_error", _failed)
    _replace(_records, "finished", _recorded)
    _replace(DefaultFormatter, "format", lambda *arguments: without_secrets(str(_format(*arguments))))
    # The plugin of Slurm drops jobs of an array while others of their rule are ready, and never submits them
    # (https://github.com/snakemake/snakemake-executor-plugin-slurm/issues/473).
    _replace(snakemake_executor_plugin_slurm, "pending_jobs_for_rule", lambda dag, rule: 0)


def _replace(owner: Any, name: str, function: Callable[..., Any]) -> None:
    if hasattr(owner, name):
        setattr(owner, name, function)


# --- Questions of the rules -------------------------------------------------------
def is_module(workflow: Workflow) -> bool:
    """Whether another workflow uses this one by its `module` statement."""
    return not workflow.modifier.is_main_snakefile()


def has_configfile(workflow: Workflow) -> bool:
    """Whether the command line names a configuration; Snakemake would merge it with the workflow's own."""
    return bool(workflow.overwrite_configfiles)


def configfiles(workflow: Workflow) -> list[str]:
    """Return the files with the configuration; not those of another workflow that uses this one."""
    return [] if is_module(workflow) else list(map(str, workflow.configfiles))


def cores(workflow: Workflow) -> int:
    """Return how many cores Snakemake may use."""
    return workflow.resource_settings.cores or 1


def gpus(workflow: Workflow) -> int:
    """Return how many GPUs Snakemake may use: `resources: gpu: N` of the profile, of a node on a cluster."""
    return int(workflow.global_resources.get("gpu").value or 0)


def nodes(workflow: Workflow) -> int:
    """Return how many jobs Snakemake gives a cluster at a time; 1 on this machine."""
    return workflow.resource_settings.nodes or 1 if submits(workflow) else 1


def site(workflow: Workflow, rule: str) -> dict[str, Any]:
    """Return a rule's ``set-resources`` of the profile, as written there."""
    resources = workflow.resource_settings.overwrite_resources.get(workflow.modifier.modify_rulename(rule), {})
    return {name: resources[name].raw for name in resources}


def submits(workflow: Workflow) -> bool:
    """Whether jobs go to a cluster and this process is not such a job."""
    return not (workflow.local_exec or workflow.remote_exec)


def is_quiet(workflow: Workflow) -> bool:
    """Whether Snakemake was told to leave something out of its output, by ``--quiet``."""
    return bool(workflow.output_settings.quiet)


def submit_command(workflow: Workflow) -> str | None:
    """Return the command of the profile that submits a job, if there is one."""
    return getattr(workflow.executor_settings, "submit_cmd", None)


def executor(workflow: Workflow) -> str:
    """Return the name of the plugin that runs the jobs; known when the run starts."""
    return str(workflow.executor_plugin.name)


def at_start(workflow: Workflow, root: str, start: Callable[[Callable[[str], list[Job]]], None]) -> None:
    """Call a function once when a run starts that has jobs of this workflow, also of a module.

    Snakemake ignores `onstart` in modules. The function gets another one, which returns the jobs of a rule that the run
    has to make. Each `use rule` reads this workflow again and takes other rules, so `root` says what is one run.
    """
    parts, _ = vars(workflow).setdefault("starts", {}).setdefault(root, ([], start))
    parts.append(workflow.modifier)
    Workflow._onstart = property(_start, lambda workflow, own: vars(workflow).update(_onstart=own))


def _start(workflow: Workflow) -> Callable[[str], None]:
    """Return what Snakemake calls for `onstart`: that of the main workflow, then those of modules."""

    def jobs_of(parts: list[Any], rule: str) -> list[Job]:
        names = {part.modify_rulename(rule) for part in parts}
        return [job for job in workflow.dag.needrun_jobs() if job.rule.name in names]

    def start(log: str) -> None:
        vars(workflow)["_onstart"](log)
        needed = {job.rule.name for job in workflow.dag.needrun_jobs()}
        for parts, function in vars(workflow).get("starts", {}).values():
            if needed & {rule.name for part in parts for rule in part.rules}:
                function(functools.partial(jobs_of, parts))

    return start


# --- Properties of all rules -------------------------------------------------------------------------
def lock(workflow: Workflow) -> None:
    """Take Snakemake's own lock until this process ends, although the profile says `nolock`.

    It is for file systems without locks of the kernel. It outlives a killed Snakemake, which says how to remove it.
    """
    for name in ("lock", "unlock"):
        vars(workflow.persistence).pop(name, None)  # `nolock` replaces the methods
    held = contextlib.ExitStack()
    held.enter_context(workflow.persistence.lock())
    atexit.register(held.close)


def give_software(workflow: Workflow, conda: str, modules: list[str]) -> None:
    """Give all rules of this workflow the same environment, and a parameter that reruns them with another revision.

    Snakemake has these directives only for single rules (https://github.com/snakemake/snakemake/issues/551).
    """
    for rule in workflow.modifier.rules:
        if rule.shellcmd is None:
            continue
        if rule.conda_env is None:  # else a workflow that uses this one as a module has given the rule another one
            rule.conda_env = conda
        if rule.env_modules is None and modules:
            rule.env_modules = EnvModules(*modules)
        rule.set_params(revision=revisions_of(rule.shellcmd))


def give_container(workflow: Workflow, image: str | None, has_launcher: bool) -> None:
    """Give all rules the container with the software, if there is one.

    If the site has a launcher, rules that it starts run outside, because it is not in the container. It can start one.
    """
    for rule in workflow.modifier.rules:
        is_launched = has_launcher and "mpi" in rule.resources
        if image and rule.shellcmd and rule.container_img is None and not is_launched:
            rule.container_img = image


def ungroup(workflow: Workflow, is_shared: Callable[[str], bool]) -> None:
    """Dissolve each of the profile's groups that has a stage whose blocks several jobs share.

    These jobs are in no group, because there may be a thousand, but they depend on members of the group and members
    depend on them, which Snakemake refuses (https://github.com/snakemake/snakemake/pull/3563). It reads the groups
    after the rules.
    """
    if is_module(workflow):
        return
    shared = functools.cache(lambda stage: stage in STAGES and is_shared(stage))

    def group_of(rule: Rule) -> str | None:
        name = _group.fget(rule)
        groups = rule.workflow.group_settings.overwrite_groups
        return None if any(group == name and shared(member) for member, group in groups.items()) else name

    Rule.group = property(group_of, _group.fset)


# --- A failed group repeats only its unfinished jobs -------------------------------------------------------------
# Snakemake repeats all jobs of a group, also finished ones (https://github.com/snakemake/snakemake/issues/4248).
_FOUND: dict[str, int | None] = {}  # when the outputs of grouped jobs had been written before their first submission


def _unfinished(group: GroupJob) -> list[Any]:
    """Unfinished members of a group, as targets of the Snakemake that runs the group."""
    for job in group.jobs:
        for path in _products(job):
            _FOUND.setdefault(path, _written(path))
    left = [job for job in group.jobs if any(_written(path) in (None, _FOUND[path]) for path in _products(job))]
    return [spec for job in left or group.jobs for spec in job.get_target_spec()]


def _products(job: Any) -> list[str]:
    """Return the files that Snakemake expects of a job: a node may die between its output and its benchmark."""
    return [*job.output, *([job.benchmark] if job.benchmark else [])]


def _written(path: str) -> int | None:
    """Time of the last change of a file; None if it does not exist."""
    return os.stat(path).st_mtime_ns if os.path.exists(path) else None


# --- A job that failed is still to be done ---------------------------------------------------------------------------
async def _recorded(persistence: Any, job: Job) -> None:
    """Record the parameters of a job, unless it failed and keeps no output.

    Snakemake records them all the same. It deletes the output, too, and if these parameters are new, the next run sees
    nothing to do but files made with the old ones: neither do parameters differ, nor is the target missing.
    """
    failed = any(job in (each.jobs if each.is_group() else [each]) for each in _ERRORS)
    if all(map(os.path.exists, job.output)) and (job.dag.workflow.execution_settings.keep_incomplete or not failed):
        await _finished(persistence, job)


# --- Errors of jobs are the last lines ----------------------------------------------------------------------------
MAX_ERRORS = 10  # of a run; our choice
_ERRORS: dict[Any, list[str]] = {}  # by job


def _failed(scheduler: JobScheduler, job: Any, **options: Any) -> None:
    """Keep the errors of a job that failed, and do not repeat one with a full disk: more memory would not help."""
    _ERRORS[job] = list(filter(None, (_last(_ERROR, log) or full_disk(log) for log in job.log)))
    if any(AGAIN in line for line in _ERRORS[job]):
        job._attempt = job.restart_times + 1  # the setter would change the resources, which are given back next
    _handle_error(scheduler, job, **options)
    if job not in scheduler.failed:  # it is repeated
        del _ERRORS[job]


@atexit.register
def _repeat_errors() -> None:
    """Print the errors below all that Snakemake says of them, or of a disk that takes none of its own files."""
    lines = dict.fromkeys(itertools.chain(*_ERRORS.values())) or filter(None, [full_disk(".snakemake")])
    for line in list(lines)[-MAX_ERRORS:]:
        print(line, file=sys.stderr)


# --- Progress of the running jobs -------------------------------------------------------------------------------------
TAIL_BYTES = 4096  # of a log, enough for its last lines
SECONDS = 30.0  # between two looks; our choice
MAX_LINES = 20

_ERROR = re.compile(r"\bffn[ \w-]*: error: .*")
_PROGRESS = re.compile(r"^\S.*:\s+\d+% .*\[.*\]$")  # a line of ffn.progress


def _last(line: re.Pattern[str], log: str) -> str | None:
    """Return the last match at the end of a log."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            tail = file.read().decode(errors="replace").splitlines()
    except OSError:  # a job in the queue has no log yet
        return None
    return next((match[0] for text in reversed(tail) if (match := line.search(text))), None)


class LiveJobs(logging.Handler):
    """Prints one line for each running job below Snakemake's output, those that changed every `SECONDS`.

    Snakemake's interface for logger plugins does not fit: a plugin that writes to the terminal replaces Snakemake's own
    output, and gets its records late, from a queue.
    """

    def __init__(self, stream: TextIO = sys.stderr) -> None:
        super().__init__()
        self._stream = stream
        self._jobs: dict[Any, tuple[str, str]] = {}  # rule and wildcards, and the log, by Snakemake's number
        self._shown: list[str] = []

    def start(self, logger: logging.Logger) -> None:
        """Follow the messages of `logger` until this process ends, unless another program shows the jobs."""
        if any(handler.name == "DefaultStreamHandler" for handler in logger.handlers):
            logger.addHandler(self)
            threading.Thread(target=self._repeat, daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Take note of jobs that start and end."""
        fields = vars(record)
        event = str(fields.get("event"))
        if event == "job_info":
            words = [fields["rule_name"], *(fields["wildcards"] or {}).values()]
            self._jobs[fields["jobid"]] = " ".join(filter(None, words)), (fields["log"] or [""])[0]
        elif event in ("job_finished", "job_error"):
            self._jobs.pop(fields.get("job_id", fields.get("jobid")), None)

    def show(self) -> None:
        """Print the progress of the running jobs."""
        jobs = list(self._jobs.values())
        lines = [f"{title}: {_last(_PROGRESS, log) or 'no progress yet'}" for title, log in jobs[:MAX_LINES]]
        if len(jobs) > MAX_LINES:
            lines.append(f"… and {len(jobs) - MAX_LINES} more jobs")
        self._stream.write("".join(f"{line}\n" for line in lines if line not in self._shown))
        self._stream.flush()
        self._shown = lines

    def _repeat(self) -> None:
        while True:
            time.sleep(SECONDS)
            self.show()


# --- SIGTERM reaches the jobs on this machine ------------------------------------------------------------------------
_SIGTERMS = itertools.count()


def _told_to_end(scheduler: JobScheduler, *signal: Any) -> None:
    """Handle a SIGTERM in a separate thread; all further ones change nothing.

    Snakemake's handler takes a lock that the interrupted thread may hold, and then waits for ever. `threading` is not
    used because it takes locks as well.
    """
    if next(_SIGTERMS) == 0:
        _thread.start_new_thread(_end, (scheduler,))


def _end(scheduler: JobScheduler) -> None:
    """Start no more jobs, and tell those of this machine to end, for which Snakemake would wait: training for hours.

    Jobs of a cluster get the signal from their scheduler, and Open MPI's mpirun takes a second one as a SIGKILL.
    """
    _exit_gracefully(scheduler)
    workflow, told = scheduler.workflow, set[int]()
    while workflow.local_exec and not workflow.remote_exec:
        for child in psutil.Process().children():
            if child.pid not in told:
                told.add(child.pid)
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.terminate()
        time.sleep(1)  # a job may have been about to start
