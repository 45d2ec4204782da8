"""Score the contacts between supervoxels by whether the network grows one of them into the other."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from ffn.assembly.config import AgglomerateJobs, Agglomeration, require_window
from ffn.assembly.contacts import Contact, Scene, candidates, open_scene
from ffn.assembly.merge_graph import MergeEdge, header, parse_edge
from ffn.assembly.resegment import Judge, resegmented
from ffn.assembly.tables import Objects
from ffn.errors import ConfigError, VolumeError
from ffn.geometry import ZYX, Box, cut
from ffn.inference.inputs import AgglomerateInputs, add_flood_inputs, flood_inputs
from ffn.inference.lanes import Lanes
from ffn.io import atomic
from ffn.io.blocks import WHOLE, Job, add_job_options, job_of, make_files
from ffn.io.volume import require_other_file
from ffn.options import add_box_option, add_masks_option, add_options, add_volume_option, from_arguments
from ffn.progress import track
from ffn.provenance import fingerprint, provenance

log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Score which touching segments are one object: the network grows both sides of every contact in a small window.

    The segmentation is not changed. 'ffn merge' applies the graph, and 'ffn sweep' scores every threshold.
    """
    add_volume_option(parser, "--segmentation", "supervoxels, of ffn segment, reconcile or consensus")
    add_flood_inputs(parser)
    text = "agglomeration graph to write; FOLDER/ cuts the box into parts of --job-size, with a graph each"
    parser.add_argument("--out", required=True, metavar="FILE.csv", help=text)
    add_box_option(parser)
    add_options(parser, AgglomerateJobs)
    add_job_options(parser)
    add_masks_option(parser)
    add_options(parser, Agglomeration)
    parser.set_defaults(function=_run)


def _run(arguments: argparse.Namespace) -> None:
    config = from_arguments(Agglomeration, arguments)
    inputs = AgglomerateInputs(**flood_inputs(arguments), segmentation=arguments.segmentation)
    job, size_zyx = job_of(arguments), from_arguments(AgglomerateJobs, arguments).job_size_zyx
    if arguments.out.endswith("/"):
        agglomerate_parts(inputs, arguments.out, config, size_zyx, arguments.box, job)
    elif job != WHOLE or arguments.job_size_zyx:
        raise ConfigError(f"--out: {arguments.out} is a file, --job-size and --job need --out FOLDER/")
    else:
        agglomerate(inputs, arguments.out, config, arguments.box)


def agglomerate_parts(
    inputs: AgglomerateInputs,
    folder: str,
    config: Agglomeration,
    size_zyx: ZYX,
    box: Box | None = None,
    job: Job = WHOLE,
) -> None:
    """Write a graph for each part of a box, with the rows of `agglomerate`."""
    _require_here(folder)
    with open_scene(inputs.segmentation, inputs.image) as scene:
        parts = cut(_part_of(scene, box), size_zyx)
    key = {**inputs.key(inputs.network(config)), "box": box, "size": size_zyx}
    with make_files(folder, ".csv", parts, fingerprint("agglomerate", config, **key), job) as left:
        objects = Objects.read(inputs.segmentation)  # of the whole volume, so not for each part
        for part in track(left, left.num_left, "parts"):
            agglomerate(inputs, f"{folder}{part.stem}.csv", config, part, objects)
            left.finish(part, {})


def agglomerate(
    inputs: AgglomerateInputs,
    out_path: str,
    config: Agglomeration,
    box: Box | None = None,
    objects: Objects | None = None,
) -> None:
    """Write the agglomeration graph of a segmentation, which is not changed.

    Candidates are places where two segments touch and where both claimed some of the same voxels during flood filling
    (the table ``overlaps`` in the segmentation's file). Places with few such voxels for the size of the contact there
    are left out. The brightest of the others are the decision points, and the network grows both segments in a window
    around each: one after the other, and as many windows at once as there are canvases. Points do not depend on `box`,
    so jobs that tile the volume find each once. With larger steps than the model's (`effort`), points where only one
    side entered the other are judged once more in the model's steps, and the higher score counts. A killed
    job resumes.

    Parameters
    ----------
    inputs : AgglomerateInputs
        Supervoxels, image and network.
    out_path : str
        CSV file to write; see `MergeEdge`.
    config : Agglomeration
        Choice of candidates, windows, thresholds, engine.
    box : Box, optional
        Only score decision points inside it; default all. Several jobs can share a volume, each with its own box.
    objects : Objects, optional
        Of which the segments are components; default: they are read.

    Notes
    -----
    Source: agglomeration in Januszewski et al. 2018, Methods.
    """
    _require_here(out_path)
    require_other_file(out_path, *inputs.files())
    if Path(out_path).is_dir():
        raise VolumeError(f"{out_path}: is a folder, expected a file to write to, such as {out_path}/graph.csv")
    network = inputs.network(config)
    require_window(config.window_radius_zyx, network.model.config, "window_radius_zyx")
    objects = objects or Objects.read(inputs.segmentation)
    with open_scene(inputs.segmentation, inputs.image, inputs.masks, objects) as scene:
        box = _part_of(scene, box)
        _judge_all(Judge(scene, network, config), candidates(scene, box, config), out_path, inputs, box)


