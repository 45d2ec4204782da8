"""A site as its profile describes it: scheduler, launcher, ranks on nodes."""

from __future__ import annotations

import importlib.util
import os
import re
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from ffn.errors import ClusterError
from ffn.layout import Layout, layout_of

SLURM = "slurm"  # the executor; jobs of cluster-generic have a scheduler.py in the profile
CHECK_MINUTES = 10
LOG = "ffn-doctor.log"  # of the check job, in the current folder


@dataclass(frozen=True)
class Site:
    """What a profile says.

    Parameters
    ----------
    name : str
        As it was given.
    layout : Layout
        Ranks of the check job and what starts them.
    commands : tuple of str
        Of the scheduler.
    job_variable : str
        Set inside a job; empty where there is no scheduler.
    submit : tuple of str
        What submits a script.
    """

    name: str
    layout: Layout
    commands: tuple[str, ...] = ()
    job_variable: str = ""
    submit: tuple[str, ...] = ()

    @property
    def is_inside_job(self) -> bool:
        """Whether this process runs in a job of the scheduler, or needs none."""
        return not self.job_variable or self.job_variable in os.environ


def read_site(profile: str, num_nodes: int) -> Site:
    """Read a profile.

    Parameters
    ----------
    profile : str
        Folder with ``config.yaml``, or its name in ``profiles/``.
    num_nodes : int
        Nodes of the check job.

    Raises
    ------
    ClusterError
        If there is no such profile, or it has no launcher for several nodes.
    """
    folder = next((f for f in (Path(profile), Path("profiles") / profile) if (f / "config.yaml").is_file()), None)
    if folder is None:
        raise ClusterError(
            f"--profile: no config.yaml in {profile} or profiles/{profile}, expected a Snakemake profile"
        )
    values = yaml.safe_load((folder / "config.yaml").read_text())
    train = (values.get("set-resources") or {}).get("train") or {}
    if "executor" not in values:
        return Site(profile, layout_of(2, train, os.cpu_count() or 1))
    if "launcher" not in train:
        raise ClusterError(f"{folder}/config.yaml: set-resources: train has no launcher, a cluster needs one")
    ranks = num_nodes * int(train.get("ranks_per_node", 1))
    layout = layout_of(ranks, train, int(train.get("cores_per_node", 1)))
    return _slurm(profile, layout) if values["executor"] == SLURM else _generic(profile, layout, folder, values)


def _slurm(profile: str, layout: Layout) -> Site:
    submit = ["sbatch", "--parsable", f"--nodes={layout.nodes}", f"--ntasks={layout.ranks}", f"--time={CHECK_MINUTES}"]
    submit += [f"--cpus-per-task={layout.depth}", f"--output={LOG}"]
    return Site(profile, layout, ("sbatch", "squeue", "scancel"), "SLURM_JOB_ID", tuple(submit))


def _generic(profile: str, layout: Layout, folder: Path, values: dict[str, Any]) -> Site:
    """Ask the profile's own scheduler.py for its commands."""
    scheduler = _module(folder / "scheduler.py")
    defaults = dict(re.split("=", item, maxsplit=1) for item in _defaults(values))
    job = {"mem_mb": 1000, **defaults, "name": "ffn-doctor", "minutes": CHECK_MINUTES, "gpu": 0, "is_mpi": True}
    job |= {"nodes": layout.nodes, "tasks": layout.ranks, "threads": layout.depth}
    job["account"] = os.environ.get("FFN_ACCOUNT") or job.get("account")
    job["queue"] = os.environ.get("FFN_QUEUE") or job.get("queue")
    *submit, _ = scheduler.submit_command(job, "script", LOG)
    asked = [submit, scheduler.queue_command(["1"]), scheduler.cancel_command(["1"])]
    return Site(profile, layout, tuple(words[0] for words in asked), scheduler.JOB_ID, tuple(submit))


def _defaults(values: dict[str, Any]) -> list[str]:
    given = values.get("default-resources") or []
    return [f"{key}={value}" for key, value in given.items()] if isinstance(given, dict) else given


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("scheduler", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ClusterError(f"{path}: is missing, a profile with cluster-generic needs one. Copy a whole profile")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
