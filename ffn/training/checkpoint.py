"""Checkpoints of a training job: written whole, verified when read, good for any number of processes; their models."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ffn.config import ModelConfig
from ffn.errors import ModelError, TrainError
from ffn.io import hdf5
from ffn.io.atomic import atomic_path, unreadable, write_json
from ffn.model.store import DESCRIPTION, Model, load_description, save_model
from ffn.provenance import provenance
from ffn.training.parallel.process_group import ProcessGroup
from ffn.training.step import model_weights

MANIFEST = "manifest.json"
SHARED = "shared.h5"
PARTS = "parts.h5"

Arrays = dict[str, np.ndarray]

log = logging.getLogger(__name__)


class Checkpoint(NamedTuple):
    """The state of a job between two steps."""

    step: int
    shared: Arrays  # weights and optimizer, which all processes have in common
    parts: dict[str, Arrays]  # of lanes and workers, by name: those of this process to save, all of them when restored


class CheckpointFolder:
    """Reads and writes the checkpoints of one job. All processes make every call together; rank 0 has the files.

    A `fingerprint` is everything that the result depends on, JSON-ready. Of the checkpoints, `keep` remain, those of
    multiples of `interval` if there is one; one in between is kept until the next is written.
    """

    def __init__(
        self, folder: Path, fingerprint: Mapping[str, Any], group: ProcessGroup, keep: int, interval: int | None = None
    ) -> None:
        self._folder, self._group = folder, group
        self._fingerprint = json.loads(json.dumps(fingerprint))
        self._keep, self._interval = keep, interval

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint and remove old ones."""
        parts = {name: part for of_rank in self._group.gather(checkpoint.parts) for name, part in of_rank.items()}
        whole = checkpoint._replace(parts=parts)
        self._group.together(lambda: self._write(whole) if self._group.rank == 0 else None)

    def restore(self, max_step: int) -> Checkpoint | None:
        """Return the newest usable checkpoint.

        A damaged checkpoint is logged and renamed, and the one before it is tried.
        """
        newest = self._group.together(lambda: self._newest(max_step) if self._group.rank == 0 else None)
        found = self._group.broadcast(newest)
        return found and Checkpoint(*found)

    def _write(self, checkpoint: Checkpoint) -> None:
        parts = {f"{part}/{name}": array for part, arrays in checkpoint.parts.items() for name, array in arrays.items()}
        with atomic_path(self._path(checkpoint.step)) as temporary:
            temporary.mkdir()
            hdf5.write_arrays(temporary / SHARED, checkpoint.shared, {})
            hdf5.write_arrays(temporary / PARTS, parts, {})
            manifest = {
                "step": checkpoint.step,
                "fingerprint": self._fingerprint,
                "sha256": {name: digest(temporary / name) for name in (SHARED, PARTS)},
            }
            write_json(temporary / MANIFEST, manifest)
        older = self._steps()[:-1]
        regular = [step for step in older if self._interval is None or step % self._interval == 0]
        for step in set(older) - {*regular[max(0, len(regular) + 1 - self._keep) :]}:
            shutil.rmtree(self._path(step), ignore_errors=True)

    def _newest(self, max_step: int) -> Checkpoint | None:
        for path in self._folder.glob(".step-*"):  # unfinished, of a killed job
            shutil.rmtree(path, ignore_errors=True)
        for step in reversed(self._steps()):
            path = self._path(step)
            try:
                checkpoint = self._read(path, max_step)
            except ModelError as damage:
                target = path.with_name(f"damaged-{path.name}")
                log.info("not resuming from %s, which is damaged: %s. It is now %s", path, damage, target)
                shutil.rmtree(target, ignore_errors=True)
                path.rename(target)  # not removed: it may be the file system that is damaged, for a moment
            else:
                log.info("resuming from %s", path)
                return checkpoint
        return None

    def _read(self, path: Path, max_step: int) -> Checkpoint:
        manifest = read_manifest(path)
        self._require_same_training(path, manifest, max_step)
        shared, arrays = (read_verified(path / name, manifest["sha256"]) for name in (SHARED, PARTS))
        parts: dict[str, Arrays] = {}
        for name, array in arrays.items():
            part, _, name = name.rpartition("/")
            parts.setdefault(part, {})[name] = array
        return Checkpoint(manifest["step"], shared, parts)

    def _path(self, step: int) -> Path:
        return self._folder / f"step-{step:08d}"

    def _steps(self) -> list[int]:
        """List the steps of all checkpoints, ascending."""
        found = (re.fullmatch(r"step-(\d+)", path.name) for path in self._folder.glob("step-*"))
        return sorted(int(match[1]) for match in found if match)

    def _require_same_training(self, path: Path, manifest: Mapping[str, Any], max_step: int) -> None:
        """Refuse a checkpoint of another training, and name the first difference."""
        mine, theirs = _flat(self._fingerprint), _flat(manifest["fingerprint"])
        differing = [key for key in sorted(mine.keys() | theirs.keys()) if mine.get(key) != theirs.get(key)]
        if differing:
            key, *others = differing
            name = "num_workers × virtual_workers × batch_size" if key == "num_lanes" else key
            more = f" (and {len(others)} more)" if others else ""
            found = f"{name} is {mine.get(key, 'unknown')}, was {theirs.get(key, 'unknown')}{more}"
        elif manifest["step"] > max_step:
            found = f"train.max_steps is {max_step}, it has {manifest['step']} steps"
        else:
            return
        advice = f"Choose another --out (run), or remove {self._folder}. To start from its weights, give it as init"
        raise TrainError(f"{path}: another training is here: {found}. {advice}")


