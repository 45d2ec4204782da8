"""What the scores of a run say, as tables, and as a verdict: is it good, where is it bad, what comes next."""

from __future__ import annotations

import itertools
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ffn.evaluation.scores import METRICS, Metric
from ffn.report.run_folder import VolumeFiles, read_flood_findings, read_output, read_volumes
from ffn.training.metrics import read_complaints
from ffn.viewing import LINKS_FOLDER
from ffn.workflow.paths import RunPaths

MISSING = "–"
SHOWN_CONVENTIONS = ("foreground", "all")  # cremi is for comparisons with the challenge
NUM_WORST = 3  # errors to look at first
LITTLE = 0.5  # of the ground truth has a segment; our choice


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
        interval = "{:.3f}–{:.3f}".format(*limits[metric.name]) if limits.get(metric.name) else ""
        cells.append(Cell(cell_text(metric, value), is_best, interval))
    return ScoreRow(convention, method, cells)


def _same_voxels(one: dict[str, Any], other: dict[str, Any], convention: str) -> bool:
    """Whether two methods are scored on the same voxels, as far as the table shows it."""
    is_same_share = convention != "foreground" or _covered(one) == _covered(other)
    return convention in one["scores"] and one.get("box") == other.get("box") and is_same_share


def _covered(entry: dict[str, Any]) -> str:
    return percent(entry["covered_fraction"])


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


class Verdict(NamedTuple):
    """Sentences about a volume, its costliest errors, and the command of ffn that shows the first."""

    good: str
    watershed: str
    bad: str
    next: str
    worst: list[dict[str, Any]]
    command: str


def verdict_on(run_dir: Path, files: VolumeFiles) -> Verdict:
    """Judge a volume by its scores, those of the watershed and the warnings of the run."""
    command = _view(run_dir, files)
    if files.scores is None:
        return Verdict("Not scored: there is no ground truth, or evaluate has not run.", "", "", "", [], command)
    scores, baseline = files.scores, files.scores.get("baseline")
    own = (baseline or {}).get("beside", scores)["scores"]["all"]  # in the box of the watershed
    good = f"VOI is {figure(scores['scores']['all']['voi'])} bits over all voxels of the ground truth, 0 is perfect"
    if "erl" in scores:
        good += f"; one follows a neuron for {percent(scores['erl']['nerl'])} of its length before the first error"
    watershed, is_beaten = "", False
    if baseline:
        voi = baseline["scores"]["all"]["voi"]
        is_beaten = None not in (voi, own["voi"]) and own["voi"] >= voi
        own_voi = f"In its middle ({baseline['box']}), {figure(own['voi'])}" if "beside" in baseline else "That"
        compared = "no better" if is_beaten else "better"
        watershed = f"{own_voi} is {compared} than the {method_names(scores)[1]}: {figure(voi)}."
    splits, mergers = own["voi_split"] or 0.0, own["voi_merge"] or 0.0
    bad = f"Splits cost {splits:.3f} bits, mergers {mergers:.3f}"
    worst = sorted(scores.get("errors", []), key=lambda error: -error["voi"])[:NUM_WORST]
    if worst:
        places = (f"{error['name']} at {', '.join(map(str, error['position_zyx']))}" for error in worst)
        bad += f"; the worst: {'; '.join(places)} (z, y, x)"
        links = Path(RunPaths(run_dir).of("export", volume=files.name)).parent / LINKS_FOLDER
        command += f" --link {worst[0]['name']}" if (links / f"{worst[0]['name']}.json").is_file() else ""
    if warnings_of(run_dir, files):
        advice = "See to the warnings first"
    elif is_beaten:
        advice = "Train longer (train.max_steps) or on more labels, until the network beats the watershed"
    elif scores["covered_fraction"] < LITTLE:
        advice = f"Find out why {percent(1 - scores['covered_fraction'])} of the ground truth has no segment"
    else:
        kind, threshold = ("mergers", "higher") if mergers > splits else ("splits", "lower")
        advice = f"Look at the {kind}: a {threshold} merge.threshold, or corrections by hand (ffn view --corrections)"
    return Verdict(f"{good}.", watershed, f"{bad}.", f"{advice}.", worst, command)


def warnings_of(run_dir: Path, *volumes: VolumeFiles) -> list[str]:
    """Return what the stages warn of, with the subject first."""
    lines = [f"training     {warning}" for warning in read_complaints(Path(RunPaths(run_dir).folder("train")))]
    for volume in volumes:
        contrast = read_output(run_dir, "normalize", volume=volume.name).get("warning")
        lines += [f"contrast     {volume.name}: {contrast}"] if contrast else []
        lines += [f"segment      {volume.name}: {text}" for text in read_flood_findings(run_dir, volume.name)]
    return lines


def format_verdict(run_dir: Path) -> str:
    """Return verdict, watershed, worst errors, warnings and commands, a line each, of any segmented volumes."""
    volumes, lines = read_volumes(run_dir), list[str]()
    if not volumes:
        return ""
    verdicts = {files.name: verdict_on(run_dir, files) for files in volumes}
    for name, verdict in verdicts.items():
        lines += [f"verdict      {name}: {verdict.good}", f"watershed    {name}: {verdict.watershed or 'not made'}"]
        lines.append(f"worst errors {name}: {verdict.bad or 'unknown'} {verdict.next}".rstrip())
    warnings = "; ".join(" ".join(line.split()) for line in warnings_of(run_dir, *volumes))
    commands = [
        *(each.command for each in verdicts.values()),
        *(f"{stage} {shlex.quote(str(run_dir))}" for stage in ("report", "info --tables")),
    ]
    text = "; ".join(f"{program()} {command}" for command in commands)
    return "\n".join([*lines, f"warnings     {warnings or 'none'}", f"commands     {text}"])


def format_summary(run_dir: Path) -> str:
    """Return the score table, warnings, the main outputs and the commands to see more, for the end of a run."""
    given, paths, volumes = shlex.quote(str(run_dir)), RunPaths(run_dir), read_volumes(run_dir)
    lines = [format_scores(run_dir), "", *warnings_of(run_dir, *volumes)]
    lines += [f"model        {model.parent}" for stage in ("train", "select") for model in paths.existing(stage)]
    lines += [f"segmentation {volume.segmentation}" for volume in volumes if volume.segmentation]
    lines += [f"first look   {look}" for look in paths.existing("report", "look")]
    pages = list(map(str, paths.existing("report")))
    lines.append(f"report       {(pages or [f'none yet, write it: {program()} report {given}'])[0]}")
    exports = [state.parent.name for state in paths.existing("export")]
    choices = [f" --volume {name}" for name in exports] if len(exports) > 1 else [""] * len(exports)
    lines += [f"Neuroglancer {program()} view {given}{choice}" for choice in choices]
    return "\n".join(lines)


def program() -> str:
    """Return this program as it was called, so that lines can be pasted."""
    called = sys.argv[0] if Path(sys.argv[0]).name == "ffn" else "ffn"
    return min(called, os.path.relpath(called), key=len)


def _view(run_dir: Path, files: VolumeFiles) -> str:
    """Return the command that shows a volume: its export, or the stores themselves."""
    exports = [state.parent.name for state in RunPaths(run_dir).existing("export")]
    if files.name in exports:
        choice = f" --volume {files.name}" if len(exports) > 1 else ""
        return f"view {shlex.quote(str(run_dir))}{choice}"
    return " ".join(["view", *map(shlex.quote, filter(None, (files.image, files.truth, files.segmentation)))])
