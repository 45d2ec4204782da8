"""Create volumes: in a store ``NAME.zarr`` (`ffn.io.store`) or in a file ``FILE.h5:DATASET`` (`ffn.io.hdf5_volume`)."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Protocol

import numpy as np

from ffn.errors import VolumeError
from ffn.geometry import Box
from ffn.io import hdf5_volume
from ffn.io.store_names import split_store
from ffn.io.volume import Placement, Tables, file_of, split_spec


class Writer(Protocol):
    """Writes the blocks of one volume, in any order.

    Attributes
    ----------
    box : Box
        The voxels that it may write.
    """

    box: Box

    def write(self, box: Box, voxels: np.ndarray) -> None:
        """Store `voxels` of shape ``box.shape`` at `box` (full-volume voxels)."""
        ...


@contextlib.contextmanager
def create_volumes(
    path: str | Path,
    dtypes: Mapping[str, np.dtype | type],
    placement: Placement,
    tables: Tables | None = None,
    former: Collection[str] = (),
) -> Iterator[Mapping[str, Writer]]:
    """Create a store or an HDF5 file of volumes with one placement; it appears when the block ends without an error.

    Parameters
    ----------
    path : path
        Store or file to write.
    dtypes : dict of str to dtype
        Type of each volume. In a store, `MAIN` is the one that ``NAME.zarr`` opens.
    placement : Placement
        Box, voxel size and provenance of all of them.
    tables : dict of str to ndarray or callable, optional
        Small arrays to write beside, such as lists of origins; a callable makes one when the voxels are written.
    former : collection of str
        Tables that only a former result may have; they go with it.

    Yields
    ------
    dict of str to Writer
        One writer for each volume; voxels that nobody writes are 0.

    Raises
    ------
    VolumeError
        If something else is there, or nothing can be written.
    """
    if split_store(str(path)):
        from ffn.io import store

        with store.create_volumes(path, dtypes, placement, tables, former) as in_store:
            yield in_store
    else:
        with hdf5_volume.create_volumes(path, dtypes, placement, tables, former) as in_file:
            yield in_file


@contextlib.contextmanager
def create_volume(
    spec: str, dtype: np.dtype | type, placement: Placement, tables: Tables | None = None
) -> Iterator[Writer]:
    """Create ``NAME.zarr`` or ``file.h5:dataset``; `create_volumes` for a single volume.

    Raises
    ------
    VolumeError
        If `spec` names neither.
    """
    name = volume_name(spec)
    with create_volumes(file_of(spec), {name: dtype}, placement, tables) as writers:
        yield writers[name]


def volume_name(spec: str) -> str:
    """Return the name of the volume to write: the dataset of a file, `MAIN` for ``NAME.zarr``.

    Raises
    ------
    VolumeError
        If `spec` names neither a store nor a dataset.
    """
    store, (_, dataset) = split_store(spec), split_spec(spec)
    name = store[1] if store else dataset
    if name is None:
        raise VolumeError(f"{spec}: expected NAME.zarr or FILE.h5:DATASET to write to")
    return name


def require_replaceable(path: str | Path, names: set[str]) -> None:
    """Check that replacing a store or file by one with the volumes and tables `names` loses nothing else.

    Raises
    ------
    VolumeError
        If it exists and holds other things.
    """
    if split_store(str(path)):
        from ffn.io import store

        store.require_replaceable(path, names)
    else:
        hdf5_volume.require_replaceable(path, names)
