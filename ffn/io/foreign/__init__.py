"""Read volumes in foreign formats, one module in `formats` for each; axes are zyx whatever the source."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from typing import Protocol, cast

from ffn.errors import VolumeError
from ffn.io.foreign import formats
from ffn.io.volume import Volume


class Format(Protocol):
    """What a module in `formats` defines; it imports the libraries that it reads with inside of `open_volume`.

    Attributes
    ----------
    TITLE : str
        The format in a list of formats, with what a user passes.
    """

    TITLE: str

    def recognises(self, spec: str) -> bool:
        """Whether `spec` exists in this format; no other format may claim it."""
        ...

    def open_volume(self, spec: str) -> Volume:
        """Open what `recognises` accepted."""
        ...


def known_formats() -> list[Format]:
    """Return the modules in `formats`, by name."""
    names = sorted(module.name for module in pkgutil.iter_modules(formats.__path__, f"{formats.__name__}."))
    return [cast(Format, importlib.import_module(name)) for name in names]


def readable_formats() -> str:
    """Return the list of formats for help texts and messages."""
    return ", ".join(["FILE.h5:DATASET", *(known.TITLE for known in known_formats())])


def open_source(spec: str) -> Volume:
    """Open a volume that is not HDF5.

    Parameters
    ----------
    spec : str
        Path, glob or URL, see `readable_formats`.

    Returns
    -------
    Volume
        Reads only what a box needs.

    Raises
    ------
    VolumeError
        If nothing is there, or it cannot be read as one volume.
    """
    for known in known_formats():
        if known.recognises(spec):
            return known.open_volume(spec)
    found = "is in no known format" if Path(spec).exists() else "no such file or folder"
    raise VolumeError(f"{spec}: {found}, expected {readable_formats()}. Check the path")
