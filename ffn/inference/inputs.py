"""Inputs and engine of flood filling and agglomeration, and what a plan refuses; loads neither numba nor SciPy."""

from __future__ import annotations

import argparse
import importlib.util
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ffn.config import FloodConfig, ImageConfig, Mask, ModelConfig, SegmentConfig, flooding_model
from ffn.errors import ConfigError, VolumeError, under
from ffn.geometry import ZYX, Box, VoxelSize
from ffn.inference.canvas import Frame, reach_of
from ffn.io.atomic import unreadable
from ffn.io.masks import mask_inputs, open_masks, require_labels_in
from ffn.io.open import identity
from ffn.kernels import vector_lanes
from ffn.kernels.inference import obstacle
from ffn.machine.gpu import keep_programs
from ffn.machine.limits import cpu_flags
from ffn.model.choice import ASKED_FOR, Choice, choice_name, choose_once, sees_gpu, with_precision
from ffn.model.normalize import Normalisation, read_normalisation
from ffn.model.store import Model, load_model, weights_checksum
from ffn.options import add_machine_option, add_normalization_option, add_volume_option, masks_from

log = logging.getLogger(__name__)

AVX2_LANES = 8
FEW_FEATURES = 12  # with fewer, OpenVINO is faster
HEADER = "z,y,x"
EXPECTED = "three whole numbers z,y,x of at most 18 digits in full-volume voxels"  # int64 holds any 18 digits
_POINT = re.compile(r"\s*(-?\d{1,18})\s*,\s*(-?\d{1,18})\s*,\s*(-?\d{1,18})\s*")


@dataclass(frozen=True)
class Network:
    """A model with the deltas of the options, run by an engine in a precision."""

    model: Model
    normalisation: Normalisation
    choice: Choice
    trained_deltas_zyx: ZYX  # of the model as it was stored
    padding: tuple[int, ...] = ()  # grey levels of the image that are no tissue, left out of seeds and objects


@dataclass(frozen=True)
class FloodInputs:
    """Image and network, and normalisation and masks of the volume."""

    image: str  # uint8 or uint16
    model: str  # folder
    normalization: str | None = None  # file of `ffn normalize`; None: mean and deviation of the model
    masks: tuple[Mask, ...] = ()  # voxels that are never seeded, entered or segmented
    machine: str | None = None  # folder with what `auto` takes in all jobs of the run, and what JAX compiled for GPUs

    def network(self, config: FloodConfig) -> Network:
        """Load the model and choose engine and precision, which may take minutes."""
        model = load_model(self.model)
        flooding = replace(model, config=flooding_model(model.config, config))
        normalisation = read_normalisation(self.normalization, model.config)
        choice = chosen(flooding, config, self.machine)
        if choice.engine == "jax":
            keep_programs(self.machine)
        return Network(flooding, normalisation, choice, model.config.deltas_zyx)

    @property
    def known(self) -> dict[str, str]:
        """Masks, as provenance names them."""
        return mask_inputs(self.masks)

    def files(self) -> list[str]:
        """Return the volumes that are read."""
        return [self.image, *(mask.path for mask in self.masks if mask.path)]

    def about(self, network: Network, engine: str) -> dict[str, str]:
        """Return image and network, as provenance names them."""
        weights = weights_checksum(network.model.weights)
        return {"image": self.image, "weights": weights, "engine": engine, "grey_levels": str(network.normalisation)}

    def key(self, network: Network) -> dict[str, object]:
        """Return all that results depend on besides options and boxes."""
        key: dict[str, object] = {**self.about(network, f"{network.choice.engine} {network.choice.precision}")}
        del key["image"]  # its content counts, not its path
        key |= {"network": network.model.config.model_dump_json(), "own_deltas": network.trained_deltas_zyx}
        key |= {"padding": network.padding} if network.padding else {}
        return {**key, "volumes": list(map(identity, self.files())), **self.known}


@dataclass(frozen=True, kw_only=True)
class AgglomerateInputs(FloodInputs):
    """Inputs of `agglomerate`: also supervoxels, with the table ``overlaps``, that the image covers."""

    segmentation: str

    def files(self) -> list[str]:
        """Return the volumes that are read."""
        return [self.segmentation, *super().files()]


@dataclass(frozen=True)
class SegmentInputs(FloodInputs):
    """Inputs of `segment`."""

    init_segmentation: str | None = None  # labels of any resolution that are segments from the start

    @property
    def known(self) -> dict[str, str]:
        """Masks and given segments, as provenance names them."""
        return super().known | ({"init_segmentation": self.init_segmentation} if self.init_segmentation else {})

    def files(self) -> list[str]:
        """Return the volumes that are read."""
        return [*super().files(), *filter(None, [self.init_segmentation])]


