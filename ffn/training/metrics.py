"""Training metrics: counts between two rows, scores, step times, CSV files, and signs that training went wrong."""

from __future__ import annotations

import contextlib
import csv
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ffn.io import atomic

if TYPE_CHECKING:
    from ffn.training.step import Outcome

SCORES = ("accuracy", "precision", "recall", "f1")
SIZES = ("thin", "middle", "thick")  # objects of a validation, by the share of the voxels around that they have
F1_OF_SIZES = tuple(f"f1_{size}" for size in SIZES)  # whose mean is the F1 of a validation
PARTS_OF_STEP = ("input_ms", "compute_ms", "allreduce_ms", "rest_ms")
COLUMNS = (
    "step",
    "epoch",
    "loss",
    *SCORES,
    "learning_rate",
    "fovs_per_second",
    "seconds",
    "skipped_steps",
    *PARTS_OF_STEP,
    "bytes_sent",
    "gradient_norm",
)
SMOOTHING = 0.9  # Dong et al. 2019, learning-rate study

MetricsRow = dict[str, float]


def classification_scores(counts: np.ndarray) -> dict[str, float]:
    """Return accuracy, precision, recall and F1 from true positives, false positives, true and false negatives.

    They are NaN if all counts are 0; a ratio with denominator 0 is 0.

    Examples
    --------
    >>> classification_scores(np.array([3, 1, 5, 1]))
    {'accuracy': 0.8, 'precision': 0.75, 'recall': 0.75, 'f1': 0.75}
    """
    tp, fp, tn, fn = map(int, counts)
    if not tp + fp + tn + fn:
        return dict.fromkeys(SCORES, float("nan"))
    return {
        "accuracy": (tp + tn) / (tp + fp + tn + fn),
        "precision": tp / max(1, tp + fp),
        "recall": tp / max(1, tp + fn),
        "f1": 2 * tp / max(1, 2 * tp + fp + fn),
    }


def smoothed(values: Iterable[float], factor: float = SMOOTHING) -> np.ndarray:
    """Return the exponential moving average of a curve, unbiased from the first value on.

    A value that is not finite gives NaN and does not count.

    Examples
    --------
    >>> smoothed([2.0, 2.0, float("nan"), 4.0], 0.5).round(3).tolist()
    [2.0, 2.0, nan, 3.143]
    """
    total = weight = 0.0
    averages = []
    for value in values:
        if np.isfinite(value):
            total = factor * total + (1 - factor) * value
            weight = factor * weight + (1 - factor)
        averages.append(total / weight if np.isfinite(value) else math.nan)
    return np.array(averages, np.float64)


def sums_of(outcome: Outcome) -> np.ndarray:
    """Return a step's part of the sums for a row: loss and norm if it changed the weights, bytes, steps, skipped."""
    if outcome.finite:
        return np.array([outcome.loss, float(outcome.gradient_norm), outcome.bytes_sent, 1, 0])
    return np.array([0.0, 0.0, outcome.bytes_sent, 0, 1])


NO_STEPS = np.zeros(5)


def means_of(sums: np.ndarray) -> MetricsRow:
    """Return mean loss and gradient norm (NaN without steps), bytes per step and skipped steps from `sums_of` steps."""
    loss, norm, num_bytes, done, skipped = sums.tolist()
    return {
        "loss": loss / (done or math.nan),
        "gradient_norm": norm / (done or math.nan),
        "bytes_sent": num_bytes // max(1, done + skipped),
        "skipped_steps": skipped,
    }


class RowLog:
    """A CSV file of rows that a resumed run continues.

    Rows after `step`, which a killed run may have left, are removed; `kept` are the others.
    """

    def __init__(self, path: Path, columns: Sequence[str], step: int) -> None:
        self._path = path
        self._columns = columns
        self.rows = [row for row in read_metrics(path) if row["step"] <= step]
        atomic.write_text(path, "".join([",".join(columns) + "\n", *map(self._line, self.rows)]))

    def write(self, row: MetricsRow) -> None:
        """Append one row."""
        with self._path.open("a") as file:
            file.write(self._line(row))
        self.rows.append(row)

    def _line(self, row: MetricsRow) -> str:
        """Return a row in nine digits: byte counts stay whole, and values that are read back are written unchanged."""
        return ",".join(f"{row.get(name, math.nan):.9g}" for name in self._columns) + "\n"


def read_metrics(path: str | Path) -> list[MetricsRow]:
    """Read ``metrics.csv`` or ``validation.csv``. A missing file has no rows; incomplete lines are skipped."""
    if not Path(path).is_file():
        return []
    with Path(path).open(newline="") as file:
        return [row for row in map(_numbers, csv.DictReader(file)) if row is not None]


