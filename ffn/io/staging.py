"""Copy inputs to a node's local disk, once per node, and verify the copies.

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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ffn.config import Mask
from ffn.errors import VolumeError
from ffn.io.atomic import atomic_path, write_json
from ffn.io.open import files_in
from ffn.io.reference import is_reference
from ffn.io.volume import split_spec

CHUNK_BYTES = 2**24
SAMPLES = 4  # 64 MiB; our choice
MIN_FREE_BYTES = 2**28  # left free for the temporary files of other programs; our choice
CHECKSUMS = "checksums.json"
N5 = "attributes.json"

log = logging.getLogger(__name__)


def stage_specs(specs: Sequence[str], folder: str) -> None:
    """Copy volumes and folders to node-local scratch, unless copies exist; one process per node calls this.

    Nothing depends on success. If the disk is full, the folder cannot be made or belongs to another user, or a copy
    differs from its source, this logs a warning, and the original is used. Copies of earlier versions of the same input
    are removed.

    Parameters
    ----------
    specs : sequence of str
        Files, as ``FILE.h5:DATASET``, or folders; anything else, such as a URL, is not copied.
    folder : str
        Scratch folder of the node; may contain variables such as ``$TMPDIR``.
    """
    scratch = _scratch(folder)
    if scratch is None:
        log.warning("--stage-to: %s contains a variable that is not set here, so inputs are not copied", folder)
        return
    for spec in filter(is_reference, specs):
        log.warning(
            "--stage-to: %s is not copied, as its image stays where it is. Bring it in with copy_image: always", spec
        )
    for source in dict.fromkeys(filter(None, map(_source, specs))):
        try:
            _make_private(scratch)
            _stage(source, scratch)
        except (OSError, VolumeError) as reason:
            log.warning("--stage-to: %s is not copied (%s)", source, reason)


def staged_spec(spec: str, folder: str) -> str:
    """Return the spec of the current copy in the scratch folder, or `spec` itself if there is none that can be trusted.

    Parameters
    ----------
    spec, folder : str
        As in `stage_specs`.
    """
    scratch, source = _scratch(folder), _source(spec)
    if scratch is None or source is None:
        return spec
    copy, (_, dataset) = _copy_path(source, scratch), split_spec(spec)
    if not _is_trusted(copy, scratch):
        return spec
    return f"{copy}:{dataset}" if dataset else str(copy)


def staged_masks(masks: Sequence[Mask], folder: str) -> tuple[Mask, ...]:
    """Return the masks of a volume, each of its own with the `staged_spec`.

    Parameters
    ----------
    masks : sequence of Mask
        As in the configuration.
    folder : str
        As in `stage_specs`.
    """
    near = [mask.path and staged_spec(mask.path, folder) for mask in masks]
    return tuple(mask.model_copy(update={"path": path}) for mask, path in zip(masks, near, strict=True))


def _source(spec: str) -> Path | None:
    """File or folder to copy, None if the spec cannot be copied."""
    if Path(spec).is_dir():
        from ffn.io.foreign.locations import Location

        return None if is_reference(spec) else Location.parse(spec).path
    file = Path(split_spec(spec)[0])
    return file if file.is_file() else None


def _scratch(folder: str) -> Path | None:
    expanded = os.path.expandvars(folder)
    return None if "$" in expanded else Path(expanded).resolve() / f"ffn-copies-{os.getuid()}"


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


def _files(source: Path) -> list[Path]:
    """Return what to copy: a file, or the files in a folder and the metadata around it, which may say where it lies."""
    if not source.is_dir():
        return [source]
    return sorted({*map(Path, files_in(str(source))), *_metadata_around(source)})


def _metadata_around(source: Path) -> list[Path]:
    """Return the attributes of the group that an array lies in, if it does, and in N5 those of the arrays beside it."""
    in_n5 = (N5, f"*/{N5}") if (source.parent / N5).is_file() else ()
    files = [file for place in ("zarr.json", ".zattrs", *in_n5) for file in source.parent.glob(place)]
    return [file for file in files if file.is_file()]


def _copy_path(source: Path, scratch: Path) -> Path:
    """Path of the copy; it changes with the size and the modification time of every file."""
    states = [(str(file), (state := file.stat()).st_size, state.st_mtime_ns) for file in _files(source)]
    version = hashlib.sha256(repr(states).encode()).hexdigest()[:16]
    origin = hashlib.sha256(str(source.resolve()).encode()).hexdigest()[:16]
    return scratch / origin / version / "copy" / source.name


def _stage(source: Path, scratch: Path) -> None:
    copy = _copy_path(source, scratch)
    version = copy.parents[1]
    with _exclusive(version.parent, scratch):
        if _is_trusted(copy, scratch):
            log.info("%s is already in %s", source, copy.parent)
            return
        size, free = sum(file.stat().st_size for file in _files(source)), shutil.disk_usage(scratch).free
        if size + MIN_FREE_BYTES > free:
            raise VolumeError(f"it has {size / 2**20:.0f} MiB, {scratch} has {free / 2**20:.0f} MiB free")
        with atomic_path(copy.parent) as temporary:
            checksums = _copy(source, temporary)
        write_json(version / CHECKSUMS, checksums)
        _remove_others(version)
    log.info("staged %s, %.1f MiB, in %s", source, size / 2**20, copy.parent)


def _copy(source: Path, target: Path) -> dict[str, Any]:
    """Copy all of a source into a folder; compare the checksums and return them by name."""
    checksums = {}
    for file in _files(source):
        name = file.relative_to(source.parent)
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        expected = _copy_file(file, copy)
        if _checksums(copy) != expected:
            raise VolumeError(f"{copy} differs from {file}, so the disk is unreliable")
        checksums[str(name)] = {"bytes": copy.stat().st_size, "sha256": expected}
    return checksums


def _copy_file(source: Path, target: Path) -> list[str]:
    """Copy a file; return the checksums of the source's chunks."""
    checksums = []
    with source.open("rb") as reader, open(target, "xb", opener=_without_links) as writer:
        while chunk := reader.read(CHUNK_BYTES):
            checksums.append(hashlib.sha256(chunk).hexdigest())
            writer.write(chunk)
        writer.flush()
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
def _exclusive(folder: Path, scratch: Path) -> Iterator[None]:
    """Keep other processes on this node out; locks are reliable because the disk is local."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w", opener=_without_links) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _require_private(scratch)
        yield
