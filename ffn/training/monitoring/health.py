"""Signs in the tables of a training that it has gone wrong."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from ffn.training.monitoring.metrics import MetricsRow, best_validation, read_metrics

# Of a network that answers the same everywhere: about half of the voxels of balanced examples are in the object.
CONSTANT_LOSS = math.log(2)
NEAR = 0.05  # relative; this and the next three are our choice
NUM_ROWS = 5
COLLAPSED = 0.5  # share of the best F1
LEARNT = 0.2  # F1 below which there was nothing to lose


def complaints(metrics: Sequence[MetricsRow], validation: Sequence[MetricsRow]) -> dict[str, str]:
    """Return what is wrong with a training, by kind of complaint.

    Parameters
    ----------
    metrics, validation : sequence of dict of str to float
        Rows of ``metrics.csv`` and ``validation.csv``, see `ffn.training.monitoring.metrics.read_metrics`.

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
    recent = metrics[-NUM_ROWS:]
    if len(recent) == NUM_ROWS and all(abs(row["loss"] / CONSTANT_LOSS - 1) < NEAR for row in recent):
        found["constant"] = (
            f"the loss has been at ln 2 (0.69) up to step {recent[-1]['step']:g}, as if the network answered the same "
            "everywhere. Lower train.learning_rate, raise train.warmup_steps, or check the labels"
        )
    return found


def read_complaints(model_folder: str | Path) -> list[str]:
    """Return what is wrong with the training in a model folder; nothing if there was none."""
    folder = Path(model_folder)
    return list(complaints(*(read_metrics(folder / name) for name in ("metrics.csv", "validation.csv"))).values())
