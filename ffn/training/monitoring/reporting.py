"""Reports of a running training: progress, ``metrics.csv``, ``validation.csv``, TensorBoard."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from ffn.model.network import Weights
from ffn.progress import progress_bar
from ffn.training.monitoring.best import BestModel
from ffn.training.monitoring.health import complaints
from ffn.training.monitoring.metrics import COLUMNS, MOVE_SCORES, SCORES, MetricsRow, RowLog
from ffn.training.monitoring.tensorboard import Events
from ffn.training.plan import TrainingPlan

VALIDATION_COLUMNS = ("step", "examples", "fovs", "loss", *SCORES, "validation_seconds", *MOVE_SCORES)
NO_ROWS = -1  # last step to keep, for a log that starts over

log = logging.getLogger(__name__)


class Report:
    """Receives the events of a training process. This class is for ranks above 0, which report nothing."""

    def has_validated(self, step: int) -> bool:
        """Whether ``validation.csv`` has a row of `step`."""
        return False

    def training(self, row: MetricsRow) -> None:
        """Report a row with the `COLUMNS` of ``metrics.csv``."""

    def validation(self, row: MetricsRow, weights: Callable[[], Weights]) -> None:
        """Report a row with the `VALIDATION_COLUMNS` of ``validation.csv``, and the validated weights."""

    def progress(self, step: int) -> None:
        """Report the steps done."""


class MainReport(Report):
    """The report of rank 0.

    Parameters
    ----------
    folder : Path
        Model folder.
    plan : TrainingPlan
        The training.
    step : int
        Steps done. 0 is a new training, which discards earlier reports.
    same_examples : bool
        Whether earlier validations used the present validation examples.
    """

    def __init__(self, folder: Path, plan: TrainingPlan, step: int, same_examples: bool) -> None:
        self._training = RowLog(folder / "metrics.csv", COLUMNS, step or NO_ROWS)
        self._best = BestModel(folder, plan.initial.config, step, same_examples)
        # without a best model, the current weights are validated again, which makes one
        validated = step if self._best.exists else step - 1
        self._validation = RowLog(
            folder / "validation.csv", VALIDATION_COLUMNS, validated if step and same_examples else NO_ROWS
        )
        self._rows: tuple[list[MetricsRow], list[MetricsRow]] = ([*self._training.kept], [*self._validation.kept])
        self._complained_of = complaints(*self._rows).keys()
        self._events = Events(folder / "tensorboard")
        self._events.training(self._training.kept)
        self._events.validation(self._validation.kept)
        self._bar = progress_bar(plan.train.max_steps, "train", unit="step", done=step)
        self._is_live = sys.stderr.isatty()

    def has_validated(self, step: int) -> bool:
        """Whether ``validation.csv`` has a row of `step`."""
        return any(row["step"] == step for row in self._validation.kept)

    def training(self, row: MetricsRow) -> None:
        """Write a row of training metrics and show it."""
        self._training.write(row)
        self._events.training([row])
        shown = {"loss": row["loss"], "accuracy": row["accuracy"], "F1": row["f1"], "FOVs/s": row["fovs_per_second"]}
        self._bar.set_postfix({name: f"{value:.3g}" for name, value in shown.items()}, refresh=False)
        self._bar.update(int(row["step"]) - self._bar.n)
        self._rows[0].append(row)
        self._complain()

    def validation(self, row: MetricsRow, weights: Callable[[], Weights]) -> None:
        """Keep the best weights, then write the row: a step that has a row is not validated again."""
        self._best.offer(row, weights)
        self._validation.write(row)
        self._events.validation([row])
        shown = ", ".join(f"{name} {row[name]:.4g}" for name in ("loss", *SCORES))
        log.info("validation after step %d: %s", row["step"], shown)
        self._rows[1].append(row)
        self._complain()

    def progress(self, step: int) -> None:
        """Move the bar in a terminal; a log file gets lines at rows of metrics only."""
        if self._is_live:
            self._bar.update(step - self._bar.n)

    def _complain(self) -> None:
        """Say what is wrong, once as long as it lasts."""
        found = complaints(*self._rows)
        for kind in found.keys() - self._complained_of:
            log.warning("train: %s", found[kind])
        self._complained_of = found.keys()

    def close(self) -> None:
        """Close files and bar."""
        self._bar.close()
        self._events.close()


@contextlib.contextmanager
def open_report(rank: int, folder: Path, plan: TrainingPlan, step: int, same_examples: bool) -> Iterator[Report]:
    """Yield the report of this process for the length of a ``with`` block; see `MainReport` for the parameters."""
    if rank != 0:
        yield Report()
        return
    with contextlib.closing(MainReport(folder, plan, step, same_examples)) as report:
        yield report
