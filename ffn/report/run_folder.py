"""What the folder of a run holds, as the report and its summary need it."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from ffn.errors import EvaluationError

# In the order of the pipeline; rules that are not listed come last, by name.
STAGE_ORDER = (
    *(
        "synth",
        "ingest",
        "ingest_labels",
        "import_checkpoint",
        "membrane",
        "partition",
        "coordinates",
        "records",
    ),
    *("train", "checkpoint_model", "checkpoint_segment", "checkpoint_evaluate", "select", "segment", "reconcile"),
    *("consensus", "agglomerate", "merge", "sweep", "fill", "skeletonize", "evaluate", "export", "report"),
)


class VolumeFiles(NamedTuple):
    """Files of one volume; None where there is none.

    Parameters
    ----------
    name : str
        Name of the volume in the configuration.
    image, truth, segmentation, baseline : str or None
        Volumes, as ``FILE.h5:DATASET``.
    scores : dict or None
        What ``ffn evaluate`` wrote.
    """

    name: str
    image: str | None
    truth: str | None
    segmentation: str | None
    baseline: str | None
    scores: dict[str, Any] | None


class StageCost(NamedTuple):
    """Time and memory of all jobs of a stage.

    Parameters
    ----------
    stage : str
        Name of the Snakemake rule.
    num_jobs : int
        How many jobs were measured.
    seconds, longest_seconds : float
        Wall time of all jobs together and of the longest one.
    peak_mib : float or None
        Largest resident memory of a job; None where no job ran long enough to be measured.
    cpu_seconds : float
        Processor time of all jobs together; Snakemake samples it, so the last seconds of a job may be missing.
    """

    stage: str
    num_jobs: int
    seconds: float
    longest_seconds: float
    peak_mib: float | None
    cpu_seconds: float


def read_volumes(run_dir: Path) -> list[VolumeFiles]:
    """Find the segmented or evaluated volumes of a run, by name.

    Raises
    ------
    EvaluationError
        If `run_dir` is not the folder of a run, or a score file is damaged.
    """
    if not any((run_dir / name).is_dir() for name in ("volumes", "segmentation", "evaluation", "model")):
        raise EvaluationError(
            f"{run_dir}: holds none of volumes/, segmentation/, evaluation/ and model/, expected the folder "
            "of a run such as results/demo"
        )
    names = {path.parent.name for path in run_dir.glob("segmentation/*/segmentation.h5")}
    names |= {path.stem for path in run_dir.glob("evaluation/*.json")}
    return [_volume_files(run_dir, name) for name in sorted(names)]


def read_sweep(run_dir: Path, name: str) -> dict[str, list[dict[str, Any]]]:
    """Read the scores of a volume at every threshold of agglomeration; empty where there are none."""
    path = run_dir / "agglomeration" / name / "sweep.json"
    return _read_json(path, "sweep").get("sweep", {}) if path.is_file() else {}


def read_selection(run_dir: Path) -> dict[str, Any]:
    """Read how the checkpoint was chosen; empty where there was no choice."""
    path = run_dir / "selected" / "selection.json"
    return _read_json(path, "select") if path.is_file() else {}


def read_costs(run_dir: Path) -> list[StageCost]:
    """Add up Snakemake's benchmark files below ``benchmarks/``, named ``<stage>[.<name>].tsv``, by stage."""
    jobs: dict[str, list[dict[str, float]]] = {}
    root = run_dir / "benchmarks"
    for path in sorted(root.rglob("*.tsv")):
        stage = path.relative_to(root).parts[0].removesuffix(".tsv").split(".")[0]
        jobs.setdefault(stage, []).extend(_benchmark_rows(path))
    costs = [_stage_cost(stage, rows) for stage, rows in jobs.items() if rows]
    return sorted(costs, key=lambda cost: (_place_in_pipeline(cost.stage), cost.stage))


def _volume_files(run_dir: Path, name: str) -> VolumeFiles:
    folder = run_dir / "segmentation" / name
    return VolumeFiles(
        name,
        image=_existing(run_dir / "volumes" / name / "raw.h5", "raw"),
        truth=_existing(run_dir / "volumes" / name / "labels.h5", "labels"),
        segmentation=_existing(folder / _final_segmentation(run_dir), "segmentation"),
        baseline=_existing(run_dir / "evaluation" / f"{name}-baseline.h5", "segmentation"),
        scores=_read_scores(run_dir / "evaluation" / f"{name}.json"),
    )


def _final_segmentation(run_dir: Path) -> str:
    """Return the file that the run's configuration scores and shows."""
    path = run_dir / "config.yaml"
    config = yaml.safe_load(path.read_text()) if path.is_file() else {}
    if config.get("fill", {}).get("max_distance"):
        return "filled.h5"
    if config.get("agglomerate", {}).get("enabled"):
        return "agglomerated.h5"
    return "consensus.h5" if config.get("consensus", {}).get("enabled") else "segmentation.h5"


def _existing(path: Path, dataset: str) -> str | None:
    return f"{path}:{dataset}" if path.is_file() else None


def _read_scores(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        scores = json.loads(path.read_text())
        scores["scores"]["all"]
        for name in ("box", "num_segments", "num_truth", "covered_fraction", "cremi_score"):
            scores[name]
    except (ValueError, KeyError, TypeError) as reason:
        raise EvaluationError(
            f"{path}: is no score file of this version's 'ffn evaluate' ({reason!r}). "
            "Delete it and rerun the stage evaluate"
        ) from None
    return scores


def _read_json(path: Path, stage: str) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text()))
    except (ValueError, TypeError) as reason:
        raise EvaluationError(f"{path}: is damaged ({reason!r}). Delete it and rerun the stage {stage}") from None


def _benchmark_rows(path: Path) -> Iterator[dict[str, float]]:
    with path.open(newline="") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            yield {name: _number(row.get(name)) for name in ("s", "max_rss", "cpu_time")}


def _stage_cost(stage: str, rows: list[dict[str, float]]) -> StageCost:
    seconds = [row["s"] for row in rows if not math.isnan(row["s"])]
    memory = [row["max_rss"] for row in rows if not math.isnan(row["max_rss"])]
    cpu_seconds = sum(row["cpu_time"] for row in rows if not math.isnan(row["cpu_time"]))
    return StageCost(stage, len(rows), sum(seconds), max(seconds, default=0.0), max(memory, default=None), cpu_seconds)


def _place_in_pipeline(stage: str) -> int:
    stage = stage.removesuffix("-reversed")
    return STAGE_ORDER.index(stage) if stage in STAGE_ORDER else len(STAGE_ORDER)


def _number(text: str | None) -> float:
    try:
        return float(text or "nan")
    except ValueError:
        return math.nan
