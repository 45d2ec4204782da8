"""The base of all volumes, and checks of volumes: dtype, box, voxel size."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ffn.errors import VolumeError
from ffn.geometry import ZYX, Box, VoxelSize
from ffn.io.store_names import MAIN, split_store

if TYPE_CHECKING:
    from ffn.io.config import FoundConfig

log = logging.getLogger(__name__)

Read = Callable[[Box], np.ndarray]  # returns the voxels of a box, as `Volume.read` does
Conversion = Callable[[np.ndarray], np.ndarray]

HDF5_SUFFIXES = (".h5", ".hdf5", ".hdf")

IGNORED = np.uint64(2**64 - 1)  # label of voxels that are neither trained on nor scored, as in CREMI
# Sides in nm that stages take and write where the image declares none: those of FIB-25, for which lengths were chosen,
# and no source declares just this.
NO_SIZE = (9.999999, 9.999999, 9.999999)
# Of zstd. With level 1, segments take three times the space; with 3, which is faster, half as much again.
LEVEL_OF_IDS = 6
OUTSIDE = -3  # CREMI's and Paintera's lowest label, counted down from 2^64, of what is not an object


class Volume:
    """A zyx volume that can be read; a kind of volume overrides `_read`, and `close` if a file is open.

    Its name is a path or URL for messages, its box is in full-volume voxels, its type in the byte order of this
    machine; the voxel size is None where the source declares none.
    """

    provenance: dict = {}  # command, version and configuration that made the file; empty for foreign files
    chunk_zyx: ZYX | None = None  # what is decoded as a whole, if anything is
    folder: Path | None = None  # on this machine, with chunks that TensorStore reads
    misplaced: VolumeError | None = None  # why the first voxel is taken for the origin, if it lies between voxels
    unknown_unit: str = ""  # of the voxel size that the source declares, if nobody knows it
    odd_sections: Sequence[tuple[int, str, str]] = ()  # number, fault, and what was found

    def __init__(self, name: str, box: Box, dtype: np.dtype, voxel_size_zyx_nm: VoxelSize | None = None) -> None:
        self.name, self.box, self.dtype, self.voxel_size_zyx_nm = name, box, dtype, voxel_size_zyx_nm
        self.mips: Sequence[VoxelSize | None] = [voxel_size_zyx_nm]  # sizes of all mips of the image, finest first

    def read(self, box: Box | None = None) -> np.ndarray:
        """Return the voxels of `box` (default: all) as an array of shape ``box.shape``."""
        box = self.box if box is None else box
        require_inside(self, box)
        return self._read(box)

    def _read(self, box: Box) -> np.ndarray:
        raise NotImplementedError

    def at_mip(self, mip: int) -> Volume:
        """Return a mip of the image, of which 0 is the finest."""
        return self

    def require_data(self, config: FoundConfig | None = None) -> None:
        """Refuse a volume whose voxels are not there, unless they are to be read as 0; warn where a part is not."""

    def warn_of_missing(self) -> None:
        """Warn where a part of the voxels is not there, at the cost of a listing of all files."""

    def as_image(self) -> Volume:
        """Return the same volume, whose voxels are to be grey levels."""
        return self

    def as_labels(self, colour_ids: str = "refuse") -> Volume:
        """Return the same volume with integers, which are to be ids; only slices may have them in colours."""
        if colour_ids != "refuse":
            raise VolumeError(f"{self.name}: has no colours, expected some for --colour-ids. Leave the option out")
        return as_whole(self)

    def close(self) -> None:
        """Release the file."""


class Derived(Volume):
    """A volume that is made of another one while it is read."""

    def __init__(self, source: Volume, dtype: np.dtype | None = None) -> None:
        super().__init__(source.name, source.box, dtype or source.dtype, source.voxel_size_zyx_nm)
        self.source = source
        self.provenance, self.chunk_zyx = source.provenance, source.chunk_zyx

    def require_data(self, config: FoundConfig | None = None) -> None:
        """Refuse a source whose voxels are not there."""
        self.source.require_data(config)

    def close(self) -> None:
        """Close the source."""
        self.source.close()


class Converted(Derived):
    """A volume whose voxels are converted one by one."""

    def __init__(self, source: Volume, convert: Conversion, dtype: np.dtype | None = None) -> None:
        super().__init__(source, dtype)
        self._convert = convert

    def _read(self, box: Box) -> np.ndarray:
        return self._convert(self.source.read(box))


def as_whole(labels: Volume) -> Volume:
    """Return labels of type bool or float as integers; floats that are not whole are refused when they are read."""
    if labels.dtype.kind in "ui":
        return labels
    log.info("%s: has type %s, whose whole numbers are read as ids", labels.name, labels.dtype)
    if labels.dtype.kind == "b":
        return Converted(labels, lambda voxels: voxels.astype(np.uint8), np.dtype(np.uint8))
    largest = 2 ** (np.finfo(labels.dtype).nmant + 1)

    def convert(voxels: np.ndarray) -> np.ndarray:
        is_exact = (np.abs(voxels) <= largest) & (np.trunc(voxels) == voxels)
        if not is_exact.all():
            found = f"{labels.name}: holds {voxels[~is_exact][0]}, expected whole numbers up to {largest}"
            raise VolumeError(f"{found} in {labels.dtype}. Save the ids as integers")
        return voxels.astype(np.int64)

    return Converted(labels, convert, np.dtype(np.int64))


@dataclass(frozen=True)
class SpatialAxes:
    """Indices of z, y and x among the `ndim` axes of an array; all others have length 1."""

    zyx: tuple[int, int, int]
    ndim: int

    @classmethod
    def find(cls, name: str, shape: Sequence[int], names: Sequence[str] = (), order: str = "zyx") -> SpatialAxes:
        """Find them by the names of the axes or, where z, y and x are not among these, by length.

        Parameters
        ----------
        name : str
            Name of the volume, for messages.
        shape : sequence of int
            Lengths of all axes.
        names : sequence of str
            Names of all axes, in any case.
        order : str
            Order of the spatial axes where they have no names: ``zyx`` or ``xyz``.

        Raises
        ------
        VolumeError
            If there are not three, another axis is longer than 1, or there are no voxels.

        Examples
        --------
        >>> SpatialAxes.find("a.zarr", (1, 5, 12, 20)).zyx, SpatialAxes.find("a.zarr", (20, 12, 5, 1), "xyzc").zyx
        ((1, 2, 3), (2, 1, 0))
        """
        lower = [text.lower() for text in names]
        if len(lower) == len(shape) and {"z", "y", "x"} <= set(lower):
            kept = [lower.index(axis) for axis in "zyx"]
        else:
            long = [axis for axis, n in enumerate(shape) if n != 1]
            kept = (long if len(shape) > 3 else list(range(len(shape))))[:: -1 if order == "xyz" else 1]
        if len(kept) != 3 or 0 in shape or any(n != 1 for axis, n in enumerate(shape) if axis not in kept):
            advice = "Save one channel alone" if len(shape) > 3 else "Save one section as (1, Y, X)"
            raise VolumeError(f"{name}: has shape {tuple(shape)}, expected three axes. {advice}")
        z, y, x = kept
        return cls((z, y, x), len(shape))

    def of(self, values: Sequence[int]) -> tuple[int, int, int]:
        """Return those of the values, one for each axis, that belong to z, y and x."""
        z, y, x = (int(values[axis]) for axis in self.zyx)
        return z, y, x

    def take(self, array: Any, slices_zyx: Sequence[slice]) -> Any:
        """Return a part of `array` with the axes z, y and x; it may be of NumPy, h5py or TensorStore."""
        index: list[int | slice] = [0] * self.ndim
        for axis, part in zip(self.zyx, slices_zyx, strict=True):
            index[axis] = part
        stored = sorted(self.zyx)
        return array[tuple(index)].transpose([stored.index(axis) for axis in self.zyx])


@dataclass(frozen=True)
class Placement:
    """Box, voxel size and provenance of a volume to write."""

    box: Box  # in full-volume voxels
    voxel_size_zyx_nm: VoxelSize = NO_SIZE
    provenance: dict = field(default_factory=dict)  # see `ffn.provenance`
    shard_zyx: ZYX | None = None  # shape of the shards of a store; None: as `ffn.io.shards.shard_shape` chooses it
    level_of_ids: int = LEVEL_OF_IDS  # of zstd, for uint64


def split_spec(spec: str) -> tuple[str, str | None]:
    """Split ``file.h5:dataset`` into path and dataset; without a dataset, return None for it.

    Examples
    --------
    >>> split_spec("a/raw.h5:raw")
    ('a/raw.h5', 'raw')
    """
    path, colon, dataset = spec.rpartition(":")
    if colon and dataset.strip("/") and Path(path).suffix.lower() in HDF5_SUFFIXES:
        return path, dataset
    return spec, None


def file_of(spec: str) -> str:
    """Return the HDF5 file or the store of a volume; other specifications as they are."""
    store = split_store(spec)
    return store[0] if store else split_spec(spec)[0]


def volume_in(path: str, name: str) -> str:
    """Return the specification of a volume in an HDF5 file or a store.

    Examples
    --------
    >>> volume_in("membrane.h5", "edges"), volume_in("membrane.zarr", "edges"), volume_in("raw.zarr", "0")
    ('membrane.h5:edges', 'membrane.zarr/edges', 'raw.zarr')
    """
    if not split_store(path):
        return f"{path}:{name}"
    return path if name == MAIN else f"{path}/{name}"


def require_inside(volume: Volume, box: Box) -> None:
    """Check that `box` is a part of the volume."""
    if box.is_empty or not volume.box.contains(box):
        raise VolumeError(f"{volume.name}: box {box} is empty or outside of {volume.box}, expected a box inside")


def voxel_size_of(volume: Volume) -> VoxelSize:
    """Return the voxel size in nm, `NO_SIZE` where the source declares none, which a warning says."""
    if volume.voxel_size_zyx_nm is None:
        _warn_of_no_size(volume.name)
    return volume.voxel_size_zyx_nm or NO_SIZE


@cache
def _warn_of_no_size(name: str) -> None:
    log.warning("%s: has no voxel size, taken for 10 nm. Copy it: ffn ingest --voxel-size Z Y X --out NEW.zarr", name)


def have_same_voxel_size(volume: Volume, other: Volume) -> bool:
    """Whether the voxel sizes of two volumes differ by at most 0.1 %, where both declare one other than `NO_SIZE`."""
    size, expected = volume.voxel_size_zyx_nm, other.voxel_size_zyx_nm
    if size in (None, NO_SIZE) or expected in (None, NO_SIZE):
        return True
    return np.allclose(size, expected, rtol=1e-3, atol=0)


def require_same_voxel_size(volume: Volume, other: Volume) -> None:
    """Check that two volumes have the same voxel size, see `have_same_voxel_size`."""
    if not have_same_voxel_size(volume, other):
        size, expected = volume.voxel_size_zyx_nm, other.voxel_size_zyx_nm
        found = f"{volume.name}: has voxels of {size} nm, expected the {expected} nm of {other.name}"
        raise VolumeError(f"{found}. Take the same mip of both, or correct what one of them declares")


def number_type(name: str, dtype: np.dtype) -> np.dtype:
    """Return the type of the voxels of a source as they are read, in the byte order of this machine."""
    if dtype.kind not in "buif":
        raise VolumeError(f"{name}: has type {dtype}, expected numbers. Convert it")
    return dtype.newbyteorder("=")


def require_image(volume: Volume) -> None:
    """Check that the voxels can be grey levels."""
    if volume.dtype.kind != "f" and volume.dtype not in (np.dtype(np.uint8), np.dtype(np.uint16)):
        raise VolumeError(f"{volume.name}: has type {volume.dtype}, expected uint8, uint16 or float. Ingest the image")


def require_image_of(segmentation: Volume, image: Volume) -> None:
    """Check that a segmentation can have been made from an image, voxel by voxel."""
    require_labels(segmentation)
    require_image(image)
    require_same_voxel_size(image, segmentation)
    if not image.box.contains(segmentation.box):
        raise VolumeError(f"{image.name}: covers {image.box}, expected all of the segmentation {segmentation.box}")


def require_labels(volume: Volume) -> None:
    """Check that the voxels can be segment ids."""
    if volume.dtype.kind not in "ui":
        raise VolumeError(f"{volume.name}: has type {volume.dtype}, expected integer labels")


def is_ignored(labels: np.ndarray, lowest: int = -1) -> np.ndarray:
    """Return which voxels have the label `IGNORED`, -1 in signed integers or of 32 bits, or one from `lowest` to it.

    Examples
    --------
    >>> is_ignored(np.array([-1, 0, 7])).tolist(), is_ignored(np.array([255, 7], np.uint8)).tolist()
    ([True, False, False], [False, False])
    """
    if labels.dtype.kind == "i":
        return (labels < 0) & (labels >= lowest)
    return labels >= np.uint64(2 ** (32 if labels.dtype == np.uint32 else 64) + lowest)


def with_ignored(labels: Volume, value: int = -1) -> Volume:
    """Return labels in which all ignored voxels have one value; -1 becomes `IGNORED` in voxels without a sign.

    In labels that `ingest` has not brought in, ignored voxels are all that CREMI and Paintera do not count as objects.
    """
    labels = labels.as_labels()
    lowest = -1 if labels.provenance else OUTSIDE
    ignored = np.array(value).astype(labels.dtype)
    return Converted(labels, lambda voxels: np.where(is_ignored(voxels, lowest), ignored, voxels))


def require_other_file(out_spec: str, *input_specs: str) -> None:
    """Check that writing `out_spec` does not overwrite an input."""
    out = place_of(out_spec)
    if any(place_of(spec) == out for spec in input_specs):
        raise VolumeError(f"{out_spec}: is the file of the input, expected another file. Choose another name")


def place_of(spec: str) -> Path:
    """Return the place of a volume, under one name if it is on this machine; those of URLs can at least be compared."""
    from ffn.io.foreign.locations import Location

    return Path(os.path.realpath(file_of(Location.parse(spec).address).removeprefix("file://")))


def is_same_source(spec: str, other: str) -> bool:
    """Whether two specifications name the same volume; an HDF5 file without a dataset is that of any in it.

    Examples
    --------
    >>> is_same_source("a/raw.h5:raw", "a/./raw.h5"), is_same_source("raw.zarr", "raw.zarr/0")
    (True, True)
    >>> is_same_source("all.h5:raw", "all.h5:labels"), is_same_source("raw.zarr", "raw.zarr/edges")
    (False, False)
    """
    names = [(split_store(one) or split_spec(one))[1] for one in (spec, other)]
    names = [name and name.strip("/") for name in names]
    return place_of(spec) == place_of(other) and (None in names or names[0] == names[1])
