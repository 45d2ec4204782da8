"""Segment one box of an image: read, seed, flood, write."""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from ffn.config import ImageConfig, Mask, SegmentConfig, flooding_model
from ffn.errors import VolumeError
from ffn.geometry import Box, VoxelSize, cell_shape
from ffn.inference.checkpoint import CheckpointFile, checksum
from ffn.inference.choice import chosen_engine
from ffn.inference.claims import Cells, Filling, origins_table, overlaps_table
from ffn.inference.flood import FloodFill
from ffn.inference.points import read_points
from ffn.inference.sanity import Facts, findings, measured
from ffn.inference.seeds import empty_space_seeds, find_seeds
from ffn.io.create import create_volumes, volume_name
from ffn.io.masks import open_masks
from ffn.io.nearest import read_nearest
from ffn.io.open import open_truth, open_volume
from ffn.io.staging import stage_specs, staged_spec
from ffn.io.volume import Placement, file_of, require_image, require_inside, require_other_file, voxel_size_of
from ffn.model.normalize import read_normalisation
from ffn.model.store import Model, load_model, weights_checksum
from ffn.options import (
    add_box_option,
    add_machine_option,
    add_normalization_option,
    add_options,
    add_staging_option,
    from_arguments,
    mask_inputs,
    masks_from,
)
from ffn.progress import progress_bar
from ffn.provenance import provenance, revision

log = logging.getLogger(__name__)

