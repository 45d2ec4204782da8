"""How a job's processes are placed on a site's nodes, and the command that starts them."""

from __future__ import annotations

import importlib.util
import itertools
import re
import shlex
import string
from collections.abc import Mapping
from dataclasses import dataclass

from ffn.errors import ConfigError
from ffn.training.config import TrainConfig

LOCAL_LAUNCHER = "ffn launch --num-ranks {ranks} --launcher local --"
ASSIGNMENT = re.compile(r"\w+=")  # of a variable, before a command
SITE_NUMBERS = ("ranks_per_node", "cores_per_node")


@dataclass(frozen=True)
class Layout:
    """Processes on nodes. The run decides how many there are, the site how they are placed."""

    ranks: int  # processes of the job
    ranks_per_node: int  # at most
    cores_per_node: int  # which its processes share
    launcher: str = LOCAL_LAUNCHER

    @property
    def nodes(self) -> int:
        """Nodes of the job."""
        return -(-self.ranks // self.ranks_per_node)

    @property
    def per_node(self) -> int:
        """Processes on each node, evenly; the last node may have fewer."""
        return -(-self.ranks // self.nodes)

    @property
    def depth(self) -> int:
        """Cores of each process."""
        return max(1, self.cores_per_node // self.per_node)

    @property
    def spread(self) -> str:
        """Slurm's option that spreads the processes evenly; without it Slurm fills the first node."""
        return f"--ntasks-per-node={self.per_node}"

    @property
    def command(self) -> str:
        """The launcher with its numbers filled in; empty for a single process, which needs no launcher.

        If it begins with variables (``NAME=VALUE mpirun …``), `env` sets them, so that any program can start it, not
        only a shell.
        """
        figures = {"ranks": self.ranks, "nodes": self.nodes, "per_node": self.per_node, "depth": self.depth}
        try:
            found = {name for _, name, _, _ in string.Formatter().parse(self.launcher) if name is not None}
            filled = self.launcher.format(**figures) if found <= set(figures) else ""
            shlex.split(filled)
        except (ValueError, KeyError) as reason:
            advice = "Close its braces and quotes"
            raise ConfigError(f"launcher: {self.launcher!r} cannot be read ({reason}). {advice}") from None
        if unknown := found - set(figures):
            expected = f"{sorted(figures)} as placeholders"
            raise ConfigError(f"launcher: {self.launcher!r} has {sorted(unknown)}, expected {expected}")
        command = filled if self.ranks > 1 else ""
        return f"env {command}" if ASSIGNMENT.match(command) else command

    @property
    def words(self) -> list[str]:
        """The command without the variables that it sets.

        Examples
        --------
        >>> Layout(2, 1, 1, "KMP_BLOCKTIME=0 aprun -n {ranks}").words
        ['aprun', '-n', '2']
        """
        words = shlex.split(self.command)
        return list(itertools.dropwhile(lambda word: word == "env" or ASSIGNMENT.match(word), words))


def possible_here(train: TrainConfig, site: Mapping[str, object]) -> TrainConfig:
    """Return a training whose workers one process computes, with the same result, where this machine lacks Horovod."""
    needs_horovod = train.is_synchronous and train.collective == "horovod"
    if "launcher" in site or not needs_horovod or importlib.util.find_spec("horovod"):
        return train
    workers = train.num_workers * train.virtual_workers
    return train.model_copy(update={"num_workers": 1, "virtual_workers": workers})


def layout_of(ranks: int, site: Mapping[str, object], cores: int) -> Layout:
    """Return the layout of a job on a site."""
    figures = {"ranks_per_node": ranks, "cores_per_node": cores}
    for name in SITE_NUMBERS:
        given = str(site.get(name, figures[name]))
        if not given.isdigit() or int(given) < 1:
            raise ConfigError(f"{name}: {given!r} is not a positive number. Correct set-resources of the profile")
        figures[name] = int(given)
    return Layout(ranks, launcher=str(site.get("launcher", LOCAL_LAUNCHER)), **figures)
