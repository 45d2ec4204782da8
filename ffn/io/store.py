"""Volumes between stages: OME-Zarr 0.5 in shards, with the small tables that belong to a volume.

``NAME.zarr`` is a group with the array ``0`` (OME's path of full resolution). More volumes of the same box are images
below it, ``NAME.zarr/probability`` with ``NAME.zarr/probability/0``. Tables are arrays next to them. The
metadata of the groups are written last: without them, a store is not finished.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import mmap
import os
import shutil
from collections.abc import Collection, Iterator, Mapping, Set
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
import tensorstore as ts

from ffn.errors import VolumeError
from ffn.geometry import Box
from ffn.io.atomic import atomic_path, named, this_job, unreadable, write_text
from ffn.io.foreign.locations import open_folder
from ffn.io.scratch import scratch_array
from ffn.io.shards import Shards, array_metadata, group_metadata, image_metadata, ours_in, shard_shape, table_metadata
from ffn.io.store_names import MAIN, METADATA, OURS, files_in, store_to_write
from ffn.io.volume import Placement

log = logging.getLogger(__name__)

GATHERED_BYTES = 2**29  # of shards in memory that are not full yet; our choice
METADATA_OF_ZARR = (METADATA, ".zgroup", ".zarray", f"{MAIN}/{METADATA}", f"{MAIN}/.zarray")


class ShardWriter:
    """Writes blocks to one array, in any order; parts of a shard are gathered until all of it is there.

    A shard is written when as many voxels came as it has. The others are in memory up to `GATHERED_BYTES`, and beyond
    that in the folder of the array, in files that are gone when the process is.
    """

    def __init__(self, path: Path, shards: Shards, owned: Box | None) -> None:
        self._path = path
        self._array = _open_array(path)
        self._all_shards = shards
        self._shards = Shards(owned or shards.box, shards.shape_zyx)
        self._gathered: dict[Box, np.ndarray] = {}
        self._missing: dict[Box, int] = {}  # voxels of each of them that have not come, if none came twice
        self._saved: set[Box] = set()
        self.box = self._shards.box
        self._dtype = np.dtype(self._array.dtype.numpy_dtype)

    def write(self, box: Box, voxels: np.ndarray) -> None:
        """Store `voxels` of shape ``box.shape`` at `box` (full-volume voxels)."""
        if not self.box.contains(box):
            raise VolumeError(f"{self._path}: block {box} leaves {self.box}, the shards of this writer")
        for shard in self._shards.touched_by(box):
            part = shard.intersect(box)
            content = voxels[part.slices(box.start)]
            if part == shard:
                self._gathered.pop(shard, None)
                self._save(shard, content)
            else:
                self._gather(shard, part, content)
                self._missing[shard] -= part.num_voxels
                if self._missing[shard] <= 0:
                    self._save(shard, self._gathered.pop(shard))

    def finish(self) -> None:
        """Write the gathered voxels, and 0 to the shards that were not written."""
        for shard in list(self._gathered):
            self._save(shard, self._gathered.pop(shard))
        for shard in self._shards.boxes():
            if shard not in self._saved:
                self._save(shard, np.zeros(shard.shape, self._dtype))

    def _gather(self, shard: Box, part: Box, content: np.ndarray) -> None:
        """Keep a part of a shard."""
        if shard not in self._gathered:
            self._missing[shard] = shard.num_voxels
            self._gathered[shard] = self._begin(shard)
        gathered = self._gathered[shard]
        gathered[part.slices(shard.start)] = content
        if isinstance(gathered, np.memmap):
            gathered.base.madvise(mmap.MADV_DONTNEED)  # type: ignore[union-attr]  # no longer memory of the process

    def _begin(self, shard: Box) -> np.ndarray:
        """Return an array for the voxels of a shard: those that it has, or 0."""
        if shard in self._saved:
            return self._at(shard).read().result()
        in_memory = sum(each.nbytes for each in self._gathered.values() if not isinstance(each, np.memmap))
        if in_memory + shard.num_voxels * self._dtype.itemsize <= GATHERED_BYTES:
            return np.zeros(shard.shape, self._dtype)
        with _writing(self._path):
            return scratch_array(shard.shape, self._dtype, self._path)

    def _save(self, shard: Box, voxels: np.ndarray) -> None:
        with _writing(self._path):
            if shard not in self._saved:  # TensorStore would read an old one at the border of the volume
                (self._path / self._all_shards.key(shard)).unlink(missing_ok=True)
            self._at(shard).write(np.ascontiguousarray(voxels, self._dtype)).result()
        self._saved.add(shard)

    def _at(self, shard: Box) -> ts.TensorStore:
        return self._array[shard.slices(self._all_shards.box.start)]


class Store:
    """A store that is being written to a folder, with the name of its image."""

    def __init__(self, folder: Path, name: str, dtypes: Mapping[str, np.dtype | type], placement: Placement) -> None:
        self.folder = folder
        self.name = name
        self.dtypes = {volume: np.dtype(dtype).newbyteorder("=") for volume, dtype in dtypes.items()}
        self.placement = placement
        largest = max(dtype.itemsize for dtype in self.dtypes.values())
        self.shards = Shards(placement.box, placement.shard_zyx or shard_shape(placement.box.shape, largest))

    def make_arrays(self) -> None:
        """Write the metadata of the arrays, and mark the store unfinished; several processes may do so at once."""
        shape, level = self.placement.box.shape, self.placement.level_of_ids
        with named(self.folder):
            for group in (self.folder, *map(self._group, self.dtypes)):
                (group / METADATA).unlink(missing_ok=True)
            for volume, dtype in self.dtypes.items():
                metadata = array_metadata(shape, dtype, self.shards.shape_zyx, level)
                write_metadata(self.folder / array_of(volume), metadata, this_job())

    def writers(self, owned: Box | None = None) -> dict[str, ShardWriter]:
        """Return a writer for each volume; it may write to the shards of the box `owned`, by default to all."""
        return {volume: ShardWriter(self.folder / array_of(volume), self.shards, owned) for volume in self.dtypes}

    def checksums(self, box: Box) -> dict[str, str | None]:
        """Return the SHA-256 of the files of the shards in `box`, None for those that are missing."""
        found: dict[str, str | None] = dict.fromkeys(self._keys(box))
        for key in found:
            with contextlib.suppress(FileNotFoundError):
                found[key] = hashlib.sha256((self.folder / key).read_bytes()).hexdigest()
        return found

    def has_shards(self, box: Box) -> bool:
        """Whether the files of the shards in `box` exist."""
        return all((self.folder / key).exists() for key in self._keys(box))

    def finish(self, tables: Mapping[str, np.ndarray | None], checksums: Mapping[str, str | None]) -> None:
        """Write tables, but for those that are None, and metadata, once all shards are written."""
        self._keep(checksums.keys())
        arrays = {name: table for name, table in sorted(tables.items()) if table is not None}
        for name in tables:
            shutil.rmtree(self.folder / name, ignore_errors=True)
        place = (str(self.placement.box), self.placement.voxel_size_zyx_nm)
        digest = hashlib.sha256(repr([place, sorted(checksums.items())]).encode())
        for name, table in arrays.items():
            write_metadata(self.folder / name, table_metadata(table.shape, table.dtype))
            with _writing(self.folder / name):
                _open_array(self.folder / name).write(table).result()
            digest.update(f"{name} {table.shape} {table.dtype}".encode() + table.tobytes())
        ours = {
            "provenance": self.placement.provenance,
            "box": str(self.placement.box),
            "content": digest.hexdigest(),
            "volumes": sorted(self.dtypes),
            "tables": [*arrays],
        }
        images = {
            volume: image_metadata(self.name if volume == MAIN else volume, self.placement, dtype, ours)
            for volume, dtype in sorted(self.dtypes.items())
        }
        root = images.pop(MAIN, group_metadata({OURS: ours}))
        for volume, image in images.items():
            write_metadata(self._group(volume), image)
        write_metadata(self.folder, root)

    def _group(self, volume: str) -> Path:
        return self.folder / array_of(volume).removesuffix(MAIN)

    def _keys(self, box: Box) -> list[str]:
        shards = list(self.shards.touched_by(box))
        return [f"{array_of(volume)}/{self.shards.key(shard)}" for volume in self.dtypes for shard in shards]

    def _keep(self, shards: Set[str]) -> None:
        """Remove the files of all other shards, and what killed writers left."""
        for volume in self.dtypes:
            for file in files_in(str(self.folder / array_of(volume))):
                if os.path.basename(file) != METADATA and file.removeprefix(f"{self.folder}/") not in shards:
                    os.unlink(file)


def write_metadata(folder: Path, metadata: dict[str, Any], writer: str = "") -> None:
    """Write the metadata of an array or a group, unless they are there; `writer` as in `atomic_path`."""
    path, text = folder / METADATA, json.dumps(metadata, indent=1) + "\n"
    if not path.exists() or path.read_text() != text:
        write_text(path, text, writer)


def _open_array(path: Path) -> ts.TensorStore:
    """Open an array to write it, whose metadata exist."""
    # Also what is all 0 is stored, so that a missing shard is an error.
    spec = {
        "driver": "zarr3",
        "kvstore": {"driver": "file", "path": f"{path}/"},
        "store_data_equal_to_fill_value": True,
        "fill_missing_data_reads": False,
    }
    with _writing(path):  # a shard has one writer, or several that write the same; and locks are unreliable on NFS
        return ts.open(spec, open=True, context=ts.Context({"file_io_locking": {"mode": "none"}})).result()


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn errors of TensorStore into one that names the path."""
    with unreadable(path, "a folder to write. Check free space and rights", failed="written"), named(path):
        yield


