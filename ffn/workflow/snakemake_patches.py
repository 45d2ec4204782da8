"""Everything that touches Snakemake's internals, for the one version that it was tested with.

Each patch says what Snakemake does without it, and where that was reported. When another workflow uses this one as a
`module`, nothing is patched, because the jobs of that workflow are not ours.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import functools
import itertools
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import snakemake
import snakemake_executor_plugin_slurm
from snakemake.exceptions import WorkflowError

from ffn.workflow.stages import STAGES, revisions_of

SERIES = "9.27"


def require_version() -> None:
    """Check that this Snakemake is the one that the patches are for.

    Raises
    ------
    WorkflowError
        If it has another version.
    """
    if snakemake.__version__.split(".")[:2] != SERIES.split("."):
        raise WorkflowError(
            f"Snakemake {snakemake.__version__}: this workflow needs {SERIES}.x. Run 'make setup', or install "
            f"'snakemake~={SERIES}.0'"
        )


require_version()  # another version may lack what follows

from snakemake.api import Workflow  # noqa: E402  of snakemake.workflow, which only imports after the other
from snakemake.common import NOTHING_TO_BE_DONE_MSG  # noqa: E402
from snakemake.deployment.env_modules import EnvModules  # noqa: E402
from snakemake.jobs import GroupJob, Job  # noqa: E402
from snakemake.logging import logger  # noqa: E402
from snakemake.resources import Resource  # noqa: E402
from snakemake.rules import Rule  # noqa: E402
from snakemake.scheduling.job_scheduler import JobScheduler  # noqa: E402
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor  # noqa: E402

_report_job_submission = RemoteExecutor.report_job_submission
_exit_gracefully = JobScheduler.exit_gracefully
_group = Rule.group


def apply(workflow: Workflow) -> None:
    """Patch Snakemake, unless another workflow uses this one as a module; a second call changes nothing."""
    if is_module(workflow):
        return
    GroupJob.get_target_spec = _unfinished
    RemoteExecutor.report_job_submission = _registered
    JobScheduler.exit_gracefully = _told_to_end
    Job.is_pipe_or_service_input = _is_pipe_or_service
    snakemake_executor_plugin_slurm.pending_jobs_for_rule = _none_to_come


# --- What Snakemake does not tell the rules -------------------------------------------------------
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
    resources = workflow.resource_settings._parsed_overwrite_resources.get(rule, {})
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


def jobs_to_run(workflow: Workflow, rule: str) -> list[Job]:
    """Return the jobs of a rule that this run has to make; known when the run starts."""
    return [job for job in workflow.dag.needrun_jobs() if job.rule.name == rule]


def lock(workflow: Workflow) -> None:
    """Take Snakemake's own lock until this process ends, although the profile says `nolock`.

    It is for file systems without locks of the kernel. It outlives a killed Snakemake, which says how to remove it.
    """
    for name in ("lock", "unlock"):
        vars(workflow.persistence).pop(name, None)  # `nolock` replaces the methods
    held = contextlib.ExitStack()
    held.enter_context(workflow.persistence.lock())
    atexit.register(held.close)


# --- What the rules have no hook for ----------------------------------------------------------------------------
def add_to_nothing_to_do(text: str) -> None:
    """Add a line to what Snakemake says where there is nothing to do; it calls neither `onstart` nor `onsuccess`."""

    def with_text(record: logging.LogRecord) -> bool:
        if record.msg == NOTHING_TO_BE_DONE_MSG:
            record.msg = f"{record.msg}\n{text}"
        return True

    logger.addFilter(with_text)


# --- Software of all rules -----------------------------------------------------------------------------------
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


def keep_slurm_extra(workflow: Workflow) -> None:
    """Add the profile's `slurm_extra` to that of a rule; Snakemake would take one of the two."""
    settings = workflow.resource_settings
    for rule in workflow.modifier.rules:
        own = rule.ruleinfo.resources and rule.ruleinfo.resources[1].get("slurm_extra")
        of_rule: Mapping[str, Any] = settings._parsed_overwrite_resources.get(rule.name, {})
        given = [
            known["slurm_extra"] for known in (of_rule, settings._parsed_default_resources) if "slurm_extra" in known
        ]
        if own and given:
            both = functools.partial(_joined, Resource("slurm_extra", own), given[0])
            rule.resources.update({"slurm_extra": both})


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


def _joined(first: Resource, second: Resource, wildcards: Any, **known: Any) -> str:
    return f"{first.evaluate(wildcards, **known).value} {second.evaluate(wildcards, **known).value}"


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
    """Return what Snakemake expects of a job: a node may die between its output and its benchmark."""
    return [*job.output, *([job.benchmark] if job.benchmark else [])]


def _written(path: str) -> int | None:
    """When a file was written; None if there is no file."""
    return os.stat(path).st_mtime_ns if os.path.exists(path) else None


# --- Ctrl-C cancels every job --------------------------------------------------------------------------------
class ActiveJobs(list):
    """Submitted jobs, including those whose state is being queried.

    Snakemake empties its list for the query, so a Ctrl-C in that moment cancels no job. Not reported upstream.
    """

    asked: tuple = ()

    def clear(self) -> None:
        """Empty the list, but remember the jobs until they come back."""
        self.asked = tuple(self)
        super().clear()

    def extend(self, jobs: Any) -> None:
        """Take back the jobs that are still active."""
        super().extend(jobs)
        self.asked = ()

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the jobs, including those that are being queried."""
        return itertools.chain(super().__iter__(), self.asked)


def _registered(executor: RemoteExecutor, *arguments: Any, **options: Any) -> None:
    with executor.lock:
        if not isinstance(executor.active_jobs, ActiveJobs):
            executor.active_jobs = ActiveJobs(executor.active_jobs)
    _report_job_submission(executor, *arguments, **options)


# --- Any number of SIGTERMs ends Snakemake after its running jobs -----------------------------------------------------
def _told_to_end(scheduler: JobScheduler, *signal: Any) -> None:
    """Handle a SIGTERM in a separate thread. Not reported upstream.

    Snakemake's handler takes a lock. If the thread that it interrupts already holds that lock, the handler waits for
    ever. That thread may be in the handler of an earlier SIGTERM: schedulers send one to every process, and shells pass
    theirs on. `threading` is not used because it takes locks as well.
    """
    _thread.start_new_thread(_exit_gracefully, (scheduler,))


# --- A job with many inputs starts at once ----------------------------------------------------------------------
def _is_pipe_or_service(job: Job, path: str) -> bool:
    """Say that no input comes from a pipe or a service: no rule of ours has one.

    Snakemake looks each input up among all jobs that the job depends on. For 100,000 inputs, that takes most of an
    hour. Not reported upstream.
    """
    return False


# --- A job array is what can run now -----------------------------------------------------------------------------
# The plugin of Slurm drops jobs of an array while others of their rule are ready, and never submits them
# (https://github.com/snakemake/snakemake-executor-plugin-slurm/issues/473).
def _none_to_come(dag: Any, rule: str) -> int:
    """Return how many jobs of a rule to wait for before those that Snakemake gave are submitted."""
    return 0