def best_validation(rows: Iterable[MetricsRow]) -> MetricsRow:
    """Return the row of the best F1, and the latest of equals; an empty row if no row has an F1.

    Examples
    --------
    >>> best_validation([{"step": 0, "f1": float("nan")}, {"step": 50, "f1": 0.7}, {"step": 100, "f1": 0.7}])
    {'step': 100, 'f1': 0.7}
    """
    known = [row for row in rows if row.get("f1", float("nan")) >= 0]  # false for NaN
    return max(known, key=lambda row: (row["f1"], row["step"]), default={})


def _numbers(row: Mapping[str, str]) -> MetricsRow | None:
    try:
        return {**{name: float(value) for name, value in row.items()}, "step": int(row["step"])}
    except (KeyError, TypeError, ValueError):
        return None


MEASURED = ("input", "compute", "allreduce", "pause")  # parts of the time between two laps; pauses are no part of steps


class StepClock:
    """Times of the steps since the last lap."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._restart()

    @contextlib.contextmanager
    def measure(self, part: str) -> Iterator[None]:
        """Count the time of a ``with`` block as time of `part`, one of `MEASURED`."""
        start = self._now()
        yield
        self.add(part, self._now() - start)

    def add(self, part: str, seconds: float) -> None:
        """Count `seconds` as time of `part`."""
        self._seconds[part] += seconds

    def lap(self) -> np.ndarray:
        """Return seconds of input, compute, allreduce and the rest since the last lap, and start the next one."""
        *parts, pause = self._seconds.values()
        rest = max(0.0, self._now() - self._start - sum(parts) - pause)
        self._restart()
        return np.array([*parts, rest])

    def _restart(self) -> None:
        self._start = self._now()
        self._seconds = dict.fromkeys(MEASURED, 0.0)


# Of a network that answers the same everywhere: about half of the voxels of balanced examples are in the object.
CONSTANT_LOSS = math.log(2)
NEAR = 0.05  # relative; this and the next four are our choice
NUM_ROWS = 5
COLLAPSED = 0.5  # share of the best F1
RISEN = 3.0  # of the last loss to the first, or to a constant answer's
LEARNT = 0.2  # F1 below which there was nothing to lose


def complaints(metrics: Sequence[MetricsRow], validation: Sequence[MetricsRow]) -> dict[str, str]:
    """Return the signs of trouble of a training, by kind.

    Examples
    --------
    >>> list(complaints([], [{"step": 0, "f1": 0.9}, {"step": 500, "f1": 0.4}]).values())
    ['validation F1 fell from 0.9 after step 0 to 0.4 after step 500. Lower train.learning_rate']
    """
    found = {}
    best, last = best_validation(validation), validation[-1] if validation else {}
    if best.get("f1", 0.0) >= LEARNT and last["f1"] < COLLAPSED * best["f1"]:
        found["collapse"] = (
            f"validation F1 fell from {best['f1']:.2g} after step {best['step']:g} to {last['f1']:.2g} after step "
            f"{last['step']:g}. Lower train.learning_rate"
        )
    recent, skipped = metrics[-NUM_ROWS:], sum(row.get("skipped_steps", 0.0) for row in metrics)
    if skipped:
        found["skipped"] = (
            f"{skipped:g} of {recent[-1]['step']:g} steps had no finite loss or gradient. Lower train.learning_rate or "
            "raise train.warmup_steps"
        )
    if recent and recent[-1]["loss"] > RISEN * max(metrics[0]["loss"], CONSTANT_LOSS):
        found["risen"] = (
            f"the loss was {metrics[0]['loss']:.4g} first and is {recent[-1]['loss']:.4g} at step "
            f"{recent[-1]['step']:g}. Lower train.learning_rate or raise train.warmup_steps"
        )
    if len(recent) == NUM_ROWS and all(abs(row["loss"] / CONSTANT_LOSS - 1) < NEAR for row in recent):
        found["constant"] = (
            f"the loss has been at ln 2 (0.69) up to step {recent[-1]['step']:g}, as if the network answered the same "
            "everywhere. Lower train.learning_rate, raise train.warmup_steps, or check the labels"
        )
    return found


def is_lost(metrics: Sequence[MetricsRow], use_best: bool) -> bool:
    """Whether one step of a training at most changed the weights, or none of those that the last row tells of."""
    if not metrics or metrics[-1]["step"] == 1:
        return False
    done = metrics[-1]["step"] - sum(row["skipped_steps"] for row in metrics)
    return done <= 1 or (math.isnan(metrics[-1]["loss"]) and not use_best)


def read_complaints(model_folder: str | Path) -> list[str]:
    """Return the signs of trouble of the training in a model folder; none without a training."""
    folder = Path(model_folder)
    return list(complaints(*(read_metrics(folder / name) for name in ("metrics.csv", "validation.csv"))).values())