def _judge_all(judge: Judge, points: list[Contact], out_path: str, inputs: AgglomerateInputs, box: Box) -> None:
    """Write the edges of all decision points, in order.

    They are appended to ``<out>.partial``, and those judged again to ``<out>.again.partial``, from which a killed job
    resumes.
    """
    partials = Path(f"{out_path}.partial"), Path(f"{out_path}.again.partial")
    lanes = judge.open_lanes(len(points))
    made_of = {**inputs.key(judge.network), "box": box, "engine": lanes.name, "canvases": lanes.size}
    head = header(fingerprint("agglomerate", judge.config, **made_of))
    about = {**inputs.about(judge.network, lanes.name), "segmentation": inputs.segmentation, "box": box, **inputs.known}
    lines = _judged(partials[0], head, points, judge, lanes)
    del lanes  # a device may have no room for a second set
    finer = judge.with_smaller_steps()
    if finer:
        lines = _judged_again(partials[1], head, lines, points, finer)
    _write_lines(Path(out_path), header(provenance("agglomerate", judge.config, **about)), lines)
    for partial in partials:
        partial.unlink(missing_ok=True)


def _judged(partial: Path, head: str, points: list[Contact], judge: Judge, lanes: Lanes) -> list[str]:
    """Judge the points that a killed job did not get to; return the lines of all edges.

    Each line is appended to `partial` as soon as it is known. Its first lines, `head`, tell options and inputs.
    """
    lines = _resumed(partial, head, points)
    with open(partial, "a") as file:
        rest = points[len(lines) :]
        for contact, evidence in track(resegmented(judge, rest, lanes), len(rest), "agglomerate", "point"):
            lines.append(MergeEdge.of(contact, evidence, evidence.score(judge.config)).row())
            file.write(lines[-1] + "\n")
            file.flush()
    return lines


def _judged_again(partial: Path, head: str, lines: list[str], points: list[Contact], finer: Judge) -> list[str]:
    """Judge open contacts again, in smaller steps; return all lines, with the higher score of both."""
    edges = [parse_edge(line, "") for line in lines]
    left = [n for n, edge in enumerate(edges) if edge.evidence.is_open(finer.config)]
    if not left:
        return lines  # an engine takes seconds to start
    found = _judged(partial, head, [points[n] for n in left], finer, finer.open_lanes(len(left)))
    better = {n: line for n, line in zip(left, found, strict=True) if parse_edge(line, "").score > edges[n].score}
    log.info("%d decision points judged again in smaller steps, %d with a higher score", len(left), len(better))
    return [better.get(n, line) for n, line in enumerate(lines)]


def _resumed(partial: Path, head: str, expected: list[Contact]) -> list[str]:
    """Return the finished lines of a killed job with the same options and inputs; drop all else from its file."""
    partial.parent.mkdir(parents=True, exist_ok=True)
    text = partial.read_text(errors="replace") if partial.exists() else ""
    whole = text[len(head) :].rpartition("\n")[0] if text.startswith(head) else ""
    lines = whole.split("\n")[: len(expected)] if whole else []
    if lines:
        log.info("%s: resuming after %d decision points", partial, len(lines))
    _write_lines(partial, head, lines)
    return lines


def _write_lines(path: Path, head: str, lines: list[str]) -> None:
    """Write a file of edges at once."""
    atomic.write_text(path, head + "".join(line + "\n" for line in lines))


def _require_here(out_path: str) -> None:
    """Refuse a URL, which would be taken for a relative path."""
    if "://" in out_path:
        raise VolumeError(f"{out_path}: is an address, expected a path on this machine. Copy the graph there later")


def _part_of(scene: Scene, box: Box | None) -> Box:
    whole = scene.segmentation.box
    part = whole if box is None else box.intersect(whole)
    if part.is_empty:
        raise VolumeError(f"{scene.segmentation.name}: covers {whole}, expected some of --box {box}")
    return part
