"""Read OME-Zarr, zarr, N5 and Neuroglancer precomputed with TensorStore, from folders or URLs."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore as ts

from ffn.errors import VolumeError
from ffn.geometry import ZYX, Box, VoxelSize, subtract
from ffn.io.foreign.attributes import SpatialAxes, to_nm
from ffn.io.foreign.locations import Location, first_line, open_folder
from ffn.io.foreign.mips import PRECOMPUTED, Mip, driver_of, find_mips
from ffn.io.ome_zarr import our_attributes
from ffn.io.store_names import CHUNKED_FILES
from ffn.io.volume import Volume, number_type

XYZ_DRIVERS = ("n5", PRECOMPUTED)
COMPRESSED = (".gz", ".br", ".zstd", ".bz2", ".xz")  # suffixes that cloud-volume adds to the names of chunks


class ChunkedVolume(Volume):
    """An array, or one mip of an image, that TensorStore can open.

    Attributes
    ----------
    address : str
        Opens it from any folder.
    mip : int
        Level of resolution of the image, 0 is the full one.
    """

    def __init__(self, spec: str, mip: int = 0) -> None:
        name = f"{spec} (mip {mip})" if mip else spec
        self.mip = mip
        self._location = Location.parse(spec)
        self._folder = open_folder(self._location)
        ours = our_attributes(self._folder)
        mips = find_mips(self._folder, name)
        chosen = mips[mip]
        self._store = store = self._open(name, chosen.path, mip, is_whole=bool(ours))
        driver = store.spec().to_json()["driver"]
        _refuse_compressed_files(store.spec().to_json())
        order = "xyz" if driver in XYZ_DRIVERS else "zyx"
        self._axes = SpatialAxes.find(name, store.shape, chosen.names or store.domain.labels, order)
        start, misplaced = _place(chosen, name)
        box = Box.from_shape(self._axes.of(store.shape), start)
        size = chosen.voxel_size_zyx_nm or self._voxel_size_by_units()
        super().__init__(name, box, number_type(name, np.dtype(store.dtype.numpy_dtype)), size)
        self.misplaced = misplaced
        self.folder, self.address = self._location.path, self._location.absolute
        self.chunk_zyx = self._axes.of(store.chunk_layout.read_chunk_template.shape)
        self.provenance = ours.get("provenance", {})
        self.mips = [each.voxel_size_zyx_nm for each in mips]

    def at_mip(self, mip: int) -> ChunkedVolume:
        """Return a mip of the image, of which 0 is the finest."""
        return ChunkedVolume(self._location.spec, mip) if mip else self

    def _read(self, box: Box) -> np.ndarray:
        to_array = subtract(self._axes.of(self._store.domain.inclusive_min), self.box.start)
        try:
            return self._axes.take(self._store, box.shift(to_array).slices()).read(order="C").result()
        except (ValueError, OSError) as error:
            raise VolumeError(
                f"{self.name}: box {box} cannot be read ({first_line(error)}), expected whole chunks. Restore it"
            ) from None

    def _open(self, name: str, path: str, mip: int, is_whole: bool) -> ts.TensorStore:
        folder = self._folder.below(path) if path else self._folder
        driver = driver_of(folder) if self._location.driver == "auto" else self._location.driver
        spec: dict[str, Any] = {"driver": driver, "kvstore": folder.spec}
        if driver == PRECOMPUTED:
            spec["scale_index"] = mip
        if is_whole:  # then a shard that is missing was lost
            spec["fill_missing_data_reads"] = False
        attributes = folder.json("attributes.json") if driver == "n5" else {}
        if attributes.get("isLabelMultiset"):
            raise VolumeError(f"{name}: is a label multiset. Convert it: paintera-convert to-scalar")
        given = _n5_metadata(attributes)
        if given:
            spec["metadata"] = given
        try:
            return ts.open(spec, read=True, open=True, assume_metadata=bool(given), context=folder.context).result()
        except (ValueError, OSError) as error:
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
