"""Write outputs atomically: under a temporary name, then sync, then rename."""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from ffn.machine import process_id
from ffn.machine.heartbeat import beating
from ffn.machine.process_id import ProcessId, this_process

# A living writer touches its temporary file every 10 s. The rest is for clocks that differ: beyond five minutes, the
# services of a cluster (Kerberos, Slurm's munge) do not work any more.
SILENT_SECONDS = 600.0
NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP)  # as FAT, some FUSE and parallel file systems answer


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
        Path in the same folder. It is removed after an error.

    Notes
    -----
    What killed processes left for the same target is removed, too, once they are certainly gone. Those of this machine
    are not in the process table. Those of others have not touched their file for `SILENT_SECONDS`, which is judged
    before and after the block. A writer that was suspended for so long fails when it renames its file, and the target
    stays whole. A process looks for them once in each folder.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    leftovers = _leftovers_in(path.parent.absolute()).get(path.name, [])
    _remove_gone(leftovers)
    temporary = path.with_name(f".{path.name}.tmp-{this_process()}{path.suffix}")
    try:
        with beating(lambda: _touch(temporary)):
            yield temporary
        _sync(temporary)
        _replace(temporary, path)
    finally:
        _remove(temporary)
    _remove_gone(leftovers)


def remove_leftovers(folder: str | Path) -> None:
    """Remove what killed processes left anywhere in a folder, as `atomic_path` does for one target."""
    for parent, folders, files in os.walk(folder):
        _remove_gone(_leftovers(Path(parent, name) for name in folders + files if name.startswith(".")))


def write_text(path: str | Path, text: str) -> None:
    """Write `text` to `path` atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text)


def write_text_once(path: str | Path, text: str) -> None:
    """Write `text` to `path` whole, unless the file is there: of several processes that write it, the first wins."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp-{this_process()}{path.suffix}")
    try:
        temporary.write_text(text)
        _sync(temporary)
        with contextlib.suppress(FileExistsError):
            _create(temporary, path)
        _sync(path.parent)
    finally:
        _remove(temporary)


def write_json(path: str | Path, content: object) -> None:
    """Write `content` as indented JSON to `path` atomically."""
    write_text(path, json.dumps(content, indent=1) + "\n")


def _create(temporary: Path, path: Path) -> None:
    """Give a file its name, but unlike rename never replace one. Without hard links, it is whole a little later."""
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        with open(path, "x") as created:
            created.write(temporary.read_text())
        _sync(path)


def _replace(temporary: Path, path: Path) -> None:
    """Rename; move an existing folder out of the way first, because rename cannot replace one that has content."""
    if temporary.is_dir() and path.is_dir() and not path.is_symlink():
        old = path.with_name(f".{path.name}.old-{this_process()}")
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


def _touch(path: Path) -> None:
    with contextlib.suppress(OSError):  # it may not exist yet
        os.utime(path)


class _Leftover(NamedTuple):
    path: Path
    target: Path
    is_old: bool  # the target before it was replaced
    process: ProcessId


def _leftovers(paths: Iterable[Path]) -> Iterator[_Leftover]:
    """Temporary files and folders among `paths`."""
    for path in paths:
        match = re.fullmatch(rf"\.(.+)\.(tmp|old)-({process_id.PATTERN})(\.[^/]*)?", path.name)
        process = match and ProcessId.parse(match[3])
        if match and process:
            yield _Leftover(path, path.with_name(match[1]), match[2] == "old", process)


@functools.lru_cache(maxsize=1000)
def _leftovers_in(folder: Path) -> dict[str, list[_Leftover]]:
    """Return the temporary files and folders in a folder, by the names of their targets.

    A folder may have a million records of blocks; listing it for each one took most of the time.
    """
    found: dict[str, list[_Leftover]] = {}
    with contextlib.suppress(PermissionError), os.scandir(folder) as entries:  # one may write where one may not read
        for leftover in _leftovers(folder / entry.name for entry in entries if entry.name.startswith(".")):
            found.setdefault(leftover.target.name, []).append(leftover)
    return found


def _remove_gone(leftovers: Iterable[_Leftover]) -> None:
    """Remove what no living process needs. The former content of a target stays until there is a new one."""
    for leftover in leftovers:
        if not (leftover.is_old and not leftover.target.exists()) and _is_gone(leftover):
            with contextlib.suppress(OSError):  # it may belong to another user
                _remove(leftover.path)


def _is_gone(leftover: _Leftover) -> bool:
    if leftover.process.is_visible:
        return leftover.process.is_gone
    try:
        with tempfile.TemporaryFile(dir=leftover.path.parent) as file:  # tells the time by the file system's clock
            return os.fstat(file.fileno()).st_mtime - leftover.path.stat().st_mtime > SILENT_SECONDS
    except OSError:
        return False
