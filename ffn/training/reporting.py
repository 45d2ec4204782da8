"""Reports of a running training: progress, CSV files, a command's rows, and the weights of the best validation."""

from __future__ import annotations

import json
import logging
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO

from ffn.io import atomic
from ffn.model.network import Weights
from ffn.model.store import Model, load_model, save_model
from ffn.progress import progress_bar
from ffn.provenance import provenance
from ffn.training.metrics import (
    COLUMNS,
    F1_OF_SIZES,
    SCORES,
    MetricsRow,
    RowLog,
    best_validation,
    complaints,
    is_lost,
)
from ffn.training.plan import TrainingPlan

VALIDATION_COLUMNS = ("step", "examples", "fovs", "loss", *SCORES, *F1_OF_SIZES, "validation_seconds")
NO_ROWS = -1  # last step to keep, for a log that starts over
BEST = "checkpoints/best"  # below the model folder
LAST_ROWS_SECONDS = 60.0  # for a command to handle the last rows at the end of a training; our choice

log = logging.getLogger(__name__)


class Report:
    """Progress, tables and the best model of a training, which rank 0 writes.

    The best model has the best validation F1, and is the latest of equals. A resumed training finds its F1 in the table
    of validations; scores of other validation examples cannot be compared, so that table starts anew.
    """

    def __init__(self, folder: Path, plan: TrainingPlan, step: int, same_examples: bool) -> None:
        self._training = RowLog(folder / "metrics.csv", COLUMNS, step or NO_ROWS)
        self._validation = RowLog(
            folder / "validation.csv", VALIDATION_COLUMNS, step if step and same_examples else NO_ROWS
        )
        self._complained_of = self._complaints().keys()
        self._config = plan.initial.config
        self._best = folder / BEST
        self._best_f1 = best_validation(self._validation.rows).get("f1", -1.0)
        if self._best_f1 < 0:
            shutil.rmtree(self._best, ignore_errors=True)
        self._command = RowCommand(plan.train.on_row)
        self._bar = progress_bar(plan.train.max_steps, "train", unit="step", done=step)
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
        self._complain()

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
        self._complain()

    def progress(self, step: int) -> None:
        """Move the bar in a terminal; a log file gets lines at rows of metrics only."""
        if self._is_live:
            self._bar.update(step - self._bar.n)

    def is_lost(self, use_best: bool) -> bool:
        """Whether the training has failed, see `ffn.training.metrics.is_lost`."""
        return is_lost(self._training.rows, use_best)

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

    def _complain(self) -> None:
        """Log each sign of trouble, once as long as it lasts."""
        found = self._complaints()
        for kind in found.keys() - self._complained_of:
            log.warning("train: %s", found[kind])
        self._complained_of = found.keys()


def load_best(folder: Path) -> tuple[int, Weights]:
    """Return the step and the weights of the best model of a training."""
    model = load_model(folder / BEST)
    return int(model.provenance["inputs"]["step"]), model.weights


class RowCommand:
    """A command that reads rows from its standard input; whatever it does, training goes on.

    It has a session of its own, so that a signal to the training does not cost it the last rows. A pipe takes 64 KiB,
    about a hundred rows; of a command that reads too slowly, further ones are left out.
    """

    def __init__(self, command: str | None) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._has_failed = False
        if command is None:
            return
        try:
            self._process = subprocess.Popen(
                shlex.split(command), bufsize=0, stdin=subprocess.PIPE, stdout=sys.__stderr__, start_new_session=True
            )
        except (OSError, ValueError, IndexError) as reason:  # of no words
            self._warn(str(reason))
        else:
            os.set_blocking(self._pipe.fileno(), False)

    def write(self, run: str, row: MetricsRow) -> None:
        """Give the command a row: so few bytes go into a pipe whole, or not at all."""
        if self._process is None:
            return
        try:
            if self._pipe.write(json.dumps({"run": run, **row}).encode() + b"\n") is None:
                self._warn(f"the command reads too slowly, so rows are left out from step {row['step']}")
        except OSError:  # it has ended, or closed its input
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
            self._warn(f"the command ended with exit code {code}, so it gets no more rows")

    @property
    def _pipe(self) -> IO[bytes]:
        assert self._process is not None and self._process.stdin is not None
        return self._process.stdin

    def _warn(self, text: str) -> None:
        """Warn of the first failure."""
        if not self._has_failed:
            log.warning("train.on_row: %s", text)
        self._has_failed = True
