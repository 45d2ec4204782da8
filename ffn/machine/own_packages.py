"""Imported first: ends the program if another package, such as google/ffn, is loaded in the place of ours."""

from __future__ import annotations

import os
import sys
import traceback

import ffn

OWN = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))


def shadow(error: ImportError, pythonpath: str | None = None) -> str | None:
    """Return the line for an import that failed in a package from PYTHONPATH; None for any other.

    Examples
    --------
    >>> error = ImportError("for another Python", path="/old/numpy/__init__.py")
    >>> shadow(error, "/new"), shadow(error, "/new:/old").partition(" comes")[0]
    (None, 'PYTHONPATH: a package in /old')
    """
    pythonpath = os.environ.get("PYTHONPATH", "") if pythonpath is None else pythonpath
    files = [error.path, *(frame.filename for frame in traceback.extract_tb(error.__traceback__))]
    paths = [os.path.realpath(file) for file in files if file]
    foreign = [path for path in paths if not path.startswith((OWN + os.sep, os.path.realpath(sys.prefix) + os.sep))]
    for folder in filter(None, pythonpath.split(os.pathsep)):
        if any(path.startswith(os.path.realpath(folder) + os.sep) for path in foreign):
            return _line(folder, str(error))
    return None


def _line(folder: str, found: str) -> str:
    return (
        f"PYTHONPATH: a package in {folder} comes before one of this program ({found}), expected its own. Unset "
        "PYTHONPATH, or take the folder out of it"
    )


_loaded = os.path.realpath(list(ffn.__path__)[0])  # without `__init__.py`, there is no `__file__`
if _loaded != OWN:
    print(f"ffn: error: {_line(os.path.dirname(_loaded), 'ffn')}", file=sys.stderr)
    sys.exit(2)
