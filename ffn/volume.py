"""Open and create zyx volumes that know their place: box in voxels and voxel size in nm."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from ffn import hdf5
from ffn.errors import VolumeError
from ffn.geometry import ZYX, Box, zyx
from ffn.sources.places import VoxelSize, three_numbers, world_place

CHUNK_ZYX: ZYX = (64, 64, 64)
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
    voxel_size_zyx_nm: tuple[float, float, float] | None
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
    voxel_size_zyx_nm: tuple[float, float, float] = (1.0, 1.0, 1.0)
    provenance: dict = field(default_factory=dict)


class Hdf5Volume:
    """A dataset of an HDF5 file as a volume; see `Volume` for the attributes."""

    def __init__(self, dataset: hdf5.Dataset, name: str) -> None:
        if dataset.ndim != 3:
            raise VolumeError(f"{name}: has shape {dataset.shape}, expected three axes z, y, x")
        self._dataset = dataset
        self.name = name
        self.dtype = dataset.dtype
        self.voxel_size_zyx_nm, start = _place(dataset, name)
        self.box = Box.from_shape(zyx(dataset.shape), start)
        self.provenance = _provenance(dataset)

    def read(self, box: Box | None = None) -> np.ndarray:
        """Return the voxels of `box` (default: all).

        Raises
        ------
        VolumeError
            If `box` is not inside the volume or the file is damaged.
        """
        box = self.box if box is None else box
        require_inside(self, box)
        try:
            return self._dataset[box.slices(self.box.start)]
        except OSError as reason:
            raise VolumeError(f"{self.name}: is damaged ({reason}). Delete it and rerun its stage") from None

    def close(self) -> None:
        """Close the file."""
        self._dataset.file.close()


class VolumeWriter:
    """A dataset under construction; blocks may come in any order."""

    def __init__(self, dataset: hdf5.Dataset, box: Box) -> None:
        self._dataset = dataset
        self.box = box

    def write(self, box: Box, voxels: np.ndarray) -> None:
        """Store `voxels` of shape ``box.shape`` at `box` (full-volume coordinates)."""
        self._dataset[box.slices(self.box.start)] = voxels


@contextlib.contextmanager
def open_volume(spec: str | Path) -> Iterator[Volume]:
    """Open a volume for reading, for the length of a ``with`` block.

    Parameters
    ----------
    spec : str
        ``file.h5:dataset`` (``file.h5`` alone where it holds one 3D dataset), a zarr or N5 folder, a
        precomputed folder or URL, a folder or glob of image slices, or a multipage TIFF.

    Raises
    ------
    VolumeError
        If nothing readable is there.
    """
    volume = _open(str(spec))
    try:
        yield volume
    finally:
        volume.close()


@contextlib.contextmanager
def create_volumes(
    path: str | Path,
    dtypes: dict[str, np.dtype | type],
    placement: Placement,
    tables: dict[str, np.ndarray] | None = None,
) -> Iterator[dict[str, VolumeWriter]]:
    """Create an HDF5 file of volumes with one placement; it appears when the block ends without an error.

    Parameters
    ----------
    path : path
        The file.
    dtypes : dict of str to dtype
        Datasets to make.
    placement : Placement
        Box, voxel size and provenance of all of them.
    tables : dict of str to ndarray, optional
        Small arrays without a place, such as lists of origins, kept beside the volumes.

    Yields
    ------
    dict of str to VolumeWriter
        One writer for each dataset; voxels never written are 0.
    """
    require_replaceable(path, {*dtypes, *(tables or {})})
    with hdf5.create_file(path) as file:
        for name, table in (tables or {}).items():
            file.create_dataset(name, data=table)
        yield {name: _create_dataset(file, name, np.dtype(dtype), placement) for name, dtype in dtypes.items()}


@contextlib.contextmanager
def create_volume(
    spec: str, dtype: np.dtype | type, placement: Placement, tables: dict[str, np.ndarray] | None = None
) -> Iterator[VolumeWriter]:
    """Create ``file.h5:dataset``; the one-dataset form of `create_volumes`.

    Raises
    ------
    VolumeError
        If `spec` does not name a file and a dataset.
    """
    path, dataset = split_spec(spec)
    if dataset is None:
        raise VolumeError(f"{spec}: expected FILE.h5:DATASET to write to")
    with create_volumes(path, {dataset: dtype}, placement, tables) as writers:
        yield writers[dataset]


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


def read_table(spec: str | Path, name: str) -> np.ndarray | None:
    """Return a small array kept beside the volume ``FILE.h5:DATASET``, None where there is none.

    Raises
    ------
    VolumeError
        If the file is missing or damaged.
    """
    path, _ = split_spec(str(spec))
    if Path(path).suffix.lower() not in HDF5_SUFFIXES:
        return None
    with hdf5.open_file(path) as file:
        found = hdf5.list_datasets(file).get(name)
        try:
            return None if found is None else found[()]
        except OSError as reason:
            raise VolumeError(f"{path}:{name}: is damaged ({reason}). Delete it and rerun its stage") from None


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


def require_replaceable(path: str | Path, names: set[str]) -> None:
    """Check that writing a file with the datasets `names` loses nothing else: files are written as a whole.

    Raises
    ------
    VolumeError
        If the file exists and holds other datasets.
    """
    try:
        file = hdf5.open_file(path)
    except VolumeError:
        return  # missing or damaged: nothing to lose
    with file:
        others = sorted(hdf5.list_datasets(file).keys() - {name.strip("/") for name in names})
    if others:
        raise VolumeError(f"{path}: already holds {others}, which would be lost. Choose another file")


def _open(spec: str) -> Volume:
    path, dataset = split_spec(spec)
    if Path(path).suffix.lower() in HDF5_SUFFIXES:
        return _open_hdf5(path, dataset)
    from ffn.sources import open_source  # image readers and TensorStore load only where they are needed

    return open_source(spec)


def _open_hdf5(path: str, dataset: str | None) -> Hdf5Volume:
    file = hdf5.open_file(path)
    datasets = hdf5.list_datasets(file)
    if dataset is None:
        candidates = [name for name, item in datasets.items() if item.ndim == 3]
        dataset = candidates[0] if len(candidates) == 1 else ""
    if dataset.strip("/") not in datasets:
        file.close()
        raise VolumeError(
            f"{path}: expected dataset {dataset or 'FILE.h5:DATASET'!r}, found {sorted(datasets)}. "
            "Was an earlier stage's output passed to the wrong option?"
        )
    try:
        return Hdf5Volume(datasets[dataset.strip("/")], f"{path}:{dataset}")
    except VolumeError:
        file.close()
        raise


def _place(dataset: hdf5.Dataset, name: str) -> tuple[VoxelSize | None, ZYX]:
    """Voxel size and offset from our attributes (offset in voxels), else from CREMI's."""
    attributes = dataset.attrs
    if "voxel_size_nm" not in attributes and "resolution" in attributes:
        return world_place(attributes, name)
    size = attributes.get("voxel_size_nm")
    start = three_numbers(attributes.get("offset", (0, 0, 0)), f"{name}: attribute offset")
    return None if size is None else three_numbers(size, f"{name}: attribute voxel_size_nm"), zyx(start)


def _provenance(dataset: hdf5.Dataset) -> dict:
    """Return what our stages recorded; empty where the attribute is missing or somebody else's."""
    try:
        content = json.loads(dataset.attrs.get("provenance", "{}"))
    except (TypeError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _create_dataset(file: hdf5.Group, name: str, dtype: np.dtype, placement: Placement) -> VolumeWriter:
    shape = placement.box.shape
    dataset = file.create_dataset(
        name,
        shape=shape,
        dtype=dtype,
        chunks=tuple(min(n, c) for n, c in zip(shape, CHUNK_ZYX, strict=True)),
        compression="gzip",
        compression_opts=1,
        shuffle=True,
        fletcher32=True,  # a flipped bit is refused on read instead of used
    )
    dataset.attrs["axes"] = "zyx"
    dataset.attrs["offset"] = placement.box.start
    dataset.attrs["voxel_size_nm"] = placement.voxel_size_zyx_nm
    dataset.attrs["provenance"] = json.dumps(placement.provenance, sort_keys=True)
    return VolumeWriter(dataset, placement.box)
