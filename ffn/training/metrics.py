"""The rows of a training: scores, step times, CSV files, signs of trouble, progress, and the best weights."""

from __future__ import annotations

import contextlib
import csv
import json
import logging
import math
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np

from ffn.config import ModelConfig
from ffn.io import atomic
from ffn.model.network import Weights
from ffn.model.store import Model, load_model, save_model
from ffn.progress import progress_bar
from ffn.provenance import provenance
from ffn.training.config import TrainConfig

if TYPE_CHECKING:
    from ffn.training.step import Outcome

SCORES = ("accuracy", "precision", "recall", "f1")
SIZES = ("thin", "middle", "thick")  # objects of a validation, by the share of the voxels around that they have
F1_OF_SIZES = tuple(f"f1_{size}" for size in SIZES)  # whose mean is the F1 of a validation
PARTS_OF_STEP = ("input_ms", "compute_ms", "allreduce_ms", "rest_ms")
MEASURED = ("learning_rate", "fovs_per_second", "seconds", "skipped_steps", *PARTS_OF_STEP, "bytes_sent")
COLUMNS = ("step", "epoch", "loss", *SCORES, *MEASURED, "gradient_norm")
SMOOTHING = 0.9  # Dong et al. 2019, learning-rate study

VALIDATION_COLUMNS = ("step", "examples", "fovs", "loss", *SCORES, *F1_OF_SIZES, "validation_seconds")
NO_ROWS = -1  # last step to keep, for a log that starts over
BEST = "checkpoints/best"  # below the model folder
LAST_ROWS_SECONDS = 60.0  # for a command to handle the last rows at the end of a training; our choice

MetricsRow = dict[str, float]

log = logging.getLogger(__name__)


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


def is_row_log(path: Path) -> bool:
    """Whether a file is the ``metrics.csv`` of a training here, maybe of an earlier version; others write one, too."""
    return path.is_file() and path.read_bytes().startswith(",".join(COLUMNS[:3]).encode())


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


def read_complaints(model_folder: str | Path) -> list[str]:
    """Return the signs of trouble of the training in a model folder; none without a training."""
    folder = Path(model_folder)
    return list(complaints(*(read_metrics(folder / name) for name in ("metrics.csv", "validation.csv"))).values())


class Report:
    """Progress, tables and the best model of a training, which rank 0 writes.

    The best model has the best validation F1, and is the latest of equals. A resumed training finds its F1 in the table
    of validations; scores of other validation examples cannot be compared, so that table starts anew.
    """

    def __init__(self, folder: Path, train: TrainConfig, model: ModelConfig, step: int, same_examples: bool) -> None:
        self._training = RowLog(folder / "metrics.csv", COLUMNS, step or NO_ROWS)
        last = step if step and same_examples else NO_ROWS
        self._validation = RowLog(folder / "validation.csv", VALIDATION_COLUMNS, last)
        self._complained_of = self._complaints().keys()
        self._config = model
        self._best = folder / BEST
        self._best_f1 = best_validation(self._validation.rows).get("f1", -1.0)
        if self._best_f1 < 0:
            shutil.rmtree(self._best, ignore_errors=True)
        self._command = RowCommand(train.on_row)
        self._bar = progress_bar(train.max_steps, "train", unit="step", done=step)
        self._is_live = sys.stderr.isatty()

    def has_validated(self, step: int) -> bool:
        """Whether ``validation.csv`` has a row of `step`."""
        return any(row["step"] == step for row in self._validation.rows)

    def training(self, row: MetricsRow) -> None:
        """Write and show a row with the `COLUMNS` of ``metrics.csv``."""
        self._training.write(row)
        self._command.write("train", row)
        shown = {"loss": row["loss"], "accuracy": row["accuracy"], "F1": row["f1"], "FOVs/s": row["fovs_per_second"]}
        self._bar.set_postfix({name: f"{value:.3g}" for name, value in shown.items()}, refresh=False)
        self._bar.update(int(row["step"]) - self._bar.n)
        self.complain()

    def validation(self, row: MetricsRow, weights: Callable[[], Weights]) -> None:
        """Keep the best weights, then write the row: a step that has a row is not validated again."""
        f1 = float(f"{row['f1']:.9g}")  # as the table has it, so that a resumed training takes the same weights
        if f1 >= self._best_f1:
            self._best_f1 = f1
            self._save_best(row, weights())
        self._validation.write(row)
        self._command.write("validation", row)
        shown = ", ".join(f"{name} {row[name]:.4g}" for name in ("loss", *SCORES))
        log.info("validation after step %d: %s", row["step"], shown)
        self.complain()

    def progress(self, step: int) -> None:
        """Move the bar in a terminal; a log file gets lines at rows of metrics only."""
        if self._is_live:
            self._bar.update(step - self._bar.n)

    def is_lost(self, use_best: bool) -> bool:
        """Whether one step at most changed the weights, or none of those that the last row tells of."""
        rows = self._training.rows
        if not rows or rows[-1]["step"] == 1:
            return False
        done = rows[-1]["step"] - sum(row["skipped_steps"] for row in rows)
        return done <= 1 or (math.isnan(rows[-1]["loss"]) and not use_best)

    def close(self) -> None:
        """Close files and bar."""
        self._bar.close()
        self._command.close()

    def _save_best(self, row: MetricsRow, weights: Weights) -> None:
        origin = provenance("train", step=int(row["step"]), validation_f1=row["f1"])
        with atomic.atomic_path(self._best) as temporary:
            save_model(temporary, Model(self._config, weights, origin))

    def _complaints(self) -> dict[str, str]:
        return complaints(self._training.rows, self._validation.rows)

    def complain(self, again: bool = False) -> None:
        """Log each sign of trouble, once as long as it lasts, or all of them `again`."""
        found = self._complaints()
        for kind in found.keys() - (() if again else self._complained_of):
            log.warning("train: %s", found[kind])
        self._complained_of = found.keys()


def load_best(folder: Path) -> tuple[int, Weights]:
    """Return the step and the weights of the best model of a training."""
    model = load_model(folder / BEST)
    return int(model.provenance["inputs"]["step"]), model.weights


class RowCommand:
    """A command that reads rows from its standard input; whatever it does, training goes on.

    It has a session of its own, so that a signal to the training does not cost it the last rows. A pipe takes 64 KiB,
    about a hundred rows; a command that reads too slowly is ended.
    """

    def __init__(self, command: str | None) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        if command is None:
            return
        try:
            self._process = subprocess.Popen(
                shlex.split(command), bufsize=0, stdin=subprocess.PIPE, stdout=sys.__stderr__, start_new_session=True
            )
        except (OSError, ValueError, IndexError) as reason:  # of no words
            log.warning("train.on_row: %s", reason)
        else:
            os.set_blocking(self._pipe.fileno(), False)

    def write(self, run: str, row: MetricsRow) -> None:
        """Give the command a row: so few bytes go into a pipe whole, or not at all."""
        if self._process is None:
            return
        is_taken = False
        with contextlib.suppress(OSError):  # it has ended, or closed its input
            is_taken = self._pipe.write(json.dumps({"run": run, **row}).encode() + b"\n") is not None
        if not is_taken:
            self.close(seconds=1.0)

    def close(self, seconds: float = LAST_ROWS_SECONDS) -> None:
        """Wait until the command has handled all rows, but not for long."""
        if self._process is None:
            return
        self._pipe.close()
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._process = None
        if code:
            log.warning("train.on_row: the command ended with exit code %d, so it gets no more rows", code)

    @property
    def _pipe(self) -> IO[bytes]:
        assert self._process is not None and self._process.stdin is not None
        return self._process.stdin
