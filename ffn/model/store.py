"""Read and write model folders: ``model.yaml`` (architecture, normalisation, histogram, provenance), ``weights.h5``."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from pydantic import ValidationError

from ffn.config import ModelConfig
from ffn.errors import ModelError, explain
from ffn.io import hdf5
from ffn.io.atomic import unreadable, write_text
from ffn.machine.gpu import load_tensorflow
from ffn.model.network import Weights, weight_shapes
from ffn.model.tissue import Histogram, Tissue
from ffn.provenance import provenance

DESCRIPTION = "model.yaml"
WEIGHTS = "weights.h5"
EXPECTED = "the description of a model, in YAML. Restore or retrain it"
_VARIABLE = re.compile(r"seed_update/(conv(?:\d+_[ab]|_lom)/(?:weights|biases))")  # of published checkpoints


@dataclass(frozen=True)
class Model:
    """A trained network."""

    config: ModelConfig
    weights: Weights
    provenance: dict[str, Any]
    histogram: Histogram | None = None  # of the grey levels that it was trained on; these are None if not recorded
    trained_on: Tissue | None = None


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
        text += yaml.safe_dump({"histogram": model.histogram.coarse().as_json()}, default_flow_style=None, width=120)
    write_text(folder / DESCRIPTION, text)


def load_model(folder: str | Path) -> Model:
    """Read a model folder."""
    folder = Path(folder)
    model = load_description(folder)
    weights, _ = hdf5.read_arrays(folder / WEIGHTS, ModelError)
    check_weights(model.config, weights, str(folder / WEIGHTS))
    if weights_checksum(weights) != _read_description(folder / DESCRIPTION).get("weights_sha256"):
        found = f"checksum differs from {DESCRIPTION}, expected the weights of this model. Restore them"
        raise ModelError(f"{folder / WEIGHTS}: {found}")
    for name, array in weights.items():
        if num_bad := array.size - np.count_nonzero(np.isfinite(array)):
            found = f"{folder / WEIGHTS}: {name}: {num_bad} of {array.size} weights are NaN or infinite"
            advice = "expected finite ones: the training diverged. Train again with a lower train.learning_rate"
            raise ModelError(f"{found}, {advice}")
    return replace(model, weights=weights)


def load_description(folder: str | Path) -> Model:
    """Read a model without its weights."""
    path = Path(folder) / DESCRIPTION
    found = _read_description(path)
    try:
        config = ModelConfig(**found["model"])
    except ValidationError as error:
        raise ModelError(explain(error, lambda keys: f"{path}: model." + ".".join(keys))) from None
    except (KeyError, TypeError):
        raise ModelError(f"{path}: has no section 'model', expected the description of a model") from None
    with unreadable(path, EXPECTED, ModelError):
        histogram = Histogram.from_json(found["histogram"]) if found.get("histogram") is not None else None
        tissue = Tissue.from_json(found["trained_on"]) if found.get("trained_on") is not None else None
    return Model(config, {}, found.get("provenance", {}), histogram, tissue)


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
    with unreadable(path, EXPECTED, ModelError):
        description = yaml.safe_load(path.read_text())
    return description if isinstance(description, dict) else {}


def weights_checksum(weights: Weights) -> str:
    """Return the SHA-256 of names and values of `weights`."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(weights[name], "<f4").tobytes())
    return digest.hexdigest()


def import_published(prefix: str, out_folder: str, config: ModelConfig) -> None:
    """Convert a published TensorFlow 1 checkpoint (google/ffn ``convstack_3d``) to a model folder.

    A checkpoint (without suffix, such as ``model.ckpt-27465036``) does not hold FOV, deltas and normalisation: they
    come from `config`, depth and features from the checkpoint.

    Raises
    ------
    ModelError
        If the files are missing or damaged or hold another network, or `config` lacks the normalisation.
    """
    if config.image_mean is None or config.image_stddev is None:
        found = f"{prefix}: a checkpoint does not record the normalisation of images"
        raise ModelError(f"{found}, expected --image-mean and --image-stddev. For FIB-25, pass 128 and 33")
    weights = read_published(prefix)
    depth = sum(name.endswith("_a/weights") for name in weights)
    config = config.model_copy(update={"depth": depth, "features": weights["conv0_a/weights"].shape[-1]})
    check_weights(config, weights, prefix)
    save_model(out_folder, Model(config, weights, provenance("import-checkpoint", config, checkpoint=prefix)))


def read_published(prefix: str) -> Weights:
    """Return the weights of the network by our names, without optimizer slots and counters."""
    load_tensorflow()
    import tensorflow as tf

    if not Path(prefix + ".index").is_file():
        advice = "Pass its path without the suffix"
        raise ModelError(f"{prefix}.index: no such file, expected a TensorFlow checkpoint. {advice}")
    with unreadable(prefix, "a checkpoint. Copy it again", ModelError):
        reader = tf.train.load_checkpoint(prefix)
        names = reader.get_variable_to_shape_map()
        found = {match[1]: name for name in names if (match := _VARIABLE.fullmatch(name))}
        weights = {ours: np.asarray(reader.get_tensor(theirs), np.float32) for ours, theirs in found.items()}
    if "conv0_a/weights" not in weights:
        raise ModelError(f"{prefix}: has no variable seed_update/conv0_a/weights, expected a flood-filling network")
    return weights
