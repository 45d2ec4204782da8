"""Write one volume of an export: an image, an overlay, or labels with meshes, skeletons and properties."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ffn.evaluation.skeletons import read_precomputed
from ffn.geometry import Box, VoxelSize
from ffn.io.atomic import write_json
from ffn.io.volume import Read, Volume
from ffn.viewing import ome_zarr
from ffn.viewing.config import ExportConfig
from ffn.viewing.meshes import write_meshes
from ffn.viewing.mips import Scale, plan_scales
from ffn.viewing.precomputed import LABELS, Encoding, image_encoding, write_volume
from ffn.viewing.properties import (
    FOLDER,
    Column,
    group_column,
    length_column,
    origin_columns,
    place_columns,
    pom_column,
    truth_columns,
    write_segment_properties,
)
from ffn.viewing.segment_table import write_tables
from ffn.viewing.segments import SegmentCounter, Segments
from ffn.viewing.swc import write_swc
from ffn.viewing.tables import Tables

log = logging.getLogger(__name__)

Shown = tuple[list[int], list[int]]  # segments with a mesh and a skeleton, and those too small for them

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
    part: Part,
    path: Path,
    config: ExportConfig,
    tables: Tables,
    threads: int,
    truth: Part | None = None,
    probability: Part | None = None,
) -> Segments:
    """Write labels, with the meshes, skeletons, properties and tables of their segments.

    Parameters
    ----------
    part : Part
        What to write. Only a segmentation gets skeletons.
    path : Path
        Folder to create. Tables get its name and a suffix.
    config : ExportConfig
        Formats, mips of meshes and skeletons, smallest segment.
    tables : Tables
        Origins and groups for the properties.
    threads : int
        Number of shards written, or blocks meshed or skeletonized, in parallel.
    truth : Part, optional
        Ground truth to match the segments with.
    probability : Part, optional
        FFN probabilities, for the mean POM of the segments.

    Returns
    -------
    Segments
        Sizes and bounding boxes.
    """
    origins = tables.origins if part.name == "segmentation" else None
    seeds = None if origins is None else origins.seeds_zyx
    counter = SegmentCounter(_reader(truth), seeds, _reader(probability))
    write_volume(path, LABELS, part.scales, part.read, counter.visit, threads)
    segments = counter.segments()
    large = segments.voxels >= config.min_mesh_voxels
    shown = segments.ids[large].tolist(), segments.ids[~large].tolist()
    info = {"mesh": "mesh", "segment_properties": FOLDER}
    _write_meshes(path, part, config.mesh_mip, shown, threads)
    if part.name == "segmentation" and config.skeleton_mip is not None:
        _write_skeletons(path, part, config.skeleton_mip, shown, threads)
        info["skeletons"] = "skeletons"
    columns = list(_columns(part, segments, counter, tables))
    if "skeletons" in info:
        columns.append(length_column(segments, _lengths(path, config)))
    columns += _compared(segments, counter, truth, probability)
    write_segment_properties(path, segments, columns)
    write_tables(path, config.formats, segments, columns)
    write_json(path / "info", {**json.loads((path / "info").read_text()), **info})
    return segments


def write_ome_zarr(parts: Mapping[str, Part], path: Path, threads: int) -> None:
    """Write the image and the labels of an export as one OME-Zarr image. Overlays are left out.

    Parameters
    ----------
    parts : mapping of str to Part
        By the name of the layer.
    path : Path
        Folder to create.
    threads : int
        Number of shards written in parallel.
    """
    labels = [name for name in LABELS_LAYERS if name in parts]
    if "image" in parts:
        part = parts["image"]
        ome_zarr.write_image(path, part.dtype, "mean", part.scales, part.read, threads)
    for name in labels:
        part = parts[name]
        ome_zarr.write_image(path / ome_zarr.LABELS / name, part.dtype, "mode", part.scales, part.read, threads)
    if labels:
        ome_zarr.write_labels_group(path, labels)


def contrast(part: Part) -> tuple[float, float]:
    """Return the grey levels to show as black and as white."""
    middle = part.box.middle(CONTRAST_SHAPE_ZYX).intersect(part.box)
    low, high = np.percentile(part.volume.read(middle), CONTRAST_PERCENTILES)
    return float(low), float(max(high, low + 1))


class _Inside:
    """Voxels of a part of a volume; 0 outside it."""

    def __init__(self, part: Part) -> None:
        self._part = part

    def read(self, box: Box) -> np.ndarray:
        common = self._part.box.intersect(box)
        voxels = np.zeros(box.shape, self._part.dtype)
        if not common.is_empty:
            voxels[common.slices(box.start)] = self._part.read(common)
        return voxels


def _reader(part: Part | None) -> Read | None:
    return None if part is None else _Inside(part).read


def _write_meshes(path: Path, part: Part, wanted_mip: int, shown: Shown, processes: int) -> None:
    """Write meshes, unless an interrupted call has already written all of them."""
    mip = min(wanted_mip, len(part.scales) - 1)
    if not (path / "mesh" / "info").exists():
        write_meshes(path, mip, part.scales[mip], *shown, processes)


def _write_skeletons(path: Path, part: Part, wanted_mip: int, shown: Shown, processes: int) -> None:
    from ffn.viewing.skeletons import write_skeletons

    mip = min(wanted_mip, len(part.scales) - 1)
    if not (path / "skeletons" / "info").exists():
        write_skeletons(path, mip, part.scales[mip], *shown, processes)


def _lengths(folder: Path, config: ExportConfig) -> dict[int, float]:
    """Return the lengths of skeletons, nm, and write them as SWC. They may be those of a killed call."""
    lengths = {}
    for skeleton in read_precomputed(folder / "skeletons"):
        lengths[skeleton.owner] = skeleton.length_nm
        if "swc" in config.formats and len(skeleton.nodes_zyx_nm):
            write_swc(folder / "swc", skeleton)
    return lengths


def _columns(part: Part, segments: Segments, counter: SegmentCounter, tables: Tables) -> Iterator[Column]:
    """Yield the properties of segments that their labels and the tables of other stages give."""
    yield from place_columns(segments, part.voxel_size_zyx_nm)
    if part.name == "segmentation" and tables.origins is not None:
        yield from origin_columns(segments, tables.origins, counter.ids_at_points)
    if part.name == tables.base:
        yield group_column(segments, tables.groups)


def _compared(
    segments: Segments, counter: SegmentCounter, truth: Part | None, probability: Part | None
) -> Iterator[Column]:
    """Yield the properties of segments that follow from other volumes."""
    if probability is not None:
        yield pom_column(counter.mean_pom(segments))
    if truth is not None:
        yield from truth_columns(counter.matches(segments))
