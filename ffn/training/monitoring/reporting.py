"""Reports of a running training: progress, CSV files, TensorBoard, and the weights of the best validation."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ffn.config import ModelConfig
from ffn.errors import ModelError, TrainError
from ffn.io import atomic
from ffn.model.network import Weights
from ffn.model.store import Model, load_model, save_model
from ffn.progress import progress_bar
from ffn.provenance import provenance
from ffn.training.monitoring.metrics import COLUMNS, MOVE_SCORES, SCORES, MetricsRow, RowLog, Smoother, complaints
from ffn.training.plan import TrainingPlan

if TYPE_CHECKING:
    import tensorflow as tf

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
    """The report of rank 0."""

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
        for row in self._training.kept:
            self._events.write("train", row)
        for row in self._validation.kept:
            self._events.write("validation", row)
        self._bar = progress_bar(plan.train.max_steps, "train", unit="step", done=step)
        self._is_live = sys.stderr.isatty()

    def has_validated(self, step: int) -> bool:
        """Whether ``validation.csv`` has a row of `step`."""
        return any(row["step"] == step for row in self._validation.kept)

    def training(self, row: MetricsRow) -> None:
        """Write a row of training metrics and show it."""
        self._training.write(row)
        self._events.write("train", row)
        shown = {"loss": row["loss"], "accuracy": row["accuracy"], "F1": row["f1"], "FOVs/s": row["fovs_per_second"]}
        self._bar.set_postfix({name: f"{value:.3g}" for name, value in shown.items()}, refresh=False)
        self._bar.update(int(row["step"]) - self._bar.n)
        self._rows[0].append(row)
        self._complain()

    def validation(self, row: MetricsRow, weights: Callable[[], Weights]) -> None:
        """Keep the best weights, then write the row: a step that has a row is not validated again."""
        self._best.offer(row, weights)
        self._validation.write(row)
        self._events.write("validation", row)
        shown = ", ".join(f"{name} {row[name]:.4g}" for name in ("loss", *SCORES))
        log.info("validation after step %d: %s", row["step"], shown)
        self._rows[1].append(row)
        self._complain()

    def progress(self, step: int) -> None:
        """Move the bar in a terminal; a log file gets lines at rows of metrics only."""
        if self._is_live:
            self._bar.update(step - self._bar.n)

    def _complain(self) -> None:
        """Log each sign of trouble, once as long as it lasts."""
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


class Events:
    """Event files below ``tensorboard/``, if TensorFlow is installed. Scalars of the same name share a plot.

    Event files cannot be truncated, so all old ones are removed: write the rows to keep again.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._is_off = importlib.util.find_spec("tensorflow") is None  # JAX trains without it
        self._writers: dict[str, tf.summary.SummaryWriter] = {}
        self._smoothers = {name: Smoother() for name in ("loss", *SCORES)}
        if not self._is_off:
            shutil.rmtree(folder, ignore_errors=True)

    def write(self, run: Literal["train", "validation"], row: MetricsRow) -> None:
        """Write a row; of training, also the smoothed loss and scores."""
        if self._is_off:
            return
        import tensorflow as tf  # not loaded for a run without rows

        if run == "train":
            row = {**row, **{f"{name}_smoothed": smoother.add(row[name]) for name, smoother in self._smoothers.items()}}
        if run not in self._writers:
            self._writers[run] = tf.summary.create_file_writer(str(self._folder / run))
        with self._writers[run].as_default(int(row["step"])):
            for name, value in row.items():
                if name != "step":
                    tf.summary.scalar(name, value)
        self._writers[run].flush()

    def close(self) -> None:
        """Close the files."""
        for writer in self._writers.values():
            writer.close()


FOLDER = "checkpoints/best"  # below the model folder


class BestModel:
    """Keeps the model with the best validation F1, and the latest of equals; used by rank 0 only.

    A model that is there is removed unless it is a result of the steps done, of the same validation examples: training
    will reach it again.
    """

    def __init__(self, folder: Path, config: ModelConfig, step: int, is_comparable: bool) -> None:
        self._folder = folder / FOLDER
        self._config = config
        found_step, found_f1 = _read(self._folder)
        self._f1 = found_f1 if is_comparable and found_step <= step and step > 0 else -1.0
        if not self.exists:
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def exists(self) -> bool:
        """Whether a model is kept."""
        return self._f1 >= 0

    def offer(self, row: MetricsRow, weights: Callable[[], Weights]) -> None:
        """Keep the weights if the validation in `row` is the best so far."""
        if not row["f1"] >= self._f1:
            return
        self._f1 = row["f1"]
        origin = provenance("train", step=int(row["step"]), validation_f1=row["f1"])
        try:
            with atomic.atomic_path(self._folder) as temporary:
                save_model(temporary, Model(self._config, weights(), origin))
        except OSError as reason:
            raise TrainError(f"{self._folder}: cannot be written ({reason})") from None


def load_best(folder: Path) -> tuple[int, Weights]:
    """Return the step and the weights of the best model of a training."""
    model = load_model(folder / FOLDER)
    return int(model.provenance["inputs"]["step"]), model.weights


def _read(folder: Path) -> tuple[int, float]:
    """Step and F1 of a best model; (0, -1) without a usable one."""
    try:
        inputs = load_model(folder).provenance["inputs"]
        return int(inputs["step"]), float(inputs["validation_f1"])
    except (ModelError, KeyError, TypeError, ValueError):
        return 0, -1.0
