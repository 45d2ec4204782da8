"""Write outputs atomically: under a temporary name, then sync, then rename.

The temporary name is the same in every attempt, so a retry overwrites the leftovers of a killed process. A target
therefore has one writer at a time, which the lock of the run ensures; a file that several jobs may write at once has a
`writer` in its temporary name.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

from ffn.io.faults import named


@contextlib.contextmanager
def atomic_path(path: str | Path, writer: str = "") -> Iterator[Path]:
    """Yield a temporary path that replaces `path` when the block ends without an error.

    Parameters
    ----------
    path : path
        Final file or folder; parent folders are created.
    writer : str, optional
        Part of the temporary name, where several jobs may write the same content at the same time, see `this_job`.

    Yields
    ------
    Path
        Path in the same folder, where nothing is. It is removed after an error.

    Raises
    ------
    UnwritableError
        If the disk is full, or takes no files for another reason that its owner can change.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.tmp{writer}{path.suffix}")
    with named(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove(temporary)
        try:
            yield temporary
            _sync(temporary)
            _replace(temporary, path)
        finally:
            _remove(temporary)


def this_job() -> str:
    """Return a `writer` that every attempt of this job has, and no other job: a digest of the command line."""
    return f"-{hashlib.sha256(repr(sys.argv).encode()).hexdigest()[:8]}"


def write_text(path: str | Path, text: str, writer: str = "") -> None:
    """Write `text` to `path` atomically; `writer` as in `atomic_path`."""
    with atomic_path(path, writer) as temporary:
        temporary.write_text(text)


def write_text_once(path: str | Path, text: str) -> None:
    """Write `text` to `path` whole, unless the file is there: of several processes that write it, the first wins."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp-{uuid.uuid4().hex}")  # the ranks of a job have the same command line
    with named(path), contextlib.ExitStack() as stack:
        stack.callback(_remove, temporary)
        temporary.write_text(text)
        _sync(temporary)
        try:
            os.link(temporary, path)
        except FileExistsError:
            pass
        except OSError:  # some file systems have no hard links
            if not path.exists():
                temporary.replace(path)
        _sync(path.parent)


def write_json(path: str | Path, content: object) -> None:
    """Write `content` as indented JSON to `path` atomically."""
    write_text(path, json.dumps(content, indent=1) + "\n")


def _replace(temporary: Path, path: Path) -> None:
    """Rename; move an existing folder out of the way first, because rename cannot replace one that has content."""
    old = path.with_name(f".{path.name}.old")
    is_folder = temporary.is_dir()
    is_replaced = is_folder and path.is_dir() and not path.is_symlink()
    if is_replaced:
        _remove(old)
        path.rename(old)
    try:
        temporary.replace(path)
    except OSError:
        if is_replaced:
            old.rename(path)
        raise
    if is_folder:
        _remove(old)  # also of a process that was killed between the two renames
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
