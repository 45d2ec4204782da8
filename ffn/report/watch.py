"""The progress of a run from its logs, also on another computer than the one that runs it."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

from ffn.errors import ConfigError
from ffn.workflow.live import RunningJob
from ffn.workflow.stages import RULES

ACTIVE_SECONDS = 120.0  # jobs write their progress every 15 s; file systems may show it late
INTERVAL_SECONDS = 5
CLEAR = "\x1b[2J\x1b[H"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Show the progress of the jobs of a run, until Ctrl-C: stage, volume, progress, rate, time left.

    It reads the run's logs, so it works from any computer that sees the folder, also for a run on a cluster.

    example:
      ffn watch results/demo
    """
    parser.add_argument("run_folder", metavar="RUN", help="folder of a run, such as results/demo")
    parser.add_argument("--once", action="store_true", help="print the present state and exit")


def run(arguments: argparse.Namespace) -> None:
    """Print the progress of a run until Ctrl-C."""
    folder = Path(arguments.run_folder)
    if not (folder / "logs").is_dir():
        raise ConfigError(f"{folder}: has no logs, expected the folder of a run that was started, such as results/demo")
    clear = CLEAR if sys.stdout.isatty() and not arguments.once else ""
    print(clear + "\n".join(status(folder, time.time())), flush=True)
    while not arguments.once:
        time.sleep(INTERVAL_SECONDS)
        print(clear + "\n".join(status(folder, time.time())), flush=True)


def status(folder: Path, now: float) -> list[str]:
    """Return how many jobs of each rule are done, and a line for each log that changed shortly before `now`."""
    benchmarks = {
        ".".join(path.relative_to(folder / "benchmarks").parts): _changed(path)
        for path in _files(folder, "benchmarks", "tsv")
    }
    done = Counter(name.split(".")[0] for name in benchmarks)
    order = {rule: number for number, rule in enumerate(RULES)}
    names = sorted(done, key=lambda rule: order.get(rule.removesuffix("-reversed"), len(order)))
    lines = ["jobs done: " + (", ".join(f"{name} {done[name]}" for name in names) or "none")]
    active = [path for path in _files(folder, "logs", "log") if now - _changed(path) < ACTIVE_SECONDS]
    for path in active:
        parts = path.relative_to(folder / "logs").with_suffix("").parts
        finished = benchmarks.get(f"{'.'.join(parts)}.tsv", 0.0)
        if finished < _changed(path):  # Snakemake writes the benchmark after a job that ended well
            age = max(0.0, now - _changed(path))  # clocks of a cluster differ
            lines.append(f"{RunningJob(' '.join(parts), path).line()} ({age:.0f} s ago)")
    return lines if active else [*lines, f"no log changed in the last {ACTIVE_SECONDS:.0f} s"]


def _files(folder: Path, kind: str, suffix: str) -> list[Path]:
    return sorted((folder / kind).rglob(f"*.{suffix}"))


def _changed(path: Path) -> float:
    """When a file was changed last; 0 if it is gone by now."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
