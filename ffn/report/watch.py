"""What a run is doing, from its logs: also from another computer than the one that runs it."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from pathlib import Path

from ffn.errors import ConfigError
from ffn.workflow.live import RunningJob
from ffn.workflow.stages import RULES

ACTIVE_SECONDS = 120.0  # jobs write their progress every 15 s; file systems may show it late
CLEAR = "\x1b[2J\x1b[H"


def watch(run_folder: str, interval_seconds: float, once: bool) -> None:
    """Print what a run is doing until Ctrl-C.

    Parameters
    ----------
    run_folder : str
        Such as ``results/demo``.
    interval_seconds : float
        Time between two looks.
    once : bool
        Whether to look only once.

    Raises
    ------
    ConfigError
        If the folder has no logs.
    """
    folder = Path(run_folder)
    if not (folder / "logs").is_dir():
        raise ConfigError(f"{folder}: has no logs, expected the folder of a run that was started, such as results/demo")
    while True:
        clear = CLEAR if sys.stdout.isatty() and not once else ""
        print(clear + "\n".join(status(folder, time.time())), flush=True)
        if once:
            return
        time.sleep(interval_seconds)


def status(folder: Path, now: float) -> list[str]:
    """Return how many jobs of each rule are done, and a line for each log that changed lately.

    Parameters
    ----------
    folder : Path
        The run.
    now : float
        Seconds since the epoch.
    """
    done = Counter(path.name.split(".")[0] for path in (folder / "benchmarks").glob("*.tsv"))
    order = {rule: number for number, rule in enumerate(RULES)}
    names = sorted(done, key=lambda rule: order.get(rule.removesuffix("-reversed"), len(order)))
    lines = ["jobs done: " + (", ".join(f"{name} {done[name]}" for name in names) or "none")]
    ages = {path: now - path.stat().st_mtime for path in sorted((folder / "logs").rglob("*.log"))}
    active = [path for path, age in ages.items() if age < ACTIVE_SECONDS and not _is_done(folder, path)]
    for path in active:
        title = str(path.relative_to(folder / "logs").with_suffix("")).replace(os.sep, " ")
        lines.append(f"{RunningJob(title, path).line()} ({ages[path]:.0f} s ago)")
    return lines if active else [*lines, f"no log changed in the last {ACTIVE_SECONDS:.0f} s"]


def _is_done(folder: Path, log: Path) -> bool:
    """Whether the job of a log has ended well: Snakemake then writes its benchmark."""
    name = ".".join(log.relative_to(folder / "logs").with_suffix("").parts)
    benchmark = folder / "benchmarks" / f"{name}.tsv"
    return benchmark.exists() and benchmark.stat().st_mtime >= log.stat().st_mtime
