"""Read the folder of a run, for the report and its summary."""

from __future__ import annotations

import contextlib
import csv
import json
import math
from collections import defaultdict
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ffn.errors import EvaluationError, ExportError
from ffn.geometry import tile
from ffn.inference.flood import facts_of, findings
from ffn.io.atomic import unreadable
from ffn.io.open import open_segmentation
from ffn.io.store_names import METADATA, OURS, tracked_file
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
    """Find the volumes of a run that were segmented or evaluated, sorted by name; it may hold former ones, too."""
    paths = RunPaths(run_dir)
    if not paths.is_run():
        raise EvaluationError(f"{run_dir}: has no output of a stage, expected the folder of a run such as results/demo")
    names = {path.parent.name for path in paths.existing("reconcile", order="")}
    names |= {path.stem for path in paths.existing("evaluate")}
    config = paths.read_config()
    return [_volume_files(paths, name, config) for name in sorted(names) if config is None or name in config.volumes]


def find_export(path: Path, volume: str | None, segmented: Collection[str] = ()) -> Path:
    """Find an export, without `volume` the only one, unless others of the volumes `segmented` are to come."""
    if (path / STATE_FILE).is_file():
        return path
    exports = [state.parent for state in RunPaths(path).existing("export")]
    found = {export.name: export for export in exports if not segmented or export.name in segmented}
    if volume is None and len(found) == 1 and found.keys() >= set(segmented):
        return next(iter(found.values()))
    if not found:
        raise ExportError(f"{path}: is not an export and has none in precomputed/. Run ffn export or the workflow")
    if volume not in found:
        more = "; the workflow exports more" if set(segmented) - found.keys() else ""
        expected = f"expected one that was exported: {', '.join(found)}. Give it before RUN{more}"
        raise ExportError(f"{path}: --volume is {repr(volume) if volume else 'missing'}, {expected}")
    return found[volume]


def read_output(run_dir: str | Path, stage: str, output: str | None = None, **wildcards: str) -> dict[str, Any]:
    """Read a JSON file of a stage; empty if it was not made."""
    path = Path(RunPaths(run_dir).of(stage, output, **wildcards))
    with unreadable(path, f"a mapping. Delete it and rerun the stage {stage}", EvaluationError):
        return dict(json.loads(path.read_text())) if path.exists() else {}


def read_flood_findings(run_dir: Path, name: str) -> list[str]:
    """Return signs of failed flood filling in a volume, see `ffn.inference.flood`.

    All subvolumes are looked at, or of more than `MOST_FILES` so many, evenly spread.
    """
    paths = RunPaths(run_dir)
    found, config = paths.named("segment", volume=name, order=""), paths.read_config()
    if config and (made := finished([paths.of("reconcile", volume=name, order="")])):
        with open_segmentation(made[0]) as whole:  # subvolumes of another segment_box lie there, too
            tiles = tile(whole.box, config.subvolumes.size_zyx, config.subvolumes.overlap_zyx)
        found = [paths.of("segment", volume=name, order="", subvolume=box.stem) for box in tiles]
    chosen = found[:: math.ceil(len(found) / MOST_FILES) or 1]
    return findings([*filter(None, (facts_of(path.stem, _provenance(path)) for path in finished(chosen)))])


def _provenance(store: Path) -> dict[str, Any]:
    with unreadable(store, "a whole store. Delete it and rerun its stage"):
        return dict(json.loads((store / METADATA).read_text())["attributes"][OURS]["provenance"])


def read_costs(run_dir: Path) -> list[StageCost]:
    """Add up Snakemake's benchmark files by stage: ``benchmarks/<stage>[.<volume>[.<job>]].tsv``."""
    jobs: dict[str, list[dict[str, str]]] = defaultdict(list)
    root = run_dir / "benchmarks"
    for path in sorted(root.rglob("*.tsv")):
        stage = path.relative_to(root).parts[0].removesuffix(".tsv").partition(".")[0]
        with path.open(newline="") as file:
            jobs[stage] += csv.DictReader(file, delimiter="\t")
    costs = [_stage_cost(stage, rows) for stage, rows in jobs.items() if rows]
    return sorted(costs, key=lambda cost: (_place_in_pipeline(cost.stage), cost.stage))


def _volume_files(paths: RunPaths, name: str, config: RunConfig | None) -> VolumeFiles:
    final = paths.of("reconcile", volume=name, order="") if config is None else paths.final(config, volume=name)
    is_unlabelled = config is not None and not config.volumes[name].has_labels  # labels may be left of a former run
    return VolumeFiles(
        name,
        image=_existing(paths.of("ingest", "image", volume=name)),
        truth=None if is_unlabelled else _existing(paths.of("ingest", "labels", volume=name)),
        segmentation=_existing(final),
        baseline=_existing(paths.of("evaluate", "baseline", volume=name)),
        scores=_read_scores(paths, name) if config is None or config.volumes[name].is_evaluated else None,
    )


def _existing(path: str) -> str | None:
    return path if Path(tracked_file(path)).is_file() else None


def _read_scores(paths: RunPaths, name: str) -> dict[str, Any] | None:
    scores = read_output(paths.root, "evaluate", volume=name)
    known = ("scores", "box", "num_segments", "num_truth", "covered_fraction", "cremi_score")
    if scores and not scores.keys() >= set(known):
        path = paths.of("evaluate", volume=name)
        raise EvaluationError(f"{path}: has {sorted(scores)}, expected {known}. Delete it and rerun the stage evaluate")
    return scores or None


def _stage_cost(stage: str, rows: list[dict[str, str]]) -> StageCost:
    seconds, memory, cpu_seconds = (list(_numbers(rows, name)) for name in ("s", "max_rss", "cpu_time"))
    longest, peak = max(seconds, default=0.0), max(memory, default=None)
    return StageCost(stage, len(rows), sum(seconds), longest, peak, sum(cpu_seconds))


def _numbers(rows: list[dict[str, str]], name: str) -> Iterator[float]:
    """Yield the values of a column; those of a job too short to be measured are no numbers."""
    for row in rows:
        with contextlib.suppress(KeyError, TypeError, ValueError):
            yield float(row[name])


def _place_in_pipeline(stage: str) -> int:
    stage = stage.removesuffix("-reversed")
    return RULES.index(stage) if stage in RULES else len(RULES)
