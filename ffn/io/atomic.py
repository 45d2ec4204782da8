"""Write outputs atomically: under a temporary name, then sync, then rename; say in one line why a file cannot be used.

The temporary name is the same in every attempt, so a retry overwrites the leftovers of a killed process. A target
therefore has one writer at a time, which the lock of the run ensures; a file that several jobs may write at once has a
`writer` in its temporary name.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

from ffn.errors import FfnError, UnwritableError, VolumeError

AGAIN = "and run the same command again"
REASONS = {
    errno.ENOSPC: f"no space is left on {{disk}}. Make room there, {AGAIN}",
    errno.EDQUOT: f"your quota on {{disk}} is used up. Remove files there or ask for more, {AGAIN}",
    errno.EFBIG: f"the limit of a file's size (ulimit -f) on {{disk}} is reached. Raise it, {AGAIN}",
    errno.EROFS: "{disk} is mounted read-only, expected a disk to write to. Choose another output folder",
    **dict.fromkeys((errno.ENOTDIR, errno.EEXIST), "{file} is a file, expected a folder. Choose another output"),
    errno.EISDIR: "is a folder, expected a file. Choose another output",
    errno.EACCES: "you lack rights in {folder}, expected to read or write there. Choose another, or ask its owner",
}
FULL_BYTES = 2**16  # with less room, a disk is full; our choice, between a log and a chunk
# TensorStore, HDF5 and TensorFlow give the number, or the words, of the system's error in theirs.
NUMBER = re.compile(r"os_error_code='(\d+)'|errno = (\d+)|\[Errno (\d+)\]")
WORDS = {os.strerror(number): number for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)}


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
    if path.name in ("", ".."):
        raise UnwritableError(f"{path}: {REASONS[errno.EISDIR]}")
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


def first_line(reason: BaseException) -> str:
    """Return what a library says, in one line, without TensorStore's dump of the spec."""
    text = " ".join(str(reason).partition(" [tensorstore_spec=")[0].split())
    return repr(reason) if isinstance(reason, LookupError) or not text else text


@contextlib.contextmanager
def unreadable(
    place: object, expected: str = "a whole file. Restore it", error: type[FfnError] = VolumeError, failed: str = "read"
) -> Iterator[None]:
    """Turn the errors of libraries that read `place` into one that names it; theirs have no common base."""
    try:
        yield
    except FfnError:
        raise
    except MemoryError:
        found = f"{place}: needs more memory than this process may use, expected an image that fits"
        raise error(f"{found}. Give the job more, or convert the image to zarr where there is more") from None
    except Exception as reason:
        needed = "rights to it. Ask its owner" if _number(reason) == errno.EACCES else expected
        raise error(f"{place}: cannot be {failed} ({first_line(reason)}), expected {needed}") from None


@contextlib.contextmanager
def named(path: str | Path) -> Iterator[None]:
    """Turn errors of writing to `path` into an `UnwritableError`; other errors stay."""
    try:
        yield
    except Exception as reason:
        if line := line_of(reason, path):
            raise UnwritableError(line) from None
        raise


def line_of(reason: Exception, path: str | Path) -> str | None:
    """Return the line for an error of writing to `path`; None for another error."""
    number = None if isinstance(reason, VolumeError) else _number(reason)
    about = getattr(reason, "filename", None)
    if number is None or (number not in WORDS.values() and not _is_beside(about, path)):
        return None
    file = folder = Path(path).absolute()
    while not os.path.isdir(folder):  # Path.is_dir fails in a folder that may not be searched
        file, folder = folder, folder.parent
    disk = next(place for place in (folder, *folder.parents) if os.path.ismount(place))
    return f"{path}: {REASONS[number].format(disk=disk, folder=folder, file=file)}"


def full_disk(path: str | Path) -> str | None:
    """Return the line that says that the disk of `path` is full; None if there is room."""
    folder = next(place for place in Path(path).absolute().parents if place.is_dir())
    return line_of(OSError(errno.ENOSPC, ""), path) if shutil.disk_usage(folder).free < FULL_BYTES else None


def _number(reason: Exception) -> int | None:
    number, text = getattr(reason, "errno", None), str(reason)
    if number is None and (match := NUMBER.search(text)):
        number = int(next(filter(None, match.groups())))
    if number is None:
        number = next((found for words, found in WORDS.items() if words in text), None)
    return number if number in REASONS else None


def _is_beside(file: object, path: str | Path) -> bool:
    """Whether a file that an error names may be the output, not an input."""
    folder = os.path.abspath(Path(path).parent)
    return not isinstance(file, str | os.PathLike) or os.path.abspath(file).startswith(folder)
