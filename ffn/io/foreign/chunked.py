"""Read OME-Zarr, zarr, N5 and Neuroglancer precomputed with TensorStore, from folders or URLs."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import operator
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore as ts

from ffn.errors import VolumeError
from ffn.geometry import ZYX, Box, VoxelSize, add, subtract, zyx
from ffn.io.foreign.absent import ChunkNames, names_in, write_chunk
from ffn.io.foreign.attributes import SpatialAxes, to_nm
from ffn.io.foreign.locations import Folder, Location, first_line, open_folder
from ffn.io.foreign.mips import PRECOMPUTED, Mip, driver_of, find_mips
from ffn.io.ome_zarr import our_attributes
from ffn.io.store_names import CHUNKED_FILES
from ffn.io.volume import Volume, number_type
from ffn.machine.limits import memory_mb

log = logging.getLogger(__name__)

XYZ_DRIVERS = ("n5", PRECOMPUTED)
CODECS = "raw bytes transpose zlib gzip bz2 bzip2 xz blosc zstd crc32c sharding_indexed".split()  # of TensorStore
MOST_LISTED = 10**4  # chunks, that every job may list, within a second or so of a slow disk; our choice
_LISTED: set[tuple[str, int]] = set()  # volumes whose chunks this process has listed
COMPRESSED = (".gz", ".br", ".zstd", ".bz2", ".xz")  # suffixes that cloud-volume adds to the names of chunks


class ChunkedVolume(Volume):
    """An array, or one mip of an image, that TensorStore can open.

    Attributes
    ----------
    address : str
        Opens it from any folder.
    is_relative : bool
        Whether the path of a folder on this machine was relative.
    mip : int
        Level of resolution of the image, 0 is the full one.
    lost : VolumeError or None
        Why mip 0 cannot be opened, in the volume that is open instead.
    """

    lost: VolumeError | None = None

    def __init__(self, spec: str, mip: int = 0) -> None:
        name = f"{spec} (mip {mip})" if mip else spec
        self.mip = mip
        self._location = Location.parse(spec)
        self._folder = open_folder(self._location)
        ours = our_attributes(self._folder)
        mips = find_mips(self._folder, name)
        chosen = mips[mip]
        self._is_whole = bool(ours)  # then a shard that is missing was lost, which is an error
        self._store, self._chunks = self._open(name, chosen.path, mip)
        store = self._store
        driver = store.spec().to_json()["driver"]
        _refuse_compressed_files(store.spec().to_json())
        _refuse_large_chunks(name, store, driver)
        order = "xyz" if driver in XYZ_DRIVERS else "zyx"
        self._axes = SpatialAxes.find(name, store.shape, chosen.names or store.domain.labels, order)
        start, misplaced = _place(chosen, name)
        box = Box.from_shape(self._axes.of(store.shape), start)
        size = chosen.voxel_size_zyx_nm or self._voxel_size_by_units()
        super().__init__(name, box, number_type(name, np.dtype(store.dtype.numpy_dtype)), size)
        self.misplaced, self.unknown_unit = misplaced, chosen.unknown_unit
        self.folder, self.address = self._location.path, self._location.absolute
        self.is_relative = not os.path.isabs(self._location.address.removeprefix("file://"))
        self.chunk_zyx = self._axes.of(store.chunk_layout.read_chunk_template.shape)
        self.provenance = ours.get("provenance", {})
        self.mips = [each.voxel_size_zyx_nm for each in mips]

    def at_mip(self, mip: int) -> ChunkedVolume:
        """Return a mip of the image, of which 0 is the finest."""
        if self.lost and not mip:
            raise self.lost
        return ChunkedVolume(self._location.spec, mip) if mip else self

    def require_data(self) -> None:
        """Refuse an array without chunks on this machine, and warn once of missing ones, unless they are many."""
        if self.lost:
            raise self.lost
        if self.folder is None or self._is_whole:
            return
        if not self._chunks.exist():
            there = next(names_in(self._chunks.folder), "")
            found = f"has no chunk in {self._chunks.folder.address}" + (f", but files such as {there}" if there else "")
            other = next((mip for mip in range(len(self.mips)) if mip != self.mip and self._has_chunks(mip)), None)
            advice = "Restore them" if other is None else _advice_of(other, self.mips[other])
            raise VolumeError(f"{self.name}: mip {self.mip} {found}, expected some, or every voxel is 0. {advice}")
        if math.prod(map(operator.floordiv, self._store.shape, write_chunk(self._store))) <= MOST_LISTED:
            self.warn_of_missing()

    def _has_chunks(self, mip: int) -> bool:
        with contextlib.suppress(VolumeError):
            return ChunkedVolume(self._location.spec, mip)._chunks.exist()
        return False

    def warn_of_missing(self) -> None:
        """Warn once of chunks that are missing on this machine."""
        if self.folder is None or self._is_whole or (self.address, self.mip) in _LISTED:
            return
        _LISTED.add((self.address, self.mip))
        missing = self._chunks.missing(self._store)
        if missing is None or not missing.any():
            return
        side = self._axes.of(write_chunk(self._store))
        places = [np.flatnonzero(missing.any(axis=tuple({*range(missing.ndim)} - {axis}))) for axis in self._axes.zyx]
        first = add(self.box.start, zyx(n * each[0] for n, each in zip(side, places, strict=True)))
        last = add(self.box.start, zyx(n * (each[-1] + 1) for n, each in zip(side, places, strict=True)))
        log.warning(
            "%s: %d of %d chunks (%.0f %%) are missing, all within %s, and read as the fill value. Restore them, "
            "unless the program that wrote the volume leaves out what is empty",
            *(self.name, missing.sum(), missing.size, 100 * missing.mean(), Box(first, last).intersect(self.box)),
        )

    def _read(self, box: Box) -> np.ndarray:
        to_array = subtract(self._axes.of(self._store.domain.inclusive_min), self.box.start)
        try:
            request = self._axes.take(self._store, box.shift(to_array).slices()).read(order="C")
            return self._folder.answer(request)
        except (ValueError, OSError) as error:
            raise VolumeError(
                f"{self.name}: box {box} cannot be read ({first_line(error)}), expected whole chunks. Restore it"
            ) from None

    def _open(self, name: str, path: str, mip: int) -> tuple[ts.TensorStore, ChunkNames]:
        folder = self._folder.below(path) if path else self._folder
        driver = driver_of(folder) if self._location.driver == "auto" else self._location.driver
        spec: dict[str, Any] = {"driver": driver, "kvstore": folder.spec}
        if driver == PRECOMPUTED:
            spec["scale_index"] = mip
        if self._is_whole:
            spec["fill_missing_data_reads"] = False
        attributes = folder.json("attributes.json") if driver == "n5" else {}
        if attributes.get("isLabelMultiset"):
            raise VolumeError(f"{name}: is a label multiset. Convert it: paintera-convert to-scalar")
        given = _n5_metadata(attributes)
        if given:
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
        except (ValueError, OSError) as error:
            _refuse_codecs(name, folder)
            raise VolumeError(
                f"{name}: cannot be opened ({first_line(error)}), "
                f"expected one array or image of zarr, N5 or precomputed. {_advice(self._location.path)}"
            ) from None

    def _voxel_size_by_units(self) -> VoxelSize | None:
        """Voxel size by the units of zarr's dimensions, None if there are none."""
        units = [unit for axis in self._axes.zyx if (unit := self._store.dimension_units[axis]) is not None]
        return (
            to_nm([unit.multiplier for unit in units], [unit.base_unit for unit in units]) if len(units) == 3 else None
        )


