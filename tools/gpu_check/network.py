"""The network and the step of all canvases: right, and how fast."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ffn.config import SegmentConfig
from ffn.inference.canvas import Thresholds
from ffn.inference.device import burst as device_burst
from ffn.model import jax_network

from .common import PACK, TINY, Report, noise, packed_model, tflop

MOVE = 2.197  # logit at which a FOV moves on
LARGEST_ERROR = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1e-2}  # relative; ours, four times what a CPU has


class Form(NamedTuple):
    """How convolutions are computed: their type, and the form of `updated_pom`, by default the fastest."""

    precision: str
    form: jax_network.Form | None = None

    def row(self) -> dict[str, str]:
        """Return what a report says of it."""
        form = self.form or jax_network.fastest_form(packed_model().config, self.precision)
        return {"precision": self.precision, "form": form}


FORMS = [
    Form("float16"),
    Form("bfloat16"),
    Form("bfloat16", "planes"),
    Form("bfloat16", "volumes"),
    Form("float32", "volumes"),
    Form("float32", "planes"),
]
# Batch and index of the form, the most useful first.
CASES = [(8, 0), (1, 0), (32, 0), (8, 2), (8, 3), (1, 2), (32, 2), (8, 4), (64, 0), (4, 0), (16, 0), (2, 0), (8, 5)]


def compiled(form: Form) -> Callable[..., Any]:
    """Return the compiled network as a function of image and POM."""
    import jax

    model = packed_model()
    weights = jax_network.prepared(model.weights, model.config, *form)
    call = jax.jit(lambda weights, image, pom: jax_network.updated_pom(weights, image, pom, model.config, *form))
    return functools.partial(call, weights)


def correct(report: Report) -> None:
    """Compare the network with float64 in each form; report whether its bits are the same twice, and at any batch.

    Raises
    ------
    ArithmeticError
        If a form is further off than its precision explains.
    """
    inaccurate = []

    known = np.load(PACK / "reference.npz")
    for form in FORMS:
        if not report.has_time(5, str(form)):
            return
        with report.case(str(form)):
            call = compiled(form)
            out = np.asarray(call(known["image"], known["pom"]))
            again = np.asarray(call(known["image"], known["pom"]))
            row = {**form.row(), "same_twice": bool((out == again).all()), **errors(out, known)}
            if not row["relative_real"] < LARGEST_ERROR[form.precision]:  # nor is NaN
                inaccurate.append(form)
            if report.seconds_left > 20:
                wide = np.asarray(call(np.repeat(known["image"], 4, 0), np.repeat(known["pom"], 4, 0)))
                row["same_at_batch_8"] = bool((wide[::4] == out).all())
                row["largest_at_batch_8"] = float(np.abs(wide[::4] - out).max())
            report.add(**row)
    if inaccurate:
        raise ArithmeticError(f"inaccurate: {inaccurate}")


def errors(out: np.ndarray, known: Any) -> dict[str, Any]:
    """Return relative and largest errors and flipped decisions, of the FOV of data and that of noise."""
    row: dict[str, Any] = {}
    for name, ours, pom, true in zip(("real", "noise"), out, known["pom"], known["out"], strict=True):
        row[f"relative_{name}"] = float(np.linalg.norm(ours - true) / np.linalg.norm(true - pom))
        row[f"largest_{name}"] = float(np.abs(ours - true).max())
        row[f"decisions_{name}"] = int(((ours >= MOVE) != (true >= MOVE)).sum())
    return row


def rates(report: Report) -> None:
    """Time the network by batch and form; CASES=3 takes the first three."""
    import jax

    model = packed_model()
    for batch, index in CASES[: int(os.environ.get("CASES", "4" if TINY else "99"))]:
        form = FORMS[index]
        if not report.has_time(5 if TINY else 15, f"{batch} {form}"):
            return
        with report.case(f"{batch} {form}"):
            call, (image, pom) = compiled(form), jax.device_put(noise(batch, model.config))
            seconds, first = report.seconds_of(lambda: call(image, pom))  # noqa: B023 (called at once)
            rate = batch / seconds
            report.add(
                batch=batch,
                **form.row(),
                ms=round(seconds * 1e3, 3),
                first_s=round(first, 1),
                fovs_per_s=round(rate, 1),
                tflops=round(rate * tflop(model.config), 2),
            )


class Bursting(NamedTuple):
    """The burst of `DeviceLanes` and what it is called with."""

    call: Callable[..., Any]
    weights: Any
    seen: Any
    scenes: device_burst.Scenes
    growing: device_burst.Growing
    requests: np.ndarray

    def run(self, growing: device_burst.Growing) -> tuple[Any, np.ndarray]:
        """Make one burst; return the objects and the answers."""
        growing, answers = self.call(self.weights, self.seen, self.scenes, growing, self.requests)
        return growing, np.asarray(answers)


def bursting(batch: int, form: Form, side: int, num_fovs: int) -> Bursting:
    """Prepare bursts of objects on `batch` canvases of `side`³ voxels, which move everywhere from random places."""
    import jax

    device_burst.updated_pom = functools.partial(jax_network.updated_pom, form=form.form)
    model, rng, shape = packed_model(), np.random.default_rng(0), (side, side, side)
    thresholds = Thresholds.of(SegmentConfig(move_threshold=1e-6))
    burst = device_burst.Burst(model.config, thresholds, form.precision, shape, num_fovs)
    images = jax.device_put(rng.integers(60, 200, (batch, *shape), dtype=np.uint8))
    scenes = device_burst.Scenes(images, jax.numpy.zeros(images.shape, bool))
    radius, lanes = np.array(model.config.fov_radius_zyx), np.arange(batch)
    seeds = rng.integers(radius, side - radius, (batch, 3))
    pom = jax.numpy.full(images.shape, np.nan, np.float32).at[(lanes, *seeds.T)].set(thresholds.init)
    done = jax.numpy.zeros((batch, burst.num_cells), bool)
    queue = jax.numpy.zeros((batch, 4096, 3), np.int32).at[:, 0].set(seeds)
    growing = device_burst.Growing(pom, done, queue, jax.numpy.tile(np.array([0, 1], np.int32), (batch, 1)))
    requests = np.zeros((batch, device_burst.REQUEST), np.int32)
    requests[:, 0], requests[:, 1], requests[:, 2:5] = lanes, num_fovs, seeds
    requests[:, 8:11], requests[:, 11:14], requests[:, 14:] = side, radius, side - radius
    weights = jax.device_put(jax_network.prepared(model.weights, model.config, *form))
    seen = jax.device_put(((np.arange(256) - 128) / 33).astype(np.float32))
    return Bursting(jax.jit(burst.run, donate_argnums=3), weights, seen, scenes, growing, requests)


def onestep(report: Report) -> None:
    """Evaluate three FOVs on 8 canvases, for ncu."""
    burst = bursting(8, FORMS[0], 40 if TINY else 120, 3)
    burst.run(burst.growing)
