"""Masks: boxes and volumes of voxels that flood filling leaves out."""

from __future__ import annotations

import numpy as np

from ffn.config import SegmentConfig
from ffn.errors import VolumeError
from ffn.geometry import Box
from ffn.io.open import open_volume


def read_mask(config: SegmentConfig, box: Box) -> np.ndarray | None:
    """Return which voxels of `box` are masked, bool of ``box.shape``; None if the configuration has no mask.

    Raises
    ------
    VolumeError
        If the mask volume cannot be read or does not cover `box`.
    """
    if config.mask is None and not config.mask_boxes:
        return None
    masked = np.zeros(box.shape, bool) if config.mask is None else _read_volume(config.mask, box)
    for text in config.mask_boxes:
        part = Box.parse(text).intersect(box)
        if not part.is_empty:  # the list of boxes is for all subvolumes
            masked[part.slices(box.start)] = True
    return masked


def _read_volume(spec: str, box: Box) -> np.ndarray:
    with open_volume(spec) as volume:
        if not volume.box.contains(box):
            raise VolumeError(
                f"{spec}: the mask covers {volume.box}, expected all of {box}. Segment a smaller box or extend the mask"
            )
        return volume.read(box) > 0
