"""Copies of files on a node's local disk, made once per node and verified.

Other users of the node can write to the folders for temporary files. What they may have planted there is never used.
Copies lie in a folder of our own that nobody else can write to or replace, and symbolic links are not followed. Beside
a copy lie the checksums of its chunks. They are compared when the copy has been made, in full, and before every use,
where that takes as long for a terabyte as for a megabyte: size and owner of every file, and `SAMPLES` chunks drawn at
random.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import random
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ffn.errors import VolumeError
from ffn.io.atomic import atomic_path, write_json

CHUNK_BYTES = 2**24
SAMPLES = 4  # 64 MiB; our choice
MIN_FREE_BYTES = 2**28  # left free for the temporary files of other programs; our choice
CHECKSUMS = "checksums.json"

log = logging.getLogger(__name__)


class Source(NamedTuple):
    """What is copied.

    Parameters
    ----------
    path : Path
        A file or a folder.
    version : callable
        Returns a string of letters and digits that changes when the content does.
    files : callable
        Returns the files to copy. All lie beside or below `path`.
    check : callable, optional
        For code: raises VolumeError if it cannot be loaded from a folder with copies of these files. Copies of code
        keep what Python and the system look at: the time of the last change, and whether a file can be executed.
    """

    path: Path
    version: Callable[[], str]
    files: Callable[[], list[Path]]
    check: Callable[[Path], None] | None = None


def scratch_folder(folder: str) -> Path | None:
    """Return the folder for our copies in a node's scratch folder, None if a variable in its name is not set here."""
    expanded = os.path.expandvars(folder)
    return None if "$" in expanded else Path(expanded).resolve() / f"ffn-copies-{os.getuid()}"


def copy_sources(sources: Iterable[Source], scratch: Path) -> None:
    """Copy sources, unless copies exist.

    Nothing depends on success. If the disk is full, the folder cannot be made or belongs to another user, or a copy
    differs from its source, this logs a warning. Copies of earlier versions of the same input are removed, but not of
    code, of which a running program may load more later. Of the processes that call this on a node, one copies, and the
    others wait for it; those that wait for code do not try again.

    Parameters
    ----------
    sources : iterable of Source
        What to copy.
    scratch : Path
        From `scratch_folder`.
    """
    for source in sources:
        try:
            _make_private(scratch)
            _copy_source(source, scratch)
        except (OSError, VolumeError) as reason:
            log.warning("--stage-to: %s is not copied (%s)", source.path, reason)


def trusted_copy(source: Source, scratch: Path) -> Path | None:
    """Return where the current copy of a source is, None if there is none that can be trusted."""
    copy = _copy_path(source, scratch)
    return copy if _is_trusted(copy, scratch) else None


def _make_private(scratch: Path) -> None:
    """Make the folder of our copies, unless it exists; see `_require_private`."""
    for folder in reversed((scratch, *scratch.parents)):
        if not folder.is_dir():
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=0o700 if folder == scratch else 0o755)  # whatever the umask is
    _require_private(scratch)


def _require_private(scratch: Path) -> None:
    """Make sure that nobody else can write to the folder of our copies, nor put another one in its place.

    Whoever owns or can write to a folder on its path could do that at any time, also between this check and a use.
    """
    state = scratch.lstat()
    if not stat.S_ISDIR(state.st_mode):
        raise VolumeError(f"{scratch} is not a folder, or a link to one")
    if state.st_uid != os.getuid():
        raise VolumeError(f"{scratch} belongs to user {state.st_uid}, not to {os.getuid()}")
    if state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise VolumeError(f"{scratch} can be written to by other users")
    for folder in scratch.parents:
        above = folder.lstat()
        if above.st_uid not in (0, os.getuid()):
            raise VolumeError(f"{folder} belongs to user {above.st_uid}, who could replace our folder in it")
        if above.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not above.st_mode & stat.S_ISVTX:
            raise VolumeError(f"{folder} lets other users replace our folder in it, as it has no sticky bit")


def _copy_path(source: Source, scratch: Path) -> Path:
    """Path of the copy; it changes with the version of the source."""
    origin = hashlib.sha256(str(source.path.resolve()).encode()).hexdigest()[:16]
    return scratch / origin / source.version() / "copy" / source.path.name


