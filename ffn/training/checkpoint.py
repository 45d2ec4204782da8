"""Checkpoints of a training job. They appear whole, are verified when read, and suit any number of processes."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import socket
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ffn.errors import ModelError, TrainError
from ffn.io import atomic, hdf5
from ffn.training.checkpoint_files import MANIFEST, SHARED, Arrays, digest, read_manifest, read_verified
from ffn.training.parallel.process_group import ProcessGroup

log = logging.getLogger(__name__)

VISIBLE_SECONDS = 90  # NFS caches the contents of a folder for up to 60 s


class Checkpoint(NamedTuple):
    """The state of a job between two steps."""

    step: int
    shared: Arrays  # weights and optimizer, which all processes have in common
    parts: dict[str, Arrays]  # of this process, such as a lane, by name; others may read them when they resume


class Kept(NamedTuple):
    """Which checkpoints to keep."""

    number: int
    interval: int | None = None  # steps between those to choose from; one in between is kept until the next is written

    def among(self, steps: Sequence[int]) -> set[int]:
        """Return the steps of the checkpoints to keep, given all, ascending: the newest, and regular ones before it.

        Examples
        --------
        >>> sorted(Kept(3).among([10, 17, 20, 30])), sorted(Kept(3, 10).among([10, 17, 20, 27]))
        ([17, 20, 30], [10, 20, 27])
        """
        *older, newest = steps
        regular = [step for step in older if self.interval is None or step % self.interval == 0]
        return {newest, *regular[max(0, len(regular) + 1 - self.number) :]}


class CheckpointFolder:
    """Reads and writes the checkpoints of one job. All processes make every call together.

    A `fingerprint` is everything that the result depends on, JSON-ready. With `file_per_process`, each process writes a
    file with its parts, else rank 0 gathers and writes them, and they have to be small.
    """

    def __init__(
        self,
        folder: Path,
        fingerprint: Mapping[str, Any],
        kept: Kept,
        group: ProcessGroup,
        file_per_process: bool = True,
    ) -> None:
        self._folder = folder
        self._fingerprint = fingerprint
        self._kept = kept
        self._group = group
        self._file_per_process = file_per_process

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint and remove old ones."""
        digests = self._require_equal_weights(checkpoint)
        try:
            self._write(checkpoint, digests)
            if self._group.rank == 0:
                self._remove_old()
        except OSError as reason:
            raise TrainError(f"{self._folder}: checkpoint {checkpoint.step} cannot be written ({reason})") from None

    def _remove_old(self) -> None:
        found = self._found()
        kept = self._kept.among([step for step, _ in found])
        for step, path in found:
            if step not in kept:
                shutil.rmtree(path, ignore_errors=True)

    def restore(self, max_step: int, parts: Collection[str]) -> Checkpoint | None:
        """Return the newest usable checkpoint, with the `parts` of this process.

        A damaged checkpoint is logged and renamed, and the one before it is tried.
        """
        self._remove_leftovers()
        for step in self._group.broadcast([step for step, _ in self._found()])[::-1]:
            path, checkpoint = self._path(step), None
            # one process lists the folder, not a thousand
            manifest, damage = self._group.broadcast(_manifest(path) if self._group.rank == 0 else (None, ""))
            if manifest:
                self._require_same_training(path, manifest, max_step)
                files = {SHARED} | {manifest["parts"][part] for part in parts if part in manifest["parts"]}
                self._group.together(partial(_wait_until_visible, path, files))  # not yet visible is not damaged
                checkpoint, damage = _read(path, parts, manifest)
            damages = [text for text in self._group.gather(damage) if text]
            if not damages:
                self._log(f"resuming from {path}")
                return checkpoint
            target = path.with_name(f"damaged-{path.name}")
            self._log(f"not resuming from {path}, which is damaged: {damages[0]}. It is now {target}")
            if self._group.rank == 0:  # not removed: it may be the file system that is damaged, for a moment
                shutil.rmtree(target, ignore_errors=True)
                path.rename(target)
        return None

    def _write(self, checkpoint: Checkpoint, digests: list[str]) -> None:
        with self._shared_temporary(self._path(checkpoint.step)) as temporary:
            parts = checkpoint.parts if self._file_per_process else self._gathered(checkpoint.parts)
            own = self._group.together(lambda: self._write_own(temporary, parts) if parts else None)
            written = [of_rank for of_rank in self._group.gather(own and (*own, list(parts))) if of_rank]
            files = {name: digest for name, digest, _ in written}
            if self._group.rank == 0:
                _wait_until_visible(temporary, files)
                hdf5.write_arrays(temporary / SHARED, checkpoint.shared, {})
                manifest = {
                    "step": checkpoint.step,
                    "fingerprint": self._fingerprint,
                    "shared_sha256_by_rank": digests,
                    "sha256": files | {SHARED: digest(temporary / SHARED)},
                    "parts": {part: name for name, _, parts in written for part in parts},
                }
                atomic.write_json(temporary / MANIFEST, manifest)

    def _gathered(self, parts: dict[str, Arrays]) -> dict[str, Arrays]:
        """Return the parts of all processes on rank 0, none on others."""
        gathered = self._group.gather(parts)
        if self._group.rank != 0:
            return {}
        return {name: arrays for of_rank in gathered for name, arrays in of_rank.items()}

    def _write_own(self, folder: Path, parts: Mapping[str, Arrays]) -> tuple[str, str]:
        """Write the parts of this process; return the name of the file and its checksum."""
        _wait_until_visible(folder)
        path = folder / f"rank-{self._group.rank:05d}.h5"
        arrays = {f"{part}/{name}": array for part, arrays in parts.items() for name, array in arrays.items()}
        try:
            hdf5.write_arrays(path, arrays, {})
            return path.name, digest(path)
        except OSError as reason:
            raise TrainError(f"{path}: rank {self._group.rank} cannot write its checkpoint ({reason})") from None

    @contextmanager
    def _shared_temporary(self, path: Path) -> Iterator[Path]:
        """Yield the folder that all processes write to. Rank 0 renames it to `path` in the end."""
        if self._group.rank != 0:
            yield Path(self._group.broadcast(""))
            return
        with atomic.atomic_path(path) as temporary:
            temporary.mkdir()
            yield Path(self._group.broadcast(str(temporary)))

    def _require_equal_weights(self, checkpoint: Checkpoint) -> list[str]:
        """Return the checksum of every process's weights and optimizer; end the job if they differ."""
        digest = hashlib.sha256()
        for name in sorted(checkpoint.shared):
            digest.update(np.ascontiguousarray(checkpoint.shared[name]).tobytes())
        digests = self._group.gather(digest.hexdigest())
        different = [rank for rank, other in enumerate(digests) if other != digests[0]]
        if different:
            self._group.fail(
                TrainError(
                    f"train: at step {checkpoint.step} the weights of rank {different[0]} differ from those of rank 0, "
                    "expected equal weights on all ranks. Check that all machines run the same software on the same "
                    "kind of processor. The last checkpoint is good"
                )
            )
        return digests

    def _path(self, step: int) -> Path:
        return self._folder / f"step-{step:08d}"

    def _found(self) -> list[tuple[int, Path]]:
        """Checkpoints by ascending step."""
        matches = ((re.fullmatch(r"step-(\d+)", path.name), path) for path in self._folder.glob("step-*"))
        return sorted((int(match[1]), path) for match, path in matches if match)

    def _require_same_training(self, path: Path, manifest: Mapping[str, Any], max_step: int) -> None:
        """End the job with the first difference between a checkpoint's fingerprint and ours."""
        mine, theirs = _flat(json.loads(json.dumps(self._fingerprint))), _flat(manifest["fingerprint"])
        differing = [key for key in sorted(mine.keys() | theirs.keys()) if mine.get(key) != theirs.get(key)]
        if differing:
            key, *others = differing
            more = f" (and {len(others)} more)" if others else ""
            found = f"{key} is {mine.get(key, 'unknown')}, was {theirs.get(key, 'unknown')}{more}"
        elif manifest["step"] > max_step:
            found = f"train.max_steps is {max_step}, it has {manifest['step']} steps"
        else:
            return
        self._group.fail(
            TrainError(
                f"{path}: another training is here: {found}. Choose another --out (run), or remove {self._folder}. To "
                "start from its weights, give it as init"
            )
        )

    def _remove_leftovers(self) -> None:
        """Remove unfinished checkpoints of a killed job."""
        if self._group.rank == 0:
            for path in self._folder.glob(".step-*"):
                shutil.rmtree(path, ignore_errors=True)

    def _log(self, message: str) -> None:
        if self._group.rank == 0:
            log.info(message)


