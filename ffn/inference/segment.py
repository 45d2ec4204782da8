"""Segment boxes of an image: read, seed, flood, write."""

from __future__ import annotations

import argparse
import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from ffn.config import ImageConfig, Mask, SegmentConfig, SubvolumesConfig, flooding_model
from ffn.errors import ConfigError, VolumeError
from ffn.geometry import ZYX, Box, Grid, VoxelSize, tile, zyx
from ffn.inference.checkpoint import Termination
from ffn.inference.choice import Network, chosen
from ffn.inference.flood_all import flood_all
from ffn.inference.frame import Frame, mirrored_radius
from ffn.inference.lanes import open_lanes
from ffn.inference.points import read_points
from ffn.inference.subvolume import Common, SubvolumeFlood, fingerprint
from ffn.io.blocks import WHOLE, Job, add_job_options, job_of
from ffn.io.box_files import make_files
from ffn.io.create import require_replaceable, volume_name
from ffn.io.masks import mask_inputs, open_masks
from ffn.io.open import identity, open_truth, open_volume
from ffn.io.staging import stage_specs, staged_masks, staged_spec
from ffn.io.volume import Volume, file_of, require_image, require_inside, require_other_file
from ffn.machine.limits import threads_here
from ffn.model.choice import FOLDER
from ffn.model.normalize import read_normalisation
from ffn.model.store import Model, load_model, weights_checksum
from ffn.options import (
    add_machine_option,
    add_normalization_option,
    add_options,
    add_staging_option,
    add_volume_option,
    box_value,
    from_arguments,
    masks_from,
)

