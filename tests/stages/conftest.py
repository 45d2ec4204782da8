"""Bright tubes, and a network that follows what is bright: a scene whose segmentation is known."""

import numpy as np
import pytest

from ffn.config import ModelConfig
from ffn.inference import affinities
from ffn.model.network import weight_shapes
from ffn.model.store import Model, save_model


def tube_image(shape, starts):
    """Tubes along x, ten voxels wide from each of `starts` in z and y, brightest on the axis: there the FOV stays."""
    image = np.full(shape, 60, np.uint8)
    for start in starts:
        for depth in range(5):
            inside = slice(start + depth, start + 10 - depth)
            image[inside, inside] = 180 + 15 * depth
    return image


@pytest.fixture
def tubes():
    """Return `tube_image`."""
    return tube_image


def write_bright_model(folder):
    """Write a network that adds the image to the POM: what is bright grows, what is dark does not."""
    config = ModelConfig(
        depth=1, features=2, fov_size_zyx=(5, 5, 7), deltas_zyx=(1, 1, 2), image_mean=130, image_stddev=10
    )
    weights = {name: np.zeros(shape, np.float32) for name, shape in weight_shapes(config).items()}
    weights["conv0_a/weights"][1, 1, 1, 0] = [1, -1]  # positive and negative part of the image
    weights["conv0_b/weights"][1, 1, 1] = np.eye(2)
    weights["conv_lom/weights"][0, 0, 0, :, 0] = [1, -1]
    save_model(folder, Model(config, weights, {}))


def write_bright_affinities(path):
    """Write a network of affinities that are 1 where a section is bright."""
    net = affinities.network()
    weights = [np.zeros_like(each) for each in net.get_weights()]
    kernels = weights[::2]
    weights[1][0] = 2  # what is brighter than two deviations below the mean passes
    kernels[0][1, 1, affinities.NEAR, 0] = kernels[1][1, 1, 0, 0] = 1
    kernels[-3][1, 1, affinities.WIDTHS[0], 0] = kernels[-2][1, 1, 0, 0] = 1  # as the second half has it, by the skip
    kernels[-1][0, 0, 0], weights[-1][:] = 20, -40
    net.set_weights(weights)
    affinities.save(path, net, (10.0, 10.0, 10.0), {})


@pytest.fixture
def bright_model(tmp_path):
    """Folder of `write_bright_model`."""
    write_bright_model(tmp_path / "model")
    return tmp_path / "model"
