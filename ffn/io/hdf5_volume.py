"""Volumes in HDF5 files, as CREMI, funlib and `ffn convert` write them."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator

import numpy as np

from ffn.errors import VolumeError
from ffn.geometry import ZYX, Box
from ffn.io import hdf5
from ffn.io.faults import unreadable
from ffn.io.foreign.attributes import VOXEL_SIZE_NM, SpatialAxes, axis_names, mip_of_array
from ffn.io.volume import Placement, Volume, number_type

CHUNK_ZYX: ZYX = (64, 64, 64)


class Hdf5Volume(Volume):
    """A dataset of an HDF5 file as a volume."""

    def __init__(self, dataset: hdf5.Dataset, name: str) -> None:
        if dataset.shape is None:
            raise VolumeError(f"{name}: is a dataset without voxels, expected an array. Choose another dataset")
        if dataset.external:  # any file of this machine; one that is gone reads as zeros
            raise VolumeError(f"{name}: has voxels in {dataset.external[0][0]!r}, expected them here. Write it again")
        if gone := _missing_file_behind(dataset):
            raise VolumeError(f"{name}: has voxels in {gone!r}, expected that file, or they read as 0. Restore it")
        self._axes = SpatialAxes.find(name, dataset.shape, axis_names(dataset.attrs))
        self._dataset = dataset
        place = mip_of_array(dataset.attrs, name)
        box = Box.from_shape(self._axes.of(dataset.shape))
        super().__init__(name, box, number_type(name, dataset.dtype), place.voxel_size_zyx_nm)
        place.put(self)
        self.chunk_zyx = self._axes.of(dataset.chunks) if dataset.chunks else None
        self.provenance = _provenance(dataset)

    def _read(self, box: Box) -> np.ndarray:
        repack = "repack it where it was written: h5repack -f GZIP=4"
        with unreadable(self.name, f"a whole file with gzip or lzf. Restore it, or {repack}"):
            return np.ascontiguousarray(self._axes.take(self._dataset, box.slices(self.box.start)), self.dtype)

    def close(self) -> None:
        """Close the file."""
        self._dataset.file.close()


class VolumeWriter:
    """Writes blocks of one dataset, in any order."""

    def __init__(self, dataset: hdf5.Dataset, box: Box) -> None:
        self._dataset, self.box = dataset, box

    def write(self, box: Box, voxels: np.ndarray) -> None:
        """Store `voxels` of shape ``box.shape`` at `box` (full-volume voxels)."""
        self._dataset[box.slices(self.box.start)] = voxels


@contextlib.contextmanager
def create_volume(path: str, name: str, dtype: np.dtype | type, placement: Placement) -> Iterator[VolumeWriter]:
    """Create an HDF5 file of one volume, for other programs; it appears when the block ends without an error."""
    others: list[str] = []
    with contextlib.suppress(VolumeError), hdf5.open_file(path) as file:  # missing or damaged: nothing to lose
        others = sorted(hdf5.list_datasets(file).keys() - {name.strip("/")})
    if others:
        raise VolumeError(f"{path}: holds {others}, expected no dataset but {name}. Choose another file")
    with hdf5.create_file(path) as file:
        yield _create_dataset(file, name, np.dtype(dtype), placement)


def _missing_file_behind(dataset: hdf5.Dataset) -> str | None:
    """Return a file that a virtual dataset takes voxels from, if HDF5 finds it nowhere."""
    folders = [os.path.dirname(dataset.file.filename), "", *os.environ.get("HDF5_VDS_PREFIX", "").split(":")]
    files = {source.file_name for source in dataset.virtual_sources()} if dataset.is_virtual else set()
    lost = (file for file in sorted(files) if not any(os.path.isfile(os.path.join(each, file)) for each in folders))
    return next((file for file in lost if file != "." and "%" not in file), None)


def _provenance(dataset: hdf5.Dataset) -> dict:
    """Return the provenance of our stages; empty where the attribute is missing or not ours."""
    try:
        content = json.loads(dataset.attrs.get("provenance", "{}"))
    except (TypeError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _create_dataset(file: hdf5.Group, name: str, dtype: np.dtype, placement: Placement) -> VolumeWriter:
    shape = placement.box.shape
    chunk = tuple(map(min, shape, CHUNK_ZYX))
    # Ids take two thirds of the space that they take with level 1.
    dataset = file.create_dataset(name, shape, dtype, chunks=chunk, compression_opts=4, **hdf5.CHECKED)
    dataset.attrs["axes"] = "zyx"
    dataset.attrs["offset"] = placement.box.start
    dataset.attrs[VOXEL_SIZE_NM] = placement.voxel_size_zyx_nm
    dataset.attrs["provenance"] = json.dumps(placement.provenance, sort_keys=True)
    return VolumeWriter(dataset, placement.box)