RESERVED = ("probability", "origins", "overlaps", "given")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flood-fill boxes of an image: grow an object from every seed until the network finds no more of it."""
    add_volume_option(parser, "--image", "raw image")
    parser.add_argument("--model", required=True, metavar="MODEL_DIR", help="trained or imported model")
    parser.add_argument(
        "--box",
        type=box_value,
        nargs="+",
        metavar="Z0:Z1,Y0:Y1,X0:X1",
        help="parts of the volume, voxels (default: all of it)",
    )
    text = (
        "uint64 segmentation of each box, NAME.zarr or FILE.h5:DATASET; FOLDER/ cuts one box into overlapping "
        "subvolumes, with a file each, for 'ffn reconcile'"
    )
    parser.add_argument("--out", required=True, nargs="+", metavar="VOLUME", help=text)
    add_options(parser, SubvolumesConfig)
    add_job_options(parser)
    add_staging_option(parser)
    add_machine_option(parser)
    add_normalization_option(parser)
    add_options(parser, ImageConfig, skip=("normalize",))
    add_options(parser, SegmentConfig)
    parser.set_defaults(function=_run)


def _run(arguments: argparse.Namespace) -> None:
    config = from_arguments(SegmentConfig, arguments)
    known = Known(arguments.normalization, masks_from(arguments), arguments.init_segmentation)
    sources, boxes, job = (arguments.image, arguments.model), arguments.box or [None], job_of(arguments)
    if not arguments.out[0].endswith("/"):
        if job != WHOLE or arguments.size_zyx or arguments.overlap_zyx:
            raise ConfigError(f"--out: {arguments.out[0]} is a file, --size, --overlap and --job need --out FOLDER/")
        segment(*sources, arguments.out, config, arguments.box, arguments.stage_to, arguments.machine, known)
        return
    if len(boxes) > 1 or len(arguments.out) > 1:
        raise ConfigError(f"--out: {arguments.out[0]} is a folder, expected one folder and at most one box")
    tiles = from_arguments(SubvolumesConfig, arguments)
    folder, stage_to, machine = arguments.out[0], arguments.stage_to, arguments.machine
    segment_subvolumes(*sources, folder, config, tiles, boxes[0], job, stage_to, machine, known)


class Known(NamedTuple):
    """What is known of a volume besides its image."""

    normalization: str | None = None  # file of `ffn normalize`; default: mean and deviation of the model
    masks: tuple[Mask, ...] = ()  # voxels that are never seeded, entered or segmented
    init_segmentation: str | None = None  # labels of any resolution that are segments from the start

    @property
    def inputs(self) -> dict[str, str]:
        """Masks and given segments for the provenance; nothing if there are none."""
        given = {"init_segmentation": self.init_segmentation} if self.init_segmentation else {}
        return {**mask_inputs(self.masks), **given}


def segment(
    image_spec: str,
    model_folder: str,
    out_specs: Sequence[str],
    config: SegmentConfig,
    boxes: Sequence[Box] | None = None,
    stage_to: str | None = None,
    machine: str | None = None,
    known: Known = Known(),  # noqa: B008 (frozen)
    finished: Callable[[Box], None] | None = None,
    of_boxes: Sequence[Box] | None = None,
) -> None:
    """Flood-fill boxes and write segmentation, probabilities, origins and overlaps of each.

    Each file holds the segmentation (uint64) under the given name, and ``probability`` (uint8), ``origins`` (id, seed
    z, y, x in full-volume voxels, FOVs, pass) and ``overlaps`` (id, earlier id, first voxel of a cell,
    voxels in it; see `ffn.geometry.cell_shape`). During the run, ``<file>.checkpoint`` holds the state. After a kill,
    the same call resumes from it, and the output is the same, byte for byte.

    Parameters
    ----------
    image_spec : str
        Raw image, uint8 or uint16.
    model_folder : str
        Model folder.
    out_specs : sequence of str
        ``NAME.zarr`` or ``FILE.h5:DATASET`` to write, one for each box.
    config : SegmentConfig
        Thresholds, limits, masks and engine.
    boxes : sequence of Box, optional
        Subvolumes; default: the whole image. Each takes about 25 bytes of memory per voxel while seeds are found, then
        15 while it is on a canvas, also for what is mirrored.
    stage_to : str, optional
        Node-local folder to which the whole image, and masks and given segments, are copied first, for all jobs on this
        node.
    machine : str, optional
        Folder with what ``auto`` takes in all jobs of the run; see `ffn.inference.choice.chosen`.
    known : Known, optional
        Normalisation, masks and given segments of the volume.
    finished : callable, optional
        Told each box whose file is written; its checkpoint is gone then.
    of_boxes : sequence of Box, optional
        These and those that an earlier call has finished: its checkpoints are of as many canvases, which the largest of
        all decides on a device. Default: `boxes`.

    Raises
    ------
    VolumeError
        If a box reaches outside the image or the mask or has no room for a FOV, or an output is an input file.
    ConfigError
        If the deltas do not fit the FOV, the points are missing or malformed, ``OMP_NUM_THREADS`` is not a number, or
        this machine cannot run the engine or hold the canvases.
    ModelError
        If the model is missing or damaged.
    SegmentError
        After SIGTERM, once the state is saved.
    """
    targets = [_target(spec) for spec in out_specs]
    _require_different([path for path, _ in targets])
    for path, dataset in targets:  # not after the flood: its checkpoint is of this output
        require_replaceable(path, {dataset, *RESERVED})
    for spec in out_specs:
        require_other_file(spec, image_spec, *filter(None, [mask.path for mask in known.masks]))
        require_other_file(spec, *filter(None, [known.init_segmentation]))
    points = None if config.seed_points is None else read_points(config.seed_points)
    model = load_model(model_folder)
    normalisation = read_normalisation(known.normalization, model.config)
    model = replace(model, config=flooding_model(model.config, config))
    near_spec, near = _staged(image_spec, known, stage_to) if stage_to else (image_spec, known)
    with open_volume(near_spec) as volume:
        radius_zyx = mirrored_radius(model, config)
        boxes, dtype = _checked(volume, boxes or [volume.box], model, radius_zyx, len(targets)), volume.dtype
        of_boxes = of_boxes or boxes
        _require_known(known, boxes, volume.voxel_size_zyx_nm)
        shapes = {Frame.of(box, volume.box, radius_zyx).canvas.shape for box in of_boxes}
    network = Network(model, normalisation, chosen(model, config, machine))
    largest = zyx(map(max, zip(*shapes, strict=True)))
    lanes = open_lanes(network, config, len(of_boxes), largest, dtype)
    inputs = {"image": image_spec, "weights": weights_checksum(model.weights), "engine": lanes.name}
    inputs["grey_levels"] = str(normalisation)
    read = near.masks, near.init_segmentation
    common = Common(near_spec, network, config, points, inputs, lanes.size, *read, known.inputs)
    jobs = [SubvolumeFlood(common, box, *target) for box, target in zip(boxes, targets, strict=True)]
    termination = Termination()
    with termination.noticed() if config.checkpoint_seconds else contextlib.nullcontext():
        flood_all(jobs, lanes, termination, config.threads or threads_here(), finished)


def segment_subvolumes(
    image_spec: str,
    model_folder: str,
    folder: str,
    config: SegmentConfig,
    tiles: SubvolumesConfig,
    box: Box | None = None,
    job: Job = WHOLE,
    stage_to: str | None = None,
    machine: str | None = None,
    known: Known = Known(),  # noqa: B008 (frozen)
) -> None:
    """Flood-fill overlapping subvolumes of a box, each into a file ``z…-y…-x….h5`` with the bytes of `segment`.

    Subvolumes that are finished are skipped, so a killed call loses only what it was at.

    Parameters
    ----------
    image_spec, model_folder, config, stage_to, known
        See `segment`.
    folder : str
        For the files, and for the records of those that are finished.
    tiles : SubvolumesConfig
        Size and overlap of the subvolumes.
    box : Box, optional
        What to cover; default: the whole image.
    job : Job
        Which of the subvolumes; see `ffn.io.blocks`.
    machine : str, optional
        See `segment`; default: the folder ``machine`` in `folder`.

    Raises
    ------
    VolumeError, ConfigError, ModelError, SegmentError
        See `segment`.
    """
    with open_volume(image_spec) as volume:
        boxes = tile(box or volume.box, tiles.size_zyx, tiles.overlap_zyx)
        require_inside(volume, box or volume.box)
        _require_known(known, job.part_of(boxes), volume.voxel_size_zyx_nm)
    model = load_model(model_folder)
    _require_overlap(boxes, tiles.overlap_zyx, model.config.fov_size_zyx)
    machine = machine or f"{folder}{FOLDER}"
    choice = chosen(model, config, machine)
    files = [*(mask.path for mask in known.masks), known.init_segmentation, config.seed_points]
    inputs = {
        "image": identity(image_spec),
        "files": [identity(file) for file in files if file],
        "weights": weights_checksum(model.weights),
        "engine": (choice.engine, choice.precision),
        "grey_levels": read_normalisation(known.normalization, model.config),
        "size": boxes[0].shape,
        **mask_inputs(known.masks),
    }

    mine = job.part_of(boxes)

    def work(left: list[Box], finished: Callable[[Box], None]) -> None:
        outs = [f"{folder}{box.stem}.h5:segmentation" for box in left]
        segment(image_spec, model_folder, outs, config, left, stage_to, machine, known, finished, mine)

    make_files(folder, ".h5", boxes, work, fingerprint(config, model, inputs), job)


def _staged(image_spec: str, known: Known, folder: str) -> tuple[str, Known]:
    """Copy the inputs to the node, once, and return their new paths."""
    masks = [mask.path for mask in known.masks]
    stage_specs([spec for spec in (image_spec, *masks, known.init_segmentation) if spec], folder)
    given = known.init_segmentation and staged_spec(known.init_segmentation, folder)
    near = known._replace(masks=staged_masks(known.masks, folder), init_segmentation=given)
    return staged_spec(image_spec, folder), near


def _require_known(known: Known, boxes: Sequence[Box], voxel_size_zyx_nm: VoxelSize | None) -> None:
    """Refuse masks and given segments that cannot be read before the engine is chosen, which may take minutes."""
    with open_masks(known.masks, voxel_size_zyx_nm) as masks:
        for box in boxes:
            masks.require(box)
    if known.init_segmentation:
        with open_truth(known.init_segmentation):
            pass


def _require_overlap(boxes: Grid, overlap_zyx: ZYX, fov_size_zyx: ZYX) -> None:
    """Refuse neighbours that share less than a FOV, as the configuration of a run does."""
    for axis, ranges, overlap, fov in zip("zyx", boxes.ranges_zyx, overlap_zyx, fov_size_zyx, strict=True):
        if len(ranges) > 1 and overlap < fov:
            raise ConfigError(
                f"overlap_zyx: {overlap} on axis {axis} is less than the FOV ({fov}), so neighbours would not share "
                "voxels that both can reach"
            )


def _target(out_spec: str) -> tuple[str, str]:
    dataset = volume_name(out_spec)
    if dataset in RESERVED:
        raise VolumeError(
            f"{out_spec}: {dataset!r} is another dataset of this file, expected a free name. Choose 'segmentation'"
        )
    return file_of(out_spec), dataset


def _require_different(paths: Sequence[str]) -> None:
    path, count = Counter(paths).most_common(1)[0]
    if count > 1:
        raise VolumeError(f"--out: {path} is given {count} times, expected a file for each box")


def _checked(volume: Volume, boxes: Sequence[Box], model: Model, radius_zyx: ZYX, num_outputs: int) -> Sequence[Box]:
    require_image(volume)
    if len(boxes) != num_outputs:
        raise ConfigError(f"--out: found {num_outputs} files for {len(boxes)} boxes, expected one for each")
    for box in boxes:
        require_inside(volume, box)
        if not Frame.of(box, volume.box, radius_zyx).has_room_for(model.config.fov_size_zyx):
            raise VolumeError(
                f"{volume.name}: box {box} is smaller than one FOV {model.config.fov_size_zyx}. Choose a larger box, "
                "or one that ends with the image on both sides"
            )
    return boxes
