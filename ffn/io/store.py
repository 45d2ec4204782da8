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
from collections.abc import Collection, Iterator, Mapping, Set
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import tensorstore as ts

from ffn.errors import VolumeError
from ffn.geometry import Box
from ffn.io.atomic import atomic_path
from ffn.io.faults import named, unreadable
from ffn.io.foreign.locations import CONTEXT, CREDENTIALS, Folder, Location, writable_store
from ffn.io.ome_zarr import array_metadata, group_metadata, image_metadata, ours_in, table_metadata
from ffn.io.scratch import scratch_array
from ffn.io.shards import Shards, shard_shape
from ffn.io.store_names import MAIN, METADATA, OURS, store_to_write
from ffn.io.volume import Placement

log = logging.getLogger(__name__)

GATHERED_BYTES = 2**29  # of shards in memory that are not full yet; our choice
TEMPORARY = ".__lock"  # end of the names of files that TensorStore has not finished
METADATA_OF_ZARR = (METADATA, ".zgroup", ".zarray", f"{MAIN}/{METADATA}", f"{MAIN}/.zarray")


class StoreFolder(Folder):
    """Files of a store; each is written whole or not at all, and durable once it is written."""

    def __init__(self, place: str) -> None:
        location = Location.parse(place)
        self.place, self.path = place.rstrip("/"), location.path  # no path in an object store
        # A file has one writer, or several that write the same; and locks are unreliable on NFS.
        context = ts.Context({**CONTEXT, "file_io_locking": {"mode": "none"}})
        with self.reached():
            super().__init__(writable_store(location), context)

    def open_array(self, name: str) -> ts.TensorStore:
        """Open an array in the folder, whose metadata exist."""
        # Also what is all 0 is stored, so that a missing shard is an error.
        spec = {
            "driver": "zarr3",
            "kvstore": {**self.spec, "path": f"{self.spec['path']}{name}/"},
            "store_data_equal_to_fill_value": True,
            "fill_missing_data_reads": False,
        }
        with self.reached(name):
            return ts.open(spec, open=True, context=self.context).result()

    def has(self, key: str) -> bool:
        """Whether a file exists."""
        with self.reached():
            return self.files.read(key, byte_range=slice(0, 0)).result().state == "value"

    def checksum(self, key: str) -> str | None:
        """Return the SHA-256 of a file, None if there is none."""
        with self.reached():
            result = self.files.read(key).result()
        return hashlib.sha256(result.value).hexdigest() if result.state == "value" else None

    def write(self, key: str, content: bytes | None) -> None:
        """Write a file; without content, delete it, if it exists."""
        with self.reached(key):
            self.files.write(key, content).result()

    def write_metadata(self, name: str, metadata: dict[str, Any]) -> None:
        """Write the metadata of an array or a group; several processes may do so at once."""
        self.write(f"{name}/{METADATA}".lstrip("/"), (json.dumps(metadata, indent=1) + "\n").encode())

    def write_table(self, name: str, table: np.ndarray) -> None:
        """Write a small array, in place of any that is there."""
        self.remove(name)
        self.write_metadata(name, table_metadata(table.shape, table.dtype))
        with self.reached(name):
            self.open_array(name).write(table).result()

    def remove(self, name: str) -> None:
        """Delete a folder with all files in it, if it exists."""
        with self.reached():
            self.files.delete_range(ts.KvStore.KeyRange(f"{name}/", f"{name}0")).result()

    def list(self, prefix: str) -> list[str]:
        """Return the names of the files below `prefix`, which ends with a slash."""
        with self.reached():
            keys = self.files.list(ts.KvStore.KeyRange(prefix, prefix[:-1] + "0")).result()
        return [key.decode() for key in keys]

    @contextlib.contextmanager
    def reached(self, key: str = "") -> Iterator[None]:
        """Turn errors about addresses, rights or free space into one that names the file `key`."""
        advice = CREDENTIALS.get(urlsplit(self.place).scheme, "Check address, free space, rights and network")
        expected = f"a folder, s3:// or gs:// with the right to write, read, list and delete. {advice}"
        with unreadable(f"{self.place}/{key}".rstrip("/"), expected, failed="written"):
            with named(self.path) if self.path else contextlib.nullcontext():
                yield


class ShardWriter:
    """Writes blocks to one array, in any order; parts of a shard are gathered until all of it is there.

    A shard is written when as many voxels came as it has. The others are in memory up to `GATHERED_BYTES`, and beyond
    that in the folder of the store, in files that are gone when the process is.
    """

    def __init__(self, folder: StoreFolder, array: str, shards: Shards, owned: Box | None) -> None:
        self._folder = folder
        self._path = array
        self._array = folder.open_array(array)
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
            raise VolumeError(f"{self._folder.place}: block {box} leaves {self.box}, the shards of this writer")
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
        with self._folder.reached(self._path):
            return scratch_array(shard.shape, self._dtype, self._folder.path)

    def _save(self, shard: Box, voxels: np.ndarray) -> None:
        with self._folder.reached(self._path):
            if shard not in self._saved:  # TensorStore would read an old one at the border of the volume
                self._folder.write(f"{self._path}/{self._all_shards.key(shard)}", None)
            self._at(shard).write(np.ascontiguousarray(voxels, self._dtype)).result()
        self._saved.add(shard)

    def _at(self, shard: Box) -> ts.TensorStore:
        return self._array[shard.slices(self._all_shards.box.start)]


