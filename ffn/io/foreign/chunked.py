"""Read zarr, N5 and Neuroglancer precomputed with TensorStore, from folders or URLs."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore as ts

from ffn.errors import VolumeError
from ffn.geometry import ZYX, Box, VoxelSize, add, subtract, zyx
from ffn.io.foreign.units import to_nm, voxel_size_and_offset
from ffn.io.volume import require_inside

DRIVERS = {
    "zarr": "auto",  # version 2 or 3
    "zarr2": "zarr",
    "zarr3": "zarr3",
    "n5": "n5",
    "precomputed": "neuroglancer_precomputed",
}
XYZ_DRIVERS = ("n5", "neuroglancer_precomputed")
CONTEXT = {
    # so that blocks that share a chunk fetch it once
    "cache_pool": {"total_bytes_limit": 256 * 2**20},
    # with TensorStore's default of 32, a wrong address takes many minutes to fail
    "http_request_retries": {"max_retries": 4},
}


class ChunkedVolume:
    """An array that TensorStore can open; see `ffn.io.volume.Volume` for the attributes.

    Parameters
    ----------
    spec : str
        Folder or URL; ``zarr://``, ``n5://`` or ``precomputed://`` may precede it. Of a precomputed volume, mip 0 is
        read.

    Raises
    ------
    VolumeError
        If it cannot be opened, is not one 3D array, or would be read as zeros.
    """

    def __init__(self, spec: str) -> None:
        self.name = spec
        self._context = ts.Context(CONTEXT)
        store = self._open(spec)
        driver = store.spec().to_json()["driver"]
        self._refuse_gzipped_chunks(store)
        self._array = _as_zyx(store, driver, spec)
        self.dtype = np.dtype(self._array.dtype.numpy_dtype)
        self.provenance: dict = {}
        start, self.voxel_size_zyx_nm = self._offset_and_voxel_size(store)
        self.box = Box.from_shape(zyx(self._array.shape), start)

    def read(self, box: Box | None = None) -> np.ndarray:
        """Return the voxels of `box` (default: all), fetching only the chunks that it touches.

        Raises
        ------
        VolumeError
            If `box` reaches outside the volume or a chunk cannot be read.
        """
        box = self.box if box is None else box
        require_inside(self, box)
        to_array = subtract(zyx(self._array.domain.inclusive_min), self.box.start)
        try:
            return self._array[box.shift(to_array).slices()].read(order="C").result()
        except (ValueError, OSError) as error:
            raise VolumeError(
                f"{self.name}: box {box} cannot be read ({_first_line(error)}), expected whole chunks. Restore it"
            ) from None

    def close(self) -> None:
        """Do nothing: TensorStore keeps no file open."""

    def _open(self, spec: str) -> ts.TensorStore:
        prefix, separator, rest = spec.partition("://")
        driver, address = (DRIVERS[prefix], rest) if separator and prefix in DRIVERS else ("auto", spec)
        kvstore: Any = address if "://" in address else {"driver": "file", "path": f"{Path(address).absolute()}/"}
        try:
            return ts.open({"driver": driver, "kvstore": kvstore}, read=True, context=self._context).result()
        except (ValueError, OSError) as error:
            raise VolumeError(
                f"{spec}: cannot be opened ({_first_line(error)}), "
                f"expected one array of zarr, N5 or precomputed. {_advice(address)}"
            ) from None

    def _offset_and_voxel_size(self, store: ts.TensorStore) -> tuple[ZYX, VoxelSize | None]:
        """Offset in voxels and voxel size, from the format or from attributes."""
        start = zyx(self._array.domain.inclusive_min)
        units = [unit for unit in self._array.dimension_units if unit is not None]
        if len(units) == 3:
            return start, to_nm([unit.multiplier for unit in units], [unit.base_unit for unit in units])
        assert store.kvstore is not None  # all of DRIVERS have one
        size, offset = voxel_size_and_offset(_attributes(store.kvstore), self.name)
        return add(start, offset), size or _ome_voxel_size(store.kvstore)

    def _refuse_gzipped_chunks(self, store: ts.TensorStore) -> None:
        """Refuse precomputed chunks in ``.gz`` files: TensorStore does not find them and returns zeros."""
        spec = store.spec().to_json()
        if spec["driver"] != "neuroglancer_precomputed" or spec["kvstore"]["driver"] != "file":
            return
        folder = Path(spec["kvstore"]["path"]) / spec["scale_metadata"]["key"]
        files = itertools.islice(folder.iterdir(), 100) if folder.is_dir() else ()
        zipped = next((file for file in files if file.suffix == ".gz"), None)
        if zipped is not None:
            raise VolumeError(
                f"{zipped}: is a gzipped chunk, expected plain chunks, or the volume would read as zeros. "
                f"Unpack a copy: gunzip -r {folder}"
            )


def _as_zyx(store: ts.TensorStore, driver: str, name: str) -> ts.TensorStore:
    """Put the spatial axes in the order zyx and drop all others, which must have length 1."""
    spatial = _spatial_axes(store, driver)
    others = [axis for axis in range(store.ndim) if axis not in spatial]
    if not spatial or any(store.shape[axis] != 1 for axis in others):
        raise VolumeError(
            f"{name}: has shape {store.shape}, expected three axes and one channel. Save one channel alone"
        )
    only = tuple(store.domain.inclusive_min[axis] for axis in others)
    array = store[ts.d[others][only]] if others else store
    kept = sorted(spatial)
    return array.transpose([kept.index(axis) for axis in spatial])


def _spatial_axes(store: ts.TensorStore, driver: str) -> list[int]:
    """Return the indices of z, y and x, by the names of the axes or by the format; empty if there are too few axes."""
    labels = [label.lower() for label in store.domain.labels]
    if {"z", "y", "x"} <= set(labels):
        return [labels.index(axis) for axis in "zyx"]
    if store.ndim < 3:
        return []
    return [2, 1, 0] if driver in XYZ_DRIVERS else [store.ndim - 3, store.ndim - 2, store.ndim - 1]


def _attributes(folder: ts.KvStore) -> dict[str, Any]:
    """User attributes of a zarr array or group; empty if it has none."""
    version_2, version_3 = _read_json(folder, ".zattrs"), _read_json(folder, "zarr.json")
    attributes = version_2 or version_3.get("attributes", {})
    return attributes if isinstance(attributes, dict) else {}


def _ome_voxel_size(folder: ts.KvStore) -> VoxelSize | None:
    """Voxel size from the OME-Zarr group that holds the array, None if it declares none."""
    parent, _, name = folder.path.rstrip("/").rpartition("/")
    group = folder.copy()
    group.path = parent + "/"
    attributes = _attributes(group)
    try:
        (multiscale,) = attributes.get("ome", attributes)["multiscales"]
        (dataset,) = (d for d in multiscale["datasets"] if d["path"] == name)
        (sizes,) = (t["scale"] for t in dataset["coordinateTransformations"] if t["type"] == "scale")
        return to_nm(sizes[-3:], [axis.get("unit", "unknown") for axis in multiscale["axes"][-3:]])
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _read_json(folder: ts.KvStore, name: str) -> dict[str, Any]:
    try:
        content = json.loads(folder.read(name).result().value or b"{}")
    except (ValueError, OSError):
        return {}
    return content if isinstance(content, dict) else {}


def _advice(address: str) -> str:
    """Return the next step: if the folder is a group, name one of its arrays."""
    markers = (".zarray", "zarr.json", "attributes.json", "info")
    found = sorted({path.parent.name for marker in markers for path in Path(address).glob(f"*/{marker}")})
    return f"Name one of those inside: {', '.join(found[:5])}" if found else "Check path and format"


def _first_line(error: Exception) -> str:
    """Return TensorStore's message without its dump of the spec."""
    return " ".join(str(error).partition(" [tensorstore_spec=")[0].split())