RESERVED = ("probability", "origins", "overlaps", "given")
SHOW_SECONDS = 0.2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flood-fill one box of an image: grow an object from every seed until the network finds no more of it."""
    parser.add_argument("--image", required=True, metavar="VOLUME", help="raw image, NAME.zarr or FILE.h5:DATASET")
    parser.add_argument("--model", required=True, metavar="MODEL_DIR", help="trained or imported model")
    add_box_option(parser)
    parser.add_argument(
        "--out", required=True, metavar="VOLUME", help="uint64 segmentation, NAME.zarr or FILE.h5:DATASET"
    )
    add_staging_option(parser)
    add_machine_option(parser)
    add_normalization_option(parser)
    add_options(parser, ImageConfig, skip=("normalize",))
    add_options(parser, SegmentConfig)
    parser.set_defaults(function=_run)


def _run(arguments: argparse.Namespace) -> None:
    config = from_arguments(SegmentConfig, arguments)
    places = arguments.image, arguments.model, arguments.out
    known = Known(arguments.normalization, masks_from(arguments), arguments.init_segmentation)
    segment(*places, config, arguments.box, arguments.stage_to, arguments.machine, known)


class Known(NamedTuple):
    """What is known of a volume besides its image.

    Parameters
    ----------
    normalization : str, optional
        File of `ffn normalize`; default: mean and deviation of the model.

    masks : tuple of Mask
        Voxels that are never seeded, entered or segmented.
    init_segmentation : str, optional
        Labels of any resolution that are segments from the start.
    """

    normalization: str | None = None
    masks: tuple[Mask, ...] = ()
    init_segmentation: str | None = None


class Subvolume(NamedTuple):
    """Grey levels of shape ``box.shape``, their box, and the voxel size."""

    raw: np.ndarray
    box: Box
    voxel_size_zyx_nm: VoxelSize


def segment(
    image_spec: str,
    model_folder: str,
    out_spec: str,
    config: SegmentConfig,
    box: Box | None = None,
    stage_to: str | None = None,
    machine: str | None = None,
    known: Known = Known(),  # noqa: B008 (frozen)
) -> None:
    """Flood-fill a box and write segmentation, probabilities, origins and overlaps.

    The file of `out_spec` holds the segmentation (uint64) under the given name, and ``probability`` (uint8),
    ``origins`` (id, seed z, y, x in full-volume voxels, FOVs, pass) and ``overlaps`` (id, earlier id, first voxel of a
    cell, voxels in it; see `ffn.geometry.cell_shape`). During the run, ``<file>.checkpoint`` holds the state. After a
    kill, the same call resumes from it, and the output is the same, byte for byte.

    Parameters
    ----------
    image_spec : str
        Raw image, uint8 or uint16.
    model_folder : str
        Model folder.
    out_spec : str
        ``NAME.zarr`` or ``FILE.h5:DATASET`` to write.
    config : SegmentConfig
        Thresholds, limits, masks and engine.
    box : Box, optional
        Subvolume; default: the whole image. Takes about 25 bytes of memory per voxel while seeds are found, then 11
        plus 4 for each object grown at once.
    stage_to : str, optional
        Node-local folder to which the whole image is copied first, for all jobs on this node.
    machine : str, optional
        Folder with what ``auto`` takes in all jobs of the run; see `ffn.inference.choice.chosen_engine`.
    known : Known, optional
        Normalisation, masks and given segments of the volume.

    Raises
    ------
    VolumeError
        If the box reaches outside the image or the mask or is smaller than the FOV, or the output is an input file.
    ConfigError
        If the deltas do not fit the FOV, the points are missing or malformed, ``OMP_NUM_THREADS`` is not a number, or
        this machine cannot run the engine.
    ModelError
        If the model is missing or damaged.
    SegmentError
        After SIGTERM, once the state is saved.
    """
    path, dataset = _target(out_spec)
    others = [mask.path for mask in known.masks] + [known.init_segmentation]
    require_other_file(out_spec, image_spec, *filter(None, others))
    points = None if config.seed_points is None else read_points(config.seed_points)
    model = load_model(model_folder)
    normalisation = read_normalisation(known.normalization, model.config)
    model = replace(model, config=flooding_model(model.config, config))
    if stage_to:
        stage_specs([image_spec], stage_to)
    part = _read(staged_spec(image_spec, stage_to) if stage_to else image_spec, box, model)
    with open_masks(known.masks, part.voxel_size_zyx_nm) as masks:
        masked = masks.read(part.box) if masks else None
    given = _given(known.init_segmentation, part)
    engine = chosen_engine(model, config, machine)
    inputs = {"image": image_spec, "weights": weights_checksum(model.weights), "engine": engine.name, "box": part.box}
    inputs["grey_levels"] = str(normalisation)
    arrays = {"voxels": part.raw, "masked": masked, "points": points, "given": given}
    checksums = {name: checksum(array) for name, array in arrays.items()}
    fingerprint = _fingerprint(config, model, {**inputs, **checksums, "voxel_size_zyx_nm": part.voxel_size_zyx_nm})
    checkpoint = CheckpointFile(f"{path}.checkpoint", fingerprint, config.checkpoint_seconds)
    cells = Cells(cell_shape(part.voxel_size_zyx_nm), part.box.start)
    flood = FloodFill(normalisation.apply(part.raw), model.config, config, engine, masked, cells)
    ids = None if given is None else flood.claims.adopt(given)  # a checkpoint replaces this with the same and more
    filling = _fill(flood, part, config, points, masked, checkpoint)
    sanity = measured(filling, part.voxel_size_zyx_nm)
    for finding in findings([Facts("it" if box is None else part.box.stem, **sanity, counters=filling.counters)]):
        log.warning("%s", finding)
    if known.init_segmentation:
        inputs["init_segmentation"] = known.init_segmentation
    record = provenance("segment", config, **inputs, **mask_inputs(known.masks))
    record |= {"counters": filling.counters, "sanity": sanity}
    _write(path, dataset, filling, Placement(part.box, part.voxel_size_zyx_nm, record), ids)
    checkpoint.remove()


def _target(out_spec: str) -> tuple[str, str]:
    dataset = volume_name(out_spec)
    if dataset in RESERVED:
        raise VolumeError(
            f"{out_spec}: {dataset!r} is another dataset of this file, expected a free name. Choose 'segmentation'"
        )
    return file_of(out_spec), dataset


def _read(image_spec: str, box: Box | None, model: Model) -> Subvolume:
    with open_volume(image_spec) as volume:
        box = box or volume.box
        require_image(volume)
        require_inside(volume, box)
        if any(n < fov for n, fov in zip(box.shape, model.config.fov_size_zyx, strict=True)):
            raise VolumeError(
                f"{image_spec}: box {box} is smaller than one FOV {model.config.fov_size_zyx}. Choose a larger box"
            )
        return Subvolume(volume.read(box), box, voxel_size_of(volume))


def _given(spec: str | None, part: Subvolume) -> np.ndarray | None:
    """Return the ids of what is segmented already, 0 where nothing is and beyond its volume."""
    if spec is None:
        return None
    with open_truth(spec) as labels:
        return read_nearest(labels, part.box, part.voxel_size_zyx_nm, outside=0)


def _fingerprint(config: SegmentConfig, model: Model, inputs: dict[str, object]) -> dict[str, str]:
    """Return what the result depends on, by name."""
    named = {
        **config.result_options(),
        **{f"model.{name}": value for name, value in model.config.model_dump(mode="json").items()},
    }
    return {name: str(value) for name, value in {**named, **inputs, "revision": revision("segment")}.items()}


def _fill(
    flood: FloodFill,
    part: Subvolume,
    config: SegmentConfig,
    points: np.ndarray | None,
    masked: np.ndarray | None,
    checkpoint: CheckpointFile,
) -> Filling:
    """Flood one or two passes; resume if there is a checkpoint."""
    saved = checkpoint.load()
    if saved is not None:
        flood.resume(saved)
        del saved  # it is as large as the flood
    if flood.pass_number == 0:
        flood.begin(find_seeds(flood.image, config, part.voxel_size_zyx_nm, part.box, points, masked))
    _run_pass(flood, checkpoint)
    if config.second_pass and flood.pass_number == 1:
        flood.begin(_second_seeds(flood, part.voxel_size_zyx_nm, config))
        _run_pass(flood, checkpoint)
    filling = flood.filling()
    log.info("segmented %s", json.dumps(filling.counters))
    return filling


def _second_seeds(flood: FloodFill, voxel_size: VoxelSize, config: SegmentConfig) -> np.ndarray:
    """Seeds where the first pass and the masks left voxels free."""
    seeds = empty_space_seeds(flood.image, flood.claims.segmentation, voxel_size, config.seed_min_distance)
    return seeds[::-1] if config.seed_order == "reversed" else seeds


def _run_pass(flood: FloodFill, checkpoint: CheckpointFile) -> None:
    """Flood one pass, with a progress bar and checkpoints."""
    log.info("pass %d: %d seeds in %s voxels", flood.pass_number, len(flood.seeds), flood.image.shape)
    with progress_bar(len(flood.seeds), "segment", "seed") as bar, checkpoint.saved_on_sigterm():
        bar.initial = bar.n = flood.cursor
        show = _progress(bar, flood)

        def after_round() -> None:
            show()
            checkpoint.save_when_due(flood.state)

        flood.run(after_round)
        bar.update(flood.cursor - bar.n)


def _progress(bar: tqdm, flood: FloodFill) -> Callable[[], None]:
    """Return a callback that updates the bar and shows FOVs/s and the filled fraction."""
    start, before, due = time.monotonic(), flood.num_evaluated, 0.0

    def show() -> None:
        nonlocal due
        now = time.monotonic()
        if now >= due:  # formatting the text at every FOV would cost more than the flood itself
            due = now + SHOW_SECONDS
            rate = (flood.num_evaluated - before) / max(now - start, 1e-9)
            filled = flood.claims.num_filled / flood.image.size
            text = f"{flood.num_evaluated} FOVs, {rate:.1f} FOVs/s, {filled:.1%} filled"
            bar.set_postfix_str(text, refresh=False)
            bar.update(flood.cursor - bar.n)

    return show


def _write(path: str, dataset: str, filling: Filling, placement: Placement, given: np.ndarray | None) -> None:
    """Write volumes and tables; `given` are the ids, elsewhere, of the first segments."""
    origins = origins_table(filling.origins)
    origins[:, 1:4] += placement.box.start
    tables = {"origins": origins, "overlaps": overlaps_table(filling.origins)}
    if given is not None:
        tables["given"] = np.column_stack([np.arange(1, len(given) + 1), given.astype(np.int64)])
    dtypes: dict[str, np.dtype | type] = {dataset: np.uint64, "probability": np.uint8}
    with create_volumes(path, dtypes, placement, tables) as writers:
        writers[dataset].write(placement.box, filling.segmentation.astype(np.uint64))
        writers["probability"].write(placement.box, filling.probability)
