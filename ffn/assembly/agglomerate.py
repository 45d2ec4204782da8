"""Score the contacts between supervoxels by whether the network grows one of them into the other."""

from __future__ import annotations

import argparse
from pathlib import Path

from ffn.assembly.config import AgglomerateJobs, Agglomeration, require_window
from ffn.assembly.contacts import Objects, Scene, candidates, open_scene
from ffn.assembly.resegment import Judge, judge_all
from ffn.errors import ConfigError, VolumeError
from ffn.geometry import ZYX, Box, cut
from ffn.inference.inputs import AgglomerateInputs, add_flood_inputs, flood_inputs
from ffn.io.blocks import WHOLE, Job, add_job_options, job_of, make_files
from ffn.io.volume import require_other_file
from ffn.options import add_box_option, add_masks_option, add_options, add_volume_option, from_arguments
from ffn.progress import track
from ffn.provenance import fingerprint


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Score which touching segments are one object: the network grows both sides of every contact in a small window.

    The segmentation is not changed. 'ffn merge' applies the graph, and 'ffn sweep' scores every threshold.

    example:
      ffn agglomerate --segmentation seg.zarr --image raw.zarr --model MODEL_DIR --out graph.csv
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


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    config = from_arguments(Agglomeration, arguments)
    inputs = AgglomerateInputs(**flood_inputs(arguments), segmentation=arguments.segmentation)
    job, size_zyx = job_of(arguments), from_arguments(AgglomerateJobs, arguments).job_size_zyx
    if "://" in arguments.out:
        raise VolumeError(f"{arguments.out}: is an address, expected a path on this machine. Copy the graph later")
    if arguments.out.endswith("/") or Path(arguments.out).is_dir():
        agglomerate_parts(inputs, f"{arguments.out.rstrip('/')}/", config, size_zyx, arguments.box, job)
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
    """Write the agglomeration graph of a segmentation, which is not changed, as a CSV file; see `MergeEdge`.

    Candidates are places where two segments touch and where both claimed some of the same voxels during flood filling
    (the table ``overlaps`` in the segmentation's file). Places with few such voxels for the size of the contact there
    are left out. The brightest of the others are the decision points, and the network grows both segments in a window
    around each: one after the other, and as many windows at once as there are canvases. Points do not depend on `box`,
    so jobs that tile the volume find each once. A killed job resumes.

    Several jobs can share a volume: each scores the decision points inside its own box. `objects`, of which the
    segments are components, are read unless they are given.

    Notes
    -----
    Source: agglomeration in Januszewski et al. 2018, Methods.
    """
    require_other_file(out_path, *inputs.files())
    network = inputs.network(config)
    require_window(config.window_radius_zyx, network.model.config, "window_radius_zyx")
    objects = objects or Objects.read(inputs.segmentation)
    with open_scene(inputs.segmentation, inputs.image, inputs.masks, objects) as scene:
        box = _part_of(scene, box)
        judge_all(Judge(scene, network, config), candidates(scene, box, config), out_path, inputs, box)


def _part_of(scene: Scene, box: Box | None) -> Box:
    whole = scene.segmentation.box
    part = whole if box is None else box.intersect(whole)
    if part.is_empty:
        raise VolumeError(f"{scene.segmentation.name}: covers {whole}, expected some of --box {box}")
    return part
