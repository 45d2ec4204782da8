"""One volume of an export: which part, and how it is stored."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ffn.geometry import Box, VoxelSize
from ffn.io.coarser import Scale
from ffn.io.volume import Volume
from ffn.viewing.config import ExportConfig
from ffn.viewing.mips import plan_scales
from ffn.viewing.precomputed import LABELS, Encoding, image_encoding

LABELS_LAYERS = ("segmentation", "truth", "supervoxels")
CONTRAST_PERCENTILES = (0.5, 99.5)
CONTRAST_SHAPE_ZYX = (128, 128, 128)  # part of the image that the contrast is measured on


@dataclass(frozen=True)
class Part:
    """The exported part of one volume.

    Parameters
    ----------
    name : str
        Name of the layer.
    volume : Volume
        The open volume.
    box : Box
        Part to export, full-volume voxels.
    voxel_size_zyx_nm : tuple of float
        Sides of a voxel, nm.
    """

    name: str
    volume: Volume
    box: Box
    voxel_size_zyx_nm: VoxelSize

    @property
    def scales(self) -> list[Scale]:
        """Mips of the volume."""
        return plan_scales(self.box, self.voxel_size_zyx_nm)

    @property
    def dtype(self) -> np.dtype:
        """Type of a voxel as stored."""
        if self.name in LABELS_LAYERS:
            return np.dtype(np.uint64)
        return np.dtype(np.uint8) if self.name == "edges" else self.volume.dtype

    def encoding(self, config: ExportConfig) -> Encoding:
        """Return the storage format. Overlays are measurements, so they are lossless."""
        if self.name in LABELS_LAYERS:
            return LABELS
        wanted = config.image_encoding if self.name == "image" else "png"
        return image_encoding(self.dtype, wanted, self.volume.name)

    def read(self, box: Box) -> np.ndarray:
        """Return voxels as stored: labels as uint64, edges as 0 and 255 so that their mips have intermediate shades."""
        voxels = self.volume.read(box)
        if self.name in LABELS_LAYERS:
            return voxels.astype(np.uint64, copy=False)
        return np.where(voxels > 0, np.uint8(255), np.uint8(0)) if self.name == "edges" else voxels


def contrast(part: Part) -> tuple[float, float]:
    """Return the grey levels to show as black and as white."""
    middle = part.box.middle(CONTRAST_SHAPE_ZYX).intersect(part.box)
    low, high = np.percentile(part.volume.read(middle), CONTRAST_PERCENTILES)
    return float(low), float(max(high, low + 1))


class Inside:
    """Voxels of a part of a volume; 0 outside it."""

    def __init__(self, part: Part) -> None:
        self._part = part

    def read(self, box: Box) -> np.ndarray:
        """Return the voxels of a box."""
        common = self._part.box.intersect(box)
        voxels = np.zeros(box.shape, self._part.dtype)
        if not common.is_empty:
            voxels[common.slices(box.start)] = self._part.read(common)
        return voxels
