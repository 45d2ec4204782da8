"""What is made before a GPU is there: the float64 reference, and a tiny network and image for a dry run."""

from __future__ import annotations

import numpy as np
from scipy import ndimage

from ffn.config import ModelConfig
from ffn.geometry import ZYX, Box
from ffn.io.open import open_volume
from ffn.io.store import create_volume
from ffn.io.volume import Placement
from ffn.model.network import weight_shapes
from ffn.model.store import Model, save_model

from .common import PACK, Report, noise, packed_image, packed_labels, packed_model

TINY_SIDE = 34  # voxels of the image
REAL_CORNER = 100  # of the FOV that is cut out of FIB-25


def tiny(report: Report) -> None:
    """Write a network of random weights that answers yes nearly everywhere, an image of blobs, and their labels."""
    config = ModelConfig(
        depth=2, features=8, fov_size_zyx=(17, 17, 17), deltas_zyx=(4, 4, 4), image_mean=128.0, image_stddev=33.0
    )
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(0, 0.1, shape).astype(np.float32) for name, shape in weight_shapes(config).items()}
    weights["conv_lom/biases"] += 6
    save_model(str(PACK / "model"), Model(config, weights, {}, None))
    raw, labels = blobs((TINY_SIDE,) * 3, rng)
    box = Box.from_shape(raw.shape)
    for path, voxels in ((packed_image(), raw), (packed_labels(), labels)):
        with create_volume(path, voxels.dtype, Placement(box, (10.0, 10.0, 10.0), {})) as writer:
            writer.write(box, voxels)
    report.add(side=TINY_SIDE)


def blobs(shape: ZYX, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return an image of bright blobs (uint8) and their labels (uint64)."""
    smooth = ndimage.gaussian_filter(rng.normal(size=shape), 3)
    raw = np.clip(128 + 40 * smooth / smooth.std(), 0, 255).astype(np.uint8)
    return raw, ndimage.label(smooth > 0)[0].astype(np.uint64)


def reference(report: Report) -> None:
    """Compute the network in float64 with NumPy, for a FOV of the image and one of noise."""
    model = packed_model()
    fov = model.config.fov_size_zyx
    with open_volume(packed_image()) as volume:
        corner = min(REAL_CORNER, *(side - size for side, size in zip(volume.box.shape, fov, strict=True)))
        raw = volume.read(volume.box)[tuple(slice(corner, corner + size) for size in fov)]
    seed = np.full(fov, -2.9444, np.float32)
    seed[tuple(size // 2 for size in fov)] = 2.9444
    image, pom = noise(1, model.config)
    image = np.concatenate([[(raw.astype(np.float32) - 128) / 33], image])
    pom = np.concatenate([[seed], pom])
    out = np.stack([float64_logits(model, *one) for one in zip(image, pom, strict=True)])
    np.savez_compressed(PACK / "reference.npz", image=image, pom=pom, out=out)
    report.add(fovs=len(out))


def float64_logits(model: Model, image: np.ndarray, pom: np.ndarray) -> np.ndarray:
    """Compute the network of one FOV as `updated_pom` does, in float64."""
    net = np.stack([image, pom], -1).astype(np.float64)
    net = conv(relu(conv(net, model, "conv0_a")), model, "conv0_b")
    for module in range(1, model.config.depth):
        net = net + conv(relu(conv(relu(net), model, f"conv{module}_a")), model, f"conv{module}_b")
    last = model.weights["conv_lom/weights"][0, 0, 0, :, 0].astype(np.float64)
    return pom + relu(net) @ last + model.weights["conv_lom/biases"].astype(np.float64)


def relu(net: np.ndarray) -> np.ndarray:
    """Return the positive part."""
    return np.maximum(net, 0)


def conv(net: np.ndarray, model: Model, name: str) -> np.ndarray:
    """Convolve (Z, Y, X, C) with a kernel of 3³ voxels, with zeros around."""
    kernel = model.weights[f"{name}/weights"].astype(np.float64)
    size_z, size_y, size_x = net.shape[:3]
    padded = np.pad(net, ((1, 1), (1, 1), (1, 1), (0, 0)))
    taps = (padded[z : z + size_z, y : y + size_y, x : x + size_x] @ kernel[z, y, x] for z, y, x in np.ndindex(3, 3, 3))
    return sum(taps) + model.weights[f"{name}/biases"].astype(np.float64)
