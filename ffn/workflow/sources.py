"""Boxes and voxel sizes of the sources of a volume, in voxels of the mip that the run works at."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ffn.errors import ConfigError, under
from ffn.geometry import Box, VoxelSize
from ffn.io.coarser import Scale, further_scales, next_scale
from ffn.io.foreign.locations import Location
from ffn.io.ingest import can_stay, read_as
from ffn.io.label_statistics import doubts_about_labels
from ffn.io.open import open_mip_or_finer, voxel_sizes
from ffn.io.store_names import files_named
from ffn.io.volume import Volume, file_of, is_same_source, place_of
from ffn.workflow.run import VolumeConfig


@dataclass(frozen=True)
class Finer:
    """The mip from which `ingest` makes one that a source lacks."""

    mip: int  # its number in the source, counted on from those that it has
    voxel_size_zyx_nm: VoxelSize  # of the coarsest that the source has
    num_voxels: int  # of these that become one


@dataclass(frozen=True)
class Source:
    """An image, or labels, in voxels of the mip that the run works at."""

    box: Box
    voxel_size_zyx_nm: VoxelSize
    finer: Finer | None = None
    stays: bool = False  # read where it is, see ffn.io.ingest.can_stay


@contextlib.contextmanager
def open_source(
    volume: VolumeConfig, kind: str, mip: int | None = None, size: VoxelSize | None = None
) -> Iterator[tuple[Volume, int]]:
    """Open image or labels of a volume as `ingest` reads them, and say how many mips the source lacks."""
    is_placed = kind == "labels" and volume.labels_offset_zyx is not None
    with open_mip_or_finer(str(getattr(volume, kind)), mip, size, is_placed, volume) as (opened, missing):
        yield read_as(opened, volume, kind)[0], missing


def find_image(name: str, volume: VolumeConfig) -> Source:
    """Open the image of a volume."""
    key = f"volumes.{name}"
    with under(f"{key}.image"):
        with open_source(volume, "image", volume.mip, volume.voxel_size_zyx_nm) as (found, missing):
            stays = not missing and can_stay(found, volume)
    _check_size(f"{key}.voxel_size_zyx_nm", volume.voxel_size_zyx_nm, found)
    size = volume.voxel_size_zyx_nm or found.voxel_size_zyx_nm
    if size is None:
        raise ConfigError(f"{key}.voxel_size_zyx_nm: null, but {volume.image} declares none. Give z, y, x in nm")
    return _made(Scale(found.box, size), volume.mip, missing, stays)


def find_labels(name: str, volume: VolumeConfig, image: Source) -> Source:
    """Open the labels of a volume, at the offset of the configuration or where the source says."""
    key, size = f"volumes.{name}.labels", image.voxel_size_zyx_nm
    offset = volume.labels_offset_zyx
    if _are_same(str(volume.labels), str(volume.image)):
        raise ConfigError(f"{key}: is the image, {volume.image}, expected its labels. Give their path, or leave it out")
    with under(key):
        mip = _mip_to_make(voxel_sizes(str(volume.labels)), image)
        with open_source(volume, "labels", mip, size) as (found, missing):
            box = Box.from_shape(found.box.shape, offset) if offset else found.box
    if not missing:
        _check_size(f"{key}: voxel size of the image", size, found)
    if missing:  # labels without a voxel size are drawn on what the image is made of
        size = found.voxel_size_zyx_nm or (image.finer.voxel_size_zyx_nm if image.finer else size)
    labels = _made(Scale(box, size), mip, missing)
    if offset is None and labels.box.intersect(image.box).is_empty:
        where = f"{key}: {volume.labels} covers {labels.box}, outside of the image {image.box}"
        raise ConfigError(f"{where}, expected labels of a part of it. Say with labels_offset_zyx where they lie")
    if offset is not None and not image.box.contains(labels.box):
        where = f"{key}_offset_zyx: {offset} puts the labels at {labels.box}, which leaves the image {image.box}"
        raise ConfigError(f"{where}. Give the place of their first voxel in the order z, y, x")
    return labels


def doubts_about(volume: VolumeConfig, made: Finer | None, size: VoxelSize) -> list[str]:
    """Return what speaks against labels of this size, by samples of them; `made` is the mip that `ingest` makes."""
    with open_source(volume, "labels", made.mip if made else None, size) as (labels, _):
        return doubts_about_labels(labels)


def _are_same(labels: str, image: str) -> bool:
    """Whether labels are the image under another name: behind links, or as a glob of the files in its folder."""

    def first_files(spec: str) -> set[str]:
        path = Path(spec)
        return {os.path.realpath(file) for file in sorted(path.iterdir() if path.is_dir() else files_named(spec))[:10]}

    return is_same_source(labels, image) or bool(first_files(labels) & first_files(image))


def check_source(spec: str, config: VolumeConfig | None, key: str) -> None:
    """Refuse a source that cannot be opened."""
    with under(key), open_mip_or_finer(spec, config=config):
        pass


def _check_size(key: str, wanted: VoxelSize | None, found: Volume) -> None:
    known = found.voxel_size_zyx_nm
    if wanted is not None and known is not None and not _same(wanted, known):
        raise ConfigError(f"{key}: {wanted} differs from {known} nm, which {found.name} declares. Correct one of them")


def is_newer(spec: str, made: str) -> bool:
    """Whether a source on this machine has changed since the file `made` was written, as far as times tell.

    Of a folder, the files in it count, and not those in folders inside: a store may have millions of chunks.
    """
    place = place_of(spec)
    if not os.path.exists(made) or Location.parse(file_of(spec)).path is None:
        return False
    found = [place] if place.exists() else files_named(str(place))
    paths = [place, *place.iterdir()] if place.is_dir() else found
    return max((path.stat().st_mtime for path in paths if path.exists()), default=0) > os.stat(made).st_mtime


def _mip_to_make(sizes: Sequence[VoxelSize | None], image: Source) -> int | None:
    """Return the mip of labels with the voxels of the image, if the labels do not have it and it can be made."""
    wanted = image.voxel_size_zyx_nm
    if any(size and _same(size, wanted) for size in sizes):
        return None
    size = sizes[-1] or (image.finer.voxel_size_zyx_nm if image.finer and len(sizes) == 1 else None)
    if size is None:
        return None
    made, mip = Scale(Box((0, 0, 0), (1, 1, 1)), size), len(sizes) - 1
    while min(made.voxel_size_zyx_nm) < min(wanted) and not _same(made.voxel_size_zyx_nm, wanted):
        made, mip = next_scale(made), mip + 1
    return mip if _same(made.voxel_size_zyx_nm, wanted) else None


def _same(size: VoxelSize, other: VoxelSize) -> bool:
    return np.allclose(size, other, rtol=1e-4)


def _made(found: Scale, mip: int | None, missing: int, stays: bool = False) -> Source:
    """Return a source of which ingest makes a mip, unless none is missing."""
    if mip is None or not missing:
        return Source(found.box, found.voxel_size_zyx_nm, stays=stays)
    scales = further_scales(found, missing)
    num_voxels = math.prod(math.prod(scale.factors_zyx) for scale in scales)
    return Source(scales[-1].box, scales[-1].voxel_size_zyx_nm, Finer(mip, found.voxel_size_zyx_nm, num_voxels))
