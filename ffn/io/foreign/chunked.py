"""Read OME-Zarr, zarr, N5 and Neuroglancer precomputed with TensorStore, from folders or URLs."""

from __future__ import annotations

import contextlib
import logging
import math
import operator
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorstore as ts

from ffn.errors import VolumeError
from ffn.geometry import Box, VoxelSize, subtract, zyx
from ffn.io.atomic import first_line, unreadable
from ffn.io.coarser import Placed
from ffn.io.config import FoundConfig
from ffn.io.foreign.attributes import PRECOMPUTED, Mip, driver_of, find_mips, to_nm
from ffn.io.foreign.locations import METADATA, Folder, Location, open_folder
from ffn.io.shards import our_attributes
from ffn.io.store_names import CHUNKED_FILES, files_in
from ffn.io.volume import SpatialAxes, Volume, number_type
from ffn.machine.limits import memory_mb

log = logging.getLogger(__name__)

XYZ_DRIVERS = ("n5", PRECOMPUTED)
REFERENCE = "reference"  # key among our attributes
RELATIVE = "from_store"  # path of the source from the store, so that a project can be moved
MOST_LISTED = 10**4  # chunks, that every job may list, within a second or so of a slow disk; our choice
_LISTED: set[tuple[str, int]] = set()  # volumes whose chunks this process has listed
PROPERTIES = "segment_properties/info"  # of precomputed, which lists the segments; without any, there are no chunks
FIRST = ("0.0.0", "0/0/0")  # chunks, by either separator
COMPRESSED = (".gz", ".br", ".zstd", ".bz2", ".xz")  # suffixes that cloud-volume adds to the names of chunks


class ChunkedVolume(Volume):
    """An array, or one mip of an image, that TensorStore can open; mip 0 is the full resolution."""

    lost: VolumeError | None = None  # why mip 0 cannot be opened, in the volume that is open instead

    def __init__(self, spec: str, mip: int = 0) -> None:
        name = f"{spec} (mip {mip})" if mip else spec
        self.mip = mip
        self._location = Location.parse(spec)
        self._folder = open_folder(spec)
        ours = our_attributes(self._folder)
        mips = find_mips(self._folder, name)
        chosen = mips[mip]
        self._is_whole = bool(ours)  # then a shard that is missing was lost, which is an error
        self._store, self._chunks = self._open(name, chosen.path)
        store = self._store
        driver = store.spec().to_json()["driver"]
        _refuse_large_chunks(name, store, driver)
        order = "xyz" if driver in XYZ_DRIVERS else "zyx"
        self._axes = SpatialAxes.find(name, store.shape, chosen.names or store.domain.labels, order)
        box = Box.from_shape(self._axes.of(store.shape))
        dtype = number_type(name, np.dtype(store.dtype.numpy_dtype))
        super().__init__(name, box, dtype, chosen.voxel_size_zyx_nm or self._voxel_size_by_units())
        chosen.put(self)
        whole = self._axes.take(store, [slice(None)] * 3)
        self._voxels = whole[ts.d[:].translate_to[self.box.start]]
        self.unknown_unit, self.provenance = chosen.unknown_unit, ours.get("provenance", {})
        self.folder, self.address = self._location.path, self._location.absolute
        self.is_relative = not os.path.isabs(self._location.address.removeprefix("file://"))
        self.chunk_zyx = self._axes.of(store.chunk_layout.read_chunk_template.shape)
        self.mips = [each.voxel_size_zyx_nm for each in mips]

    def at_mip(self, mip: int) -> ChunkedVolume:
        """Return a mip of the image, of which 0 is the finest."""
        if self.lost and not mip:
            raise self.lost
        return ChunkedVolume(self._location.spec, mip) if mip else self

    def require_data(self, config: FoundConfig | None = None) -> None:
        """Refuse an array without chunks on this machine, and warn once of missing ones, unless they are many."""
        if self.lost:
            raise self.lost
        if self.folder is None or self._is_whole:
            return
        if not self._chunks.exist() and self._folder.json(PROPERTIES).get("inline", {}).get("ids") != []:
            folder = self._chunks.folder.address
            there = next(_names_in(self._chunks.folder), "")
            other = _first_there(self._location.spec, (mip for mip in range(len(self.mips)) if mip != self.mip))
            found = f"has no chunk in {folder}" + (f", but files such as {there}" if there else "")
            advice = other._advice() if other else "Restore them"
            if there.endswith(COMPRESSED):
                advice = f"Unpack a copy, with gunzip -r {folder} if it is .gz"
            raise VolumeError(f"{self.name}: mip {self.mip} {found}, expected some, or every voxel is 0. {advice}")
        if math.prod(map(operator.floordiv, self._store.shape, _write_chunk(self._store))) <= MOST_LISTED:
            self.warn_of_missing()

    def warn_of_missing(self) -> None:
        """Warn once of chunks that are missing on this machine."""
        if self.folder is None or self._is_whole or (self.address, self.mip) in _LISTED:
            return
        _LISTED.add((self.address, self.mip))
        missing = self._chunks.missing(self._store)
        if missing is None or not missing.any():
            return
        places, side = np.argwhere(missing), self._axes.of(_write_chunk(self._store))
        ends = (np.multiply(self._axes.of(end), side) for end in (places.min(axis=0), places.max(axis=0) + 1))
        log.warning(
            "%s: %d of %d chunks (%.0f %%) are missing, all within %s, and read as the fill value. Restore them, "
            "unless the program that wrote the volume leaves out what is empty",
            *(self.name, missing.sum(), missing.size, 100 * missing.mean()),
            Box(*map(zyx, ends)).shift(self.box.start).intersect(self.box),
        )

    def _read(self, box: Box) -> np.ndarray:
        with unreadable(f"{self.name}, box {box}", "whole chunks. Restore it"):
            return self._folder.answer(self._voxels[box.slices()].read(order="C"))

    def _voxel_size_by_units(self) -> VoxelSize | None:
        """Voxel size by the units that TensorStore gives dimensions of zarr, None if there are none."""
        units = [unit for axis in self._axes.zyx if (unit := self._store.dimension_units[axis])]
        return to_nm([each.multiplier for each in units], [each.base_unit for each in units]) if units[2:] else None

    def _advice(self) -> str:
        size = self.voxel_size_zyx_nm
        option = f"--voxel-size {' '.join(f'{side:g}' for side in size)}" if size else f"--mip {self.mip}"
        return f"Mip {self.mip} is there: {option}"

    def _open(self, name: str, path: str) -> tuple[ts.TensorStore, ChunkNames]:
        folder = self._folder.below(path) if path else self._folder
        driver = driver_of(folder) if self._location.driver == "auto" else self._location.driver
        spec: dict[str, Any] = {"driver": driver, "kvstore": folder.spec}
        if driver == PRECOMPUTED:
            spec["scale_index"] = self.mip
        if self._is_whole:
            spec["fill_missing_data_reads"] = False
        attributes = folder.json("attributes.json") if driver == "n5" else {}
        if attributes.get("isLabelMultiset"):
            raise VolumeError(f"{name}: is a label multiset. Convert it: paintera-convert to-scalar")
        if given := _n5_metadata(attributes):
            spec["metadata"] = given
        try:
            request = ts.open(spec, read=True, open=True, assume_metadata=bool(given), context=folder.context)
            store = folder.answer(request)
            chunks = ChunkNames.of(store, folder)
            if driver == "zarr" and "dimension_separator" not in folder.json(".zarray") and not chunks.exist():
                nested = ts.open({**spec, "metadata": {"dimension_separator": "/"}}, context=folder.context).result()
                nested_chunks = ChunkNames.of(nested, folder)
                if nested_chunks.exist():
                    log.info("%s: has chunks named 0/0/0, as zarr wrote them before 2.8 without saying so", name)
                    return nested, nested_chunks
            return store, chunks
        except (ValueError, OSError) as reason:
            raise VolumeError(f"{name}: {_why_not(reason, folder)}") from None


