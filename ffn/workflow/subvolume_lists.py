"""How many subvolumes a job of flood filling takes at least, so that each canvas of a GPU has one."""

from __future__ import annotations

from pathlib import Path

import yaml

from ffn.config import SegmentConfig
from ffn.errors import ConfigError
from ffn.inference.device.memory import MOST_CANVASES
from ffn.io import atomic
from ffn.workflow.paths import RunPaths

NUMBER = "subvolumes_of_a_job"


def subvolumes_of_a_job(config: SegmentConfig, paths: RunPaths, most: int, gpus: int) -> int:
    """Return what ``canvases`` says; for ``auto``, what the run has kept, or what fills the GPUs if nothing is flooded.

    Jobs of other subvolumes are other jobs to Snakemake, so a run keeps to what it began with, on whatever machine.

    Parameters
    ----------
    config : SegmentConfig
        Its ``canvases`` and ``engine``.
    paths : RunPaths
        The run.
    most : int
        Subvolumes of its largest volume.
    gpus : int
        GPUs of this machine, or of a node.

    Raises
    ------
    ConfigError
        If what the run has kept is damaged.
    """
    if config.canvases != "auto":
        return config.canvases
    if kept := _kept(Path(paths.subvolumes_of_a_job)):
        return kept
    return 1 if paths.existing("segment") else filling_gpus(config, most, gpus)


def filling_gpus(config: SegmentConfig, most: int, gpus: int) -> int:
    """Return how many subvolumes a job needs, so that every GPU has work and a full batch; 1 without GPUs."""
    return max(1, min(MOST_CANVASES, most // gpus)) if gpus and config.engine in ("auto", "jax") else 1


def keep(paths: RunPaths, number: int) -> None:
    """Keep the number that a call of Snakemake goes by for later ones; without a file, it is 1."""
    path = Path(paths.subvolumes_of_a_job)
    if number != (_kept(path) or 1):
        atomic.write_text(path, yaml.safe_dump({NUMBER: number}))


def _kept(path: Path) -> int | None:
    if not path.exists():
        return None
    try:
        values = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        values = None
    number = values.get(NUMBER) if isinstance(values, dict) else None
    if not isinstance(number, int) or number < 1:
        raise ConfigError(f"{path}: is damaged, expected '{NUMBER}: ' and a number. Delete it to choose anew")
    return number
