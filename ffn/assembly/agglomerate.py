"""Score the contacts between supervoxels by whether the network grows one of them into the other."""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

import numpy as np

from ffn.assembly.contacts import Scene, candidates
from ffn.assembly.merge_graph import header
from ffn.assembly.resegment import Judge, judged, judged_again, write_lines
from ffn.assembly.tables import Objects
from ffn.config import AgglomerateJobs, Agglomeration, require_window
from ffn.errors import ConfigError, VolumeError
from ffn.geometry import ZYX, Box, cut, zyx
from ffn.inference.inputs import FloodInputs, add_flood_inputs, flood_inputs, weights_of
from ffn.io.blocks import WHOLE, Job, add_job_options, job_of, make_files
from ffn.io.masks import mask_inputs, open_masks
from ffn.io.open import identity, open_segmentation, open_volume
from ffn.io.volume import Volume, require_image_of, require_other_file
from ffn.options import add_box_option, add_masks_option, add_options, add_volume_option, from_arguments
from ffn.progress import track
from ffn.provenance import fingerprint, provenance

CHECKSUM_BLOCK_ZYX = (128, 128, 128)  # voxels read at a time; the checksum depends on it, so it is no option


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
    config, inputs = from_arguments(Agglomeration, arguments), FloodInputs(**flood_inputs(arguments))
    job, size_zyx = job_of(arguments), from_arguments(AgglomerateJobs, arguments).job_size_zyx
    if arguments.out.endswith("/"):
        agglomerate_parts(arguments.segmentation, inputs, arguments.out, config, (arguments.box, size_zyx), job)
    elif job != WHOLE or arguments.job_size_zyx:
        raise ConfigError(f"--out: {arguments.out} is a file, --job-size and --job need --out FOLDER/")
    else:
        agglomerate(arguments.segmentation, inputs, arguments.out, config, arguments.box)


def agglomerate_parts(
    segmentation_spec: str,
    inputs: FloodInputs,
    folder: str,
    config: Agglomeration,
    parts: tuple[Box | None, ZYX],
    job: Job = WHOLE,
) -> None:
    """Write a graph for each part of a box: `parts` are the box, None for the whole volume, and the size of a part."""
    _require_here(folder)
    with open_volume(segmentation_spec) as segmentation, open_volume(inputs.image) as image:
        boxes = cut(_checked(segmentation, image, parts[0]), parts[1])
    network = inputs.network(config)
    specs = segmentation_spec, inputs.image, *(mask.path for mask in inputs.masks)
    key: dict[str, object] = {"volumes": [identity(spec) for spec in specs if spec], "parts": parts}
    key |= {"weights": weights_of(network), "engine": (network.choice.engine, network.choice.precision)}
    key |= {"network": network.model.config.model_dump_json(), "own_deltas": network.trained_deltas_zyx}
    key |= {"grey_levels": network.normalisation, **mask_inputs(inputs.masks)}

    with make_files(folder, ".csv", boxes, fingerprint("agglomerate", config, **key), job) as left:
        objects = Objects.read(segmentation_spec)  # of the whole volume, so not for each part
        for part in track(left, left.num_left, "parts"):
            agglomerate(segmentation_spec, inputs, f"{folder}{part.stem}.csv", config, part, objects)
            left.finish(part, {})