def _refuse_large_chunks(name: str, store: ts.TensorStore, driver: str) -> None:
    """Refuse chunks larger than the memory, for which TensorStore would end the process."""
    shape = store.chunk_layout.read_chunk_template.shape
    if not driver.startswith("zarr"):  # whose chunks are whole, also where the array is smaller
        shape = tuple(map(min, shape, store.shape))
    megabytes = math.prod(shape) * store.dtype.numpy_dtype.itemsize // 10**6
    if megabytes > (limit := memory_mb()):
        found = f"{name}: has chunks of {megabytes} MB, expected less than the {limit} MB of memory here"
        raise VolumeError(f"{found}. Copy it with smaller chunks, on a machine with more memory")


def open_chunked(spec: str) -> Volume:
    """Open the finest mip, or the first that can be opened, whose `lost` says why the finest cannot.

    A store of ours may refer to an image that stays where it is.
    """
    if Location.parse(spec).path and (ours := our_attributes(open_folder(spec))) and REFERENCE in ours:
        return _referred(spec, ours)
    try:
        return ChunkedVolume(spec)
    except VolumeError as reason:
        mips = list[Mip]()
        with contextlib.suppress(VolumeError):
            mips = find_mips(open_folder(spec), spec) if Location.parse(spec).path else mips
        other = _first_there(spec, range(1, len(mips)))
        if other is None:
            raise
        other.lost = VolumeError(f"{reason}. But only mip 0 is lost. {other._advice()}")
        return other


def is_reference(store: str) -> bool:
    """Whether a store on this machine has no voxels of its own."""
    return REFERENCE in our_attributes(open_folder(store))


