"""One image file for each z slice."""

from __future__ import annotations

import glob
from pathlib import Path

from ffn.io.foreign.formats import zarr
from ffn.io.foreign.numbering import image_format
from ffn.io.volume import Volume

TITLE = "slices (folder or quoted glob of PNG, JPEG or TIFF)"


def recognises(spec: str) -> bool:
    """Whether `spec` is a glob or a folder of images; a zarr folder may hold a picture, too."""
    path = Path(spec)
    if path.is_dir():
        return not zarr.recognises(spec) and any(image_format(file) for file in path.iterdir())
    return glob.has_magic(spec) and not path.exists() and not zarr.recognises(spec)


def open_volume(spec: str) -> Volume:
    """Open the stack."""
    from ffn.io.foreign.stacks import ImageStack, find_slices

    return ImageStack(find_slices(spec), spec)