def agglomerate(
    segmentation_spec: str,
    inputs: FloodInputs,
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
    side entered the other are judged once more in the model's steps, and the higher score counts. Edges are appended in
    order to ``<out>.partial``, and those judged again to ``<out>.again.partial``, from which a killed job resumes.

    Parameters
    ----------
    segmentation_spec : str
        Supervoxels ``NAME.zarr`` or ``FILE.h5:DATASET``, with the table ``overlaps`` in the same file.
    inputs : FloodInputs
        Image, which covers the segmentation, and network.
    out_path : str
        CSV file to write; see `MergeEdge`.
    config : Agglomeration
        Choice of candidates, windows, thresholds, engine.
    box : Box, optional
        Only score decision points inside it; default all. Several jobs can share a volume, each with its own box.
    objects : Objects, optional
        Of which the segments are components; default: they are read.

    Raises
    ------
    VolumeError
        If the table of overlaps is missing, or the image does not cover the segmentation or has other voxels.
    ModelError
        If the model is missing or damaged.
    ConfigError
        If the window is too small for the model's FOV to move, or this machine cannot run the engine or hold the
        canvases.

    Notes
    -----
    Source: agglomeration in Januszewski et al. 2018, Methods.
    """
    _require_new_file(out_path, segmentation_spec, inputs.image)
    network = inputs.network(config)
    model = network.model.config
    require_window(config.window_radius_zyx, model, "window_radius_zyx")
    with (
        open_segmentation(segmentation_spec) as segmentation,
        open_volume(inputs.image) as image,
        open_masks(inputs.masks, image.voxel_size_zyx_nm) as masks,
    ):
        box = _checked(segmentation, image, box)
        scene = Scene(segmentation, image, objects or Objects.read(segmentation_spec), masks)
        points = candidates(scene, box, config)
        judge = Judge(scene, network, config)
        lanes = judge.open_lanes(len(points))
        about = {"segmentation": segmentation_spec, "image": inputs.image, "weights": weights_of(network)}
        about |= {"voxels": _checksum(scene, box, config), "size": str(segmentation.voxel_size_zyx_nm)}
        about |= {"engine": lanes.name, "box": str(box), "network": model.model_dump_json()}
        about |= {"image_box": str(image.box), "own_deltas": str(network.trained_deltas_zyx)}
        about |= {"grey_levels": str(network.normalisation), **mask_inputs(inputs.masks)}
        partials = Path(f"{out_path}.partial"), Path(f"{out_path}.again.partial")
        head = header(fingerprint("agglomerate", config, **about, canvases=lanes.size))
        lines = judged(partials[0], head, points, judge, lanes)
        del lanes  # a device may have no room for others beside them
        finer = judge.with_smaller_steps()
        if finer:
            lines = judged_again(partials[1], head, lines, points, finer)
        write_lines(out_path, header(provenance("agglomerate", config, **about)), lines)
        for partial in partials:
            partial.unlink(missing_ok=True)


def _require_here(out_path: str) -> None:
    """Refuse a URL, which would be taken for a relative path."""
    if "://" in out_path:
        raise VolumeError(f"{out_path}: is an address, expected a path on this machine. Copy the graph there later")


def _require_new_file(out_path: str, *input_specs: str) -> None:
    _require_here(out_path)
    require_other_file(out_path, *input_specs)
    if Path(out_path).is_dir():
        raise VolumeError(f"{out_path}: is a folder, expected a file to write to, such as {out_path}/graph.csv")


def _checked(segmentation: Volume, image: Volume, box: Box | None) -> Box:
    require_image_of(segmentation, image)
    part = segmentation.box if box is None else box.intersect(segmentation.box)
    if part.is_empty:
        raise VolumeError(
            f"{segmentation.name}: box {box} lies outside the volume {segmentation.box}, expected one that overlaps it"
        )
    return part


def _checksum(scene: Scene, box: Box, config: Agglomeration) -> str:
    """Return a checksum of all voxels that the windows of a job show, so that it never resumes from stale edges."""
    total = hashlib.sha256()
    corners = box.start, zyx(n - 1 for n in box.stop)
    windows = (Box.around(corner, config.window_radius_zyx).moved_into(scene.segmentation.box) for corner in corners)
    for block in Box.hull(windows).blocks(CHECKSUM_BLOCK_ZYX):
        for volume in (scene.segmentation, scene.image, scene.masks):
            total.update(np.ascontiguousarray(volume.read(block)).data)
    return total.hexdigest()