def array_of(volume: str) -> str:
    """Return the path of a volume's array in the store.

    Examples
    --------
    >>> array_of("0"), array_of("edges")
    ('0', 'edges/0')
    """
    return volume if volume == MAIN else f"{volume}/{MAIN}"


@contextlib.contextmanager
def create_volumes(
    path: str | Path,
    dtypes: Mapping[str, np.dtype | type],
    placement: Placement,
    tables: Mapping[str, np.ndarray] | None = None,
    former: Collection[str] = (),
) -> Iterator[dict[str, ShardWriter]]:
    """Create a store, written by this process alone; it appears when the block ends without an error.

    It has small tables, such as lists of origins; `former` are tables that only a former result may have, which go with
    it. Voxels that are not written are 0.

    Raises
    ------
    VolumeError
        If something else is there, or nothing can be written.
    """
    tables = tables or {}
    require_replaceable(path, {*dtypes, *tables, *former})
    with new_folder(str(path)) as folder:
        store = Store(folder, Path(path).stem, dtypes, placement)
        store.make_arrays()
        writers = store.writers()
        yield writers
        for writer in writers.values():
            writer.finish()
        store.finish(tables, store.checksums(placement.box))


@contextlib.contextmanager
def create_volume(path: str, dtype: np.dtype | type, placement: Placement) -> Iterator[ShardWriter]:
    """Create a store of a single volume; see `create_volumes`."""
    with create_volumes(path, {MAIN: dtype}, placement) as writers:
        yield writers[MAIN]