def _copy_source(source: Source, scratch: Path) -> None:
    copy = _copy_path(source, scratch)
    version = copy.parents[1]
    with _exclusive(version.parent, scratch) as has_waited:
        if _is_trusted(copy, scratch):
            log.log(logging.DEBUG if source.check else logging.INFO, "%s is already in %s", source.path, copy.parent)
            return
        if has_waited and source.check:
            return  # who tried has said why it failed
        files = source.files()
        size, free = sum(file.stat().st_size for file in files), shutil.disk_usage(scratch).free
        if size + MIN_FREE_BYTES > free:
            raise VolumeError(f"it has {size / 2**20:.0f} MiB, {scratch} has {free / 2**20:.0f} MiB free")
        with atomic_path(copy.parent) as temporary:
            checksums = _copy(files, source.path.parent, temporary, source.check is not None)
            if source.check:
                source.check(temporary)
        write_json(version / CHECKSUMS, checksums)
        if not source.check:
            _remove_others(version)
    log.info("staged %s, %.1f MiB, in %s", source.path, size / 2**20, copy.parent)


def _copy(files: Iterable[Path], root: Path, target: Path, is_code: bool) -> dict[str, Any]:
    """Copy files below a root into a folder; compare the checksums and return them by name."""
    checksums = {}
    for file in files:
        name = file.relative_to(root)
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        expected = _copy_file(file, copy, is_code)
        if _checksums(copy) != expected:
            raise VolumeError(f"{copy} differs from {file}, so the disk is unreliable")
        checksums[str(name)] = {"bytes": copy.stat().st_size, "sha256": expected}
    return checksums


def _copy_file(source: Path, target: Path, is_code: bool) -> list[str]:
    """Copy a file; return the checksums of the source's chunks."""
    checksums = []
    with source.open("rb") as reader, open(target, "xb", opener=_without_links) as writer:
        while chunk := reader.read(CHUNK_BYTES):
            checksums.append(hashlib.sha256(chunk).hexdigest())
            writer.write(chunk)
        writer.flush()
        if is_code:
            state = os.fstat(reader.fileno())
            os.utime(writer.fileno(), ns=(time.time_ns(), state.st_mtime_ns))  # compiled files are of that time
            os.fchmod(writer.fileno(), 0o600 | (state.st_mode & 0o100))
        os.fsync(writer.fileno())
        os.posix_fadvise(writer.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # so that the comparison reads the disk
    return checksums


def _checksums(path: Path) -> list[str]:
    count = -(-path.stat().st_size // CHUNK_BYTES)
    return [_checksum(path, index) for index in range(count)]


def _checksum(path: Path, index: int) -> str:
    """Checksum of one chunk."""
    with open(path, "rb", opener=_without_links) as file:
        file.seek(index * CHUNK_BYTES)
        return hashlib.sha256(file.read(CHUNK_BYTES)).hexdigest()


def _is_trusted(copy: Path, scratch: Path) -> bool:
    """Whether there is a copy that only we can have written, and that is as it was when it was compared."""
    try:
        _require_private(scratch)
        recorded = json.loads((copy.parents[1] / CHECKSUMS).read_text())
        if not all(_is_ours(copy.parent / name, checksums["bytes"]) for name, checksums in recorded.items()):
            return False
        chunks = [(name, *one) for name, checksums in recorded.items() for one in enumerate(checksums["sha256"])]
        drawn = random.SystemRandom().sample(chunks, min(SAMPLES, len(chunks)))
        return all(_checksum(copy.parent / name, index) == expected for name, index, expected in drawn)
    except (OSError, VolumeError, ValueError):
        return False


def _is_ours(file: Path, size: int) -> bool:
    state = file.lstat()
    return stat.S_ISREG(state.st_mode) and state.st_uid == os.getuid() and state.st_size == size


def _without_links(path: str, flags: int) -> int:
    """Open a file, but not through a symbolic link, which may lead to a file of the user."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _remove_others(version: Path) -> None:
    """Remove copies of earlier versions of the same input; open files stay readable."""
    if version.parent.is_symlink():
        raise VolumeError(f"{version.parent} is a link, so nothing is removed there")
    for other in version.parent.iterdir():
        if other.is_dir() and other != version:
            shutil.rmtree(other, ignore_errors=True)


@contextlib.contextmanager
def _exclusive(folder: Path, scratch: Path) -> Iterator[bool]:
    """Keep other processes on this node out; yield whether one had to end first. The disk is local, so locks hold."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w", opener=_without_links) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            has_waited = False
        except BlockingIOError:
            fcntl.flock(lock, fcntl.LOCK_EX)
            has_waited = True
        _require_private(scratch)
        yield has_waited
