"""Segment one box of an image: read, seed, flood, write."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import numpy as np
from tqdm import tqdm

from ffn.config import SegmentConfig
from ffn.errors import ModelError, VolumeError
from ffn.geometry import ZYX, Box, zyx
from ffn.inference.engine import Engine, create_engine
from ffn.inference.flood import Filling, FloodFill, Report
from ffn.inference.seeds import peak_seeds
from ffn.model.store import Model, load_model, weights_checksum
from ffn.progress import progress_bar
from ffn.provenance import provenance
from ffn.volume import Placement, create_volumes, open_volume, require_inside, split_spec

log = logging.getLogger(__name__)

RESERVED = ("probability", "origins", "overlaps")


def segment(image_spec: str, model_folder: str, out_spec: str, config: SegmentConfig, box: Box | None = None) -> None:
    """Flood-fill a box and write segmentation, probabilities, origins and overlaps.

    The file of `out_spec` holds the segmentation (uint64) under the given name and beside it ``probability``
    (uint8), ``origins`` (id, seed z, y, x in full-volume voxels, FOVs) and ``overlaps`` (id, earlier id, voxels).

    Parameters
    ----------
    image_spec : str
        Raw image, uint8 or uint16.
    model_folder : str
        Trained model.
    out_spec : str
        ``FILE.h5:DATASET`` to write.
    config : SegmentConfig
        Thresholds, limits and engine.
    box : Box, optional
        Subvolume; default the whole image. Held in memory whole: about 60 bytes per voxel while seeds are found.

    Raises
    ------
    VolumeError
        If the box is outside of the image or smaller than one FOV.
    ModelError
        If the model is missing or damaged.
    """
    path, dataset = split_spec(out_spec)
    if dataset is None:
        raise VolumeError(f"{out_spec}: expected FILE.h5:DATASET to write to")
    if dataset in RESERVED:
        raise VolumeError(f"{out_spec}: {dataset!r} is the name of another result in this file. Choose 'segmentation'")
    model = load_model(model_folder)
    with open_volume(image_spec) as volume:
        box = box or volume.box
        require_inside(volume, box)
        _require_fov(box, model, image_spec)
        raw = volume.read(box)
        voxel_size = volume.voxel_size_zyx_nm or (1.0, 1.0, 1.0)
    engine = create_engine(model, config.engine, config.precision, config.threads)
    filling = _fill(normalise(raw, model), voxel_size, model, engine, config)
    inputs = {"image": image_spec, "weights": weights_checksum(model.weights), "engine": engine.name, "box": box}
    record = provenance("segment", config, **inputs) | {"counters": filling.counters}
    _write(path, dataset, filling, Placement(box, voxel_size, record))


def normalise(raw: np.ndarray, model: Model) -> np.ndarray:
    """Return (raw - mean) / stddev as float32, with the model's figures.

    Raises
    ------
    ModelError
        If the model does not say how its images are normalised.
    """
    mean, stddev = model.config.image_mean, model.config.image_stddev
    if mean is None or stddev is None:
        raise ModelError(
            f"model: image_mean is {mean}, image_stddev is {stddev}, both are needed. Set them in model.yaml"
        )
    return (raw.astype(np.float32) - np.float32(mean)) / np.float32(stddev)


def _fill(
    image: np.ndarray,
    voxel_size: tuple[float, float, float],
    model: Model,
    engine: Engine,
    config: SegmentConfig,
) -> Filling:
    seeds = peak_seeds(image, voxel_size, config.seed_min_distance)
    if config.seed_order == "reversed":
        seeds = seeds[::-1]
    log.info("%d seeds in %s voxels", len(seeds), image.shape)
    flood = FloodFill(image, model.config, config, engine)
    with progress_bar(len(seeds), "segment", "seed") as bar:
        filling = flood.run(_counted(seeds, bar), _reporter(bar, image.size))
    log.info("segmented %s", json.dumps(filling.counters))
    return filling


def _counted(seeds: np.ndarray, bar: tqdm) -> Iterator[ZYX]:
    """Yield the seeds and move the bar when one is done."""
    for seed in seeds:
        yield zyx(seed)
        bar.update()


def _reporter(bar: tqdm, num_voxels: int) -> Report:
    """Return a callback that shows FOVs/s and the filled fraction beside the bar."""

    def report(fovs: int, filled: int) -> None:
        seconds = max(bar.format_dict["elapsed"], 1e-9)
        bar.set_postfix_str(
            f"{fovs} FOVs, {fovs / seconds:.1f} FOVs/s, {filled / num_voxels:.1%} filled", refresh=False
        )
        bar.update(0)

    return report


def _require_fov(box: Box, model: Model, where: str) -> None:
    if any(n < fov for n, fov in zip(box.shape, model.config.fov_size_zyx, strict=True)):
        raise VolumeError(
            f"{where}: box {box} is smaller than one FOV {model.config.fov_size_zyx}. Choose a larger box"
        )


def _write(path: str, dataset: str, filling: Filling, placement: Placement) -> None:
    start = placement.box.start
    origins = [(o.segment_id, *np.add(o.seed_zyx, start), o.num_fovs) for o in filling.origins]
    overlaps = [(o.segment_id, other, n) for o in filling.origins for other, n in sorted(o.overlaps.items())]
    tables = {
        "origins": np.array(origins, np.int64).reshape(-1, 5),
        "overlaps": np.array(overlaps, np.int64).reshape(-1, 3),
    }
    dtypes: dict[str, np.dtype | type] = {dataset: np.uint64, "probability": np.uint8}
    with create_volumes(path, dtypes, placement, tables) as writers:
        writers[dataset].write(placement.box, filling.segmentation.astype(np.uint64))
        writers["probability"].write(placement.box, filling.probability)
