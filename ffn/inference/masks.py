"""Voxels that flood filling leaves alone: boxes, and volumes such as tissue masks."""

from __future__ import annotations

import numpy as np

from ffn.config import SegmentConfig
from ffn.errors import VolumeError
from ffn.geometry import Box
from ffn.io.open import open_volume


def read_mask(config: SegmentConfig, box: Box) -> np.ndarray | None:
    """Return which voxels of `box` are masked, bool of ``box.shape``; None where the configuration masks nothing.

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
        if not part.is_empty:  # one list of boxes serves all subvolumes
            masked[part.slices(box.start)] = True
    return masked


def _read_volume(spec: str, box: Box) -> np.ndarray:
    with open_volume(spec) as volume:
        if not volume.box.contains(box):
            found = f"{spec}: the mask covers {volume.box}, expected all of {box}"
            raise VolumeError(f"{found}. Segment a smaller box, or extend the mask")
        return volume.read(box) > 0
