"""What a plan and `ffn segment` refuse before anything is flooded. Nothing here loads numba or SciPy."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ffn.config import ImageConfig, ModelConfig, SegmentConfig
from ffn.errors import ConfigError, VolumeError, under
from ffn.geometry import Box, VoxelSize
from ffn.inference.canvas import Frame, reach_of
from ffn.io.faults import unreadable
from ffn.io.masks import open_masks, require_labels_in

if TYPE_CHECKING:
    from ffn.inference.inputs import SegmentInputs

HEADER = "z,y,x"
EXPECTED = "three whole numbers z,y,x of at most 18 digits in full-volume voxels"  # int64 holds any 18 digits
_POINT = re.compile(r"\s*(-?\d{1,18})\s*,\s*(-?\d{1,18})\s*,\s*(-?\d{1,18})\s*")


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
            raise VolumeError(
                f"box {frame.box} holds no centre of a FOV of {model.fov_size_zyx} in the image. Choose a larger box "
                "or a smaller FOV, or set segment.mirror"
            )
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
