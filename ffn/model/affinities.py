"""A small network of affinities: whether each voxel lies in one body with the voxel before it on each axis."""

from __future__ import annotations

import functools
import itertools
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ffn.errors import ModelError
from ffn.geometry import Box, VoxelSize, zyx
from ffn.io.hdf5 import read_arrays, write_arrays
from ffn.io.volume import Volume
from ffn.model.tissue import Tissue

if TYPE_CHECKING:
    import keras

log = logging.getLogger(__name__)

NEAR = 3  # sections that the network sees before and after its own
WIDTHS = (16, 32, 48, 64)  # features by level; our choice
STEP = 2 ** (len(WIDTHS) - 1)  # pixels that are one at the coarsest level
REACH = 48  # pixels around a pixel that the network sees: 44, in whole steps
SAMPLES, SAMPLE_SIDE = 8, 64  # along y and x, for the grey levels of a section
VOXEL_SIZE, ORIGIN = "voxel_size_zyx_nm", "provenance"


def leave_gpus() -> None:
    """Keep this process off GPUs, whose memory the flood filling and the training of other jobs need."""
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")


def network() -> keras.Model:
    """Build a U-Net from (B, Y, X, sections) to logits of the affinities along z, y and x (B, Y, X, 3)."""
    from keras import Input, Model, layers

    def block(net: Any, width: int) -> Any:
        for _ in range(2):
            net = layers.Conv2D(width, 3, padding="same", activation="relu")(net)
        return net

    net = image = Input((None, None, 2 * NEAR + 1))
    skips = []
    for width in WIDTHS[:-1]:
        skips.append(block(net, width))
        net = layers.MaxPooling2D()(skips[-1])
    net = block(net, WIDTHS[-1])
    for width, skip in zip(WIDTHS[-2::-1], reversed(skips), strict=True):
        net = layers.UpSampling2D()(layers.Conv2D(width, 1)(net))
        net = block(layers.Concatenate()([net, skip]), width)
    return Model(image, layers.Conv2D(3, 1)(net))


def save(path: str | Path, net: keras.Model, voxel_size_zyx_nm: VoxelSize, provenance: dict[str, Any]) -> None:
    """Write the weights and the voxels that they were learnt on."""
    weights = {f"weights-{number:02}": each for number, each in enumerate(net.get_weights())}
    write_arrays(path, weights, {VOXEL_SIZE: json.dumps(voxel_size_zyx_nm), ORIGIN: json.dumps(provenance)})


def load(path: str | Path, voxel_size_zyx_nm: VoxelSize) -> keras.Model:
    """Read a network of `save` for voxels of the same size."""
    leave_gpus()
    arrays, attributes = read_arrays(path, ModelError)
    net, weights = network(), [array for _, array in sorted(arrays.items())]
    if [each.shape for each in weights] != [each.shape for each in net.get_weights()]:
        raise ModelError(f"{path}: has other layers, expected a network of 'ffn learn-affinities' of this version")
    if other := Tissue((tuple(json.loads(attributes[VOXEL_SIZE])),)).other_size(voxel_size_zyx_nm):
        log.warning("%s: %s", path, other)
    if not all(np.isfinite(each).all() for each in weights):
        raise ModelError(f"{path}: has weights that are not finite, expected numbers. Learn it anew")
    net.set_weights(weights)
    return net


class Sections:
    """An image whose sections have mean 0 and standard deviation 1 in a box, by samples that no block changes."""

    def __init__(self, image: Volume, box: Box) -> None:
        self._image, self._box = image, box
        self._levels = functools.cache(self._measured)

    def read(self, box: Box) -> np.ndarray:
        """Return a box (float32), mirrored where it leaves the image."""
        part = box.intersect(self._image.box)
        levels = np.array([self._levels(z) for z in range(part.start[0], part.stop[0])], np.float32)
        mean, deviation = levels.T[:, :, None, None]
        values = (self._image.read(part).astype(np.float32) - mean) / deviation
        outside = [
            (inner - a, b - stop) for a, b, inner, stop in zip(box.start, box.stop, part.start, part.stop, strict=True)
        ]
        return np.pad(values, outside, mode="symmetric")

    def _measured(self, z: int) -> tuple[float, float]:
        sides = [min(SAMPLE_SIDE, n) for n in self._box.shape[1:]]
        ends = zip(self._box.start[1:], self._box.stop[1:], sides, strict=True)
        places = [np.unique(np.linspace(a, b - n, SAMPLES).astype(int)).tolist() for a, b, n in ends]
        boxes = [Box.from_shape(zyx((1, *sides)), zyx((z, *place))) for place in itertools.product(*places)]
        values = np.concatenate([self._image.read(box).ravel() for box in boxes]).astype(np.float32)
        return float(values.mean()), max(float(values.std()), 1e-3)


def predict(net: keras.Model, sections: np.ndarray) -> np.ndarray:
    """Return affinities.

    Parameters
    ----------
    net : keras.Model
        Of `network`.
    sections : float32 ndarray of shape (Z + 2 * NEAR, Y, X)
        Of `Sections`; Y and X are multiples of `STEP`. What lies within `REACH` pixels of the rim is less certain.

    Returns
    -------
    uint8 ndarray of shape (3, Z, Y, X)
        Along z, y and x; 255 stands for certainty.
    """
    seen = np.lib.stride_tricks.sliding_window_view(sections, 2 * NEAR + 1, axis=0)
    logits = np.concatenate([net.predict_on_batch(seen[z : z + 1]) for z in range(len(seen))])
    return np.rint(255 / (1 + np.exp(-np.moveaxis(logits, -1, 0)))).astype(np.uint8)
