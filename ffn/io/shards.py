"""How the volumes of a store are cut into shards: a shard is one file, written by one job."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ffn.geometry import ZYX, Box, divide_up, zyx

CHUNK = 64  # voxels along an axis that are compressed together, and read at least
MAX_SHARD = 512  # voxels along an axis
MAX_SHARD_BYTES = 2**27  # uncompressed: 512³ of uint8, 256³ of uint64; a job holds a few; our choice


def shard_shape(shape_zyx: ZYX, itemsize: int, max_bytes: int | None = None) -> ZYX:
    """Choose the shape of the shards of a volume.

    Examples
    --------
    >>> shard_shape((2000, 2000, 2000), 8), shard_shape((10, 100, 2000), 1)
    ((256, 256, 256), (10, 128, 512))
    """
    chunk = chunk_shape(shape_zyx)
    shard = [min(MAX_SHARD, -(-n // c) * c) for n, c in zip(shape_zyx, chunk, strict=True)]
    while shard[0] * shard[1] * shard[2] * itemsize > (max_bytes or MAX_SHARD_BYTES):
        longest = shard.index(max(shard))
        if shard[longest] <= CHUNK:
            break
        shard[longest] = next(n for n in (256, 128, CHUNK) if n < shard[longest])
    return zyx(shard)


def chunk_shape(shape_zyx: ZYX) -> ZYX:
    """Return the shape of the chunks in a shard."""
    return zyx(min(n, CHUNK) for n in shape_zyx)


@dataclass(frozen=True)
class Shards:
    """The shards of a volume, counted from its first voxel.

    Examples
    --------
    >>> shards = Shards(Box((1, 0, 0), (9, 4, 4)), (4, 4, 4))
    >>> [str(box) for box in shards.boxes()], shards.key(Box((5, 0, 0), (9, 4, 4)))
    (['1:5,0:4,0:4', '5:9,0:4,0:4'], 'c/1/0/0')
    """

    box: Box
    shape_zyx: ZYX

    @property
    def number(self) -> int:
        """How many there are."""
        return math.prod(divide_up(self.box.shape, self.shape_zyx))

    def boxes(self) -> list[Box]:
        """Return the voxels of each shard, in zyx order."""
        return list(self.box.blocks(self.shape_zyx))

    def layers(self) -> list[Box]:
        """Return the voxels of each layer of shards, which are those with the same z."""
        return list(self.box.blocks((self.shape_zyx[0], *self.box.shape[1:])))

    def touched_by(self, box: Box) -> Iterator[Box]:
        """Yield the voxels of each shard that has voxels in `box`."""
        places = zip(box.start, box.stop, self.box.start, self.shape_zyx, strict=True)
        starts = [origin + (start - origin) // n * n for start, _, origin, n in places]
        for corner in Box(zyx(starts), box.stop).blocks(self.shape_zyx):
            yield Box.from_shape(self.shape_zyx, corner.start).intersect(self.box)

    def key(self, shard: Box) -> str:
        """Return the name of a shard's file in the folder of the array."""
        numbers = zip(shard.start, self.box.start, self.shape_zyx, strict=True)
        return "/".join(["c", *(str((start - origin) // n) for start, origin, n in numbers)])
