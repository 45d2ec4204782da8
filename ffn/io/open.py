"""Open a volume in any format.

A format is a row of `FORMATS`. The libraries that it reads with are imported when it opens a volume.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ffn.errors import VolumeError
from ffn.geometry import VoxelSize
from ffn.io import scratch
from ffn.io.atomic import unreadable
from ffn.io.config import FoundConfig
from ffn.io.store_names import CHUNKED_FILES, MAIN, files_in, files_named, image_format, split_store
from ffn.io.volume import HDF5_SUFFIXES, NO_SIZE, Converted, Volume, place_of, split_spec, with_ignored

SMALL_BYTES = 10**6  # of smaller files, Snakemake compares the content: one that was only touched repeats nothing
CHUNKED_SUFFIXES = (".zarr", ".n5", ".precomputed")
ARCHIVES = (".zip", ".tar", ".tgz", ".tar.gz", ".7z")


class Format(NamedTuple):
    """A format; no two claim the same spec."""

    title: str  # in lists for users
    recognises: Callable[[str], bool]
    opener: str  # MODULE.FUNCTION of ffn.io; it returns a Volume that reads only the chunks that a box touches


def _is_chunked(spec: str) -> bool:
    """Whether a spec is a URL or a folder that TensorStore opens; arrays in a bare group of N5 have no metadata."""
    path = Path(spec)
    in_container = any(folder.suffix.lower() in CHUNKED_SUFFIXES for folder in (path, *path.parents))
    return "://" in spec or (path.is_dir() and (in_container or any((path / file).exists() for file in CHUNKED_FILES)))


def _is_slices(spec: str) -> bool:
    """Whether a spec is a glob or a folder of images; a zarr folder may hold a picture, too."""
    path = Path(spec)
    if _is_chunked(spec):
        return False
    if path.is_dir():
        return any(image_format(file) for file in path.iterdir())
    return glob.has_magic(spec) and not path.exists()


def _is_hdf5(spec: str) -> bool:
    return Path(split_spec(spec)[0]).suffix.lower() in HDF5_SUFFIXES


def _is_file(*suffixes: str) -> Callable[[str], bool]:
    return lambda spec: spec.lower().endswith(suffixes) and Path(spec).is_file()


FORMATS = (
    Format("FILE.h5:DATASET", _is_hdf5, "hdf5.open_hdf5"),
    Format("MRC (.mrc, .rec, .map)", _is_file(".mrc", ".rec", ".map"), "foreign.arrays.open_mrc"),
    Format("NIfTI (.nii, .nii.gz)", _is_file(".nii", ".nii.gz"), "foreign.arrays.open_nifti"),
    Format("NumPy array (.npy, .npz)", _is_file(".npy", ".npz"), "foreign.arrays.open_numpy"),
    Format("slices (folder or quoted glob of PNG, JPEG or TIFF)", _is_slices, "foreign.stacks.open_slices"),
    Format("multipage TIFF", _is_file(".tif", ".tiff"), "foreign.stacks.TiffVolume"),
    Format("OME-Zarr, zarr, N5, Neuroglancer precomputed (folder or URL)", _is_chunked, "foreign.chunked.open_chunked"),
)


def readable_formats() -> str:
    """Return the list of formats for help texts and messages."""
    return ", ".join(known.title for known in FORMATS)


@contextlib.contextmanager
def open_volume(spec: str | Path) -> Iterator[Volume]:
    """Open anything in `readable_formats` for the duration of a ``with`` block.

    ``file.h5`` is enough for a file with one 3D dataset.

    Raises
    ------
    VolumeError
        If there is no readable volume, or its first voxel lies between voxels of the full volume.
    """
    with open_mip(spec, 0) as volume:
        yield volume


@contextlib.contextmanager
def open_mip(spec: str | Path, mip: int | None = None, size_zyx_nm: VoxelSize | None = None) -> Iterator[Volume]:
    """Open one mip of a volume that may have several, for the duration of a ``with`` block."""
    with open_mip_or_finer(spec, mip, size_zyx_nm) as (volume, missing):
        if missing:
            raise _no_mip(spec, f"mip {mip}", volume.mips, "Choose a mip, or make it: ffn ingest --mip")
        yield volume


@contextlib.contextmanager
def open_mip_or_finer(
    spec: str | Path,
    mip: int | None = None,
    size_zyx_nm: VoxelSize | None = None,
    is_placed: bool = False,
    config: FoundConfig | None = None,
) -> Iterator[tuple[Volume, int]]:
    """Open one mip of a volume, or the coarsest that it has, and also return how many mips further the wanted one is.

    Only a number can be that of a mip that the volume does not have. Where the place of the first voxel is given, it
    does not matter if the source has it between voxels. `config` says what may be missing.

    Raises
    ------
    VolumeError
        If no mip has this voxel size, or the first voxel has no place.
    """
    with contextlib.closing(_open(str(spec))) as finest:
        sizes = finest.mips
        index = _mip(sizes, size_zyx_nm) if mip is None else min(mip, len(sizes) - 1)
        if index is None:
            advice = "Correct the voxel size, give mip, or name the array inside that has these voxels"
            raise _no_mip(spec, f"voxels of {size_zyx_nm} nm", sizes, advice)
        volume = finest.at_mip(index)
        if volume.misplaced and not is_placed:
            raise volume.misplaced
        volume.require_data(config)
        yield volume, 0 if mip is None else mip - index


def voxel_sizes(spec: str | Path) -> Sequence[VoxelSize | None]:
    """Return the voxel size of each mip of a volume, finest first, None where it declares none."""
    with contextlib.closing(_open(str(spec))) as finest:
        return [None if size == NO_SIZE else size for size in finest.mips]


@contextlib.contextmanager
def open_labels(spec: str | Path) -> Iterator[Volume]:
    """Open labels as in `open_volume`, but with `IGNORED` in all ignored voxels, as if `ingest` had brought them in."""
    with open_volume(spec) as labels:
        yield labels if labels.provenance else with_ignored(labels)


@contextlib.contextmanager
def open_truth(spec: str | Path) -> Iterator[Volume]:
    """Open labels as in `open_volume`, but with 0 in ignored voxels, so that they are not taken for a body."""
    with open_volume(spec) as labels:
        yield with_ignored(labels, 0)


@contextlib.contextmanager
def open_segmentation(spec: str | Path) -> Iterator[Volume]:
    """Open segments as in `open_volume`, but with 0 for negative ids: some programs write -1 for no segment."""
    with open_volume(spec) as volume:
        segments = volume.as_labels()
        yield Converted(segments, lambda ids: np.maximum(ids, 0)) if segments.dtype.kind == "i" else segments


def read_table(
    spec: str | Path, name: str, keep: Callable[[np.ndarray], np.ndarray] | None = None
) -> np.ndarray | None:
    """Return the table `name` of a store, None if there is no such table.

    `keep` takes some rows and returns which of them to keep, bool; a table of a large volume is never all in memory
    then.

    Raises
    ------
    VolumeError
        If the file or store is missing or damaged.
    """
    store = split_store(str(spec))
    if store is None:
        return None
    import tensorstore as ts

    from ffn.io.foreign.locations import open_folder
    from ffn.io.shards import our_attributes

    folder = open_folder(store[0])
    if name not in our_attributes(folder).get("tables", ()):
        return None
    table = {"driver": "zarr3", "kvstore": folder.below(name).spec, "fill_missing_data_reads": False}
    with unreadable(f"{store[0]}/{name}", "a whole table. Rerun its stage"):
        rows = ts.open(table, read=True, context=folder.context).result()
        if keep is None:
            return np.asarray(rows)
        most, end = scratch.ROWS_AT_ONCE, rows.shape[0]
        parts = (np.asarray(rows[at : min(at + most, end)]) for at in range(0, max(1, end), most))
        return np.concatenate([part[keep(part)] for part in parts])


def identity(spec: str | Path) -> str:
    """Return a text that changes with the content of a volume, for `ffn.provenance.fingerprint`.

    It is the checksum that a finished store has, that of a single small file, and sizes and times of any other files.
    For a source on another machine, it is the address alone.

    Raises
    ------
    VolumeError
        If a store is not finished.
    """
    store = split_store(str(spec))
    if store:
        from ffn.io.foreign.locations import open_folder
        from ffn.io.shards import our_attributes

        if content := our_attributes(open_folder(store[0])).get("content"):
            return f"{store[1]} {content}"
    place = place_of(str(spec))
    if place.is_file() and place.stat().st_size < SMALL_BYTES:
        return f"{spec} {hashlib.sha256(place.read_bytes()).hexdigest()}"
    digest, file = hashlib.sha256(), ""
    for file in _files(place):  # every one: some programs write a chunk in its place, which no folder's time tells
        state = os.stat(file)
        digest.update(f"{file} {state.st_size} {state.st_mtime_ns} ".encode())
    return f"{spec} {digest.hexdigest()}" if file else str(spec)


def _files(path: Path) -> Iterator[str]:
    """Yield a file, the files in a folder, or those that a glob names, in their order; none for a URL."""
    for found in [path] if path.exists() else sorted(files_named(str(path))):
        if found.is_dir():
            yield from files_in(str(found), in_order=True)
        elif found.is_file():
            yield str(found)


def _no_mip(spec: str | Path, wanted: str, sizes: Sequence[VoxelSize | None], advice: str) -> VolumeError:
    listed = ", ".join(f"{size} nm" if size else "of unknown size" for size in sizes)
    return VolumeError(f"{spec}: has no {wanted}, its voxels from mip 0 are {listed}, expected one of these. {advice}")


def _mip(sizes: Sequence[VoxelSize | None], wanted: VoxelSize | None) -> int | None:
    """Return the mip with the voxel size, the finest if any will do, None if no mip has it."""
    if wanted is None or len(sizes) == 1:
        return 0
    return next((mip for mip, size in enumerate(sizes) if size and np.allclose(size, wanted, rtol=1e-4)), None)


def _open(spec: str) -> Volume:
    store = split_store(spec)
    if store and store[1] == MAIN and not Path(spec).exists() and Path(store[0]).exists():
        spec = store[0]  # of an image that stays where it is, there is no folder 0
    for known in FORMATS:
        if known.recognises(spec):
            module, _, name = known.opener.rpartition(".")
            opener: Callable[[str], Volume] = getattr(importlib.import_module(f"ffn.io.{module}"), name)
            return opener(spec)
    if spec.lower().endswith(ARCHIVES) and Path(spec).is_file():
        raise VolumeError(f"{spec}: is an archive, expected a folder. Unpack it, and name what was inside")
    found = "is in no known format" if Path(spec).exists() else "no such file or folder"
    raise VolumeError(f"{spec}: {found}, expected {readable_formats()}. Check the path")