def _manifest(path: Path) -> tuple[dict[str, Any] | None, str]:
    """Return the manifest of a checkpoint, or None and a problem."""
    try:
        manifest = read_manifest(path)
    except ModelError as error:
        return None, str(error)
    missing = sorted(manifest["sha256"].keys() - set(os.listdir(path)))
    return (None, f"{path / missing[0]}: no such file") if missing else (manifest, "")


def _read(path: Path, parts: Collection[str], manifest: Mapping[str, Any]) -> tuple[Checkpoint | None, str]:
    """Return the checkpoint with these parts, or None and a problem."""
    own: dict[str, Arrays] = {part: {} for part in parts}
    if missing := [part for part in parts if part not in manifest["parts"]]:
        return None, f"{path / MANIFEST}: lists no {missing[0]}"
    try:
        shared, _ = read_verified(path / SHARED, manifest["sha256"])
        for file in sorted({manifest["parts"][part] for part in parts}):
            for name, array in read_verified(path / file, manifest["sha256"])[0].items():
                part, _, name = name.rpartition("/")
                if part in own:
                    own[part][name] = array
    except ModelError as error:
        return None, str(error)
    return Checkpoint(manifest["step"], shared, own), ""


def _wait_until_visible(folder: Path, names: Iterable[str] = ()) -> None:
    """Wait for files of another process; shared file systems show them to other machines seconds later."""
    deadline = time.monotonic() + VISIBLE_SECONDS
    while True:
        try:
            missing = sorted(set(names) - set(os.listdir(folder)))  # asks the server, unlike a look-up of one file
        except FileNotFoundError:
            missing = [""]
        if not missing:
            return
        if time.monotonic() > deadline:
            raise TrainError(
                f"{folder / missing[0]}: not visible on {socket.gethostname()} {VISIBLE_SECONDS} s after another "
                "process wrote it, expected a file system that all processes share. Choose another --out"
            )
        time.sleep(1)


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Leaves of nested dicts by dotted name."""
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        leaves.update(_flat(value, name + ".") if isinstance(value, dict) else {name: value})
    return leaves
