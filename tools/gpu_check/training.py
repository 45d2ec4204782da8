"""Training steps on noise, as `ffn train` makes them, of the paper's network."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from ffn.config import ModelConfig
from ffn.training.config import TrainConfig
from ffn.training.data.examples import Example, patch_size
from ffn.training.loop import make_learner, make_patches
from ffn.training.parallel.process_group import ProcessGroup
from ffn.training.plan import initial_weights

from .common import TINY, Report, seconds_until, tflop

CASES = [(8, "bfloat16"), (32, "bfloat16"), (1, "bfloat16"), (8, "float32"), (64, "bfloat16")]
PAPER = ModelConfig(depth=9, features=32, fov_size_zyx=(33, 33, 33), deltas_zyx=(8, 8, 8))
SMALL = ModelConfig(depth=2, features=8, fov_size_zyx=(17, 17, 17), deltas_zyx=(4, 4, 4))


def rates(report: Report) -> None:
    """Time a training step by batch and precision, and its parts."""
    config = SMALL if TINY else PAPER
    for batch, precision in CASES[: 2 if TINY else None]:
        if not report.has_time(2 if TINY else 12, f"{batch} {precision}"):
            return
        with report.case(f"{batch} {precision}"):
            time_steps(report, config, batch, precision)


def step_on_noise(train: TrainConfig, model: ModelConfig) -> Callable[[], object]:
    """Return a function that makes one step on patches of noise."""
    learner = make_learner(model, train, initial_weights(model, rng_seed=0), ProcessGroup())
    patches = make_patches(learner, model, train)
    grey = np.random.default_rng(0).normal(size=patch_size(model, train)).astype(np.float32)
    example = Example(grey, None, (grey > 0).astype(np.uint8), 1.0, ())
    walks = [patches.walk(lane, example) for lane in range(train.batch_size)]
    return lambda: learner.step(patches.batch(walks), train.learning_rate)


def time_steps(report: Report, config: ModelConfig, batch: int, precision: str) -> None:
    """Make steps for 1.5 seconds."""
    start = time.perf_counter()
    step = step_on_noise(TrainConfig(num_workers=1, batch_size=batch, engine="jax", precision=precision), config)
    step()
    first = time.perf_counter() - start
    times: list[float] = []
    while sum(times) < (0.5 if TINY else 1.5) or len(times) < 3:
        times.append(seconds_until(step))
    rate = batch / float(np.median(times))
    report.add(
        batch=batch,
        precision=precision,
        ms=round(batch / rate * 1e3, 2),
        first_s=round(first, 1),
        fovs_per_s=round(rate, 1),
        tflops=round(3 * rate * tflop(config), 2),
    )
