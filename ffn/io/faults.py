"""One line for each reason for which a file cannot be read or written, whichever library met it."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
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
    errno.EACCES: "you may not write to {folder}, expected a folder of yours. Choose another, or ask its owner",
}
FULL_BYTES = 2**16  # with less room, a disk is full; our choice, between a log and a chunk
# TensorStore, HDF5 and TensorFlow give the number, or the words, of the system's error in theirs.
NUMBER = re.compile(r"os_error_code='(\d+)'|errno = (\d+)|\[Errno (\d+)\]")
WORDS = {os.strerror(number): number for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)}


def first_line(reason: BaseException) -> str:
    """Return what a library says, in one line, without TensorStore's dump of the spec."""
    text = " ".join(str(reason).partition(" [tensorstore_spec=")[0].split())
    return repr(reason) if isinstance(reason, LookupError) or not text else text


@contextlib.contextmanager
def unreadable(
    place: object,
    expected: str = "a whole file. Restore it",
    error: type[FfnError] = VolumeError,
    failed: str = "read",
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
        raise error(f"{place}: cannot be {failed} ({first_line(reason)}), expected {expected}") from None


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
    while not folder.is_dir():
        file, folder = folder, folder.parent
    disk = next(place for place in (folder, *folder.parents) if os.path.ismount(place))
    return f"{path}: {REASONS[number].format(disk=disk, folder=folder, file=file)}"


def full_disk(path: str | Path) -> str | None:
    """Return the line that says that the disk of `path` is full; None if there is room."""
    folder = next(place for place in Path(path).absolute().parents if place.is_dir())
    return line_of(OSError(errno.ENOSPC, ""), path) if shutil.disk_usage(folder).free < FULL_BYTES else None


def _number(reason: Exception) -> int | None:
    number = getattr(reason, "errno", None)
    text = str(reason)
    if number is None and (match := NUMBER.search(text)):
        number = int(next(filter(None, match.groups())))
    if number is None:
        number = next((found for words, found in WORDS.items() if words in text), None)
    return number if number in REASONS else None


def _is_beside(file: object, path: str | Path) -> bool:
    """Whether a file that an error names may be the output, not an input."""
    return not isinstance(file, str | os.PathLike) or os.path.abspath(file).startswith(
        os.path.abspath(Path(path).parent)
    )
