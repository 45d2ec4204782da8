"""The sources of a volume, in voxels of the mip that the run works at, and defaults that follow from these voxels."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from ffn.config import MAX_VOXEL_SIZE_RATIO, ModelConfig, SubvolumesConfig
from ffn.errors import ConfigError, under
from ffn.geometry import Box, VoxelSize
from ffn.io.coarser import Scale, further_scales, next_scale
from ffn.io.foreign.locations import Location
from ffn.io.ingest import can_stay, read_as
from ffn.io.label_statistics import doubts_about_labels
from ffn.io.open import open_mip_or_finer, voxel_sizes
from ffn.io.store_names import files_named
from ffn.io.volume import NO_SIZE, Volume, file_of, is_same_source, place_of
from ffn.workflow.run import VolumeConfig

LEAST_FOV = 9  # voxels; our choice: 270 nm across sections of 30 nm, and two moves of two voxels
DELTAS_PER_FOV = 4
STEP = 8  # voxels; subvolumes are multiples of it


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
        mip = _mip_to_make(sizes := voxel_sizes(str(volume.labels)), image)
        with open_source(volume, "labels", mip, size) as (found, missing):
            box = Box.from_shape(found.box.shape, offset) if offset else found.box
    if not missing:
        _check_size(f"{key}: voxel size of the image", size, found)
    if missing:  # labels without a voxel size are drawn on what the image is made of
        size = sizes[-1] or (image.finer.voxel_size_zyx_nm if image.finer else size)
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
    if wanted is not None and known is not None and known != NO_SIZE and not _same(wanted, known):
        raise ConfigError(f"{key}: {wanted} differs from {known} nm, which {found.name} declares. Correct one of them")


def is_newer(spec: str, made: str) -> bool:
    """Whether a source on this machine has changed since the file `made` was written, as far as times tell.

    An older file in its place is a newer inode. Of a folder, the files in it count, and not those in folders inside: a
    store may have millions of chunks.
    """
    place = place_of(spec)
    if not os.path.exists(made) or Location.parse(file_of(spec)).path is None:
        return False
    found = [place] if place.exists() else files_named(str(place))
    paths = [place, *place.iterdir()] if place.is_dir() else found
    read, now = os.stat(made), [path.stat() for path in paths if path.exists()]
    return any(each.st_mtime > read.st_mtime or each.st_ctime > read.st_ctime for each in now)


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


def is_coarser(volume: VolumeConfig, voxel_size_zyx_nm: VoxelSize) -> bool:
    """Whether a run works at a coarser mip than the finest of the image, chosen by its number or its voxel size."""
    finest = voxel_sizes(volume.image)[0] if volume.image and not volume.mip else None
    return bool(volume.mip) or (finest is not None and not _same(finest, voxel_size_zyx_nm))


def _same(size: VoxelSize, other: VoxelSize) -> bool:
    return np.allclose(size, other, rtol=1e-4)


def _made(found: Scale, mip: int | None, missing: int, stays: bool = False) -> Source:
    """Return a source of which ingest makes a mip, unless none is missing."""
    if mip is None or not missing:
        return Source(found.box, found.voxel_size_zyx_nm, stays=stays)
    scales = further_scales(found, missing)
    num_voxels = math.prod(math.prod(scale.factors_zyx) for scale in scales)
    return Source(scales[-1].box, scales[-1].voxel_size_zyx_nm, Finer(mip, found.voxel_size_zyx_nm, num_voxels))


def voxel_size(values: Mapping[str, Any]) -> VoxelSize | None:
    """Return the voxel size of a configuration's first volume, None where the configuration is not valid."""
    try:
        name, first = next(iter(values["volumes"].items()))
        volume = VolumeConfig(**(first or {}))
    except (ValidationError, ConfigError, LookupError, StopIteration, TypeError, AttributeError):
        return None
    if volume.synthetic:
        return volume.synthetic.voxel_size_zyx_nm
    if volume.voxel_size_zyx_nm and volume.mip is None:
        return volume.voxel_size_zyx_nm
    return find_image(name, volume).voxel_size_zyx_nm


