"""The batch schedulers of clusters, one module each; the module's name is the scheduler's."""

from __future__ import annotations

import importlib
import os
import pkgutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from ffn.errors import ClusterError


@dataclass(frozen=True)
class BatchJob:
    """What a scheduler has to know about a job.

    Parameters
    ----------
    name : str
        Shown in the queue.
    nodes, threads, gpus, minutes : int
        Nodes, threads of a job that is not MPI, GPUs of each node, walltime.
    is_mpi : bool
        Whether the job starts its processes itself.
    site : mapping
        All resources, including those that only this scheduler knows.
    outputs : tuple of str
        Files that the job makes.
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
        """Return command-line options from the resources that `names` maps them to; those without a value are left out.

        Examples
        --------
        >>> job = BatchJob("ffn-train", 1, 1, 0, 9, False, site={"queue": "prod", "account": ""})
        >>> job.options({"-q": "queue", "-A": "account"})
        ['-q', 'prod']
        """
        given = ((option, self.site.get(name)) for option, name in names.items())
        return [word for option, value in given if value for word in (option, str(value))]


class Scheduler(Protocol):
    """What a module of this package defines."""

    __name__: str
    JOB_ID: str  # environment variable that holds the id inside a job

    def submit_command(self, job: BatchJob, script: str, log: str) -> list[str]:
        """Return the command that submits a script."""
        ...

    def job_id(self, output: str) -> str | None:
        """Return the id in what that command printed, None if there is none."""
        ...

    def on_node(self, job: BatchJob) -> str:
        """Return what starts one process on a compute node, for schedulers that run scripts elsewhere."""
        ...

    def queue_command(self, ids: Sequence[str]) -> list[str]:
        """Return the command that lists these jobs."""
        ...

    def queued(self, done: subprocess.CompletedProcess[str]) -> set[str] | None:
        """Return the ids of the jobs that have not ended, None if the scheduler did not answer."""
        ...

    def cancel_command(self, ids: Sequence[str]) -> list[str]:
        """Return the command that cancels these jobs."""
        ...


def scheduler_names() -> list[str]:
    """Return the names of the schedulers, which are the modules of this package."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def find_scheduler(name: str) -> Scheduler:
    """Return the scheduler of this name.

    Raises
    ------
    ClusterError
        If there is none.
    """
    if name not in scheduler_names():
        raise ClusterError(f"scheduler: found {name!r}, expected one of {', '.join(scheduler_names())}")
    return cast(Scheduler, importlib.import_module(f"{__name__}.{name}"))


def current_job_id() -> str | None:
    """Return the id of the job that this process runs in, None outside of any job."""
    variables = (find_scheduler(name).JOB_ID for name in scheduler_names())
    return next((os.environ[name] for name in variables if name in os.environ), None)
