"""A site as its profile describes it: scheduler, launcher, ranks on nodes."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from ffn.cluster import slurm
from ffn.cluster.batch import Job, Scheduler, makers_of, still_queued, with_environment
from ffn.errors import ClusterError
from ffn.workflow.needs import memory_mb
from ffn.workflow.rank_layout import Layout, layout_of

SLURM = "slurm"  # the executor; for cluster-generic the profile's submit.py names its scheduler
CHECK_MINUTES = 10
LOG = "ffn-doctor.log"  # of the check job, in the current folder
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Site:
    """What a profile says.

    Parameters
    ----------
    name : str
        Folder of the profile.
    layout : Layout
        Ranks of the check job and what starts them.
    scheduler : Scheduler or None
        None for a workstation.
    resources : mapping
        What the profile asks of the scheduler for training.
    """

    name: str
    layout: Layout
    scheduler: Scheduler | None = None
    resources: Mapping[str, Any] | None = None

    @property
    def is_inside_job(self) -> bool:
        """Whether this process runs in a job of the scheduler, or needs none."""
        return self.scheduler is None or self.scheduler.JOB_ID in os.environ

    @property
    def commands(self) -> list[str]:
        """Commands of the scheduler."""
        if self.scheduler is None:
            return []
        asked = [
            self.submit_command("script"),
            self.scheduler.queue_command(["1"]),
            self.scheduler.cancel_command(["1"]),
        ]
        return list(dict.fromkeys(words[0] for words in asked))

    def submit_command(self, script: str) -> list[str]:
        """Return the command line that submits a script as the check job, with what training asks for."""
        assert self.scheduler is not None
        site = {"slurm_extra": self.layout.spread, **(self.resources or {}), "tasks": self.layout.ranks}
        site["mem_mb"] = self.layout.per_node * memory_mb("train")
        job = Job(
            "ffn-doctor",
            self.layout.nodes,
            self.layout.depth,
            min(self.layout.per_node, int(site.get("gpu", 0))),
            CHECK_MINUTES,
            is_mpi=True,
            site=site,
        )
        return self.scheduler.submit_command(job, script, str(Path(LOG).absolute()))


def read_site(profile: str, num_nodes: int) -> Site:
    """Read a profile.

    Parameters
    ----------
    profile : str
        Folder with ``config.yaml``, or the name of one of the profiles that come with this software.
    num_nodes : int
        Nodes of the check job.

    Raises
    ------
    ClusterError
        If there is no such profile, or it has no launcher for several nodes.
    """
    if num_nodes < 1:
        raise ClusterError(f"--nodes: {num_nodes}, expected at least 1")
    folders = (Path(profile), ROOT / "profiles" / profile)
    folder = next((f for f in folders if (f / "config.yaml").is_file()), None)
    if folder is None:
        found = " ".join(sorted(path.parent.name for path in ROOT.glob("profiles/*/config.yaml")))
        raise ClusterError(f"--profile: no {profile}/config.yaml, expected the folder of a profile or one of {found}")
    values = _read(folder / "config.yaml")
    train = (values.get("set-resources") or {}).get("train") or {}
    if "executor" not in values:
        return Site(str(folder), layout_of(2, train, os.cpu_count() or 1))
    if "launcher" not in train:
        raise ClusterError(f"{folder}/config.yaml: set-resources: train has no launcher, a cluster needs one")
    per_node = layout_of(1, train, 1).ranks_per_node
    layout = layout_of(num_nodes * per_node, {"ranks_per_node": 1} | train, 1)
    resources = {"gpu": (values.get("resources") or {}).get("gpu", 0)} | _defaults(values) | train
    if values["executor"] == SLURM:
        return Site(str(folder), layout, slurm, _unquoted(resources | _plugin_resources(values, resources)))
    return Site(str(folder), layout, _scheduler(folder / "submit.py"), with_environment(_unquoted(resources)))


def check_none_left(submit: str | None, folder: str) -> None:
    """Make sure that no job of an earlier Snakemake, which was killed, still works on a run.

    Parameters
    ----------
    submit : str or None
        Command that submits jobs, None where there are none.
    folder : str
        Folder of the run.

    Raises
    ------
    ClusterError
        If there are some: two jobs would write the same files.
    """
    ids = makers_of(folder) if submit else []
    if not submit or not ids:
        return
    scheduler = _scheduler(Path(shlex.split(submit)[0]))
    if left := still_queued(scheduler, ids):
        raise ClusterError(
            f"{folder}: {len(left)} jobs of an earlier start still work on it. Wait for their end, or cancel them: "
            f"{shlex.join(scheduler.cancel_command(left))}; what they have done is kept"
        )


def _read(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text())
    except yaml.YAMLError as reason:
        raise ClusterError(f"{path}: is no YAML ({' '.join(str(reason).split())}). Correct it") from None
    if not isinstance(values, dict):
        raise ClusterError(f"{path}: is no mapping, expected options of Snakemake and their values")
    return values


def _defaults(values: Mapping[str, Any]) -> dict[str, Any]:
    given = values.get("default-resources") or {}
    return given if isinstance(given, dict) else dict(re.split("=", item, maxsplit=1) for item in given)


def _plugin_resources(values: Mapping[str, Any], resources: Mapping[str, Any]) -> dict[str, Any]:
    """Return what Slurm's plugin for Snakemake has other names for than our batch profiles."""
    return {
        "account": resources.get("slurm_account"),
        "queue": resources.get("slurm_partition"),
        "qos": values.get("slurm-qos"),
        "reservation": values.get("slurm-reservation"),
    }


def _unquoted(resources: Mapping[str, Any]) -> dict[str, Any]:
    """Remove the second pair of quotes that names have, because Snakemake evaluates resources as Python."""
    return {
        name: value.strip("'\"") if isinstance(value, str) and name in slurm.SITE_NAMES else value
        for name, value in resources.items()
    }


def _scheduler(path: Path) -> Scheduler:
    """Return the scheduler that the profile's submit script names."""
    spec = importlib.util.spec_from_file_location("submit", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ClusterError(f"{path}: is missing, a profile with cluster-generic needs one. Copy a whole profile")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not isinstance(scheduler := getattr(module, "scheduler", None), ModuleType):
        raise ClusterError(f"{path}: names no scheduler, expected one as in profiles/slurm-generic/submit.py")
    return scheduler
