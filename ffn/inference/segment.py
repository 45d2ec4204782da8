"""Segment boxes of an image: read, seed, flood, write."""

from __future__ import annotations

import argparse
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from ffn.config import ImageConfig, ModelConfig, SegmentConfig, SubvolumesConfig
from ffn.errors import ConfigError, VolumeError, under
from ffn.geometry import ZYX, Box, Grid, VoxelSize, tile, zyx
from ffn.inference.checkpoint import Termination
from ffn.inference.flood_all import flood_all
from ffn.inference.frame import Frame, mirrored_radius
from ffn.inference.inputs import SegmentInputs, add_flood_inputs, flood_inputs
from ffn.inference.lanes import Lanes, open_lanes
from ffn.inference.points import read_points
from ffn.inference.subvolume import Common, SubvolumeFlood, fingerprint
from ffn.io.blocks import WHOLE, Job, add_job_options, job_of, make_files
from ffn.io.masks import open_masks, require_labels_in
from ffn.io.open import identity, open_volume
from ffn.io.store import require_replaceable
from ffn.io.store_names import MAIN
from ffn.io.volume import require_image, require_inside, require_other_file
from ffn.machine.limits import threads_here
from ffn.model.choice import FOLDER
from ffn.model.store import load_model
from ffn.options import add_options, add_staging_option, box_value, from_arguments

