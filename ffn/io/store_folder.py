"""The files of a store that is written, in a folder or an object store, and its shards, each written once."""

from __future__ import annotations

import contextlib
import hashlib
import mmap
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import tensorstore as ts

from ffn.errors import VolumeError
from ffn.geometry import Box
from ffn.io.atomic import atomic_path, this_job
from ffn.io.faults import named, unreadable
from ffn.io.foreign.locations import CONTEXT, CREDENTIALS, Folder, Location, writable_store
from ffn.io.ome_zarr import encode, table_metadata
from ffn.io.scratch import scratch_array
from ffn.io.shards import Shards
from ffn.io.store_names import METADATA

GATHERED_BYTES = 2**29  # of shards in memory that are not full yet; our choice


class StoreFolder(Folder):
    """Files of a store; each is written whole or not at all, and durable once it is written."""

    def __init__(self, place: str) -> None:
        location = Location.parse(place)
        self.place, self.path = place.rstrip("/"), location.path  # no path in an object store
        # A shard has one writer, and locks are unreliable on NFS.
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

    def read(self, key: str) -> bytes | None:
        """Return the content of a file, None if there is none."""
        with self.reached():
            result = self.files.read(key).result()
        return result.value if result.state == "value" else None

    def has(self, key: str) -> bool:
        """Whether a file exists."""
        with self.reached():
            return self.files.read(key, byte_range=slice(0, 0)).result().state == "value"

    def write(self, key: str, content: bytes, writer: str = "") -> None:
        """Write a file; `writer` as in `atomic_path`."""
        with self.reached(key):
            if self.path:
                with atomic_path(self.path / key, writer) as temporary:
                    temporary.write_bytes(content)
            else:
                self.files.write(key, content).result()

    def write_metadata(self, name: str, metadata: dict[str, Any]) -> None:
        """Write the metadata of an array or a group, unless they are there; several processes may do so at once."""
        key, content = f"{name}/{METADATA}".lstrip("/"), encode(metadata)
        if self.read(key) != content:
            self.write(key, content, this_job())

    def write_table(self, name: str, table: np.ndarray) -> None:
        """Write a small array, in place of any that is there."""
        self.remove(name)
        self.write_metadata(name, table_metadata(table.shape, table.dtype))
        with self.reached(name):
            self.open_array(name).write(table).result()

    def delete(self, key: str) -> None:
        """Delete a file, if it exists."""
        with self.reached():
            self.files.write(key, None).result()

    def remove(self, name: str) -> None:
        """Delete a folder with all files in it, if it exists."""
        with self.reached():
            self.files.delete_range(ts.KvStore.KeyRange(f"{name}/", f"{name}0")).result()

    def list(self, prefix: str = "") -> list[str]:
        """Return the names of the files below `prefix`, which ends with a slash; by default of all."""
        with self.reached():
            keys = self.files.list(ts.KvStore.KeyRange(prefix, prefix[:-1] + "0" if prefix else "")).result()
        return sorted(key.decode() for key in keys)

    def checksum(self, key: str) -> str | None:
        """Return the SHA-256 of a file, None if there is none."""
        content = self.read(key)
        return None if content is None else hashlib.sha256(content).hexdigest()

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

    def __init__(self, folder: StoreFolder, array: str, shards: Shards, owned: Box | None = None) -> None:
        self._folder = folder
        self._path = array
        self._array = folder.open_array(array)
        self._all_shards = shards
        self._shards = Shards(owned or shards.box, shards.shape_zyx)
        self._gathered: dict[Box, np.ndarray] = {}
        self._missing: dict[Box, int] = {}  # voxels of each of them that have not come, if none came twice
        self._saved: set[Box] = set()
        self.box = self._shards.box

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

    @property
    def _dtype(self) -> np.dtype:
        return np.dtype(self._array.dtype.numpy_dtype)

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
                self._folder.delete(f"{self._path}/{self._all_shards.key(shard)}")
            self._at(shard).write(np.ascontiguousarray(voxels, self._dtype)).result()
        self._saved.add(shard)

    def _at(self, shard: Box) -> ts.TensorStore:
        return self._array[shard.slices(self._all_shards.box.start)]
