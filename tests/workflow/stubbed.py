"""Runs whose stages are a stand-in for `ffn` that only writes files."""

import os
import re
import stat
import sys
from pathlib import Path

from ..small_run import Workflow, fork_snakemake, shown


def write_stub(folder: Path, real: tuple[str, ...] = ()) -> Path:
    """Write a program `ffn` that runs `stub_ffn.py`, or a real command of these; return its folder."""
    executable = folder / "bin/ffn"
    executable.parent.mkdir(parents=True, exist_ok=True)
    stub = f"-SE {Path(__file__).with_name('stub_ffn.py')}"
    commands = "".join(f'{name}) exec {sys.executable} -m ffn "$@" ;;\n' for name in real)
    executable.write_text(f'#!/bin/sh\ncase $1 in\n{commands}*) exec {sys.executable} {stub} "$@" ;;\nesac\n')
    executable.chmod(executable.stat().st_mode | stat.S_IXUSR)
    return executable.parent


class Stubbed:
    """A run with `stub_ffn.py` first in the path."""

    def __init__(self, folder: Path, config: dict, targets: tuple[str, ...]) -> None:
        self.workflow, self.config, self.targets = Workflow(folder, config), config, targets
        write_stub(folder)

    def snakemake(self, *arguments: str):
        """Run Snakemake for all targets."""
        path = f"{self.workflow.folder / 'bin'}:{os.environ['PATH']}"
        arguments = self.workflow.arguments(*self.targets, *arguments)
        return fork_snakemake(arguments, self.workflow.folder, {"PATH": path})

    def plan(self, config: dict) -> str:
        """Output of a dry run with a configuration."""
        self.workflow.configure(config)
        return shown(self.snakemake("-n"))

    def planned(self, config: dict) -> set[str]:
        """Rules that run after a change of the configuration."""
        return jobs_of(self.plan(config))


def jobs_of(plan: str) -> set[str]:
    """Rules in the table of a dry run's jobs."""
    table = plan.rpartition("Job stats:")[2] if "Job stats:" in plan else ""
    return set(re.findall(r"^(\w+) +\d+$", table, re.MULTILINE)) - {"total", "all"}
