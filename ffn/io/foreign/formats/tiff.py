"""TIFF with one page for each z slice."""

from __future__ import annotations

from pathlib import Path

from ffn.io.volume import Volume

TITLE = "multipage TIFF"


def recognises(spec: str) -> bool:
    """Whether `spec` is a TIFF file."""
    return Path(spec).suffix.lower() in (".tif", ".tiff") and Path(spec).is_file()


def open_volume(spec: str) -> Volume:
    """Open the file."""
    from ffn.io.foreign.stacks import TiffVolume

    return TiffVolume(Path(spec))
