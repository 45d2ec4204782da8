"""The training loop of one process."""

from __future__ import annotations

import contextlib
import logging
import time
from pathlib import Path

import numpy as np

from ffn.errors import TrainError
from ffn.model.network import Weights, num_weights
from ffn.progress import progress_bar
from ffn.training.checkpoint import Checkpoint, CheckpointFolder
from ffn.training.distributed import ProcessGroup
from ffn.training.lane_walks import LaneWalks
from ffn.training.metrics import Accumulator, MetricsLog, Row, classification_scores
from ffn.training.plan import Plan
from ffn.training.prefetch import Prefetcher
from ffn.training.schedule import learning_rate
from ffn.training.step import Learner, configure_tensorflow

MAX_SKIPPED_IN_ROW = 10

log = logging.getLogger(__name__)


def run(plan: Plan, folder: Path, group: ProcessGroup) -> Weights:
    """Train as planned, going on from the newest usable checkpoint; all processes call this together.

    Parameters
    ----------
    plan : Plan
        What to train, on what.
    folder : Path
        Model folder; checkpoints and metrics go there.
    group : ProcessGroup
        The processes of the job.

    Returns
    -------
    dict of str to ndarray
        The trained weights.

    Raises
    ------
    TrainError
        If training diverges or checkpoints cannot be written.
    """
    if plan.train.max_steps == 0:  # nothing to load TensorFlow for
        if group.rank == 0:
            MetricsLog(folder, step=0).close()
        return plan.initial.weights
    configure_tensorflow(group, plan.rng_seed)
    checkpoints = CheckpointFolder(folder / "checkpoints", plan.fingerprint(), plan.train.keep_checkpoints, group)
    checkpoint = checkpoints.restore(plan.train.max_steps)
    lanes = plan.lanes(group.rank)
    positions = np.zeros(len(lanes), np.int64) if checkpoint is None else checkpoint.own["positions"]
    at = dict(zip(lanes, positions.tolist(), strict=True))
    with Prefetcher(plan.example_source(lanes), at) as prefetcher:
        learner = Learner(plan.initial.config, plan.train, plan.initial.weights, group)
        walks = LaneWalks(prefetcher, at, plan.initial.config.fov_size_zyx)
        trainer = Trainer(plan, group, learner, walks)
        if checkpoint is not None:
            trainer.restore(checkpoint)
        trainer.run(folder, checkpoints)
    return learner.weights()


class Trainer:
    """The state of one process between two steps, and how it changes.

    Parameters
    ----------
    plan : Plan
        What to train.
    group : ProcessGroup
        The processes of the job.
    learner : Learner
        Network and optimizer.
    walks : LaneWalks
        The examples in flight.
    """

    def __init__(self, plan: Plan, group: ProcessGroup, learner: Learner, walks: LaneWalks) -> None:
        self._plan = plan
        self._config = plan.train
        self._group = group
        self._learner = learner
        self._walks = walks
        self._step = 0
        self._seconds_before = 0.0
        self._counted = Accumulator()
        self._skipped_in_row = 0

    def restore(self, checkpoint: Checkpoint) -> None:
        """Take over the state of a checkpoint."""
        own = checkpoint.own
        self._step = checkpoint.step
        self._seconds_before = float(own["seconds"])
        self._counted = Accumulator.from_arrays(own)
        self._learner.restore(checkpoint.shared)
        self._walks.restore(own)

    def run(self, folder: Path, checkpoints: CheckpointFolder) -> None:
        """Train to the last step, with rows of metrics and checkpoints on the way."""
        log.debug(
            "rank %d: %d weights, from step %d",
            self._group.rank,
            num_weights(self._plan.initial.config),
            self._step,
        )
        self._started = self._row_time = time.monotonic()
        self._row_step = self._step
        report = Report(folder, self._step, self._config.max_steps) if self._group.rank == 0 else None
        with contextlib.closing(report) if report else contextlib.nullcontext():
            while self._step < self._config.max_steps:
                self._train_step()
                if self._due(self._config.log_steps):
                    self._report_row(report)
                if report:
                    report.update()
                if self._due(self._config.checkpoint_steps):
                    checkpoints.save(self._checkpoint())

    def _train_step(self) -> None:
        outcome = self._learner.step(self._walks.batch(), learning_rate(self._config, self._step))
        self._counted.add_step(outcome.loss, outcome.finite)
        self._counted.counts += self._walks.proceed(outcome)
        self._step += 1
        self._skipped_in_row = 0 if outcome.finite else self._skipped_in_row + 1
        if self._skipped_in_row == MAX_SKIPPED_IN_ROW:
            self._group.fail(
                TrainError(
                    f"train: the gradient was not finite in {MAX_SKIPPED_IN_ROW} steps up to {self._step}. "
                    "Lower train.learning_rate or raise train.warmup_steps"
                )
            )

    def _due(self, interval: int) -> bool:
        return self._step % interval == 0 or self._step == self._config.max_steps

    def _report_row(self, report: Report | None) -> None:
        """Sum the counts of all processes; rank 0 writes them as a row."""
        examples = sum(self._walks.positions.values())
        *counts, examples = map(int, self._group.sum(np.array([*self._counted.counts, examples])))
        now = time.monotonic()
        row: Row = {
            "step": self._step,
            "epoch": examples / self._plan.shards.total,
            "loss": self._counted.loss,
            **classification_scores(np.array(counts)),
            "learning_rate": learning_rate(self._config, self._step - 1),
            "fovs_per_second": self._plan.num_lanes * (self._step - self._row_step) / (now - self._row_time),
            "seconds": self._seconds_before + now - self._started,
            "skipped_steps": self._counted.num_skipped,
        }
        self._counted, self._row_time, self._row_step = Accumulator(), now, self._step
        if report:
            report.write(row)

    def _checkpoint(self) -> Checkpoint:
        seconds = self._seconds_before + time.monotonic() - self._started
        own = {**self._walks.arrays(), **self._counted.arrays(), "seconds": np.array(seconds)}
        return Checkpoint(self._step, self._learner.state(), own)


class Report:
    """What rank 0 shows and writes while it trains: progress, ``metrics.csv``, TensorBoard."""

    def __init__(self, folder: Path, step: int, max_steps: int) -> None:
        self._metrics = MetricsLog(folder, step)
        self._bar = progress_bar(max_steps, "train", unit="step")
        self._bar.initial = self._bar.n = step

    def write(self, row: Row) -> None:
        """Append a row of metrics."""
        self._metrics.write(row)
        shown = {"loss": row["loss"], "F1": row["f1"], "FOVs/s": row["fovs_per_second"]}
        self._bar.set_postfix({name: f"{value:.3g}" for name, value in shown.items()}, refresh=False)

    def update(self) -> None:
        """Count one step."""
        self._bar.update()

    def close(self) -> None:
        """Close files and bar."""
        self._bar.close()
        self._metrics.close()
