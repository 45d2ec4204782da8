"""TensorBoard logs: scalars of the same names in the runs ``train`` and ``validation``."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ffn.training.monitoring.metrics import SCORES, MetricsRow, Smoother

if TYPE_CHECKING:
    import tensorflow as tf

TensorBoardRun = Literal["train", "validation"]

SMOOTHED = ("loss", *SCORES)


class Events:
    """Event files below ``tensorboard/``, if TensorFlow is installed. Scalars of the same name share a plot.

    Parameters
    ----------
    folder : path
        ``tensorboard/`` of a model folder. Event files cannot be truncated, so all old scalars are removed. Write the
        rows to keep again.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._is_off = importlib.util.find_spec("tensorflow") is None  # JAX trains without it
        self._writers: dict[TensorBoardRun, tf.summary.SummaryWriter] = {}
        self._smoothers = {name: Smoother() for name in SMOOTHED}
        if not self._is_off:
            shutil.rmtree(folder, ignore_errors=True)

    def training(self, rows: Iterable[MetricsRow]) -> None:
        """Write rows of training metrics, and the smoothed curves of loss and scores."""
        for row in rows:
            means = {f"{name}_smoothed": smoother.add(row[name]) for name, smoother in self._smoothers.items()}
            self._write_scalars("train", {**row, **means})

    def validation(self, rows: Iterable[MetricsRow]) -> None:
        """Write rows of validation scores."""
        for row in rows:
            self._write_scalars("validation", row)

    def close(self) -> None:
        """Close the files."""
        for writer in self._writers.values():
            writer.close()

    def _write_scalars(self, run: TensorBoardRun, row: MetricsRow) -> None:
        if self._is_off:
            return
        import tensorflow as tf

        writer = self._writer(run)
        with writer.as_default(int(row["step"])):
            for name in row.keys() - {"step"}:
                tf.summary.scalar(name, row[name])
        writer.flush()

    def _writer(self, run: TensorBoardRun) -> tf.summary.SummaryWriter:
        """Open the run's file at its first use, so that TensorFlow is not loaded for a run without rows."""
        import tensorflow as tf

        if run not in self._writers:
            self._writers[run] = tf.summary.create_file_writer(str(self._folder / run))
        return self._writers[run]
