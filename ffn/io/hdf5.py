"""HDF5 files: small arrays, tables of rows, and volumes as CREMI, funlib and `ffn convert` write them.

The only module that imports h5py.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ffn.errors import FfnError, VolumeError
from ffn.geometry import ZYX, Box
from ffn.io.atomic import atomic_path, unreadable
from ffn.io.foreign.attributes import VOXEL_SIZE_NM, axis_names, mip_of_array
from ffn.io.store_names import how_to_make
from ffn.io.volume import Placement, SpatialAxes, Volume, number_type, split_spec

Dataset = h5py.Dataset
Group = h5py.Group

WHOLE = "a whole file. Delete it and rerun its stage"

CHUNK_CACHE_BYTES = 2**25  # several 64³ chunks: neighbouring blocks share them, and decompressing one twice is slow

CHECKED: Any = {"compression": "gzip", "shuffle": True, "fletcher32": True}  # reading a flipped bit is an error
ROWS_PER_CHUNK = 16_384  # 192 KiB of coordinates
CHUNK_ZYX: ZYX = (64, 64, 64)  # of volumes


def open_file(path: str | Path, error: type[FfnError] = VolumeError) -> h5py.File:
    """Open an HDF5 file for reading, without file locks, which are unreliable on NFS."""
    require_here(path, error)
    path = Path(path)
    if not path.is_file():
        raise error(f"{path}: no such file, expected an HDF5 file. {how_to_make(path)}")
    with unreadable(path, "a whole HDF5 file. Restore it, or delete it and rerun its stage", error):
        return h5py.File(path, "r", locking=False, rdcc_nbytes=CHUNK_CACHE_BYTES)


@contextlib.contextmanager
def create_file(path: str | Path) -> Iterator[h5py.File]:
    """Yield a new HDF5 file that appears at `path` when the block ends without an error."""
    require_here(path)
    if Path(path).is_dir():
        raise VolumeError(f"{path}: is a folder, expected a file to write. Choose another name")
    with atomic_path(path) as temporary, _PatientFile(temporary, "w+") as patient:
        try:
            with h5py.File(patient, "w", rdcc_nbytes=CHUNK_CACHE_BYTES) as file:
                yield file
        finally:
            if patient.fault:
                raise patient.fault


class _PatientFile(FileIO):
    """A file that seems to take everything after its disk has filled up.

    HDF5 cannot close a file of which a write has failed: it ends the process by a SIGSEGV.
    """

    fault: OSError | None = None

    def write(self, content: Any) -> int:
        """Write all of it, unless an earlier write has failed."""
        left = memoryview(content)
        try:
            while left and not self.fault:
                left = left[super().write(left) :]
        except OSError as reason:
            self.fault = reason
        return len(content)

    def truncate(self, size: int | None = None) -> int:
        """Make the file longer or shorter, unless a write has failed."""
        return size or 0 if self.fault else super().truncate(size)


def require_here(path: str | Path, error: type[FfnError] = VolumeError) -> None:
    """Refuse a URL: h5py would take it for a relative path."""
    if "://" in str(path):
        raise error(f"{path}: is an address, expected an HDF5 file on this machine. Copy it, or take a NAME.zarr there")


def list_datasets(file: h5py.Group, error: type[FfnError] = VolumeError) -> dict[str, h5py.Dataset]:
    """Return all datasets in a file or group by their full names."""
    found: dict[str, h5py.Dataset] = {}
    with unreadable(file.file.filename, WHOLE, error):
        file.visititems(lambda name, item: found.update({name: item}) if isinstance(item, h5py.Dataset) else None)
    return found


def write_arrays(
    path: str | Path, arrays: dict[str, np.ndarray], attributes: dict[str, str | int | float], compressed: bool = False
) -> None:
    """Write an HDF5 file of named arrays and file attributes, atomically."""
    with create_file(path) as file:
        for name, array in arrays.items():
            filters = {"compression": "gzip", "shuffle": True, "chunks": array.shape} if compressed else {}
            file.create_dataset(name, data=array, **filters)
        file.attrs.update(attributes)


def read_arrays(path: str | Path, error: type[FfnError] = VolumeError) -> tuple[dict[str, np.ndarray], dict]:
    """Read a file of `write_arrays`."""
    with unreadable(path, WHOLE, error), open_file(path, error) as file:
        return {name: np.asarray(dataset[()]) for name, dataset in list_datasets(file, error).items()}, dict(file.attrs)


def create_rows(group: h5py.Group, name: str, num_columns: int, dtype: np.dtype | type) -> h5py.Dataset:
    """Create an empty table of `num_columns` columns that `append_rows` extends."""
    shape, chunk = (None, num_columns), (ROWS_PER_CHUNK, num_columns)
    return group.create_dataset(
        name, (0, num_columns), dtype, maxshape=shape, chunks=chunk, compression_opts=1, **CHECKED
    )


def append_rows(dataset: h5py.Dataset, rows: np.ndarray) -> None:
    """Add `rows` of shape ``(N, num_columns)`` to a table."""
    start = len(dataset)
    dataset.resize(start + len(rows), axis=0)
    dataset[start:] = rows


def take_rows(dataset: h5py.Dataset, indices: np.ndarray) -> np.ndarray:
    """Read the rows at `indices`, which may be in any order and repeat; each chunk is read once."""
    out = np.empty((len(indices), dataset.shape[1]), dtype=dataset.dtype)
    order = np.argsort(indices, kind="stable")
    chunks, starts = np.unique(indices[order] // ROWS_PER_CHUNK, return_index=True)
    for chunk, start, stop in zip(chunks.tolist(), starts, [*starts[1:], len(order)], strict=False):
        wanted, first = order[start:stop], chunk * ROWS_PER_CHUNK
        out[wanted] = dataset[first : first + ROWS_PER_CHUNK][indices[wanted] - first]
    return out


class Hdf5Volume(Volume):
    """A dataset of an HDF5 file as a volume."""

    def __init__(self, dataset: h5py.Dataset, name: str) -> None:
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


def open_hdf5(spec: str) -> Hdf5Volume:
    """Open ``FILE.h5:DATASET``; ``FILE.h5`` is enough for a file with one 3D dataset."""
    path, dataset = split_spec(spec)
    file = open_file(path)
    try:
        datasets = list_datasets(file)
        if dataset is None:
            candidates = [name for name, item in datasets.items() if item.ndim >= 3]
            dataset = candidates[0] if len(candidates) == 1 else ""
        found = _dataset_in(file, dataset)
        if found is None:
            wanted = dataset or "FILE.h5:DATASET"
            raise VolumeError(f"{path}: found {sorted(datasets)}, expected dataset {wanted!r}. Is it the right file?")
        return Hdf5Volume(found, f"{path}:{dataset}")
    except VolumeError:
        file.close()
        raise


class VolumeWriter:
    """Writes blocks of one dataset, in any order."""

    def __init__(self, dataset: h5py.Dataset, box: Box) -> None:
        self._dataset, self.box = dataset, box

    def write(self, box: Box, voxels: np.ndarray) -> None:
        """Store `voxels` of shape ``box.shape`` at `box` (full-volume voxels)."""
        self._dataset[box.slices(self.box.start)] = voxels


@contextlib.contextmanager
def create_volume(path: str, name: str, dtype: np.dtype | type, placement: Placement) -> Iterator[VolumeWriter]:
    """Create an HDF5 file of one volume, for other programs; it appears when the block ends without an error."""
    others: list[str] = []
    with contextlib.suppress(VolumeError), open_file(path) as file:  # missing or damaged: nothing to lose
        others = sorted(list_datasets(file).keys() - {name.strip("/")})
    if others:
        raise VolumeError(f"{path}: holds {others}, expected no dataset but {name}. Choose another file")
    with create_file(path) as file:
        yield create_dataset(file, name, dtype, placement)


def create_dataset(file: h5py.File, name: str, dtype: np.dtype | type, placement: Placement) -> VolumeWriter:
    """Create a volume in a file, with its place in attributes."""
    chunk = tuple(map(min, placement.box.shape, CHUNK_ZYX))
    # Ids take two thirds of the space that they take with level 1.
    dataset = file.create_dataset(name, placement.box.shape, dtype, chunks=chunk, compression_opts=4, **CHECKED)
    dataset.attrs["axes"] = "zyx"
    dataset.attrs["offset"] = placement.box.start
    dataset.attrs[VOXEL_SIZE_NM] = placement.voxel_size_zyx_nm
    dataset.attrs["provenance"] = json.dumps(placement.provenance, sort_keys=True)
    return VolumeWriter(dataset, placement.box)


def _dataset_in(file: h5py.File, name: str) -> h5py.Dataset | None:
    """Return a dataset, which may be behind a soft or external link, unlike those of `list_datasets`."""
    with contextlib.suppress(Exception):  # those of h5py for damaged files have no common base
        found = file[name]
        return found if isinstance(found, h5py.Dataset) else None
    return None


def _missing_file_behind(dataset: h5py.Dataset) -> str | None:
    """Return a file that a virtual dataset takes voxels from, if HDF5 finds it nowhere."""
    folders = [os.path.dirname(dataset.file.filename), "", *os.environ.get("HDF5_VDS_PREFIX", "").split(":")]
    files = {source.file_name for source in dataset.virtual_sources()} if dataset.is_virtual else set()
    lost = (file for file in sorted(files) if not any(os.path.isfile(os.path.join(each, file)) for each in folders))
    return next((file for file in lost if file != "." and "%" not in file), None)


def _provenance(dataset: h5py.Dataset) -> dict:
    """Return the provenance of our stages; empty where the attribute is missing or not ours."""
    try:
        content = json.loads(dataset.attrs.get("provenance", "{}"))
    except (TypeError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
