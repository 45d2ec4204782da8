"""A network whose answers depend on all that it sees."""

import functools

import numpy as np

from ffn.config import ModelConfig
from ffn.inference.inputs import Network
from ffn.model.choice import Choice
from ffn.model.jax_network import prepared, updated_pom
from ffn.model.network import weight_shapes
from ffn.model.normalize import Normalisation
from ffn.model.store import Model


def network_of(model: Model, engine: str) -> Network:
    """Return a network in float32, by its own normalisation and steps."""
    config = model.config
    return Network(model, Normalisation.of_model(config), Choice(engine, "float32"), config.deltas_zyx)


def follower(config: ModelConfig) -> Model:
    """Return a network, of four features at least, that makes the POM follow what is bright, with noise."""
    rng = np.random.default_rng(5)
    weights = {name: rng.normal(0, 0.05, shape).astype(np.float32) for name, shape in weight_shapes(config).items()}
    weights["conv0_a/weights"][1, 1, 1, 0, :2] += [1, -1]
    weights["conv0_b/weights"][1, 1, 1] += np.eye(config.features)
    weights["conv_lom/weights"][0, 0, 0, :2, 0] += [1.5, -1.5]
    return Model(config, weights, {})


class JaxOnHost:
    """An engine with the network by JAX on a CPU, whatever else there is."""

    name = "jax float32"

    def __init__(self, model: Model, engine: str, precision: str) -> None:
        import jax

        self._on_cpu = functools.partial(jax.default_device, jax.devices("cpu")[0])
        with self._on_cpu():
            self._weights = prepared(model.weights, model.config, precision)
        self._call = jax.jit(lambda weights, *fovs: updated_pom(weights, *fovs, model.config, precision))

    def predict(self, image: np.ndarray, pom_logit: np.ndarray) -> np.ndarray:
        with self._on_cpu():
            return np.array(self._call(self._weights, image, pom_logit))
