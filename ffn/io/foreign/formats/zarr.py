"""OME-Zarr, zarr, N5 and Neuroglancer precomputed: what TensorStore opens.

Zarr arrays are taken as z, y, x (the field's convention) unless their dimensions are named, N5 and precomputed as
x, y, z. Other axes, such as channel and time, are dropped where their length is 1. A group is an image with several
mips, if its metadata say so.
"""

from __future__ import annotations

from pathlib import Path

from ffn.io.volume import Volume

TITLE = "OME-Zarr, zarr, N5, Neuroglancer precomputed (folder or URL)"
MARKERS = ("info", ".zarray", ".zgroup", "zarr.json", "attributes.json")
SUFFIXES = (".zarr", ".n5", ".precomputed")


def recognises(spec: str) -> bool:
    """Whether `spec` is a URL or a folder in one of these formats."""
    path = Path(spec)
    in_container = any(folder.suffix.lower() in SUFFIXES for folder in (path, *path.parents))  # N5 groups may be bare
    is_ours = in_container or any((path / marker).exists() for marker in MARKERS)
    return "://" in spec or (path.is_dir() and is_ours)


def open_volume(spec: str) -> Volume:
    """Open an array, or an image at full resolution; `ffn.io.foreign.locations.Location.parse` says what `spec` is."""
    from ffn.io.foreign.chunked import ChunkedVolume

    return ChunkedVolume(spec)
