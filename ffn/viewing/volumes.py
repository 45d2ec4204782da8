"""Write one volume of an export: an image, an overlay, or labels with meshes, skeletons and properties."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ffn.geometry import Box, VoxelSize
from ffn.io.atomic import write_json
from ffn.io.volume import Volume
from ffn.viewing.config import ExportConfig
from ffn.viewing.meshes import write_meshes
from ffn.viewing.precomputed import LABELS, Encoding, Scale, image_encoding, plan_scales, read_scale, write_volume
from ffn.viewing.properties import (
    FOLDER,
    Column,
    group_column,
    origin_columns,
    place_columns,
    truth_columns,
    write_segment_properties,
)
from ffn.viewing.segments import SegmentCounter, Segments
from ffn.viewing.tables import Tables

log = logging.getLogger(__name__)

Shown = tuple[list[int], list[int]]  # segments with a mesh and a skeleton, and those too small for them

LABELS_LAYERS = ("segmentation", "truth", "supervoxels")
CONTRAST_PERCENTILES = (0.5, 99.5)
CONTRAST_SHAPE_ZYX = (128, 128, 128)  # part of the image that the contrast is measured on
MAX_MESHED_VOXELS = 2**27  # meshing holds a whole mip in memory, 12 bytes per voxel: 1.5 GiB


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

    def encoding(self, config: ExportConfig) -> Encoding:
        """Return the storage format. Overlays are measurements, so they are lossless."""
        if self.name in LABELS_LAYERS:
            return LABELS
        wanted = config.image_encoding if self.name == "image" else "png"
        dtype = np.dtype(np.uint8) if self.name == "edges" else self.volume.dtype
        return image_encoding(dtype, wanted, self.volume.name)

    def read(self, box: Box) -> np.ndarray:
        """Return voxels as stored: labels as uint64, edges as 0 and 255 so that their mips have intermediate shades."""
        voxels = self.volume.read(box)
        if self.name in LABELS_LAYERS:
            return voxels.astype(np.uint64, copy=False)
        return np.where(voxels > 0, np.uint8(255), np.uint8(0)) if self.name == "edges" else voxels


def write_image(part: Part, path: Path, config: ExportConfig, threads: int) -> None:
    """Write an image or an overlay.

    Parameters
    ----------
    part : Part
        What to write.
    path : Path
        Folder to create.
    config : ExportConfig
        Encoding.
    threads : int
        Number of shards written in parallel.
    """
    write_volume(path, part.encoding(config), part.scales, part.read, threads=threads)


def write_labels(
    part: Part, path: Path, config: ExportConfig, tables: Tables, truth: Part | None, threads: int
) -> Segments:
    """Write labels, with the meshes, skeletons and properties of their segments.

    Parameters
    ----------
    part : Part
        What to write. Only a segmentation gets skeletons.
    path : Path
        Folder to create.
    config : ExportConfig
        Mips of meshes and skeletons, smallest segment.
    tables : Tables
        Origins and groups for the properties.
    truth : Part or None
        Ground truth to match the segments with.
    threads : int
        Number of shards written, or blocks skeletonized, in parallel.

    Returns
    -------
    Segments
        Sizes and bounding boxes.
    """
    origins = tables.origins if part.name == "segmentation" else None
    counter = SegmentCounter(
        None if truth is None else _Inside(truth).read, None if origins is None else origins.seeds_zyx
    )
    write_volume(path, LABELS, part.scales, part.read, counter.visit, threads)
    segments = counter.segments()
    large = segments.voxels >= config.min_mesh_voxels
    shown = segments.ids[large].tolist(), segments.ids[~large].tolist()
    info = {"mesh": "mesh", "segment_properties": FOLDER}
    _write_meshes(path, part, config.mesh_mip, shown)
    if part.name == "segmentation" and config.skeleton_mip is not None:
        _write_skeletons(path, part, config.skeleton_mip, shown, threads)
        info["skeletons"] = "skeletons"
    write_segment_properties(path, segments, _columns(part, segments, counter, tables, truth is not None))
    write_json(path / "info", {**json.loads((path / "info").read_text()), **info})
    return segments


def contrast(part: Part) -> tuple[float, float]:
    """Return the grey levels to show as black and as white."""
    middle = part.box.middle(CONTRAST_SHAPE_ZYX).intersect(part.box)
    low, high = np.percentile(part.volume.read(middle), CONTRAST_PERCENTILES)
    return float(low), float(max(high, low + 1))


class _Inside:
    """Labels of a part of a volume; 0 outside it."""

    def __init__(self, part: Part) -> None:
        self._part = part

    def read(self, box: Box) -> np.ndarray:
        common = self._part.box.intersect(box)
        labels = np.zeros(box.shape, np.uint64)
        if not common.is_empty:
            labels[common.slices(box.start)] = self._part.read(common)
        return labels


def _write_meshes(path: Path, part: Part, wanted_mip: int, shown: Shown) -> None:
    """Write meshes, unless an interrupted call has already written them."""
    if (path / "mesh" / "info").exists():
        return
    mip = mesh_mip(part.scales, wanted_mip)
    if mip > min(wanted_mip, len(part.scales) - 1):
        log.warning("%s: mip %d has too many voxels to mesh, using mip %d", part.name, wanted_mip, mip)
    write_meshes(path / "mesh", read_scale(path, mip), part.scales[mip], *shown)


def mesh_mip(scales: list[Scale], wanted: int) -> int:
    """Return the mip to make meshes from: the wanted one, or the first coarser one that fits into memory."""
    fitting = [mip for mip, scale in enumerate(scales) if scale.box.num_voxels <= MAX_MESHED_VOXELS]
    return max(min(wanted, len(scales) - 1), min(fitting, default=len(scales) - 1))


def _write_skeletons(path: Path, part: Part, wanted_mip: int, shown: Shown, processes: int) -> None:
    from ffn.viewing.skeletons import write_skeletons

    mip = min(wanted_mip, len(part.scales) - 1)
    if not (path / "skeletons" / "info").exists():
        write_skeletons(path, mip, part.scales[mip], *shown, processes)


def _columns(part: Part, segments: Segments, counter: SegmentCounter, tables: Tables, has_truth: bool) -> list[Column]:
    """Collect the properties of the segments of a layer."""
    columns = place_columns(segments)
    if part.name == "segmentation" and tables.origins is not None:
        columns += origin_columns(segments, tables.origins, counter.ids_at_points)
    if has_truth:
        columns += truth_columns(counter.matches(segments))
    if part.name == tables.base:
        columns.append(group_column(segments, tables.groups))
    return columns
