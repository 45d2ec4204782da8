"""Import published TensorFlow 1 checkpoints (google/ffn ``convstack_3d``)."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from ffn.config import ModelConfig
from ffn.errors import ModelError
from ffn.io.faults import unreadable
from ffn.model.network import Weights, weight_shapes
from ffn.model.normalize import reference_histogram, reference_input
from ffn.model.store import Model, save_model
from ffn.provenance import provenance

_VARIABLE = re.compile(r"seed_update/(conv(?:\d+_[ab]|_lom)/(?:weights|biases))")


def import_checkpoint(prefix: str, out_folder: str, config: ModelConfig, reference_image: str | None = None) -> None:
    """Convert a published checkpoint to a model folder.

    Parameters
    ----------
    prefix : str
        Checkpoint without suffix, such as ``model.ckpt-27465036``.
    out_folder : str
        Model folder to write.
    config : ModelConfig
        FOV, deltas and normalisation, which a checkpoint does not hold; depth and features come from the checkpoint.
    reference_image : str, optional
        An image that the network was trained on, uint8 or uint16. The model records its grey levels, by default none.

    Raises
    ------
    ModelError
        If the files are missing or damaged or hold another network, or `config` lacks the normalisation.
    VolumeError
        If the reference image cannot be read, has another type, or is blank.
    """
    if config.image_mean is None or config.image_stddev is None:
        raise ModelError(
            f"{prefix}: a checkpoint does not record the normalisation of images, expected --image-mean and "
            "--image-stddev. For FIB-25, pass 128 and 33"
        )
    weights = read_checkpoint(prefix)
    architecture = {"depth": _depth(weights, prefix), "features": weights["conv0_a/weights"].shape[-1]}
    config = config.model_copy(update=architecture)
    origin = provenance("import-checkpoint", config, checkpoint=prefix, **reference_input(reference_image))
    save_model(out_folder, Model(config, weights, origin, reference_histogram(reference_image)))


def read_checkpoint(prefix: str) -> Weights:
    """Return the weights of the network by our names, without optimizer slots and counters."""
    import tensorflow as tf

    if not Path(prefix + ".index").is_file():
        raise ModelError(
            f"{prefix}.index: no such file, expected a TensorFlow checkpoint. Pass its path without the suffix"
        )
    with unreadable(prefix, "a checkpoint. Copy it again", ModelError):
        reader = tf.train.load_checkpoint(prefix)
        names = reader.get_variable_to_shape_map()
        found = {match[1]: name for name in names if (match := _VARIABLE.fullmatch(name))}
        weights = {ours: np.asarray(reader.get_tensor(theirs), np.float32) for ours, theirs in found.items()}
    if "conv0_a/weights" not in weights:
        raise ModelError(f"{prefix}: has no variable seed_update/conv0_a/weights, expected a flood-filling network")
    return weights


def _depth(weights: Weights, prefix: str) -> int:
    """Return the number of modules, after checking that the weights form such a network."""
    depth = sum(name.endswith("_a/weights") for name in weights)
    shapes = weight_shapes(ModelConfig(depth=depth, features=weights["conv0_a/weights"].shape[-1]))
    if {name: array.shape for name, array in weights.items()} != shapes:
        raise ModelError(f"{prefix}: its {len(weights)} variables do not form a convstack_3d network of depth {depth}")
    return depth