def _referred(store: str, ours: dict[str, Any]) -> Placed:
    """Open the part of a volume that a store refers to."""
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
    address: str = found["source"]
    path = os.path.normpath(Location.parse(store).path / found[RELATIVE]) if RELATIVE in found else ""
    return address.replace(str(Location.parse(address).path), path) if os.path.isdir(path) else address


def _first_there(spec: str, mips: Iterable[int]) -> ChunkedVolume | None:
    """Return the first of some mips that can be opened and has chunks."""
    for mip in mips:
        with contextlib.suppress(VolumeError):
            volume = ChunkedVolume(spec, mip)
            if volume._chunks.exist():
                return volume
    return None


def _why_not(reason: Exception, folder: Folder) -> str:
    """Say why TensorStore cannot open an array, and what to do."""
    if codec := re.search(r'"([^"]+)" is not registered|filters are not supported', str(reason)):
        found = codec[1] or folder.json(".zarray")["filters"]
        expected = "no filter, and a codec such as zstd, gzip or blosc"
        return f"has the filter or codec {found!s:.100}, expected {expected}. Write it again, where it was written"
    path = Location.parse(folder.address).path
    inside = sorted({found.parent.name for file in CHUNKED_FILES for found in path.glob(f"*/{file}")}) if path else []
    advice = f"Name one of those inside: {', '.join(inside[:5])}" if inside else "Check path and format"
    return f"cannot be opened ({first_line(reason)}), expected one array or image of zarr, N5 or precomputed. {advice}"


def _n5_metadata(attributes: dict[str, Any]) -> dict[str, Any] | None:
    """Return the metadata without Blosc's threads, which z5 and Java write but TensorStore refuses; else None."""
    compression = attributes.get("compression")
    if not isinstance(compression, dict) or "nthreads" not in compression:
        return None
    metadata = {name: attributes[name] for name in ("dimensions", "blockSize", "dataType") if name in attributes}
    return metadata | {"compression": {name: value for name, value in compression.items() if name != "nthreads"}}


@dataclass(frozen=True)
class ChunkNames:
    """How the chunks of an array are named."""

    folder: Folder  # where they are
    pattern: re.Pattern[str]  # of names there; with a group for each axis, unless files hold chunks of several places
    size: tuple[int, ...]  # what the groups count in, along the axes of the array

    @classmethod
    def of(cls, store: ts.TensorStore, folder: Folder) -> ChunkNames:
        """Return those of an array that TensorStore has opened at `folder`."""
        spec: dict[str, Any] = store.spec().to_json()
        if "scale_metadata" in spec:
            scale, number = spec["scale_metadata"], r"(-?\d+)--?\d+"
            name = r"[0-9a-f]+\.shard" if scale.get("sharding") else "_".join([number] * 3)
            return cls(folder.below(scale["key"]), re.compile(name), _write_chunk(store)[:3])
        metadata, prefix = spec["metadata"], ""
        encoding = metadata.get("chunk_key_encoding", {})
        separator = encoding.get("configuration", {}).get("separator") or metadata.get("dimension_separator", "/")
        if encoding.get("name") == "default":
            prefix = f"c{separator}"
        name = re.escape(prefix) + re.escape(separator).join([r"(\d+)"] * store.rank)
        return cls(folder, re.compile(name), (1,) * store.rank)

    def exist(self) -> bool:
        """Whether there is one."""
        return any(map(self.pattern.fullmatch, _names_in(self.folder)))

    def missing(self, store: ts.TensorStore) -> np.ndarray | None:
        """Return which chunks are missing, bool, along the axes of the array; None where names do not tell."""
        if not self.pattern.groups:
            return None
        chunk, first = _write_chunk(store), store.domain.inclusive_min
        missing = np.ones([-(-n // side) for n, side in zip(store.shape, chunk, strict=True)], bool)
        for name in _names_in(self.folder):
            if match := self.pattern.fullmatch(name):
                found = zip(map(int, match.groups()), first, self.size, strict=False)
                place = tuple((n - start) // side for n, start, side in found)
                with contextlib.suppress(IndexError):  # of an array that was made smaller
                    missing[place] = False
        return missing


def _write_chunk(store: ts.TensorStore) -> tuple[int, ...]:
    """Return the shape of what a file holds, along the axes of the array."""
    return tuple(int(n or 1) for n in store.chunk_layout.write_chunk.shape or ())


def _names_in(folder: Folder) -> Iterator[str]:
    """Yield the names of files in a folder and those inside; of a store on another machine, those of `FIRST` there."""
    if folder.spec["driver"] == "file":
        path = folder.spec["path"]
        names = (file.removeprefix(path) for file in files_in(path))
        yield from (name for name in names if os.path.basename(name) not in METADATA)
        return
    for name in FIRST:
        with contextlib.suppress(ValueError, OSError):
            if folder.files.read(name).result().state == "value":
                yield name
