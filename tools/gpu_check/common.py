"""What all steps share: rows of results, the time that is left, the network and its inputs."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ffn.config import ModelConfig
from ffn.model.store import Model, load_model

TINY = bool(os.environ.get("TINY"))
PACK = Path(os.environ.get("PACK", ".gpu-check"))
OUT = Path(os.environ.get("OUT", "."))
RESERVE = 4  # seconds before the limit at which a step ends by itself


class Report:
    """Rows of one step, each written at once: the machine may be taken away at any moment."""

    def __init__(self, step: str) -> None:
        self.step = step
        self.start = time.time()
        self.deadline = self.start + float(os.environ.get("LIMIT", "inf")) - RESERVE

    def add(self, **row: Any) -> None:
        """Print a row and append it to results.jsonl."""
        row = {"step": self.step, "at": round(time.time() - self.start, 2), **row}
        if flags := os.environ.get("XLA_FLAGS"):
            row["xla_flags"] = flags
        print(json.dumps(row), flush=True)
        with open(OUT / "results.jsonl", "a") as file:
            file.write(json.dumps(row) + "\n")

    @contextlib.contextmanager
    def case(self, name: str) -> Iterator[None]:
        """Record an error and go on: XLA may find no algorithm for a case (jax #37922), or a batch may not fit."""
        try:
            yield
        except Exception as error:
            if TINY:  # in a dry run, it is ours
                raise
            self.add(case=name, error=f"{type(error).__name__}: {str(error)[:300]}")

    @property
    def seconds_left(self) -> float:
        """Seconds until the step has to end."""
        return self.deadline - time.time()

    def has_time(self, seconds: float, case: str) -> bool:
        """Whether so many seconds are left; if not, a row names the first case that was left out."""
        if self.seconds_left >= seconds:
            return True
        self.add(no_time_for=case)
        return False

    def seconds_of(self, call: Callable[[], Any], at_least: float = 0.4) -> tuple[float, float]:
        """Return the median seconds of a call, and those of the first one, which compiles."""
        import jax

        first = seconds_until(lambda: jax.block_until_ready(call()))
        jax.block_until_ready(call())
        times: list[float] = []
        while (sum(times) < at_least or len(times) < 5) and not (len(times) >= 3 and self.seconds_left < 2):
            times.append(seconds_until(lambda: jax.block_until_ready([call() for _ in range(4)])))
        return float(np.median(times)) / 4, first


def seconds_until(done: Callable[[], Any]) -> float:
    """Return the seconds that a call takes."""
    start = time.perf_counter()
    done()
    return time.perf_counter() - start


def packed_model() -> Model:
    """Load the network in .gpu-check."""
    return load_model(str(PACK / "model"))


def packed_image() -> str:
    """Return the path of the image in .gpu-check."""
    return f"{PACK}/raw.zarr"


def packed_labels() -> str:
    """Return the path of its ground truth."""
    return f"{PACK}/labels.zarr"


def noise(batch: int, config: ModelConfig) -> tuple[np.ndarray, np.ndarray]:
    """Return images and POMs of noise, float32 of shape (B, Z, Y, X)."""
    rng = np.random.default_rng(0)
    image = rng.normal(size=(batch, *config.fov_size_zyx)).astype(np.float32)
    levels = rng.choice(np.array([-5, -2.94, 2.94, 5], np.float32), image.shape)
    return image, levels + rng.normal(size=image.shape).astype(np.float32)


def tflop(config: ModelConfig) -> float:
    """Return the operations of one FOV, without additions and activations."""
    kernels = 27 * (2 * config.features + (2 * config.depth - 1) * config.features**2) + config.features
    return 2 * kernels * float(np.prod(config.fov_size_zyx)) / 1e12
