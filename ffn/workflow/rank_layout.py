"""How a job's processes are placed on a site's nodes, and the command that starts them."""

from __future__ import annotations

import importlib.util
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from ffn.errors import ConfigError
from ffn.training.config import TrainConfig

LOCAL_LAUNCHER = "ffn launch --num-ranks {ranks} --launcher local --"
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
    def command(self) -> str:
        """The launcher with its numbers filled in; empty for a single process, which needs no launcher."""
        figures = {"ranks": self.ranks, "nodes": self.nodes, "per_node": self.per_node, "depth": self.depth}
        try:
            command = self.launcher.format(**figures)
            shlex.split(command)
        except (ValueError, LookupError, AttributeError, TypeError) as reason:
            found = f"launcher: {self.launcher!r} cannot be read ({reason!r}), expected {sorted(figures)} in braces"
            raise ConfigError(f"{found}. Close braces and quotes") from None
        return command if self.ranks > 1 else ""


def possible_here(train: TrainConfig, site: Mapping[str, object]) -> TrainConfig:
    """Return a training whose workers one process computes, with the same result, where this machine lacks Horovod."""
    needs_horovod = train.is_synchronous and train.collective == "horovod"
    if "launcher" in site or not needs_horovod or importlib.util.find_spec("horovod"):
        return train
    return train.model_copy(update={"num_workers": 1, "virtual_workers": train.total_workers})


def layout_of(ranks: int, site: Mapping[str, object], cores: int) -> Layout:
    """Return the layout of a job on a site."""
    figures = {"ranks_per_node": ranks, "cores_per_node": cores}
    for name in SITE_NUMBERS:
        given = str(site.get(name, figures[name]))
        if not given.isdigit() or int(given) < 1:
            raise ConfigError(f"{name}: {given!r} is not a positive number. Correct set-resources of the profile")
        figures[name] = int(given)
    return Layout(ranks, launcher=str(site.get("launcher", LOCAL_LAUNCHER)), **figures)