def require_replaceable(path: str | Path, names: set[str]) -> None:
    """Check that a store can be written, and replaces nothing but the volumes and tables `names`."""
    folder = store_to_write(str(path))
    with named(path):
        folder.parent.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=folder.parent).close()
    if not folder.exists():
        return
    if not folder.is_dir():
        raise VolumeError(f"{path}: is a file, expected a folder to write. Choose another name")
    found = [metadata for name in METADATA_OF_ZARR if (metadata := open_folder(str(folder)).json(name))]
    if found and all(ours_in(metadata) is None for metadata in found):
        raise VolumeError(f"{path}: was written by another program, expected a store of this one. Choose another name")
    known = {METADATA, *(name.strip("/") for name in names)}
    others = sorted(each.name for each in folder.iterdir() if each.name not in known and each.name[0] != ".")
    if others:
        raise VolumeError(f"{path}: holds {others}, expected nothing but {sorted(names)}. Choose another folder")


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Keep others from writing the same store: of two jobs at one subvolume, one removed files of the other's store."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.with_name(f".{path.name}.lock")
    with open(file, "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(lock.fileno()).st_nlink == 0:  # its former holder has just removed it
                raise BlockingIOError
        except BlockingIOError:
            raise VolumeError(f"{path}: another process is writing it. Wait for it, or stop it and rerun") from None
        except OSError:
            log.info("%s: the file system has no locks", file)
        try:
            yield
        finally:
            file.unlink(missing_ok=True)


@contextlib.contextmanager
def new_folder(path: str) -> Iterator[Path]:
    """Yield a folder that becomes `path` at the end."""
    place = store_to_write(path).resolve()  # behind a link, if the folder lies on another disk
    with named(path), _alone(place), atomic_path(place) as temporary:
        temporary.mkdir()
        yield temporary