def _refuse_codecs(name: str, folder: Folder) -> None:
    """Refuse filters and codecs that TensorStore does not know, in an array that it cannot open."""
    v2 = folder.json(".zarray")
    codecs = [
        v2.get("compressor"),
        folder.json("attributes.json").get("compression"),
        *_codecs(folder.json("zarr.json")),
    ]
    names = [
        [str(each.get("id") or each.get("type") or each.get("name")) for each in steps if isinstance(each, dict)]
        for steps in (v2.get("filters") or (), codecs)
    ]
    odd = [*names[0], *(each for each in names[1] if each not in CODECS)]
    if odd:
        raise VolumeError(
            f"{name}: has the filter or codec {', '.join(odd):.100}, expected none or one of {', '.join(CODECS)}. "
            "Write it again without, where it was written"
        )


def _codecs(metadata: dict[str, Any]) -> Iterator[Any]:
    """Yield the codecs of zarr version 3, and those inside shards."""
    for codec in metadata.get("codecs", ()):
        yield codec
        yield from _codecs(codec.get("configuration", {}))


def _refuse_compressed_files(spec: dict[str, Any]) -> None:
    """Refuse precomputed chunks in files that cloud-volume compressed: TensorStore would return zeros."""
    if spec["driver"] != PRECOMPUTED or spec["kvstore"]["driver"] != "file":
        return
    folder = Path(spec["kvstore"]["path"]) / spec["scale_metadata"]["key"]
    files = itertools.islice(folder.iterdir(), 100) if folder.is_dir() else ()
    packed = next((file for file in files if file.suffix in COMPRESSED), None)
    if packed is not None:
        raise VolumeError(
            f"{packed}: is a compressed file, expected plain chunks, or the volume would read as zeros. "
            f"Unpack a copy, with gunzip -r {folder} if it is .gz"
        )


