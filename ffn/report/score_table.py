"""Scores beside those of the baseline, as rows for the report and as text for a terminal."""

from __future__ import annotations

import itertools
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ffn.report.run_folder import VolumeFiles, read_volumes
from ffn.workflow.paths import RunPaths

COLUMNS = {
    "are": "ARE",
    "are_precision": "precision",
    "are_recall": "recall",
    "voi": "VOI",
    "voi_split": "split",
    "voi_merge": "merge",
}
HIGHER_IS_BETTER = ("are_precision", "are_recall")
MISSING = "–"


class Cell(NamedTuple):
    """A figure as text, and whether it is better than that of the other method."""

    text: str
    is_better: bool


class Row(NamedTuple):
    """Scores of one method under one convention, in the order of `COLUMNS`.

    Parameters
    ----------
    convention, method : str
        What the figures stand for.
    cells : list of Cell
        One for each column.
    covered : str
        Share of the truth that has a segment.
    """

    convention: str
    method: str
    cells: list[Cell]
    covered: str


def score_rows(scores: dict[str, Any]) -> list[Row]:
    """Put the scores of the FFN and of its baseline side by side.

    Parameters
    ----------
    scores : dict
        What ``ffn evaluate`` wrote.

    Returns
    -------
    list of Row
        For each convention the FFN's, then the baseline's where there is one.
    """
    methods = _methods(scores)
    return [_row(convention, method, methods) for convention, method in itertools.product(scores["scores"], methods)]


def run_lengths(scores: dict[str, Any]) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Return name, strict and tolerant run length of every method that was followed along skeletons."""
    methods = _methods(scores) if scores else {}
    return [(name, entry["erl"], entry["erl_tolerant"]) for name, entry in methods.items() if "erl" in entry]


def named_errors(scores: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the errors of a score file with the names that their Neuroglancer links have, such as ``split-01``."""
    count: Counter[str] = Counter()
    named = []
    for error in scores.get("errors", []):
        count[error["kind"]] += 1
        named.append({**error, "name": f"{error['kind']}-{count[error['kind']]:02d}"})
    return named


def _methods(scores: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Scores by method; a baseline that saw only the middle of the box stands beside the FFN's scores there."""
    own, *others = method_names(scores)
    if not others:
        return {own: scores}
    baseline = scores["baseline"]
    if "beside" not in baseline:
        return {own: scores, others[0]: {**baseline, "box": scores.get("box")}}
    middle = {**baseline["beside"], "box": baseline["box"]}
    return {own: scores, f"{own}, middle": middle, f"{others[0]}, middle": baseline}


def method_names(scores: dict[str, Any]) -> list[str]:
    """Return how the segmentation, and the baseline where there is one, are called."""
    return ["FFN", Path(scores["baseline"]["method"]).name] if "baseline" in scores else ["FFN"]


def format_scores(run_dir: str | Path) -> str:
    """Return the score table of a run as text, for a terminal.

    Parameters
    ----------
    run_dir : path
        Folder of the run.

    Returns
    -------
    str
        One table for each evaluated volume, the better of two figures marked by ``*``.

    Raises
    ------
    EvaluationError
        If `run_dir` is not the folder of a run, or a score file is damaged.
    """
    tables = [_text_table(volume) for volume in read_volumes(Path(run_dir)) if volume.scores]
    return "\n\n".join(tables) or f"{run_dir}: nothing has been evaluated yet"


def format_summary(run_dir: str | Path, report: str | Path) -> str:
    """Return the score table, the place of the report and the command that shows the segmentation.

    Parameters
    ----------
    run_dir : path
        Folder of the run.
    report : path
        The page that ``ffn report`` writes.
    """
    place = report if Path(report).is_file() else f"none yet, write it with 'ffn report {run_dir}'"
    program = sys.argv[0] if Path(sys.argv[0]).name == "ffn" else "ffn"  # as it was called, for copying
    lines = [format_scores(run_dir), "", f"report       {place}"]
    if RunPaths(run_dir).existing("export"):
        lines.append(f"Neuroglancer {min(program, os.path.relpath(program), key=len)} view {run_dir}")
    return "\n".join(lines)


def figure(value: float | None, digits: int = 3) -> str:
    """Return a score as text, a dash where there is none."""
    return MISSING if value is None else f"{value:.{digits}f}"


def percent(value: float) -> str:
    """Return a fraction as text, in percent."""
    return f"{100 * value:.1f} %"


def _row(convention: str, method: str, methods: dict[str, dict[str, Any]]) -> Row:
    own = methods[method]["scores"][convention]
    box = methods[method].get("box")
    others = [
        other["scores"][convention] for name, other in methods.items() if name != method and other.get("box") == box
    ]
    cells = [Cell(figure(own[key]), any(_is_better(key, own, other) for other in others)) for key in COLUMNS]
    return Row(convention, method, cells, percent(methods[method]["covered_fraction"]))


def _is_better(key: str, own: dict[str, float | None], other: dict[str, float | None]) -> bool:
    a, b = own[key], other[key]
    if a is None or b is None or figure(a) == figure(b):
        return False
    return (a > b) == (key in HIGHER_IS_BETTER)


def _text_table(volume: VolumeFiles) -> str:
    scores = volume.scores or {}
    rows = [["convention", "method", *(f"{title} " for title in COLUMNS.values()), "covered"]]
    for row in score_rows(scores):
        marked = (cell.text + "* "[not cell.is_better] for cell in row.cells)
        rows.append([row.convention, row.method, *marked, row.covered])
    title = f"{volume.name}, box {scores['box']}: {scores['num_segments']} segments, {scores['num_truth']} bodies"
    legend = ["* the better of the two"] if "baseline" in scores else []
    if scores.get("baseline", {}).get("beside"):
        legend.append(f"middle: {scores['baseline']['box']}, where the baseline was made")
    legend += [_text_run_length(*entry) for entry in run_lengths(scores)]
    return "\n".join([title, *_aligned(rows), *legend])


def _text_run_length(method: str, strict: dict[str, Any], tolerant: dict[str, Any]) -> str:
    """One line on the expected run length of a method."""
    runs = (f"{entry['erl_nm'] / 1000:.2f} µm (NERL {entry['nerl']:.3f})" for entry in (strict, tolerant))
    strictly, tolerantly = runs
    return (
        f"run length, {method}: {strictly} of {strict['erl_truth_nm'] / 1000:.2f} µm; "
        f"{tolerantly} with {tolerant['tolerance_nm']:g} nm tolerance"
    )


def _aligned(rows: list[list[str]], num_left: int = 2) -> Iterator[str]:
    """Pad cells to columns: the first `num_left` to the left, the figures to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = enumerate(zip(row, widths, strict=True))
        yield "  ".join(f"{text:{'<' if i < num_left else '>'}{width}}" for i, (text, width) in cells).rstrip()
