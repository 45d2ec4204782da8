"""Measure the peak memory of training steps, and compare it with what the workflow asks for.

Every setting is a process of its own. It makes steps on random FOVs, so it needs no volumes.

  python benchmarks/memory.py --depth 9 --fov 33 --batch-size 1 4 8 --virtual-workers 1 4
"""

from __future__ import annotations

import argparse
import itertools
import os
import resource
import subprocess
import sys
from collections.abc import Sequence

import numpy as np

from ffn.config import ModelConfig
from ffn.training.config import TrainConfig
from ffn.training.initial import initial_weights
from ffn.training.learners import make_learner
from ffn.training.parallel.placement import configure_libraries
from ffn.training.parallel.process_group import ProcessGroup
from ffn.training.step import Batch
from ffn.workflow.needs import training_mb

STEPS = 4


def main() -> None:
    """Print the table; in a child process, measure one setting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--depth", type=int, nargs="+", default=[9], help="depths (default: 9)")
    parser.add_argument("--features", type=int, nargs="+", default=[32], help="feature maps (default: 32)")
    parser.add_argument("--fov", type=int, nargs="+", default=[33], help="sides of the FOV, voxels (default: 33)")
    parser.add_argument("--batch-size", type=int, nargs="+", default=[1, 4, 8], help="default: 1 4 8")
    parser.add_argument("--virtual-workers", type=int, nargs="+", default=[1], help="default: 1")
    parser.add_argument("--precision", default="float32", help="float32 or bfloat16 (default: float32)")
    parser.add_argument("--engine", default="tensorflow", help="tensorflow or jax (default: tensorflow)")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    names = ("depth", "features", "fov", "batch_size", "virtual_workers")
    if arguments.child:
        print(peak_mb(*configs([getattr(arguments, name)[0] for name in names], arguments)))
        return
    fixed = ["--precision", arguments.precision, "--engine", arguments.engine]
    print("".join(f"{name:>16}" for name in (*names, "measured MB", "asked for MB")))
    for setting in itertools.product(*(getattr(arguments, name) for name in names)):
        options = itertools.chain(*((f"--{n.replace('_', '-')}", str(v)) for n, v in zip(names, setting, strict=True)))
        command = [sys.executable, __file__, "--child", *fixed, *options]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        asked = training_mb(*configs(setting, arguments))
        print("".join(f"{value:>16}" for value in (*setting, int(done.stdout.split()[-1]), asked)), flush=True)


def configs(setting: Sequence[int], arguments: argparse.Namespace) -> tuple[ModelConfig, TrainConfig]:
    """Return network and options of a setting."""
    depth, features, fov, batch_size, virtual_workers = setting
    delta = fov // 4
    model = ModelConfig(depth=depth, features=features, fov_size_zyx=(fov,) * 3, deltas_zyx=(delta,) * 3)
    computing = {"engine": arguments.engine, "precision": arguments.precision}
    options = {"batch_size": batch_size, "virtual_workers": virtual_workers, **computing}
    return model, TrainConfig.model_validate({"num_workers": 1, **options})


def peak_mb(model: ModelConfig, train: TrainConfig) -> int:
    """Make some steps in this process; return its peak memory, MB."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    configure_libraries(ProcessGroup(), train, 0)
    learner = make_learner(model, train, initial_weights(model, 0), ProcessGroup())
    rng = np.random.default_rng(0)
    shape = (train.num_lanes, *model.fov_size_zyx)
    batch = Batch(*(rng.random(shape, np.float32) for _ in Batch._fields))
    for _ in range(STEPS):
        learner.step(batch, 1e-4)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1000


if __name__ == "__main__":
    main()
