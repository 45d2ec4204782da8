import numpy as np
import pytest

from ffn.config import ModelConfig
from ffn.model.network import build_network, conv_names, get_weights, set_weights, weight_shapes

CONFIG = ModelConfig(depth=3, features=4, fov_size_zyx=(3, 5, 7), deltas_zyx=(1, 1, 2))


@pytest.fixture(scope="module")
def network():
    return build_network(CONFIG)


def test_convolutions_have_the_names_of_the_published_models():
    assert conv_names(CONFIG) == ["conv0_a", "conv0_b", "conv1_a", "conv1_b", "conv2_a", "conv2_b", "conv_lom"]


def test_the_network_has_the_listed_weights(network):
    found = {name: array.shape for name, array in get_weights(network, CONFIG).items()}
    assert found == weight_shapes(CONFIG)
    assert network.count_params() == sum(int(np.prod(shape)) for shape in found.values())


def test_weights_that_are_set_are_got_back(network):
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(size=shape).astype(np.float32) for name, shape in weight_shapes(CONFIG).items()}
    set_weights(network, CONFIG, weights)
    assert all(np.array_equal(array, weights[name]) for name, array in get_weights(network, CONFIG).items())