def chosen(model: Model, config: FloodConfig, machine: str | None = None) -> Choice:
    """Return engine and precision of the options; ``auto`` is the fastest here, or the choice of an earlier job."""
    choice = Choice(config.engine, config.precision)
    if "auto" in (config.engine, config.precision):
        name = choice_name("inference", config.engine, config.precision, model.config)
        choice = choose_once(Path(machine, name) if machine else None, lambda: _choose(model, config))
    return choice


def _choose(model: Model, config: FloodConfig) -> Choice:
    engine, reason = (config.engine, ASKED_FOR) if config.engine != "auto" else _fastest(model, config)
    if engine == "kernels":
        return Choice(engine, "float32", reason)
    # An H100 computes float16 at the rate of bfloat16 and with a ninth of its error; see docs/gpu.md.
    return with_precision(engine, reason, config.precision, "float16" if engine == "jax" else "bfloat16")


def _fastest(model: Model, config: FloodConfig) -> tuple[str, str]:
    """JAX keeps images and POMs on the GPU. On CPUs, take what was fastest (docs/experiments.md)."""
    if config.precision == "float16":
        return "jax", "JAX alone has float16"
    if sees_gpu("jax"):
        return "jax", "JAX sees a GPU"
    has_openvino = importlib.util.find_spec("openvino") is not None
    wants_half = config.precision == "bfloat16" or (
        config.precision == "auto" and has_openvino and "amx_bf16" in cpu_flags()
    )
    if not wants_half and vector_lanes() >= AVX2_LANES and model.config.features >= FEW_FEATURES:
        reason = obstacle(model.config.features)
        if reason is None:
            return "kernels", "they are the fastest in float32 on CPUs with AVX2"
        log.info("auto does without our kernels, because %s", reason)
    return ("openvino", "no GPU is visible") if has_openvino else ("jax", "OpenVINO is not installed")


def add_flood_inputs(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the options of `FloodInputs`, but for ``--masks``."""
    add_volume_option(parser, "--image", "raw image")
    parser.add_argument("--model", required=True, metavar="DIR", help="trained or imported model")
    add_machine_option(parser)
    add_normalization_option(parser)


def flood_inputs(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of `FloodInputs` from parsed options."""
    names = ("image", "model", "normalization", "machine")
    return {**{name: getattr(arguments, name) for name in names}, "masks": masks_from(arguments)}


def check(
    image: Box,
    frames: Sequence[Frame],
    voxel_size_zyx_nm: VoxelSize | None,
    given: SegmentInputs | ImageConfig,
    config: SegmentConfig,
    model: ModelConfig,
) -> None:
    """Refuse boxes without room for a FOV or beyond masks, given segments outside of the image, and bad seed points."""
    for frame in frames:
        if reach_of(frame.canvas.shape, model).intersect(frame.wanted).is_empty:
            found = f"box {frame.box} holds no centre of a FOV of {model.fov_size_zyx} in the image"
            raise VolumeError(f"{found}. Choose a larger box or a smaller FOV, or set segment.mirror")
    with under("masks"), open_masks(given.masks, voxel_size_zyx_nm) as masks:
        for frame in frames:
            masks.require(frame.box)
    if given.init_segmentation is not None:
        with under("init_segmentation"):
            require_labels_in(given.init_segmentation, image, voxel_size_zyx_nm)
    if config.seed_points is not None:
        with under("segment.seed_points"):
            read_points(config.seed_points)


def read_points(text: str) -> np.ndarray:
    """Read seed points (int64, (N, 3)): a point ``z,y,x``, or a CSV file with this header and a point per line.

    Examples
    --------
    >>> read_points("120,64,30").tolist()
    [[120, 64, 30]]
    """
    if single := _POINT.fullmatch(text):
        return np.array([single.groups()], np.int64)
    if not Path(text).exists():
        raise ConfigError(f"seed points: found {text!r}, expected a CSV file or {EXPECTED}")
    with unreadable(text, "CSV with the header 'z,y,x'. Save it as UTF-8 text", ConfigError):
        # spreadsheets write a byte order mark, and R quotes names
        content = Path(text).read_text(encoding="utf-8-sig").replace('"', "")
    header, *lines = content.splitlines() or [""]
    if "".join(header.split()) != HEADER:
        raise ConfigError(f"{text} line 1: found {header!r}, expected the header 'z,y,x'")
    points = []
    for number, line in enumerate(lines, start=2):
        if (match := _POINT.fullmatch(line)) is not None:
            points.append(match.groups())
        elif line:
            raise ConfigError(f"{text} line {number}: found {line!r}, expected {EXPECTED}")
    return np.array(points, np.int64).reshape(-1, 3)
