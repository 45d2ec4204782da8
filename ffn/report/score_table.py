"""Tables of the scores of a segmentation and its baseline, for the report and for a terminal."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ffn.evaluation.scores import METRICS, Metric
from ffn.report.run_folder import VolumeFiles, read_volumes

MISSING = "–"
SHOWN_CONVENTIONS = ("foreground", "all")  # cremi is for comparisons with the challenge


class Cell(NamedTuple):
    """A value as text, whether it is the best of those on the same voxels, and its 95 % interval if there is one."""

    text: str
    is_better: bool
    interval: str = ""


class ScoreRow(NamedTuple):
    """Scores of one method under one convention, in the order of `METRICS`."""

    convention: str
    method: str
    cells: list[Cell]  # one for each of METRICS


def score_rows(scores: dict[str, Any]) -> list[ScoreRow]:
    """Tabulate the scores of the FFN, stage by stage, and of its baseline."""
    methods = _methods(scores)
    pairs = itertools.product(scores["scores"], methods.items())
    return [_row(convention, name, methods) for convention, (name, entry) in pairs if convention in entry["scores"]]


def run_lengths(scores: dict[str, Any]) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Return name, strict run length and tolerant run length of every method that was scored along skeletons."""
    methods = _methods(scores) if scores else {}
    return [(name, entry["erl"], entry["erl_tolerant"]) for name, entry in methods.items() if "erl" in entry]


def _methods(scores: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Scores by method, then those of a truth that the box has not cut into components.

    If the baseline covers only the middle of the box, the FFN's scores there are added. If the FFN leaves out voxels,
    the baseline's scores on the others are added, which only ``foreground`` has.
    """
    own, *others = method_names(scores)
    earlier = {f"FFN, {name}": {**entry, "box": scores.get("box")} for name, entry in scores.get("earlier", {}).items()}
    methods = {**earlier, own: scores}
    if not others:
        return methods | _whole({own: scores})
    name, baseline = others[0], {"box": scores.get("box"), **scores["baseline"]}
    if "beside" in baseline:
        methods[f"{own}, middle"] = {**baseline["beside"], "box": baseline["box"]}
        name = f"{name}, middle"
    methods[name] = baseline
    for part in baseline.get("same_voxels", {}).values():
        share = _covered(part)
        if share != _covered(baseline):
            methods[f"{name}, same {share}"] = {**part, "box": baseline["box"]}
    return methods | _whole({own: scores, name: baseline})


def _whole(methods: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the scores of methods for whole bodies, where the box cuts some. They are compared with each other alone.

    The box of these rows says so.
    """
    cut = {name: entry for name, entry in methods.items() if _num_whole(entry) != entry.get("num_truth")}
    return {
        f"{name}, whole bodies": {**entry["whole_bodies"], "box": f"{entry.get('box')}, whole"}
        for name, entry in cut.items()
    }


def _bodies(scores: dict[str, Any]) -> str:
    whole, cut = _num_whole(scores), scores["num_truth"]
    return f"{whole} bodies" if whole == cut else f"{whole} bodies that the box cuts into {cut}"


def _num_whole(scores: dict[str, Any]) -> int | None:
    return scores.get("whole_bodies", scores).get("num_truth")


def method_names(scores: dict[str, Any]) -> list[str]:
    """Return the names of the segmentation, such as ``FFN, filled``, and of the baseline if there is one."""
    own = f"FFN, {scores['segmentation']}" if scores.get("segmentation") else "FFN"
    return [own, Path(scores["baseline"]["method"]).name] if "baseline" in scores else [own]


def format_scores(run_dir: Path) -> str:
    """Return the score table of a run as text, for a terminal."""
    tables = [_text_table(volume) for volume in read_volumes(run_dir) if volume.scores]
    return "\n\n".join(tables) or f"{run_dir}: no scores, because no volume was evaluated"


def figure(value: float | None, digits: int = 3) -> str:
    """Return a score as text; a missing score is a dash."""
    return MISSING if value is None else f"{value:.{digits}f}"


def percent(value: float) -> str:
    """Return a fraction as text, in percent."""
    return f"{100 * value:.1f} %"


def cell_text(metric: Metric, value: float | None) -> str:
    """Return the value of a metric as tables show it."""
    return percent(value) if metric.is_fraction and value is not None else figure(value)


def _row(convention: str, method: str, methods: dict[str, dict[str, Any]]) -> ScoreRow:
    own = methods[method]
    others = [other for other in methods.values() if other is not own and _same_voxels(other, own, convention)]
    limits = own.get("intervals", {}).get(convention, {})
    cells = []
    for metric in METRICS:
        value = metric.value(own, convention)
        is_best = _is_best(metric, value, [metric.value(other, convention) for other in others])
        cells.append(Cell(cell_text(metric, value), is_best, interval_text(limits.get(metric.name))))
    return ScoreRow(convention, method, cells)


def _same_voxels(one: dict[str, Any], other: dict[str, Any], convention: str) -> bool:
    """Whether two methods are scored on the same voxels, as far as the table shows it."""
    is_same_share = convention != "foreground" or _covered(one) == _covered(other)
    return convention in one["scores"] and one.get("box") == other.get("box") and is_same_share


def _covered(entry: dict[str, Any]) -> str:
    return percent(entry["covered_fraction"])


def interval_text(limits: list[float] | None) -> str:
    """Return the limits of an interval as text, empty if there are none."""
    return f"{limits[0]:.3f}–{limits[1]:.3f}" if limits else ""


def _is_best(metric: Metric, own: float | None, others: list[float | None]) -> bool:
    """Whether a value is no worse than any other as the table shows it, and better than at least one."""
    known = [value for value in others if value is not None and cell_text(metric, value) != cell_text(metric, own)]
    if metric.better is None or own is None or not known:
        return False
    return all(metric.rank(own) < metric.rank(value) for value in known)


def _text_table(volume: VolumeFiles) -> str:
    scores = volume.scores or {}
    rows = [["convention", "method", *(metric.title for metric in METRICS)]]
    for row in score_rows(scores):
        rows.append([row.convention, row.method, *("*" * cell.is_better + cell.text for cell in row.cells)])
    title = f"{volume.name}, box {scores['box']}: {scores['num_segments']} segments, {_bodies(scores)}"
    legend = ["* best on these voxels"] if len({row[1] for row in rows[1:]}) > 1 else []
    if scores.get("earlier"):
        legend.append("foreground: voxels that have a segment, so only rows of equal coverage can be compared")
    if scores.get("baseline", {}).get("beside"):
        legend.append(f"middle: {scores['baseline']['box']}, the part that the baseline covers")
    runs = ((name, strict["erl_nm"] / 1000, strict["nerl"]) for name, strict, _ in run_lengths(scores))
    legend += [f"run length, {name}: {length:.2f} µm (NERL {nerl:.3f})" for name, length, nerl in runs]
    return "\n".join([title, *_aligned(rows), *legend])


def _aligned(rows: list[list[str]]) -> Iterator[str]:
    """Pad cells to columns: the first two are left-aligned, all others right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = enumerate(zip(row, widths, strict=True))
        yield "  ".join(f"{text:{'<' if i < 2 else '>'}{width}}" for i, (text, width) in cells).rstrip()