def derived(
    values: Mapping[str, Any], voxel_size_zyx_nm: VoxelSize, initial: ModelConfig | None = None
) -> dict[str, dict[str, Any]]:
    """Return the options by section, those that it leaves open as they follow from voxels or weights.

    A FOV has about the same length along every axis, and initial weights bring theirs. Deltas are a quarter of it, and
    subvolumes overlap by as many FOVs as with the usual network.

    Examples
    --------
    >>> found = derived({}, (30.0, 6.0, 6.0))
    >>> found["model"]
    {'fov_size_zyx': [9, 33, 33], 'deltas_zyx': [2, 8, 8]}
    >>> found["subvolumes"], found["train"]
    ({'size_zyx': [72, 256, 256], 'overlap_zyx': [14, 48, 48]}, {'permutable_axes': ['y', 'x']})
    >>> derived({"model": {"fov_size_zyx": [3, 17, 33]}}, (30.0, 12.0, 12.0))["model"]
    {'fov_size_zyx': [3, 17, 33], 'deltas_zyx': [1, 4, 8]}
    """
    given = {name: values.get(name) or {} for name in ("model", "subvolumes", "train")}
    if not all(isinstance(section, Mapping) for section in given.values()):
        return {}
    usual, tiles = ModelConfig(), SubvolumesConfig()
    ratios = [side / min(voxel_size_zyx_nm) for side in voxel_size_zyx_nm]
    thin = [_odd(n / r) if r > MAX_VOXEL_SIZE_RATIO else n for n, r in zip(usual.fov_size_zyx, ratios, strict=True)]
    fov = given["model"].get("fov_size_zyx", list(initial.fov_size_zyx) if initial else thin)
    if not _is_zyx(fov):
        return {}
    own = initial and list(fov) == list(initial.fov_size_zyx)
    deltas = list(initial.deltas_zyx) if initial and own else [min(n // 2, max(1, n // DELTAS_PER_FOV)) for n in fov]
    deltas = given["model"].get("deltas_zyx", deltas)
    if not _is_zyx(deltas):
        return {}
    shares = [n / most for n, most in zip(thin, usual.fov_size_zyx, strict=True)]
    size = [-(-int(n * share) // STEP) * STEP for n, share in zip(tiles.size_zyx, shares, strict=True)]
    # On FIB-25, with overlaps of 48 for FOVs of 33, VOI between eight subvolumes and one, agglomerated, is 0.107.
    overlap = [-(-n * f // most) for n, f, most in zip(tiles.overlap_zyx, fov, usual.fov_size_zyx, strict=True)]
    sides = list(zip("zyx", voxel_size_zyx_nm, fov, deltas, strict=True))
    _, side, *network = sides[1]
    ratio = MAX_VOXEL_SIZE_RATIO
    axes = [axis for axis, n, *of in sides if of == network and side / ratio <= n <= side * ratio]
    found = {
        "model": {"fov_size_zyx": list(fov), "deltas_zyx": list(deltas)},
        "subvolumes": {"size_zyx": size, "overlap_zyx": overlap},
        "train": {} if given["train"].get("preset") else {"permutable_axes": axes if len(axes) > 1 else []},
    }
    return {section: {**options, **given[section]} for section, options in found.items()}


def note(values: Mapping[str, Any], completed: Mapping[str, Mapping[str, Any]], size: VoxelSize) -> str | None:
    """Return a line on the options that were derived and differ from the usual ones; None if there are none."""
    usual = derived({}, (1.0, 1.0, 1.0))
    found = [
        f"{section}.{name} {list(value)}"
        for section, options in completed.items()
        for name, value in options.items()
        if name not in (values.get(section) or {}) and value != usual[section].get(name, value)
    ]
    named = " × ".join(f"{side:g}" for side in size)
    return f"derived from voxels of {named} nm, or from init: {', '.join(found)}" if found else None


def _is_zyx(value: Any) -> bool:
    """Whether a given value is of the right kind; else the model says what is wrong with it."""
    return isinstance(value, list | tuple) and len(value) == 3 and all(isinstance(n, int) for n in value)


def _odd(length: float) -> int:
    return max(LEAST_FOV, 2 * round((length - 1) / 2) + 1)
