"""Stores between stages in Neuroglancer: it reads them as they are, so they need no export."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ffn.errors import ExportError
from ffn.io.open import open_volume
from ffn.io.reference import is_reference
from ffn.io.store_names import MAIN, split_store
from ffn.io.volume import Volume, voxel_size_of
from ffn.viewing.state import BASE, State, make_state
from ffn.viewing.volumes import Part, contrast

LARGEST_IMAGE_TYPE = 2  # bytes of an integer; wider ones are labels


def stores_state(specs: Sequence[str], segments: Sequence[int] = ()) -> tuple[Path, State]:
    """Return a folder, and a state that shows the stores in it once the folder is served.

    Parameters
    ----------
    specs : sequence of str
        ``NAME.zarr`` or ``NAME.zarr/VOLUME`` on this machine; the last one is looked at, and drawn on top.
    segments : sequence of int
        Ids to select in the labels; none shows all.

    Raises
    ------
    VolumeError
        If a store cannot be opened.
    ExportError
        If a store is not on this machine, or has no voxels of its own.
    """
    places = [_place(spec) for spec in specs]
    folder = Path(os.path.commonpath([place.parent for place in places]))
    layers = []
    for spec, place in zip(specs, places, strict=True):
        with open_volume(spec) as volume:
            layers.append(_layer(volume, place.relative_to(folder).as_posix(), segments))
            box, size = volume.box, voxel_size_of(volume)
    return folder, {**make_state(layers, box, size), "showSlices": True}


def _place(spec: str) -> Path:
    found = split_store(spec)
    assert found is not None, spec
    store, volume = found
    if "://" in store:
        raise ExportError(
            f"{spec}: is not on this machine, expected NAME.zarr. Give its address to Neuroglancer itself"
        )
    if is_reference(store):
        raise ExportError(
            f"{spec}: refers to an image that stays where it is, expected a store with voxels. Show the whole run, or "
            "bring the image in with copy_image: always"
        )
    place = Path(store).resolve()  # the server leaves its folder neither by links nor by ".."
    return place / ("" if volume == MAIN else volume)


def _layer(volume: Volume, path: str, segments: Sequence[int]) -> State:
    layer: State = {"name": path.replace(".zarr", ""), "source": f"zarr://{BASE}/{path}/"}
    if volume.dtype.kind in "iu" and np.dtype(volume.dtype).itemsize > LARGEST_IMAGE_TYPE:
        return {**layer, "type": "segmentation", "segments": list(map(str, segments)), "selectedAlpha": 0.4}
    levels = contrast(Part("image", volume, volume.box, voxel_size_of(volume)))
    return {**layer, "type": "image", "shaderControls": {"normalized": {"range": list(levels)}}}
