"""Images that stay where they are: a store ``NAME.zarr`` without voxels says which box of which source it is."""

from __future__ import annotations

import hashlib
import math
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ffn.errors import VolumeError
from ffn.geometry import ZYX, Box, zyx
from ffn.io.store_names import MAIN, METADATA, OURS
from ffn.io.volume import Placement, Volume

if TYPE_CHECKING:
    from ffn.io.coarser import Placed
    from ffn.io.foreign.chunked import ChunkedVolume

REFERENCE = "reference"  # key among our attributes
SIDE = 64  # voxels; what is read of an image at a time is seldom smaller
MOST_DECODED_BYTES = 2**24  # of the chunks that hold such a cube, as chunks are decoded as a whole; our choice


class Reference(Volume):
    """A part of a volume elsewhere, opened when it is first read."""

    def __init__(self, name: str, ours: dict[str, Any]) -> None:
        self._found = found = ours[REFERENCE]
        super().__init__(name, Box.parse(ours["box"]), np.dtype(found["dtype"]), tuple(found["voxel_size_zyx_nm"]))
        self.chunk_zyx, self.provenance = zyx(found["chunk_zyx"]), ours["provenance"]

    def _read(self, box: Box) -> np.ndarray:
        return self._source.read(box.shift(self._to_source)).astype(self.dtype, copy=False)

    @property
    def _to_source(self) -> ZYX:
        return zyx(self._found["to_source_zyx"])

    @cached_property
    def _source(self) -> ChunkedVolume:
        from ffn.io.foreign.chunked import ChunkedVolume

        try:
            source, part = ChunkedVolume(self._found["source"], self._found["mip"]), self.box.shift(self._to_source)
        except VolumeError as reason:
            raise VolumeError(f"{self.name}: refers to a volume that cannot be opened: {reason}") from None
        if source.dtype.name != self.dtype.name or not source.box.contains(part):
            raise VolumeError(
                f"{self.name}: refers to {source.name}, which holds {source.dtype.name} in {source.box}, expected "
                f"{self.dtype.name} in {part} as before. Delete {self.name} and rerun ingest"
            )
        return source


def open_reference(store: str) -> Reference | None:
    """Open the source that a store on this machine refers to; None if it has voxels of its own, or is not a store."""
    from ffn.io.foreign.locations import Location, new_context, open_folder
    from ffn.io.ome_zarr import our_attributes

    location = Location.parse(store)
    if location.path is None or not (location.path / METADATA).is_file():
        return None
    ours = our_attributes(open_folder(location, new_context()))
    return Reference(store, ours) if REFERENCE in ours else None


def is_reference(store: str) -> bool:
    """Whether a store on this machine has no voxels of its own."""
    return Path(store).is_dir() and open_reference(store) is not None


def can_stay(volume: Volume, copy_image: str, clahe_tile: int | None) -> bool:
    """Whether an image can be read where it is as fast as from a copy: small chunks in a folder on this machine."""
    is_changed = clahe_tile is not None or volume.dtype.kind == "i"
    if copy_image == "always" or is_changed or volume.folder is None or volume.chunk_zyx is None:
        return False
    return math.prod(-(-SIDE // n) * n for n in volume.chunk_zyx) * volume.dtype.itemsize <= MOST_DECODED_BYTES


def has_copy(store: str) -> bool:
    """Whether a store on this machine has voxels of its own, finished or not: a copy stays a copy."""
    return Path(store, MAIN).is_dir()


def write_reference(path: str, placed: Placed, content: str, placement: Placement) -> None:
    """Write a store that refers to the source of a volume."""
    from ffn.io.ome_zarr import encode, group_metadata
    from ffn.io.store import new_folder, require_replaceable

    source = cast("ChunkedVolume", placed.source)
    found = {
        "source": source.address,
        "mip": source.mip,
        "chunk_zyx": source.chunk_zyx,
        "to_source_zyx": placed.to_source_zyx,
        "voxel_size_zyx_nm": placement.voxel_size_zyx_nm,
        "dtype": source.dtype.name,
    }
    ours = {
        "provenance": placement.provenance,
        "box": str(placement.box),
        "content": hashlib.sha256(repr([str(placement.box), found, content]).encode()).hexdigest(),
        "volumes": [MAIN],
        "tables": [],
        REFERENCE: found,
    }
    require_replaceable(path, {MAIN})
    with new_folder(path) as folder:
        folder.write(METADATA, encode(group_metadata({OURS: ours})))
