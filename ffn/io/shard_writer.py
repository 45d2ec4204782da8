"""Write voxels to the shards of one array, each shard once."""

from __future__ import annotations

import mmap

import numpy as np
import tensorstore as ts

from ffn.errors import VolumeError
from ffn.geometry import Box
from ffn.io.scratch import scratch_array
from ffn.io.shards import Shards
from ffn.io.store_folder import StoreFolder

GATHERED_BYTES = 2**29  # of shards in memory that are not full yet; our choice


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
            raise VolumeError(
                f"{self._folder.place}: block {box} is not inside of {self.box}, the shards of this writer"
            )
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
