"""Copies of inputs on a node's local disk, made once per node.

Copies lie in a folder that only this user can write to. A copy appears whole, in a folder that is named after the
version of its source: size and modification time of every file.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ffn.config import Mask
from ffn.errors import VolumeError
from ffn.io.atomic import atomic_path
from ffn.io.foreign.locations import Location
from ffn.io.reference import is_reference
from ffn.io.store_names import files_in
from ffn.io.volume import split_spec

MIN_FREE_BYTES = 2**28  # left free for the temporary files of other programs; our choice
N5 = "attributes.json"

log = logging.getLogger(__name__)


class _Input(NamedTuple):
    """A file or folder, the files to copy, in it or around it, and the path of its current copy."""

    path: Path
    files: list[Path]
    copy: Path


def stage_specs(specs: Sequence[str], folder: str) -> None:
    """Copy volumes and folders to node-local scratch, unless copies exist; one process per node calls this.

    Nothing depends on success. If the disk is full, or the folder cannot be made or belongs to another user, this logs
    a warning, and the original is used. Copies of earlier versions of the same input are removed.

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
    for spec in dict.fromkeys(specs):
        if is_reference(spec):
            log.warning("--stage-to: %s is not copied. Bring its image in with copy_image: always", spec)
        if source := _input(spec, scratch):
            try:
                _stage(source, scratch)
            except (OSError, VolumeError) as reason:
                log.warning("--stage-to: %s is not copied (%s)", source.path, reason)


def staged_spec(spec: str, folder: str) -> str:
    """Return the spec of the current copy in the scratch folder, or `spec` itself if there is none.

    Parameters
    ----------
    spec, folder : str
        As in `stage_specs`.
    """
    scratch = _scratch(folder)
    source = _input(spec, scratch) if scratch and _is_ours(scratch) else None
    if source is None or not source.copy.exists():
        return spec
    _, dataset = split_spec(spec)
    return f"{source.copy}:{dataset}" if dataset else str(source.copy)


def staged_masks(masks: Sequence[Mask], folder: str) -> tuple[Mask, ...]:
    """Return the masks of a volume, each with the `staged_spec` of its own."""
    near = [mask.path and staged_spec(mask.path, folder) for mask in masks]
    return tuple(mask.model_copy(update={"path": path}) for mask, path in zip(masks, near, strict=True))


def _scratch(folder: str) -> Path | None:
    """Return the folder for our copies in a node's scratch folder, None if a variable in its name is not set here."""
    expanded = os.path.expandvars(folder)
    return None if "$" in expanded else Path(expanded).resolve() / f"ffn-copies-{os.getuid()}"


def _is_ours(scratch: Path) -> bool:
    """Whether the folder for copies was made by this user, is not a link, and others cannot write to it."""
    try:
        state = scratch.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(state.st_mode) and state.st_uid == os.getuid() and not state.st_mode & 0o022


def _input(spec: str, scratch: Path) -> _Input | None:
    """Return the files of a spec, None if it cannot be copied."""
    path = Path(split_spec(spec)[0])
    folder = Location.parse(spec).path if Path(spec).is_dir() and not is_reference(spec) else None
    if folder:
        path, files = folder, sorted({*map(Path, files_in(str(folder))), *_metadata_around(folder)})
    elif path.is_file():
        files = [path]
    else:
        return None
    states = [(str(file), (state := file.stat()).st_size, state.st_mtime_ns) for file in files]
    return _Input(path, files, scratch / _short(str(path.resolve())) / _short(repr(states)) / path.name)


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _metadata_around(source: Path) -> list[Path]:
    """Return the attributes of the group that an array lies in, if it does, and in N5 those of its sibling arrays."""
    in_n5 = (N5, f"*/{N5}") if (source.parent / N5).is_file() else ()
    files = [file for name in ("zarr.json", ".zattrs", *in_n5) for file in source.parent.glob(name)]
    return [file for file in files if file.is_file()]


def _stage(source: _Input, scratch: Path) -> None:
    """Copy an input, unless its copy exists, and remove copies of its earlier versions."""
    scratch.parent.mkdir(parents=True, exist_ok=True)
    scratch.mkdir(mode=0o700, exist_ok=True)
    if not _is_ours(scratch):
        raise VolumeError(f"{scratch} belongs to another user, or others can write to it")
    copies = source.copy.parents[1]  # of all versions
    copies.mkdir(exist_ok=True)
    with open(copies / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if source.copy.exists():
            log.info("%s is already in %s", source.path, source.copy.parent)
            return
        size, free = sum(file.stat().st_size for file in source.files), shutil.disk_usage(copies).free
        if size + MIN_FREE_BYTES > free:
            raise VolumeError(f"it has {size / 2**20:.0f} MiB, {copies} has {free / 2**20:.0f} MiB free")
        with atomic_path(source.copy.parent) as temporary:
            for file in source.files:
                copy = temporary / file.relative_to(source.path.parent)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, copy)
        log.info("staged %s, %.1f MiB, in %s", source.path, size / 2**20, source.copy.parent)
    for other in copies.iterdir():
        if other.is_dir() and other != source.copy.parent:
            shutil.rmtree(other, ignore_errors=True)  # open files stay readable
