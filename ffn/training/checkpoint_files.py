"""The files of one checkpoint, their checksums, and the model in them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ffn.config import ModelConfig
from ffn.errors import ModelError
from ffn.io import hdf5
from ffn.model.grey_levels import Histogram
from ffn.model.normalize import reference_histogram, reference_input
from ffn.model.store import DESCRIPTION, Model, load_architecture, load_histogram, save_model
from ffn.provenance import provenance
from ffn.training.step import model_weights

MANIFEST = "manifest.json"
SHARED = "shared.h5"

Arrays = dict[str, np.ndarray]


def is_checkpoint(path: str | Path) -> bool:
    """Whether `path` is one of our checkpoints, such as ``model/checkpoints/step-00000500``."""
    return (Path(path) / MANIFEST).is_file()


def load_checkpoint(path: str | Path) -> Model:
    """Return the model in a checkpoint, with averaged weights if training averaged them."""
    path = Path(path)
    if not path.is_dir():
        found = sorted(other.name for other in path.parent.glob("step-*"))
        raise ModelError(
            f"{path}: no such checkpoint, {path.parent} holds {found}. Choose one of them, or train again with a "
            "higher train.keep_checkpoints"
        )
    shared, _ = read_verified(path / SHARED, read_manifest(path)["sha256"])
    return Model(architecture_of(path), model_weights(shared), {})


def architecture_of(path: str | Path) -> ModelConfig:
    """Read only the architecture of a model folder or of a checkpoint of ours."""
    if not is_checkpoint(path):
        return load_architecture(path)
    return ModelConfig(**read_manifest(Path(path))["fingerprint"]["model"])


def describe_checkpoint(path: str | Path) -> dict[str, Any]:
    """Describe a checkpoint, and verify the checksums of all its files."""
    path = Path(path)
    manifest = read_manifest(path)
    for name in manifest["sha256"]:
        read_verified(path / name, manifest["sha256"])
    return {"step": manifest["step"], "processes": manifest["processes"], "fingerprint": manifest["fingerprint"]}


def export_checkpoint(path: str | Path, out_folder: str | Path, reference_image: str | None = None) -> None:
    """Write the model in a checkpoint as a model folder."""
    model = load_checkpoint(path)
    origin = provenance("import-checkpoint", model.config, checkpoint=path, **reference_input(reference_image))
    histogram = _histogram(Path(path)) or reference_histogram(reference_image)
    save_model(out_folder, Model(model.config, model.weights, origin, histogram))


def _histogram(checkpoint: Path) -> Histogram | None:
    """Return the volumes that the finished training recorded, in the model folder around the checkpoint."""
    model = checkpoint.absolute().parents[1]
    return load_histogram(model) if (model / DESCRIPTION).is_file() else None


def read_manifest(path: Path) -> dict[str, Any]:
    """Return step, fingerprint, checksums, parts and number of processes; a `ModelError` if they cannot be read."""
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        needed = {name: manifest[name] for name in ("step", "fingerprint", "sha256")}
        processes = len(manifest.get("shared_sha256_by_rank", ()))
        # version 0.3 had no parts; its weights are good to start from
        return needed | {"parts": manifest.get("parts", {}), "processes": processes}
    except (OSError, ValueError, KeyError, TypeError) as reason:
        raise ModelError(f"{path / MANIFEST}: cannot be read ({reason})") from None


def read_verified(path: Path, sha256: Mapping[str, str]) -> tuple[Arrays, dict]:
    """Return the content of a file, by the checksums of its checkpoint; a `ModelError` if it is damaged."""
    if not path.is_file():
        raise ModelError(f"{path}: no such file")
    if digest(path) != sha256.get(path.name):
        raise ModelError(f"{path}: checksum differs from {MANIFEST}")
    return hdf5.read_arrays(path, ModelError)


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
