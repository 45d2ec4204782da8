"""The verdict on a run: is it good, where is it bad, what comes next, in a sentence each."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Any, NamedTuple

from ffn.report.run_folder import VolumeFiles, read_flood_findings, read_output, read_volumes
from ffn.report.score_table import figure, format_scores, method_names, percent
from ffn.training.metrics import read_complaints
from ffn.viewing import LINKS_FOLDER
from ffn.workflow.paths import RunPaths

NUM_WORST = 3  # errors to look at first
LITTLE = 0.5  # of the ground truth has a segment; our choice


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
        return Verdict(
            "Not scored: there is no ground truth, or the stage evaluate has not run.", "", "", "", [], command
        )
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
    stores = filter(None, (files.image, files.truth, files.segmentation))
    return " ".join(["view", *map(shlex.quote, stores)])
