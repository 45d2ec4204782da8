"""Volumes that know their place, box in voxels and voxel size in nm: what they are, and checks of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from ffn.errors import VolumeError
from ffn.geometry import Box, VoxelSize

Read = Callable[[Box], np.ndarray]  # returns the voxels of a box, as `Volume.read` does

HDF5_SUFFIXES = (".h5", ".hdf5", ".hdf")


@runtime_checkable
class Volume(Protocol):
    """A readable zyx volume.

    Attributes
    ----------
    name : str
        Path or URL for messages.
    box : Box
        Place in full-volume voxels.
    dtype : numpy.dtype
        Type of a voxel.
    voxel_size_zyx_nm : tuple of float or None
        None where the source does not say.
    provenance : dict
        What made the file: command, version, configuration; empty for foreign files.
    """

    name: str
    box: Box
    dtype: np.dtype
    voxel_size_zyx_nm: VoxelSize | None
    provenance: dict

    def read(self, box: Box | None = None) -> np.ndarray:
        """Return the voxels of `box` (default: all) as an array of shape ``box.shape``."""
        ...

    def close(self) -> None:
        """Release the file."""
        ...


@dataclass(frozen=True)
class Placement:
    """Where a volume lies and how large its voxels are.

    Parameters
    ----------
    box : Box
        Full-volume voxels.
    voxel_size_zyx_nm : tuple of float
        Nanometres.
    provenance : dict
        Recorded in the file, see `ffn.provenance`.
    """

    box: Box
    voxel_size_zyx_nm: VoxelSize = (1.0, 1.0, 1.0)
    provenance: dict = field(default_factory=dict)


def split_spec(spec: str) -> tuple[str, str | None]:
    """Split ``file.h5:dataset`` into path and dataset; the dataset is None where it is not given.

    Examples
    --------
    >>> split_spec("a/raw.h5:raw")
    ('a/raw.h5', 'raw')
    """
    path, colon, dataset = spec.rpartition(":")
    if colon and dataset.strip("/") and Path(path).suffix.lower() in HDF5_SUFFIXES:
        return path, dataset
    return spec, None


def require_inside(volume: Volume, box: Box) -> None:
    """Check that `box` can be read.

    Raises
    ------
    VolumeError
        If it is empty or leaves the volume.
    """
    if box.is_empty or not volume.box.contains(box):
        raise VolumeError(f"{volume.name}: box {box} is empty or outside of the volume {volume.box}")


def voxel_size_of(volume: Volume) -> VoxelSize:
    """Return the voxel size, zyx in nm; cubes of 1 nm where the source does not say."""
    return volume.voxel_size_zyx_nm or (1.0, 1.0, 1.0)


def require_same_voxel_size(volume: Volume, other: Volume) -> None:
    """Check that two volumes have voxels of one size, as far as they say it.

    Raises
    ------
    VolumeError
        If the sides differ by more than rounding (0.1 %).
    """
    size, expected = volume.voxel_size_zyx_nm, other.voxel_size_zyx_nm
    if size is not None and expected is not None and not np.allclose(size, expected, rtol=1e-3, atol=0):
        raise VolumeError(f"{volume.name}: has voxels of {size} nm, expected the {expected} nm of {other.name}")


def require_image(volume: Volume) -> None:
    """Check that voxels can be grey levels.

    Raises
    ------
    VolumeError
        If the type is not uint8, uint16 or floating point.
    """
    if volume.dtype.kind != "f" and volume.dtype not in (np.dtype(np.uint8), np.dtype(np.uint16)):
        found = f"{volume.name}: has type {volume.dtype}"
        raise VolumeError(f"{found}, expected an image of uint8, uint16 or float")


def require_labels(volume: Volume) -> None:
    """Check that voxels can be segment ids.

    Raises
    ------
    VolumeError
        If the type is not an integer.
    """
    if volume.dtype.kind not in "ui":
        raise VolumeError(f"{volume.name}: has type {volume.dtype}, expected integer labels")


def require_other_file(out_spec: str, *input_specs: str) -> None:
    """Check that `out_spec` is not the file of an input, which has to stay.

    Raises
    ------
    VolumeError
        If it is.
    """
    out = Path(split_spec(out_spec)[0]).resolve()
    if any(Path(split_spec(spec)[0]).resolve() == out for spec in input_specs):
        raise VolumeError(f"{out_spec}: is the file of the input, which has to stay. Choose another file")
