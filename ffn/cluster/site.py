"""A site by its profile: scheduler, launcher, ranks on nodes."""

from __future__ import annotations

import os
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ffn.cluster.batch import makers_of, scheduler_of, still_queued
from ffn.errors import ClusterError
from ffn.io.faults import unreadable
from ffn.machine.limits import usable_cores
from ffn.machine.schedulers import Scheduler, slurm
from ffn.workflow.config_files import ROOT
from ffn.workflow.rank_layout import Layout, layout_of

SLURM = "slurm"  # the executor; with cluster-generic, the submit command names the scheduler


@dataclass(frozen=True)
class Site:
    """The parts of a profile that `ffn doctor` needs."""

    layout: Layout  # ranks of the check, and their launcher
    scheduler: Scheduler | None = None  # None for a workstation
    num_gpus: int = 0  # of a node, that training asks for

    @property
    def is_inside_job(self) -> bool:
        """Whether this process runs in a job of the scheduler, or there is no scheduler."""
        return self.scheduler is None or self.scheduler.JOB_ID in os.environ


def check_commands(executor: str, submit: str | None) -> None:
    """Raise ClusterError if this machine lacks a command that the profile submits jobs with."""
    scheduler = scheduler_of(submit) if submit else slurm if executor == SLURM else None
    if scheduler is not None:
        require_commands(scheduler)


def require_commands(scheduler: Scheduler) -> None:
    """Raise ClusterError if this machine lacks a command of a scheduler."""
    if missing := [name for name in scheduler.commands if shutil.which(name) is None]:
        raise ClusterError(
            f"profile: no {' and no '.join(missing)} on this machine, expected {' '.join(scheduler.commands)}. Use a "
            "login node of the profile's site, load the site's module, or choose another profile"
        )


def read_site(profile: str, num_nodes: int) -> Site:
    """Read a profile: a folder with ``config.yaml``, or the name of one of this software's."""
    folders = (Path(profile), ROOT / "profiles" / profile)
    folder = next((f for f in folders if (f / "config.yaml").is_file()), None)
    if folder is None:
        found = " ".join(sorted(path.parent.name for path in ROOT.glob("profiles/*/config.yaml")))
        raise ClusterError(f"--profile: no {profile}/config.yaml, expected the folder of a profile or one of {found}")
    values = _read(folder / "config.yaml")
    train = (values.get("set-resources") or {}).get("train") or {}
    if "executor" not in values:
        return Site(layout_of(2, train, usable_cores()))
    if "launcher" not in train:
        raise ClusterError(f"{folder}/config.yaml: set-resources: train has no launcher, a cluster needs one")
    per_node = layout_of(1, train, 1).ranks_per_node
    layout = layout_of(num_nodes * per_node, {"ranks_per_node": 1} | train, 1)
    is_plugin = values["executor"] == SLURM
    scheduler = slurm if is_plugin else scheduler_of(str(values.get("cluster-generic-submit-cmd", "")))
    return Site(layout, scheduler, int(train.get("gpu", (values.get("resources") or {}).get("gpu", 0))))


def check_none_left(submit: str, folder: str) -> None:
    """Raise ClusterError if a job of an earlier, killed Snakemake still works on a run: two would write one file."""
    ids = makers_of(folder)
    if not ids:
        return
    scheduler = scheduler_of(submit)
    if left := still_queued(scheduler, ids):
        raise ClusterError(
            f"{folder}: {len(left)} jobs of an earlier Snakemake are still working on it. Wait for them, or cancel "
            f"them, which keeps what they have done: {shlex.join(scheduler.cancel_command(left))}"
        )


def _read(path: Path) -> dict[str, Any]:
    with unreadable(path, "options of Snakemake, a mapping in YAML", ClusterError):
        return dict(yaml.safe_load(path.read_text()))
