"""Tell the memory that a training step needs on a device, without and with a pipeline, by XLA's analysis; runs nothing.

    XLA_FLAGS=--xla_force_host_platform_device_count=4 JAX_PLATFORMS=cpu python benchmarks/stages.py --depth 21

*Kept* keeps all activations for the gradient. *Again* computes them again, FOV by FOV, as the pipeline does; on one
device, it is a pipeline of one stage. Convolutions are those that GPUs compute in float32 (`volumes`).
"""

from __future__ import annotations

import argparse
from unittest import mock

import jax
import numpy as np

from ffn.config import ModelConfig
from ffn.model import jax_network
from ffn.training import jax_learner
from ffn.training.config import TrainConfig
from ffn.training.parallel.process_group import ProcessGroup
from ffn.training.plan import initial_weights
from ffn.training.step import Batch


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--depth", type=int, default=21, metavar="INT", help="depth of the network (default: 21)")
    parser.add_argument("--stages", type=int, default=4, metavar="INT", help="stages (default: 4)")
    parser.add_argument("--fov-size", type=int, default=33, metavar="INT", help="side of the FOV (default: 33)")
    parser.add_argument("--fovs", type=int, nargs="+", default=[8], metavar="INT", help="FOVs of a batch (default: 8)")
    given = parser.parse_args()
    model = ModelConfig(depth=given.depth, fov_size_zyx=(given.fov_size,) * 3)
    kinds = (
        (1, False, False),
        (1, False, True),
        (1, True, True),
        (given.stages, False, True),
        (given.stages, True, True),
    )
    print("| FOVs | one device: kept, as a batch | kept, FOV by FOV | again | stage: kept | again | idle | lecture |")
    for fovs in given.fovs:
        print(f"| {fovs} |", end="", flush=True)
        for kind in kinds:
            print(f" {megabytes(model, fovs, *kind):,.0f} MB |", end="", flush=True)
        idle = (jax_network.schedule(fovs, given.stages) < 0).mean()
        lecture = (1 - fovs / (given.stages - 1 + fovs)) / 2
        print(f" {idle:.2f} | {lecture:.2f} |", flush=True)


def megabytes(model: ModelConfig, fovs: int, stages: int, again: bool, one_by_one: bool) -> float:
    """Return the memory of a device for a step: weights, FOVs, activations and gradient."""
    train = TrainConfig(engine="jax", precision="float32", batch_size=fovs, pipeline_stages=stages)
    by_batch = jax_learner.updated_pom

    def by_stages(params, image, pom_logit, config, precision):  # type: ignore[no-untyped-def]
        if not one_by_one:
            return by_batch(params, image, pom_logit, config, precision, "volumes")
        return jax_network.pipelined_pom(params, image, pom_logit, config, precision, 1)

    with (
        mock.patch.object(jax_network, "fastest_form", lambda *_: "volumes"),
        mock.patch.object(jax_learner, "updated_pom", by_stages),
        mock.patch.object(jax, "checkpoint", jax.checkpoint if again else lambda function: function),
        mock.patch.object(jax_learner, "devices_of", lambda *_: jax.devices()[:stages]),
    ):
        learner = jax_learner.JaxLearner(model, train, initial_weights(model, 1), ProcessGroup())
        shape = (fovs, *model.fov_size_zyx)
        batch = Batch(*(jax.ShapeDtypeStruct(shape, np.float32, sharding=learner._split) for _ in Batch._fields))  # type: ignore[arg-type]
        flags = jax.ShapeDtypeStruct((2,), np.float32, sharding=learner._whole)
        sizes = learner._compiled_gradient.lower(learner._held.weights, batch, flags).compile().memory_analysis()
    return float(sizes.temp_size_in_bytes + sizes.argument_size_in_bytes + sizes.output_size_in_bytes) / 1e6


if __name__ == "__main__":
    main()
