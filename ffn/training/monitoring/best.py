"""The weights of the best validation, kept as a model folder next to the checkpoints."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from ffn.config import ModelConfig
from ffn.errors import ModelError, TrainError
from ffn.io import atomic
from ffn.model.network import Weights
from ffn.model.store import Model, load_model, save_model
from ffn.provenance import provenance
from ffn.training.monitoring.metrics import MetricsRow

FOLDER = "checkpoints/best"  # below the model folder


class BestModel:
    """Keeps the model with the best validation F1, and the latest of equals; used by rank 0 only.

    Parameters
    ----------
    folder : Path
        Model folder of the training. An existing best model is removed unless it is a result of the steps done:
        training will reach it again.
    config : ModelConfig
        Architecture and normalisation.
    step : int
        Steps done, 0 for a new training.
    is_comparable : bool
        Whether an existing best model was found with the present validation examples.
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
        """Keep the weights if the validation in `row` is the best so far.

        Raises
        ------
        TrainError
            If the weights cannot be written.
        """
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
    """Return the step and the weights of the best model of a training.

    Raises
    ------
    ModelError
        If the model is missing or damaged.
    """
    model = load_model(folder / FOLDER)
    return int(model.provenance["inputs"]["step"]), model.weights


def _read(folder: Path) -> tuple[int, float]:
    """Step and F1 of a best model; (0, -1) without a usable one."""
    try:
        inputs = load_model(folder).provenance["inputs"]
        return int(inputs["step"]), float(inputs["validation_f1"])
    except (ModelError, KeyError, TypeError, ValueError):
        return 0, -1.0
