"""Write outputs atomically: under a temporary name, then sync, then rename."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

_HOST = socket.gethostname().split(".")[0]


@contextlib.contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` when the block ends without an error.

    Parameters
    ----------
    path : path
        Final file or folder; parent folders are created.

    Yields
    ------
    Path
        Path in the same folder. It is removed after an error; what killed processes of this host left for the same
        target is removed, too.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_orphans(path)
    temporary = path.with_name(f".{path.name}.tmp-{_HOST}-{os.getpid()}{path.suffix}")
    try:
        yield temporary
        _sync(temporary)
        _replace(temporary, path)
    finally:
        _remove(temporary)


def write_text(path: str | Path, text: str) -> None:
    """Write `text` to `path` atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text)


def write_json(path: str | Path, content: object) -> None:
    """Write `content` as indented JSON to `path` atomically."""
    write_text(path, json.dumps(content, indent=1) + "\n")


def _replace(temporary: Path, path: Path) -> None:
    """Rename; move an existing folder out of the way first, because rename cannot replace one that has content."""
    if temporary.is_dir() and path.is_dir() and not path.is_symlink():
        old = path.with_name(f".{path.name}.old-{_HOST}-{os.getpid()}")
        path.rename(old)
        temporary.rename(path)
        shutil.rmtree(old, ignore_errors=True)
    else:
        temporary.replace(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    """Flush a file or folder to disk, so that a crash after the rename cannot leave an empty file."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _remove_orphans(path: Path) -> None:
    """Remove temporary files for `path` whose process ran on this host and is gone."""
    for orphan in path.parent.glob(f".{glob.escape(path.name)}.*-{_HOST}-*"):
        pid = orphan.name.removesuffix(path.suffix).rsplit("-", 1)[-1]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            _remove(orphan)