NAMES = {MAIN, "probability", "origins", "overlaps", "given"}  # in a store


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flood-fill boxes of an image: grow an object from every seed until the network finds no more of it."""
    add_flood_inputs(parser)
    parser.add_argument(
        "--box",
        type=box_value,
        nargs="+",
        metavar="Z0:Z1,Y0:Y1,X0:X1",
        help="parts of the volume, voxels (default: all of it)",
    )
    text = (
        "uint64 segmentation of each box, NAME.zarr; FOLDER/ cuts one box into overlapping "
        "subvolumes, with a file each, for 'ffn reconcile'"
    )
    parser.add_argument("--out", required=True, nargs="+", metavar="VOLUME", help=text)
    add_options(parser, SubvolumesConfig)
    add_job_options(parser)
    add_staging_option(parser)
    add_options(parser, ImageConfig, skip=("normalize",))
    add_options(parser, SegmentConfig)
    parser.set_defaults(function=_run)


def _run(arguments: argparse.Namespace) -> None:
    config, job, folder = from_arguments(SegmentConfig, arguments), job_of(arguments), arguments.out[0]
    given, stage_to = arguments.init_segmentation, arguments.stage_to
    inputs = SegmentInputs(**flood_inputs(arguments), init_segmentation=given, stage_to=stage_to)
    if not folder.endswith("/"):
        if job != WHOLE or arguments.size_zyx or arguments.overlap_zyx:
            raise ConfigError(f"--out: {folder} is a file, --size, --overlap and --job need --out FOLDER/")
        segment(inputs, arguments.out, config, arguments.box)
        return
    boxes = arguments.box or [None]
    if len(boxes) > 1 or len(arguments.out) > 1:
        raise ConfigError(f"--out: {folder} is a folder, expected one folder and at most one box")
    segment_subvolumes(inputs, folder, config, from_arguments(SubvolumesConfig, arguments), boxes[0], job)


def segment(
    inputs: SegmentInputs,
    outs: Sequence[str],
    config: SegmentConfig,
    boxes: Sequence[Box] | None = None,
) -> None:
    """Flood-fill boxes and write segmentation, probabilities, origins and overlaps of each.

    Each file holds the segmentation (uint64) under the given name, and ``probability`` (uint8), ``origins`` (id, seed
    z, y, x in full-volume voxels, FOVs, pass) and ``overlaps`` (id, earlier id, first voxel of a cell,
    voxels in it; see `ffn.geometry.cell_shape`). During the run, ``<file>.checkpoint`` holds the state. After a kill,
    the same call resumes from it, and the output is the same, byte for byte.

    Parameters
    ----------
    inputs : SegmentInputs
        Image, network, normalisation, masks and given segments.
    outs : sequence of str
        ``NAME.zarr`` to write, one for each box.
    config : SegmentConfig
        Thresholds, limits and engine.
    boxes : sequence of Box, optional
        Subvolumes; default: the whole image. Each takes about 25 bytes of memory per voxel while seeds are found, then
        15 while it is on a canvas, including the mirrored rim.
    """
    _require_different(outs)
    for out in outs:  # not after the flood: its checkpoint is of this output
        require_replaceable(out, NAMES)
        require_other_file(out, *inputs.files())
    if boxes is None:
        with open_volume(inputs.image) as volume:
            boxes = [volume.box]
    if len(boxes) != len(outs):
        raise ConfigError(f"--out: found {len(outs)} stores for {len(boxes)} boxes, expected one for each")
    common, lanes = _prepared(inputs, config, boxes, len(boxes))
    jobs = [SubvolumeFlood(common, box, out) for box, out in zip(boxes, outs, strict=True)]
    with Termination().noticed(config.checkpoint_seconds > 0) as termination:
        flood_all(jobs, lanes, termination, threads_here(), len(jobs))


def segment_subvolumes(
    inputs: SegmentInputs,
    folder: str,
    config: SegmentConfig,
    tiles: SubvolumesConfig,
    box: Box | None = None,
    job: Job = WHOLE,
) -> None:
    """Flood-fill overlapping subvolumes of a box, each into a store ``z…-y…-x….zarr`` with the bytes of `segment`.

    Subvolumes that are finished are skipped, so a killed call loses only those that it had begun.

    Parameters
    ----------
    inputs : SegmentInputs
        See `segment`; the default of ``machine`` is a folder of this name in `folder`.
    folder : str
        For the files, and for the records of those that are finished.
    config : SegmentConfig
        See `segment`.
    tiles : SubvolumesConfig
        Size and overlap of the subvolumes.
    box : Box, optional
        What to cover; default: the whole image.
    job : Job
        Which of the subvolumes; see `ffn.io.blocks`.
    """
    with open_volume(inputs.image) as volume:
        boxes = tile(box or volume.box, tiles.size_zyx, tiles.overlap_zyx)
        require_inside(volume, box or volume.box)
        model = load_model(inputs.model).config
        check(volume.box, _of_all_shapes(boxes), volume.voxel_size_zyx_nm, inputs, config, model)
    inputs = replace(inputs, machine=inputs.machine or f"{folder}{FOLDER}")
    _require_overlap(boxes, tiles.overlap_zyx, model.fov_size_zyx)
    network = inputs.network(config)
    points = identity(config.seed_points) if config.seed_points else None
    key = {**inputs.key(network), "points": points, "size": boxes[0].shape}
    with make_files(folder, ".zarr", boxes, fingerprint(config, network.model, key), job) as left:
        taken = iter(left)
        first = next(taken, None)
        if first is None:
            return
        common, lanes = _prepared(inputs, config, _of_all_shapes(boxes), -(-len(boxes) // max(1, job.of)))
        jobs = (SubvolumeFlood(common, box, f"{folder}{box.stem}.zarr") for box in itertools.chain([first], taken))
        with Termination().noticed(config.checkpoint_seconds > 0) as termination:
            flood_all(jobs, lanes, termination, threads_here(), left.num_left, lambda box: left.finish(box, {}))


def _prepared(
    inputs: SegmentInputs, config: SegmentConfig, boxes: Sequence[Box], num_boxes: int
) -> tuple[Common, Lanes]:
    """Return the common part of all floods of `boxes`, or of boxes of these shapes, and as many canvases."""
    points = None if config.seed_points is None else read_points(config.seed_points)
    model = load_model(inputs.model).config
    near = inputs.staged()
    with open_volume(near.image) as volume:
        require_image(volume)
        for box in boxes:
            require_inside(volume, box)
        check(volume.box, boxes, volume.voxel_size_zyx_nm, near, config, model)
        dtype, radius_zyx = volume.dtype, mirrored_radius(model, config)
        canvases = [Frame.of(box, volume.box, radius_zyx).canvas for box in boxes]
    network = near.network(config)
    largest = zyx(map(max, zip(*(canvas.shape for canvas in canvases), strict=True)))
    lanes = open_lanes(network, config, num_boxes, largest, dtype)
    return Common(near, network, config, points, inputs.about(network, lanes.name), lanes.size, inputs.known), lanes


def _of_all_shapes(boxes: Grid) -> list[Box]:
    """Return boxes that have every range of each axis between them, so all shapes of boxes and canvases."""
    number = max(map(len, boxes.ranges_zyx))
    columns = [[ranges[min(k, len(ranges) - 1)] for k in range(number)] for ranges in boxes.ranges_zyx]
    return [Box((z[0], y[0], x[0]), (z[1], y[1], x[1])) for z, y, x in zip(*columns, strict=True)]


def check(
    image: Box,
    boxes: Sequence[Box],
    voxel_size_zyx_nm: VoxelSize | None,
    given: SegmentInputs | ImageConfig,
    config: SegmentConfig,
    model: ModelConfig,
) -> None:
    """Refuse boxes without room for a FOV, masks that do not cover them, and given segments and seeds to no purpose."""
    for box in boxes:
        if not Frame.of(box, image, mirrored_radius(model, config)).has_room_for(model.fov_size_zyx):
            raise VolumeError(
                f"box {box} holds no FOV of {model.fov_size_zyx}. Choose a larger box or a smaller FOV; "
                "with segment.mirror, it may also end with the image on both sides"
            )
    with under("masks"), open_masks(given.masks, voxel_size_zyx_nm) as masks:
        for box in boxes:
            masks.require(box)
    if given.init_segmentation is not None:
        with under("init_segmentation"):
            require_labels_in(given.init_segmentation, image, voxel_size_zyx_nm)
    if config.seed_points is not None:
        with under("segment.seed_points"):
            read_points(config.seed_points)


def _require_overlap(boxes: Grid, overlap_zyx: ZYX, fov_size_zyx: ZYX) -> None:
    """Refuse neighbours that share less than a FOV, as the configuration of a run does."""
    for axis, ranges, overlap, fov in zip("zyx", boxes.ranges_zyx, overlap_zyx, fov_size_zyx, strict=True):
        if len(ranges) > 1 and overlap < fov:
            raise ConfigError(
                f"overlap_zyx: {overlap} on axis {axis} is less than the FOV ({fov}), so neighbours would not share "
                "voxels that both can reach"
            )


def _require_different(paths: Sequence[str]) -> None:
    path, count = Counter(paths).most_common(1)[0]
    if count > 1:
        raise VolumeError(f"--out: {path} is given {count} times, expected a file for each box")
