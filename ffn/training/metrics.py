"""Training metrics: counts between two rows, and the rows in ``metrics.csv`` and TensorBoard."""

from __future__ import annotations

import csv
import functools
import io
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ffn import atomic

if TYPE_CHECKING:
    import tensorflow as tf

COLUMNS = (
    "step",
    "epoch",
    "loss",
    "accuracy",
    "precision",
    "recall",
    "f1",
    "learning_rate",
    "fovs_per_second",
    "seconds",
    "skipped_steps",
)

Row = dict[str, float]


def classification_scores(counts: np.ndarray) -> dict[str, float]:
    """Return accuracy, precision, recall and F1.

    Parameters
    ----------
    counts : int64 ndarray of shape (4,)
        True positives, false positives, true negatives, false negatives.

    Returns
    -------
    dict of str to float
        All NaN if nothing was counted; a ratio whose denominator is 0 is 0.

    Examples
    --------
    >>> classification_scores(np.array([3, 1, 5, 1]))
    {'accuracy': 0.8, 'precision': 0.75, 'recall': 0.75, 'f1': 0.75}
    """
    tp, fp, tn, fn = map(int, counts)
    if not tp + fp + tn + fn:
        return dict.fromkeys(("accuracy", "precision", "recall", "f1"), float("nan"))
    return {
        "accuracy": (tp + tn) / (tp + fp + tn + fn),
        "precision": tp / max(1, tp + fp),
        "recall": tp / max(1, tp + fn),
        "f1": 2 * tp / max(1, 2 * tp + fp + fn),
    }


@dataclass
class Accumulator:
    """What one process counted since the last row.

    Parameters
    ----------
    counts : int64 ndarray of shape (4,)
        Voxels of finished examples: true and false positives, true and false negatives.
    loss_sum : float
        Sum of the losses of the counted steps (already averaged over processes).
    num_steps, num_skipped : int
        Steps that changed the weights, and steps skipped because the gradient was not finite.
    """

    counts: np.ndarray = field(default_factory=lambda: np.zeros(4, np.int64))
    loss_sum: float = 0.0
    num_steps: int = 0
    num_skipped: int = 0

    @property
    def loss(self) -> float:
        """Mean loss; NaN if no step was counted."""
        return self.loss_sum / self.num_steps if self.num_steps else float("nan")

    def add_step(self, loss: float, finite: bool) -> None:
        """Count one step."""
        if finite:
            self.loss_sum += loss
            self.num_steps += 1
        else:
            self.num_skipped += 1

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the state for a checkpoint."""
        return {name: np.array(value) for name, value in vars(self).items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Accumulator:
        """Restore what `arrays` returned."""
        return cls(
            np.array(arrays["counts"]),
            float(arrays["loss_sum"]),
            int(arrays["num_steps"]),
            int(arrays["num_skipped"]),
        )


class MetricsLog:
    """Rows in ``metrics.csv`` and the same values as TensorBoard scalars.

    Parameters
    ----------
    folder : path
        Model folder.
    step : int
        Rows of later steps, which a killed run may have left, are cut from both.
    """

    def __init__(self, folder: Path, step: int) -> None:
        self._path = folder / "metrics.csv"
        kept = [row for row in read_metrics(self._path) if row["step"] <= step]
        atomic.write_text(self._path, ",".join(COLUMNS) + "\n" + _as_csv(kept))
        # event files cannot be cut: TensorBoard's log starts anew and gets the kept rows again
        shutil.rmtree(folder / "tensorboard", ignore_errors=True)
        self._events = folder / "tensorboard"
        for row in kept:
            self._write_scalars(row)

    def write(self, row: Row) -> None:
        """Append one row with all `COLUMNS`."""
        with self._path.open("a", newline="") as file:
            file.write(_as_csv([row]))
        self._write_scalars(row)

    def close(self) -> None:
        """Close TensorBoard's file."""
        if "_writer" in vars(self):
            self._writer.close()

    @functools.cached_property
    def _writer(self) -> tf.summary.SummaryWriter:
        """TensorBoard's writer; where there are no rows, TensorFlow is not loaded for it."""
        import tensorflow as tf

        return tf.summary.create_file_writer(str(self._events))

    def _write_scalars(self, row: Row) -> None:
        import tensorflow as tf

        with self._writer.as_default(step=int(row["step"])):
            for name in COLUMNS[1:]:
                tf.summary.scalar(name, row[name])
        self._writer.flush()


def read_metrics(path: str | Path) -> list[Row]:
    """Read ``metrics.csv``; a missing file has no rows, a line torn by a crash is left out.

    Returns
    -------
    list of dict
        Values by column.
    """
    if not Path(path).is_file():
        return []
    with Path(path).open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if None not in row.values()]
    return [{**{name: float(row[name]) for name in row}, "step": int(row["step"])} for row in rows if _is_number(row)]


def _is_number(row: Mapping[str, str]) -> bool:
    try:
        return all(float(value) is not None for value in row.values())
    except (TypeError, ValueError):
        return False


def _as_csv(rows: list[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writerows({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows)
    return text.getvalue()
