"""Copy inputs to a node's local disk, once per node."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path

from ffn.config import Mask
from ffn.io.node_copy import Source, copy_sources, scratch_folder, trusted_copy
from ffn.io.open import files_in
from ffn.io.reference import is_reference
from ffn.io.volume import split_spec

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
    scratch = scratch_folder(folder)
    if scratch is None:
        log.warning("--stage-to: %s contains a variable that is not set here, so inputs are not copied", folder)
        return
    for spec in filter(is_reference, specs):
        log.warning(
            "--stage-to: %s is not copied, as its image stays where it is. Bring it in with copy_image: always", spec
        )
    copy_sources(map(_source, dict.fromkeys(filter(None, map(_path, specs)))), scratch)


def staged_spec(spec: str, folder: str) -> str:
    """Return the spec of the current copy in the scratch folder, or `spec` itself if there is none that can be trusted.

    Parameters
    ----------
    spec, folder : str
        As in `stage_specs`.
    """
    scratch, path = scratch_folder(folder), _path(spec)
    if scratch is None or path is None or (copy := trusted_copy(_source(path), scratch)) is None:
        return spec
    _, dataset = split_spec(spec)
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


def _path(spec: str) -> Path | None:
    """File or folder to copy, None if the spec cannot be copied."""
    if Path(spec).is_dir():
        from ffn.io.foreign.locations import Location

        return None if is_reference(spec) else Location.parse(spec).path
    file = Path(split_spec(spec)[0])
    return file if file.is_file() else None


def _source(path: Path) -> Source:
    return Source(path, lambda: _version(path), lambda: _files(path))


def _version(path: Path) -> str:
    """Return what changes with size and modification time of every file."""
    states = [(str(file), (state := file.stat()).st_size, state.st_mtime_ns) for file in _files(path)]
    return hashlib.sha256(repr(states).encode()).hexdigest()[:16]


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
