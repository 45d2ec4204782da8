"""Volumes that tests read: stores, and HDF5 files as other programs write them."""

import contextlib
import json

from ffn.io import hdf5, store
from ffn.io.open import open_volume, read_table
from ffn.io.store_names import MAIN, METADATA, OURS
from ffn.io.volume import split_spec, volume_in


@contextlib.contextmanager
def create_volumes(path, dtypes, placement, tables=None):
    """Create a store or an HDF5 file of volumes with one placement."""
    if str(path).endswith(".zarr"):
        with store.create_volumes(path, dtypes, placement, tables) as writers:
            yield writers
        return
    with hdf5.create_file(path) as file:
        for name, table in (tables or {}).items():
            file.create_dataset(name, data=table)
        yield {name: hdf5.create_dataset(file, name, dtype, placement) for name, dtype in dtypes.items()}


@contextlib.contextmanager
def create_volume(spec, dtype, placement, tables=None):
    """Create ``NAME.zarr`` or ``FILE.h5:DATASET``."""
    path, name = split_spec(str(spec))
    with create_volumes(path, {name or MAIN: dtype}, placement, tables) as writers:
        yield writers[name or MAIN]


def write_volume(spec, voxels, placement, tables=None):
    """Write ``NAME.zarr`` or ``FILE.h5:DATASET`` at once; return the specification."""
    with create_volume(spec, voxels.dtype, placement, tables) as writer:
        writer.write(placement.box, voxels)
    return str(spec)


def contents(path, main=MAIN):
    """Return all volumes and tables of a store by their names; its own volume is called `main`."""
    ours = json.loads((path / METADATA).read_text())["attributes"][OURS]
    found = {name: read_table(str(path), name) for name in ours["tables"]}
    for name in ours["volumes"]:
        with open_volume(volume_in(str(path), name)) as volume:
            found[main if name == MAIN else name] = volume.read()
    return found


def multiscale(sizes_nm, axes="zyx"):
    """Return the description of an OME-Zarr image from the voxel sizes of its arrays, by their paths."""
    datasets = [
        {"path": path, "coordinateTransformations": [{"type": "scale", "scale": [*size]}]}
        for path, size in sizes_nm.items()
    ]
    return {"axes": [{"name": name, "type": "space", "unit": "nanometer"} for name in axes], "datasets": datasets}
