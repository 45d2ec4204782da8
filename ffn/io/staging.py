"""Copy inputs to a node's local disk, once per node, and verify the copies."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from ffn.errors import VolumeError
from ffn.io.atomic import atomic_path
from ffn.io.volume import HDF5_SUFFIXES, split_spec

CHUNK_BYTES = 2**24
MIN_FREE_BYTES = 2**28  # left free for the temporary files of other programs; our choice

log = logging.getLogger(__name__)


def stage_specs(specs: Sequence[str], folder: str) -> None:
    """Copy volumes and folders to node-local scratch, unless copies exist; one process per node calls this.

    Nothing depends on success. If the disk is full, the folder cannot be made or a copy differs from its source, this
    logs a warning, and the original is used. Copies of earlier versions of the same input are removed.

    Parameters
    ----------
    specs : sequence of str
        ``FILE.h5:DATASET`` or folders; anything else, such as a URL, is not copied.
    folder : str
        Scratch folder of the node; may contain variables such as ``$TMPDIR``.
    """
    scratch = _scratch(folder)
    if scratch is None:
        log.warning("--stage-to: %s contains a variable that is not set here, so inputs are not copied", folder)
        return
    for source in dict.fromkeys(filter(None, map(_source, specs))):
        try:
            _stage(source, scratch)
        except (OSError, VolumeError) as reason:
            log.warning("--stage-to: %s is not copied (%s)", source, reason)


def staged_spec(spec: str, folder: str) -> str:
    """Return the spec of the current copy in the scratch folder, or `spec` itself if there is none.

    Parameters
    ----------
    spec, folder : str
        As in `stage_specs`.
    """
    scratch, source = _scratch(folder), _source(spec)
    if scratch is None or source is None:
        return spec
    copy = _copy_path(source, scratch)
    return spec.replace(str(source), str(copy), 1) if copy.exists() else spec


def _source(spec: str) -> Path | None:
    """File or folder to copy, None if the spec cannot be copied."""
    path = Path(spec)
    if path.is_dir():
        return path
    file = Path(split_spec(spec)[0])
    return file if file.suffix in HDF5_SUFFIXES and file.is_file() else None


def _scratch(folder: str) -> Path | None:
    expanded = os.path.expandvars(folder)
    return None if "$" in expanded else Path(expanded) / f"ffn-staged-{os.getuid()}"


def _files(source: Path) -> list[Path]:
    return sorted(path for path in source.rglob("*") if path.is_file()) if source.is_dir() else [source]


def _copy_path(source: Path, scratch: Path) -> Path:
    """Path of the copy; it changes with the size and the modification time of every file."""
    states = [(str(file), (state := file.stat()).st_size, state.st_mtime_ns) for file in _files(source)]
    version = hashlib.sha256(repr(states).encode()).hexdigest()[:16]
    origin = hashlib.sha256(str(source.resolve()).encode()).hexdigest()[:16]
    return scratch / origin / version / source.name


def _stage(source: Path, scratch: Path) -> None:
    copy = _copy_path(source, scratch)
    with _exclusive(copy.parent.parent):
        if copy.exists():
            log.info("%s is already in %s", source, copy.parent)
            return
        size, free = sum(file.stat().st_size for file in _files(source)), shutil.disk_usage(scratch).free
        if size + MIN_FREE_BYTES > free:
            raise VolumeError(f"it has {size / 2**20:.0f} MiB, {scratch} has {free / 2**20:.0f} MiB free")
        with atomic_path(copy) as temporary:
            _copy(source, temporary)
        _remove_others(copy)
    log.info("staged %s, %.1f MiB, in %s", source, size / 2**20, copy.parent)


def _copy(source: Path, target: Path) -> None:
    """Copy a file, or the files in a folder, and compare the checksums."""
    for file in _files(source):
        copy = target / file.relative_to(source) if source.is_dir() else target
        copy.parent.mkdir(parents=True, exist_ok=True)
        expected = _copy_file(file, copy)
        if _checksum(copy) != expected:
            raise VolumeError(f"{copy} differs from {file}, so the disk is unreliable")


def _copy_file(source: Path, target: Path) -> str:
    """Copy a file; return the checksum of the source."""
    digest = hashlib.sha256()
    with source.open("rb") as reader, target.open("wb") as writer:
        while chunk := reader.read(CHUNK_BYTES):
            digest.update(chunk)
            writer.write(chunk)
        writer.flush()
        os.fsync(writer.fileno())
        os.posix_fadvise(writer.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # so that the comparison reads the disk
    return digest.hexdigest()


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _remove_others(copy: Path) -> None:
    """Remove copies of earlier versions of the same input; open files stay readable."""
    for version in copy.parent.parent.iterdir():
        if version.is_dir() and version != copy.parent:
            shutil.rmtree(version, ignore_errors=True)


@contextlib.contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """Keep other processes on this node out; locks are reliable because the disk is local."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