def is_checkpoint(path: str | Path) -> bool:
    """Whether `path` is one of our checkpoints, such as ``model/checkpoints/step-00000500``."""
    return (Path(path) / MANIFEST).is_file()


def load_checkpoint(path: str | Path) -> Model:
    """Return the model in a checkpoint, with averaged weights if training averaged them."""
    path = Path(path)
    if not path.is_dir():
        found = sorted(other.name for other in path.parent.glob("step-*"))
        advice = "Choose one of them, or train again with a higher train.keep_checkpoints"
        raise ModelError(f"{path}: no such checkpoint, {path.parent} holds {found}. {advice}")
    shared = read_verified(path / SHARED, read_manifest(path)["sha256"])
    return Model(architecture_of(path), model_weights(shared), {})


def architecture_of(path: str | Path) -> ModelConfig:
    """Read only the architecture of a model folder or of a checkpoint of ours."""
    if not is_checkpoint(path):
        return load_description(path).config
    return ModelConfig(**read_manifest(Path(path))["fingerprint"]["model"])


def describe_checkpoint(path: str | Path) -> dict[str, Any]:
    """Describe a checkpoint, and verify the checksums of all its files."""
    manifest = read_manifest(Path(path))
    checksums = manifest.pop("sha256")
    for name in checksums:
        read_verified(Path(path) / name, checksums)
    return manifest


def export_checkpoint(path: str | Path, out_folder: str | Path) -> None:
    """Write the model in a checkpoint as a model folder."""
    model = load_checkpoint(path)
    origin = provenance("import-checkpoint", model.config, checkpoint=path)
    around = Path(path).absolute().parents[1]  # the model folder of the finished training records its volumes
    finished = load_description(around) if (around / DESCRIPTION).is_file() else model
    save_model(out_folder, replace(finished, config=model.config, weights=model.weights, provenance=origin))


def read_manifest(path: Path) -> dict[str, Any]:
    """Return step, fingerprint and checksums; a `ModelError` if they cannot be read."""
    with unreadable(path / MANIFEST, "a whole file", ModelError):
        manifest = json.loads((path / MANIFEST).read_text())
        return {name: manifest[name] for name in ("step", "fingerprint", "sha256")}


def read_verified(path: Path, sha256: Mapping[str, str]) -> Arrays:
    """Return the content of a file, by the checksums of its checkpoint; a `ModelError` if it is damaged."""
    if not path.is_file():
        raise ModelError(f"{path}: no such file")
    if digest(path) != sha256.get(path.name):
        raise ModelError(f"{path}: checksum differs from {MANIFEST}")
    return hdf5.read_arrays(path, ModelError)[0]


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flat(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves of nested dicts by dotted name."""
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        inner = _flat(value) if isinstance(value, dict) else {"": value}
        leaves |= {f"{key}.{name}".removesuffix("."): leaf for name, leaf in inner.items()}
    return leaves
