"""Read and write model folders: ``model.yaml`` (architecture, normalisation, histogram, provenance), ``weights.h5``."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from pydantic import ValidationError

from ffn.config import ModelConfig
from ffn.errors import ModelError, explain
from ffn.io import atomic, hdf5
from ffn.io.faults import unreadable
from ffn.model.grey_levels import Histogram
from ffn.model.network import Weights, weight_shapes
from ffn.model.tissue import Tissue

DESCRIPTION = "model.yaml"
WEIGHTS = "weights.h5"


@dataclass(frozen=True)
class Model:
    """A trained network."""

    config: ModelConfig
    weights: Weights
    provenance: dict[str, Any]
    histogram: Histogram | None = None
    trained_on: Tissue | None = None  # None where the folder does not record it


def save_model(folder: str | Path, model: Model) -> None:
    """Write a model folder; ``model.yaml`` comes last, so a folder that has one is complete."""
    folder = Path(folder)
    check_weights(model.config, model.weights, str(folder))
    hdf5.write_arrays(folder / WEIGHTS, model.weights, {}, compressed=True)
    description = {
        "model": model.config.model_dump(mode="json"),
        "weights_sha256": weights_checksum(model.weights),
        "provenance": model.provenance,
    }
    if model.trained_on is not None:
        description["trained_on"] = model.trained_on.as_json()
    text = yaml.safe_dump(description, sort_keys=False)
    if model.histogram is not None:
        histogram = {"histogram": model.histogram.coarse().as_json()}
        text += yaml.safe_dump(histogram, default_flow_style=None, width=120)
    atomic.write_text(folder / DESCRIPTION, text)


def load_model(folder: str | Path) -> Model:
    """Read a model folder."""
    folder = Path(folder)
    config, description = load_architecture(folder), _read_description(folder / DESCRIPTION)
    weights, _ = hdf5.read_arrays(folder / WEIGHTS, ModelError)
    check_weights(config, weights, str(folder / WEIGHTS))
    if weights_checksum(weights) != description.get("weights_sha256"):
        raise ModelError(
            f"{folder / WEIGHTS}: checksum differs from {DESCRIPTION}, expected the weights of this model. Restore them"
        )
    for name, array in weights.items():
        if num_bad := array.size - np.count_nonzero(np.isfinite(array)):
            raise ModelError(
                f"{folder / WEIGHTS}: {name}: {num_bad} of {array.size} weights are NaN or infinite, expected finite "
                "ones: the training diverged. Train again with a lower train.learning_rate"
            )
    return Model(config, weights, description.get("provenance", {}), load_histogram(folder), load_tissue(folder))


def load_histogram(folder: str | Path) -> Histogram | None:
    """Return the grey levels that a model was trained on, None where its folder does not record them."""
    values = _read_description(Path(folder) / DESCRIPTION).get("histogram")
    return None if values is None else Histogram.from_json(values)


def load_tissue(folder: str | Path) -> Tissue | None:
    """Return voxel sizes and membranes of what a model was trained on, None where its folder does not record them."""
    values = _read_description(Path(folder) / DESCRIPTION).get("trained_on")
    return None if values is None else Tissue.from_json(values)


def load_architecture(folder: str | Path) -> ModelConfig:
    """Read the architecture and normalisation of a model."""
    path = Path(folder) / DESCRIPTION
    try:
        return ModelConfig(**_read_description(path)["model"])
    except ValidationError as error:
        raise ModelError(explain(error, lambda keys: f"{path}: model." + ".".join(keys))) from None
    except (KeyError, TypeError):
        raise ModelError(f"{path}: has no section 'model', expected the description of a model") from None


def check_weights(config: ModelConfig, weights: Weights, where: str) -> None:
    """Check that names and shapes of `weights` fit the architecture."""
    expected = weight_shapes(config)
    found = {name: array.shape for name, array in weights.items()}
    for name in sorted(expected.keys() | found.keys()):
        if found.get(name) != expected.get(name):
            shapes = f"found {found.get(name)}, expected {expected.get(name)}"
            raise ModelError(f"{where}: {name}: {shapes} for this architecture")


def _read_description(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ModelError(f"{path}: no such file, expected a model folder. Did training or import-checkpoint finish?")
    with unreadable(path, "the description of a model, in YAML. Restore or retrain it", ModelError):
        description = yaml.safe_load(path.read_text())
    return description if isinstance(description, dict) else {}


def weights_checksum(weights: Weights) -> str:
    """Return the SHA-256 of names and values of `weights`."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(weights[name], "<f4").tobytes())
    return digest.hexdigest()
