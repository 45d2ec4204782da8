"""Images that stay where they are: a store ``NAME.zarr`` without voxels says which box of which source it is."""

from __future__ import annotations

import hashlib
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ffn.errors import VolumeError
from ffn.geometry import Box, subtract
from ffn.io.store_names import MAIN, METADATA, OURS
from ffn.io.volume import Placement, Volume

if TYPE_CHECKING:
    from ffn.io.coarser import Placed
    from ffn.io.config import SourceConfig
    from ffn.io.foreign.chunked import ChunkedVolume

REFERENCE = "reference"  # key among our attributes
RELATIVE = "from_store"  # path of the source from the store, so that a project can be moved
SIDE = 64  # voxels; what is read of an image at a time is seldom smaller
MOST_DECODED_BYTES = 2**24  # of the chunks that hold such a cube, as chunks are decoded as a whole; our choice


def open_reference(store: str) -> Volume | None:
    """Open the part of a volume that a store on this machine refers to; None if it has voxels of its own."""
    ours = _reference(store)
    if ours is None:
        return None
    from ffn.io.coarser import Placed
    from ffn.io.foreign.chunked import ChunkedVolume

    found, box = ours[REFERENCE], Box.parse(ours["box"])
    try:
        source = ChunkedVolume(_address(store, found), found["mip"])
    except VolumeError as reason:
        raise VolumeError(f"{store}: refers to a volume that cannot be opened: {reason}") from None
    volume = Placed(source, subtract(source.box.start, found["to_source_zyx"]), tuple(found["voxel_size_zyx_nm"]))
    if source.dtype.name != found["dtype"] or not volume.box.contains(box):
        before = f"expected {found['dtype']} in {box} as before. Delete {store} and rerun ingest"
        raise VolumeError(f"{store}: refers to {source.name}, {source.dtype.name} in {volume.box}, {before}")
    volume.name, volume.box, volume.provenance = store, box, ours["provenance"]
    return volume


def _address(store: str, found: dict[str, Any]) -> str:
    """Return where a source is; one whose path was relative is first sought at the same place from the store."""
    from ffn.io.foreign.locations import Location

    address: str = found["source"]
    here, written = Location.parse(store).path, Location.parse(address).path
    path = os.path.normpath(f"{here}/{found[RELATIVE]}") if RELATIVE in found else ""
    return address.replace(str(written), path) if os.path.isdir(path) else address


def is_reference(store: str) -> bool:
    """Whether a store on this machine has no voxels of its own."""
    return Path(store).is_dir() and _reference(store) is not None


def _reference(store: str) -> dict[str, Any] | None:
    from ffn.io.foreign.locations import Location, open_folder
    from ffn.io.ome_zarr import our_attributes

    location = Location.parse(store)
    if location.path is None or not (location.path / METADATA).is_file():
        return None
    ours = our_attributes(open_folder(store))
    return ours if REFERENCE in ours else None


def can_stay(volume: Volume, config: SourceConfig) -> bool:
    """Whether an image can be read where it is as fast as from a copy: small chunks in a folder on this machine."""
    is_changed = config.clahe_tile is not None or config.level_sections == "always" or volume.dtype.kind == "i"
    if config.copy_image == "always" or is_changed or volume.folder is None or volume.chunk_zyx is None:
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
    moves = {RELATIVE: os.path.relpath(str(source.folder), os.path.abspath(path))} if source.is_relative else {}
    ours = {
        "provenance": placement.provenance,
        "box": str(placement.box),
        "content": hashlib.sha256(repr([str(placement.box), found, content]).encode()).hexdigest(),
        "volumes": [MAIN],
        "tables": [],
        REFERENCE: found | moves,
    }
    require_replaceable(path, {MAIN})
    with new_folder(path) as folder:
        folder.write(METADATA, encode(group_metadata({OURS: ours})))