def _refuse_large_chunks(name: str, store: ts.TensorStore, driver: str) -> None:
    """Refuse chunks larger than the memory, for which TensorStore would end the process."""
    shape = store.chunk_layout.read_chunk_template.shape
    if not driver.startswith("zarr"):  # whose chunks are whole, also where the array is smaller
        shape = tuple(map(min, shape, store.shape))
    megabytes = math.prod(shape) * store.dtype.numpy_dtype.itemsize // 10**6
    if megabytes > (limit := memory_mb()):
        raise VolumeError(
            f"{name}: has chunks of {megabytes} MB, expected less than the {limit} MB of memory here. Copy it with "
            "smaller chunks, on a machine with more memory"
        )


def open_chunked(spec: str) -> ChunkedVolume:
    """Open the finest mip, or the first that can be opened, whose `lost` says why the finest cannot."""
    try:
        return ChunkedVolume(spec)
    except VolumeError as reason:
        location, mips = Location.parse(spec), list[Mip]()
        with contextlib.suppress(VolumeError):
            mips = find_mips(open_folder(location), spec) if location.path else []
        for mip in range(1, len(mips)):
            with contextlib.suppress(VolumeError):
                volume = ChunkedVolume(spec, mip)
                volume.lost = VolumeError(f"{reason}. But only mip 0 is lost. {_advice_of(mip, volume.mips[mip])}")
                return volume
        raise


def _advice_of(mip: int, size: VoxelSize | None) -> str:
    option = f"--voxel-size {' '.join(f'{side:g}' for side in size)}" if size else f"--mip {mip}"
    return f"Mip {mip} is there: {option}"


def _place(mip: Mip, name: str) -> tuple[ZYX, VolumeError | None]:
    try:
        return mip.start_zyx(name), None
    except VolumeError as reason:
        return (0, 0, 0), reason


def _n5_metadata(attributes: dict[str, Any]) -> dict[str, Any] | None:
    """Return the metadata without Blosc's threads, which z5 and Java write but TensorStore refuses; else None."""
    compression = attributes.get("compression")
    if not isinstance(compression, dict) or "nthreads" not in compression:
        return None
    metadata = {name: attributes[name] for name in ("dimensions", "blockSize", "dataType") if name in attributes}
    return metadata | {"compression": {name: value for name, value in compression.items() if name != "nthreads"}}


def _advice(folder: Path | None) -> str:
    """Return the next step: if the folder is a group, name one of its arrays."""
    found = sorted({path.parent.name for file in CHUNKED_FILES for path in folder.glob(f"*/{file}")}) if folder else []
    return f"Name one of those inside: {', '.join(found[:5])}" if found else "Check path and format"
