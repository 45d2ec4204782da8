"""How many subvolumes a job of flood filling takes at least, so that each canvas of a GPU has one."""

from __future__ import annotations

from pathlib import Path

import yaml

from ffn.config import SegmentConfig
from ffn.errors import ConfigError
from ffn.inference.lanes import MOST_CANVASES
from ffn.io import atomic
from ffn.workflow.paths import RunPaths

NUMBER = "subvolumes_of_a_job"


def subvolumes_of_a_job(config: SegmentConfig, paths: RunPaths, number: int, gpus: int) -> int:
    """Return what ``canvases`` says; for ``auto``, what the run has kept, else what fills GPUs if nothing is flooded.

    Jobs of other subvolumes are other jobs to Snakemake, so a run keeps the number that it began with, on any machine.
    """
    if config.canvases != "auto":
        return config.canvases
    if kept := _kept(Path(paths.subvolumes_of_a_job)):
        return kept
    filling = filling_gpus(config, number, gpus)
    return 1 if filling == 1 or paths.existing("segment") else filling  # looks for files only if there are GPUs


def filling_gpus(config: SegmentConfig, number: int, gpus: int) -> int:
    """Return how many of the subvolumes a job needs, so that every GPU has work and a full batch; 1 without GPUs."""
    return max(1, min(MOST_CANVASES, number // gpus)) if gpus and config.engine in ("auto", "jax") else 1


def keep(paths: RunPaths, number: int) -> None:
    """Keep the number that a call of Snakemake floods by for later ones; without a file, it is 1."""
    path, text = Path(paths.subvolumes_of_a_job), yaml.safe_dump({NUMBER: number})
    if path.exists() or number > 1:
        atomic.write_text(path, text)


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
