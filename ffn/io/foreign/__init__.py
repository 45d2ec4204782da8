"""Volumes in other people's formats: slices, multipage TIFF, zarr, N5, Neuroglancer precomputed.

Axes are zyx whatever the source: zarr arrays are taken as z, y, x (the field's convention) unless their
dimensions are named, N5 and precomputed as x, y, z. Axes of length 1 beside those (channel, time) go.
"""

from __future__ import annotations

from pathlib import Path

from ffn.errors import VolumeError
from ffn.io.volume import Volume

TIFF_SUFFIXES = (".tif", ".tiff")
CHUNKED_MARKERS = ("info", ".zarray", ".zgroup", "zarr.json", "attributes.json")
CHUNKED_SUFFIXES = (".zarr", ".n5", ".precomputed")


def open_source(spec: str) -> Volume:
    """Open a volume that is not HDF5.

    Parameters
    ----------
    spec : str
        A folder or glob of PNG, JPEG or TIFF slices; a multipage TIFF; a folder of zarr, N5 or Neuroglancer
        precomputed; ``zarr://``, ``n5://`` or ``precomputed://`` before a path or URL; or the URL alone.

    Returns
    -------
    Volume
        Reads only what a box needs.

    Raises
    ------
    VolumeError
        If nothing is there, or it cannot be read as one volume.
    """
    path = Path(spec)
    if "://" in spec or _is_chunked(path):
        from ffn.io.foreign.chunked import ChunkedVolume

        return ChunkedVolume(spec)
    from ffn.io.foreign.stacks import ImageStack, TiffVolume, find_slices

    if path.is_file() and path.suffix.lower() in TIFF_SUFFIXES:
        return TiffVolume(path)
    if path.is_file():
        raise VolumeError(
            f"{spec}: is a single file of unknown kind, expected HDF5 (.h5), a multipage TIFF, or slices. "
            "Give the folder of the slices, or a glob in quotes"
        )
    return ImageStack(find_slices(spec), spec)


def _is_chunked(path: Path) -> bool:
    return path.is_dir() and (
        path.suffix.lower() in CHUNKED_SUFFIXES or any((path / marker).exists() for marker in CHUNKED_MARKERS)
    )
