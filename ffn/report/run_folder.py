"""Read the folder of a run, for the report and its summary."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ffn.errors import EvaluationError, ExportError
from ffn.inference.sanity import facts_of, findings
from ffn.io.provenance import read_provenance
from ffn.io.store_names import tracked_file
from ffn.viewing import STATE_FILE
from ffn.workflow.paths import RunPaths, finished
from ffn.workflow.run import RunConfig
from ffn.workflow.stages import RULES

MOST_FILES = 1000  # in a folder, which may have a million, whose provenance is read; each takes 2 ms of one core


class VolumeFiles(NamedTuple):
    """Files of one volume; None for those that do not exist."""

    name: str
    image: str | None
    truth: str | None
    segmentation: str | None
    baseline: str | None
    scores: dict[str, Any] | None  # content of the score file


class StageCost(NamedTuple):
    """Time and memory of all jobs of a stage."""

    stage: str  # name of the rule
    num_jobs: int
    seconds: float  # wall time of all jobs together
    longest_seconds: float
    peak_mib: float | None  # None if no job ran long enough to be measured
    cpu_seconds: float  # sampled by Snakemake, so the last seconds of a job may be missing


def read_volumes(run_dir: Path) -> list[VolumeFiles]:
    """Find the volumes of a run that were segmented or evaluated, sorted by name."""
    paths = RunPaths(run_dir)
    if not paths.is_run():
        raise EvaluationError(f"{run_dir}: has no output of a stage, expected the folder of a run such as results/demo")
    names = {path.parent.name for path in paths.existing("reconcile", order="")}
    names |= {path.stem for path in paths.existing("evaluate")}
    config = paths.read_config()
    return [_volume_files(paths, name, config) for name in sorted(names)]


def find_export(path: Path, volume: str | None) -> Path:
    """Find an export."""
    if (path / STATE_FILE).is_file():
        return path
    found = {state.parent.name: state.parent for state in RunPaths(path).existing("export")}
    names = ", ".join(found)
    if not found:
        raise ExportError(f"{path}: is not an export and has none in precomputed/. Run ffn export or the workflow")
    if volume is None and len(found) == 1:
        return next(iter(found.values()))
    if volume is None:
        raise ExportError(f"{path}: has several exports ({names}), expected one. Choose it with --volume")
    if volume not in found:
        raise ExportError(f"--volume: {volume!r} is not in {path}, expected one of: {names}")
    return found[volume]


def read_sweep(run_dir: Path, name: str) -> dict[str, list[dict[str, Any]]]:
    """Read the scores of a volume at every merge threshold; empty if there was no sweep."""
    path = Path(RunPaths(run_dir).of("sweep", volume=name))
    return _read_json(path, "sweep").get("sweep", {}) if path.is_file() else {}


def read_flood_findings(run_dir: Path, name: str) -> list[str]:
    """Return signs of failed flood filling in a volume, see `ffn.inference.sanity`.

    All subvolumes are looked at, or of more than `MOST_FILES` so many, evenly spread.
    """
    found = RunPaths(run_dir).named("segment", volume=name, order="")
    chosen = found[:: math.ceil(len(found) / MOST_FILES) or 1]
    facts = [facts_of(path.stem, read_provenance(path)) for path in finished(chosen)]
    return findings([one for one in facts if one])


def read_selection(run_dir: Path) -> dict[str, Any]:
    """Read the choice of the checkpoint; empty if none was made."""
    path = Path(RunPaths(run_dir).of("select", "selection"))
    return _read_json(path, "select") if path.is_file() else {}


def read_grey_levels(run_dir: Path, name: str) -> dict[str, Any]:
    """Read how a volume is normalised, with its figures and those of training; empty if it was not."""
    path = Path(RunPaths(run_dir).of("normalize", volume=name))
    return _read_json(path, "normalize") if path.is_file() else {}


def read_costs(run_dir: Path) -> list[StageCost]:
    """Add up Snakemake's benchmark files by stage: ``benchmarks/<stage>[.<volume>[.<job>]].tsv``."""
    jobs: dict[str, list[dict[str, float]]] = {}
    root = run_dir / "benchmarks"
    for path in sorted(root.rglob("*.tsv")):
        stage = path.relative_to(root).parts[0].removesuffix(".tsv").partition(".")[0]
        jobs.setdefault(stage, []).extend(_benchmark_rows(path))
    costs = [_stage_cost(stage, rows) for stage, rows in jobs.items() if rows]
    return sorted(costs, key=lambda cost: (_place_in_pipeline(cost.stage), cost.stage))


def _volume_files(paths: RunPaths, name: str, config: RunConfig | None) -> VolumeFiles:
    final = paths.of("reconcile", volume=name, order="") if config is None else paths.final(config, volume=name)
    return VolumeFiles(
        name,
        image=_existing(paths.of("ingest", "image", volume=name)),
        truth=_existing(paths.of("ingest", "labels", volume=name)),
        segmentation=_existing(final),
        baseline=_existing(paths.of("evaluate", "baseline", volume=name)),
        scores=_read_scores(Path(paths.of("evaluate", volume=name))),
    )


def _existing(path: str) -> str | None:
    return path if Path(tracked_file(path)).is_file() else None


def _read_scores(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        scores = json.loads(path.read_text())
        scores["scores"]["all"]
        for name in ("box", "num_segments", "num_truth", "covered_fraction", "cremi_score"):
            scores[name]
        for error in scores.get("errors", []):
            error["name"]
    except (ValueError, KeyError, TypeError) as reason:
        raise EvaluationError(
            f"{path}: is not a score file of this version of 'ffn evaluate' ({reason!r}). "
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
    return RULES.index(stage) if stage in RULES else len(RULES)


def _number(text: str | None) -> float:
    try:
        return float(text or "nan")
    except ValueError:
        return math.nan
