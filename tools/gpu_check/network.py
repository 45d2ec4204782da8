"""The network and the step of all canvases: right, and how fast."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ffn.config import SegmentConfig
from ffn.inference.canvas import Thresholds
from ffn.inference.device import step as device_step
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


class Step(NamedTuple):
    """The step of `DeviceLanes` and what it is called with."""

    call: Callable[..., Any]
    weights: Any
    seen: Any
    state: device_step.CanvasState
    requests: np.ndarray

    def run(self, state: device_step.CanvasState, requests: np.ndarray | None = None) -> tuple[Any, np.ndarray]:
        """Make one step; return the new state and the answers."""
        state, answers = self.call(self.weights, self.seen, state, self.requests if requests is None else requests)
        return state, np.asarray(answers)


def stepping(batch: int, form: Form, side: int) -> Step:
    """Prepare the step of `batch` canvases of `side`³ voxels, each at a random place."""
    import jax

    # The step itself takes planes only where JAX has nothing but CPUs.
    device_step.updated_pom = functools.partial(jax_network.updated_pom, form=form.form)
    model, rng = packed_model(), np.random.default_rng(0)
    stepper = device_step.Stepper(model.config, Thresholds.of(SegmentConfig()), form.precision)
    images = jax.device_put(rng.integers(60, 200, (batch, side, side, side), dtype=np.uint8))
    state = device_step.CanvasState(images, jax.numpy.full(images.shape, np.nan, np.float32))
    seen = jax.device_put(((np.arange(256) - 128) / 33).astype(np.float32))
    inside, seeds = device_step.INSIDE_COLUMN, device_step.SEED_COLUMN
    requests = np.zeros((batch, seeds + 3 * (1 + device_step.WATCHED)), np.int32)
    requests[:, 0] = 1
    requests[:, 1:inside] = rng.integers(0, side - model.config.fov_size_zyx[0], (batch, 3))
    requests[:, inside + 3 : seeds], requests[:, seeds:] = side, side // 2
    return Step(jax.jit(stepper.step, donate_argnums=2), jax.device_put(model.weights), seen, state, requests)


def onestep(report: Report) -> None:
    """Make three steps of 8 canvases, for ncu."""
    step = stepping(8, FORMS[0], 40 if TINY else 120)
    state = step.state
    for _ in range(3):
        state, _ = step.run(state)