class Store:
    """A store that is being written."""

    def __init__(
        self, folder: StoreFolder, name: str, dtypes: Mapping[str, np.dtype | type], placement: Placement
    ) -> None:
        self.folder = folder
        self.name = name
        self.dtypes = {volume: np.dtype(dtype).newbyteorder("=") for volume, dtype in dtypes.items()}
        self.placement = placement
        largest = max(dtype.itemsize for dtype in self.dtypes.values())
        self.shards = Shards(placement.box, placement.shard_zyx or shard_shape(placement.box.shape, largest))

    def make_arrays(self) -> None:
        """Write the metadata of the arrays if they are missing, and mark the store unfinished."""
        for group in (METADATA, *(f"{volume}/{METADATA}" for volume in self.dtypes if volume != MAIN)):
            self.folder.write(group, None)
        for volume, dtype in self.dtypes.items():
            metadata = array_metadata(
                self.placement.box.shape, dtype, self.shards.shape_zyx, self.placement.level_of_ids
            )
            self.folder.write_metadata(array_of(volume), metadata)

    def writers(self, owned: Box | None = None) -> dict[str, ShardWriter]:
        """Return a writer for each volume; it may write to the shards of the box `owned`, by default to all."""
        return {volume: ShardWriter(self.folder, array_of(volume), self.shards, owned) for volume in self.dtypes}

    def checksums(self, box: Box) -> dict[str, str | None]:
        """Return the checksums of the files of the shards in `box`, None for those that are missing."""
        return {key: self.folder.checksum(key) for key in self._keys(box)}

    def has_shards(self, box: Box) -> bool:
        """Whether the files of the shards in `box` exist."""
        return all(map(self.folder.has, self._keys(box)))

    def finish(self, tables: Mapping[str, np.ndarray | None], checksums: Mapping[str, str | None]) -> None:
        """Write tables, but for those that are None, and metadata, once all shards are written."""
        arrays = {name: table for name, table in tables.items() if table is not None}
        self._keep(checksums.keys())
        for name in tables.keys() - arrays.keys():
            self.folder.remove(name)
        for name, table in arrays.items():
            self.folder.write_table(name, table)
        place = (str(self.placement.box), self.placement.voxel_size_zyx_nm)
        digest = hashlib.sha256(repr([place, sorted(checksums.items())]).encode())
        for name in sorted(arrays):
            digest.update(f"{name} {arrays[name].shape} {arrays[name].dtype}".encode() + arrays[name].tobytes())
        ours = {
            "provenance": self.placement.provenance,
            "box": str(self.placement.box),
            "content": digest.hexdigest(),
            "volumes": sorted(self.dtypes),
            "tables": sorted(arrays),
        }
        for volume in sorted(self.dtypes.keys() - {MAIN}):
            self.folder.write_metadata(volume, image_metadata(volume, self.placement, self.dtypes[volume], ours))
        title = Path(self.name).stem
        main = self.dtypes.get(MAIN)
        root = image_metadata(title, self.placement, main, ours) if main is not None else group_metadata({OURS: ours})
        self.folder.write_metadata("", root)

    def _keys(self, box: Box) -> list[str]:
        shards = list(self.shards.touched_by(box))
        return [f"{array_of(volume)}/{self.shards.key(shard)}" for volume in self.dtypes for shard in shards]

    def _keep(self, shards: Set[str]) -> None:
        """Remove the files of all other shards, and what killed writers left."""
        for volume in self.dtypes:
            for key in set(self.folder.list(f"{array_of(volume)}/c/")) - shards:
                self.folder.write(key, None)
        for left in self.folder.path.rglob(f"*{TEMPORARY}") if self.folder.path else ():
            left.unlink(missing_ok=True)


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

    Parameters
    ----------
    path : path
        Folder or URL ``NAME.zarr``.
    dtypes, placement
        See `Store`.
    tables : dict of str to ndarray, optional
        Small arrays, such as lists of origins.
    former : collection of str
        Tables that only a former result may have; they go with it.

    Yields
    ------
    dict of str to ShardWriter
        One writer for each volume; voxels that are not written are 0.

    Raises
    ------
    VolumeError
        If something else is there, or nothing can be written.
    """
    tables = tables or {}
    require_replaceable(path, {*dtypes, *tables, *former})
    with new_folder(str(path)) as folder:
        store = Store(folder, str(path), dtypes, placement)
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
    """Check that replacing the folder by a store with the volumes and tables `names` loses nothing else."""
    store = StoreFolder(store_to_write(str(path)))
    folder = store.path
    if folder and not folder.exists():
        return
    if folder and not folder.is_dir():
        raise VolumeError(f"{path}: is a file, expected a folder to write. Choose another name")
    if _is_foreign(store):
        raise VolumeError(f"{path}: was written by another program, expected a store of this one. Choose another name")
    if folder is None:  # a list of a million shards takes long
        return
    known = {METADATA, *(name.strip("/") for name in names)}
    found = (entry.name for entry in folder.iterdir() if not entry.name.endswith(TEMPORARY))
    others = sorted(name for name in found if name not in known and name[0] != ".")
    if others:
        raise VolumeError(f"{path}: holds {others}, expected nothing but {sorted(names)}. Choose another folder")


def _is_foreign(folder: StoreFolder) -> bool:
    """Whether a folder holds groups or arrays, and none of them is ours."""
    found = [metadata for name in METADATA_OF_ZARR if (metadata := folder.json(name))]
    return bool(found) and all(ours_in(metadata) is None for metadata in found)


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
def new_folder(path: str) -> Iterator[StoreFolder]:
    """Yield a folder that becomes `path` at the end; in an object store, `path` itself."""
    final = StoreFolder(path)
    if final.path is None:
        yield final
        return
    place = final.path.resolve()  # behind a link, if the folder lies on another disk
    with named(path), _alone(place), atomic_path(place) as temporary:
        temporary.mkdir()
        yield StoreFolder(str(temporary))
