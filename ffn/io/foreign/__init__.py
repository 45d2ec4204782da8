"""Read volumes in foreign formats; axes are zyx for every source.

A format is a row of `FORMATS`. The libraries that it reads with are imported when it opens a volume.
"""

from __future__ import annotations

import glob
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ffn.errors import VolumeError
from ffn.io.store_names import CHUNKED_FILES
from ffn.io.volume import Volume

CHUNKED_SUFFIXES = (".zarr", ".n5", ".precomputed")
ARCHIVES = (".zip", ".tar", ".tgz", ".tar.gz", ".7z")
IMAGE_FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".tif": "TIFF", ".tiff": "TIFF"}


class Format(NamedTuple):
    """A format; no two claim the same spec."""

    title: str  # in lists for users
    recognises: Callable[[str], bool]
    opener: str  # MODULE.FUNCTION of this package


def image_format(path: Path) -> str:
    """Return ``PNG``, ``JPEG`` or ``TIFF`` by the suffix of a slice, an empty text for other files."""
    return IMAGE_FORMATS.get(path.suffix.lower(), "")


def _is_chunked(spec: str) -> bool:
    """Whether a spec is a URL or a folder that TensorStore opens; arrays in a bare group of N5 have no metadata."""
    path = Path(spec)
    in_container = any(folder.suffix.lower() in CHUNKED_SUFFIXES for folder in (path, *path.parents))
    return "://" in spec or (path.is_dir() and (in_container or any((path / file).exists() for file in CHUNKED_FILES)))


def _is_slices(spec: str) -> bool:
    """Whether a spec is a glob or a folder of images; a zarr folder may hold a picture, too."""
    path = Path(spec)
    if _is_chunked(spec):
        return False
    if path.is_dir():
        return any(image_format(file) for file in path.iterdir())
    return glob.has_magic(spec) and not path.exists()


def _is_file(*suffixes: str) -> Callable[[str], bool]:
    return lambda spec: spec.lower().endswith(suffixes) and Path(spec).is_file()


FORMATS = (
    Format("MRC (.mrc, .rec, .map)", _is_file(".mrc", ".rec", ".map"), "arrays.open_mrc"),
    Format("NIfTI (.nii, .nii.gz)", _is_file(".nii", ".nii.gz"), "arrays.open_nifti"),
    Format("NumPy array (.npy, .npz)", _is_file(".npy", ".npz"), "arrays.open_numpy"),
    Format("slices (folder or quoted glob of PNG, JPEG or TIFF)", _is_slices, "stacks.open_slices"),
    Format("multipage TIFF", _is_file(".tif", ".tiff"), "stacks.TiffVolume"),
    Format("OME-Zarr, zarr, N5, Neuroglancer precomputed (folder or URL)", _is_chunked, "chunked.open_chunked"),
)


def readable_formats() -> str:
    """Return the list of formats for help texts and messages."""
    return ", ".join(["FILE.h5:DATASET", *(known.title for known in FORMATS)])


def open_source(spec: str) -> Volume:
    """Open a volume that is not HDF5.

    Parameters
    ----------
    spec : str
        Path, glob or URL, see `readable_formats`.

    Returns
    -------
    Volume
        Reads only the chunks that a box touches.

    Raises
    ------
    VolumeError
        If nothing is there, or it cannot be read as one volume.
    """
    for known in FORMATS:
        if known.recognises(spec):
            module, _, name = known.opener.partition(".")
            opener: Callable[[str], Volume] = getattr(importlib.import_module(f"{__name__}.{module}"), name)
            return opener(spec)
    if spec.lower().endswith(ARCHIVES) and Path(spec).is_file():
        raise VolumeError(f"{spec}: is an archive, expected a folder. Unpack it, and name what was inside")
    found = "is in no known format" if Path(spec).exists() else "no such file or folder"
    raise VolumeError(f"{spec}: {found}, expected {readable_formats()}. Check the path")
