"""The volumes of an export: which part of each, and how it is stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ffn.errors import ExportError
from ffn.geometry import Box, VoxelSize
from ffn.io.coarser import Scale
from ffn.io.volume import Volume, have_same_voxel_size, require_labels, voxel_size_of
from ffn.viewing.config import ExportConfig
from ffn.viewing.precomputed import LABELS, Encoding, image_encoding, plan_scales

LABELS_LAYERS = ("segmentation", "truth", "supervoxels")
CONTRAST_PERCENTILES = (0.5, 99.5)
CONTRAST_SHAPE_ZYX = (128, 128, 128)  # part of the image that the contrast is measured on


@dataclass(frozen=True)
class Part:
    """The exported part of one volume."""

    name: str  # of the layer
    volume: Volume
    box: Box  # to export, full-volume voxels
    voxel_size_zyx_nm: VoxelSize

    @property
    def scales(self) -> list[Scale]:
        """Mips of the volume."""
        return plan_scales(self.box, self.voxel_size_zyx_nm)

    @property
    def dtype(self) -> np.dtype:
        """Type of a voxel as stored."""
        return np.dtype(np.uint64) if self.name in LABELS_LAYERS else self.volume.dtype

    def encoding(self, config: ExportConfig) -> Encoding:
        """Return the storage format."""
        is_labels = self.name in LABELS_LAYERS
        return LABELS if is_labels else image_encoding(self.dtype, config.image_encoding, self.volume.name)

    def read(self, box: Box) -> np.ndarray:
        """Return voxels as stored: labels as uint64."""
        return self.volume.read(box).astype(self.dtype, copy=False)

    def read_any(self, box: Box) -> np.ndarray:
        """Return the voxels of a box, 0 outside of the part."""
        common = self.box.intersect(box)
        voxels = np.zeros(box.shape, self.dtype)
        if not common.is_empty:
            voxels[common.slices(box.start)] = self.read(common)
        return voxels


def plan_parts(volumes: Mapping[str, Volume], config: ExportConfig, box: Box | None) -> dict[str, Part]:
    """Check all volumes before anything is written, and return the part of each in `box` (None: all)."""
    if not volumes:
        raise ExportError("export: no volume is given, expected --image, --segmentation or --truth")
    voxel_size = _common_voxel_size(volumes)
    parts: dict[str, Part] = {}
    for name, volume in volumes.items():
        inside = volume.box if box is None else volume.box.intersect(box)
        if inside.is_empty:
            covers = f"covers {volume.box}, expected an overlap with --box {box}"
            raise ExportError(f"{volume.name}: {covers}. Choose another box")
        if name in LABELS_LAYERS:
            require_labels(volume)
        parts[name] = Part(name, volume, inside, voxel_size)
        parts[name].encoding(config)
    return parts


def _common_voxel_size(volumes: Mapping[str, Volume]) -> VoxelSize:
    """Return the voxel size of the volumes that have one."""
    known = [volume for volume in volumes.values() if volume.voxel_size_zyx_nm is not None]
    if not known:
        names = ", ".join(volume.name for volume in volumes.values())
        raise ExportError(f"{names}: no voxel size found, one is needed. Ingest with --voxel-size Z Y X")
    if not all(have_same_voxel_size(volume, known[0]) for volume in known):
        sizes = ", ".join(f"{volume.voxel_size_zyx_nm} of {volume.name}" for volume in known)
        raise ExportError(f"export: voxel sizes differ: {sizes} (zyx, nm), expected one for all. Ingest again")
    return voxel_size_of(known[0])


def contrast(part: Part) -> tuple[float, float]:
    """Return the grey levels to show as black and as white."""
    middle = part.box.middle(CONTRAST_SHAPE_ZYX).intersect(part.box)
    low, high = np.percentile(part.volume.read(middle), CONTRAST_PERCENTILES)
    return float(low), float(max(high, low + 1))
