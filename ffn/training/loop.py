"""The training loop of one process with the learner of its engine, and what ends it early."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import numpy as np

from ffn.config import ModelConfig
from ffn.errors import ConfigError, DivergenceError, TrainError
from ffn.machine.gpu import require_jax
from ffn.machine.schedulers import slurm
from ffn.model.network import Weights, num_weights
from ffn.training.checkpoint import Checkpoint, CheckpointFolder
from ffn.training.config import TrainConfig
from ffn.training.data.examples import patch_size
from ffn.training.metrics import (
    COLUMNS,
    NO_STEPS,
    PARTS_OF_STEP,
    MetricsRow,
    Report,
    RowLog,
    classification_scores,
    load_best,
    means_of,
    sums_of,
)
from ffn.training.optimizers import learning_rate
from ffn.training.parallel.process_group import ProcessGroup
from ffn.training.parallel.serving import NO_GRADIENTS, Link, Server, reconnect
from ffn.training.plan import TrainingPlan
from ffn.training.step import Learner
from ffn.training.validation import Validation
from ffn.training.walk import NUM_COUNTS, HostPatches, LaneWalks, Prefetcher

MAX_SKIPPED_IN_ROW = 10
# Of all walks and errors of compression, which pass through every process on their way into a checkpoint. Larger ones
# are left out: examples begin again. About 280 FOVs a step of the published network; our choice.
WALK_BYTES = 2**27
REPORTED = "reported"  # part of a checkpoint that only rank 0 has, which writes the tables
# Schedulers and launchers send SIGTERM first; they can be asked to send SIGUSR1 (sbatch --signal).
SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
# End of the job in seconds since 1970, from the job script or from Slurm. The first variable that is set counts.
JOB_END_VARIABLES = ("FFN_JOB_END_TIME", slurm.JOB_END_TIME)
MARGIN_SECONDS = 120.0  # before the end of the job at which training stops, for a step and a checkpoint; our choice

log = logging.getLogger(__name__)


class Interruption:
    """Records reasons to stop. The training loop asks once per step, so no step is cut in half."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self._deadline = _job_end()

    def __enter__(self) -> Interruption:
        """Take over the signals."""
        self._previous = {number: signal.signal(number, self._record) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the previous signal handlers."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @property
    def requested(self) -> bool:
        """Whether to stop. If so, `reason` says why."""
        if self.reason is None and self._deadline is not None:
            left = self._deadline - time.time()
            if left <= MARGIN_SECONDS:
                self.reason = f"its walltime, with {max(0, left):.0f} s left"
        return self.reason is not None

    def _record(self, number: int, frame: FrameType | None) -> None:
        self.reason = signal.Signals(number).name


def _job_end() -> float | None:
    """Time at which the job will be killed, in seconds since 1970."""
    name = next(filter(os.environ.get, JOB_END_VARIABLES), None)
    if name is None:
        return None
    value = os.environ[name]
    if not value.isdigit():
        raise ConfigError(f"{name}: found {value!r}, expected seconds since 1970. Correct or unset the variable")
    if float(value) > time.time():
        return float(value)
    log.warning("%s: %s is over, so it is the end of another job. Ignored", name, value)
    return None


def make_learner(
    model: ModelConfig, train: TrainConfig, weights: Weights, group: ProcessGroup, rng_seed: int = 0
) -> Learner:
    """Return the learner of the engine that the options name, not ``auto``; see `Learner` for the parameters."""
    if train.engine == "jax":
        require_jax()
        from ffn.training.jax_learner import JaxLearner

        return JaxLearner(model, train, weights, group, rng_seed)
    from ffn.training.tensorflow_learner import TensorFlowLearner

    return TensorFlowLearner(model, train, weights, group, rng_seed)


def make_patches(learner: Learner, model: ModelConfig, train: TrainConfig) -> HostPatches:
    """Return where the examples of a training are: on the devices of a learner in JAX, else in memory."""
    return learner.patches() if train.engine == "jax" else HostPatches(model, train)  # type: ignore[attr-defined]


def run(
    plan: TrainingPlan, validation: Validation | None, folder: Path, group: ProcessGroup, interruption: Interruption
) -> tuple[int, Weights]:
    """Train as planned, from the newest usable checkpoint if there is one. All processes call this together."""
    config, train = plan.initial.config, plan.train
    if train.max_steps == 0:  # needs no TensorFlow, which takes seconds to load
        if group.rank == 0:
            RowLog(folder / "metrics.csv", COLUMNS, 0)
        return 0, plan.initial.weights
    kept = train.keep_checkpoints, train.checkpoint_steps
    checkpoints = CheckpointFolder(folder / "checkpoints", plan.fingerprint(), group, *kept)
    checkpoint = checkpoints.restore(train.max_steps)
    with contextlib.ExitStack() as stack:
        walks: LaneWalks | Server
        if train.is_synchronous:
            lanes = plan.lanes(group.rank)
            at = {lane: int(checkpoint.parts[_lane_part(lane)]["position"]) if checkpoint else 0 for lane in lanes}
            prefetcher = stack.enter_context(Prefetcher(plan.example_source(lanes), at))
            learner = group.together(lambda: make_learner(config, train, plan.initial.weights, group, plan.rng_seed))
            walks = LaneWalks(prefetcher, at, group.together(lambda: make_patches(learner, config, train)))
        else:
            # updates by one average, whoever computed its gradients
            alone = train.model_copy(update={"virtual_workers": 1})
            learner = make_learner(config, alone, plan.initial.weights, group, plan.rng_seed)
            walks = stack.enter_context(Server(plan))
        trainer = Trainer(plan, group, learner, walks, interruption, validation)
        if checkpoint is not None:
            trainer.restore(checkpoint)
        if isinstance(walks, Server):
            stack.enter_context(walks.open(folder, learner))
        checkpoint = None  # has the walks of all processes
        trainer.run(folder, checkpoints)
    if train.use_best:
        return group.broadcast(group.together(lambda: load_best(folder) if group.rank == 0 else (0, {})))
    return train.max_steps, learner.averaged_weights()


def contribute(
    plan: TrainingPlan, link: Link | None, folder: Path, group: ProcessGroup, interruption: Interruption
) -> None:
    """Compute gradients for the training that rank 0 serves, until it ends or this process is asked to stop."""
    model, train = plan.initial.config, plan.train
    learner = make_learner(model, train, plan.initial.weights, group, plan.rng_seed)
    while link is not None:
        at = link.positions
        with contextlib.closing(link), Prefetcher(plan.example_source(at), at) as prefetcher:
            walks = LaneWalks(prefetcher, at, make_patches(learner, model, train))
            version, vectors = 0, NO_GRADIENTS
            while not interruption.requested and (newest := link.exchange(version, vectors, walks)):
                version, weights = newest
                learner.take_weights(weights)
                answers, gradients = learner.differentiate(walks.batch())
                vectors = np.stack([np.asarray(gradient) for gradient in gradients])
                walks.proceed(np.concatenate([np.asarray(part) for part in answers]))
        link = None if interruption.requested else reconnect(folder, plan.identity(), train.stall_seconds)
    if interruption.requested:
        log.info("left the training, stopped by %s", interruption.reason)


@dataclass
class Trainer:
    """The training loop of one process, with its state between two steps."""

    plan: TrainingPlan
    group: ProcessGroup
    learner: Learner
    walks: LaneWalks | Server
    interruption: Interruption
    validation: Validation | None = None

    def __post_init__(self) -> None:
        """Begin before the first step."""
        self._config, self._model = self.plan.train, self.plan.initial.config
        self._validated_with = b""
        self._step = self._skipped_in_row = 0
        self._ends_skipped = False  # the last step
        self._seconds_before = 0.0
        self._sums, self._part_seconds = NO_STEPS, np.zeros(len(PARTS_OF_STEP))
        self._report: Report | None = None  # of rank 0

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restore the state from a checkpoint."""
        self._step = checkpoint.step
        parts, rank = checkpoint.parts, self.group.rank
        errors = [parts.get(_worker_part(worker), {}) for worker in self.plan.workers(rank)]
        self.learner.restore(checkpoint.shared, errors)
        self.walks.restore({lane: parts[_lane_part(lane)] for lane in self.walks.positions})
        if rank == 0:
            reported = parts[REPORTED]
            self._seconds_before = float(reported["seconds"])
            self._sums = reported["sums"]
            self._ends_skipped = bool(reported["ends_skipped"])
            self._validated_with = reported["validated_with"].tobytes()

    def run(self, folder: Path, checkpoints: CheckpointFolder) -> None:
        """Train to the last step, and write metrics, checkpoints and validations on the way."""
        log.debug("rank %d: %d weights, from step %d", self.group.rank, num_weights(self._model), self._step)
        with contextlib.ExitStack() as stack:
            if self.group.rank == 0:
                same_examples = self._validated_with == self._validation_digest
                report = Report(folder, self._config, self._model, self._step, same_examples)
                self._report = stack.enter_context(contextlib.closing(report))
            self._started = self._saved = time.monotonic()
            self._row_step = self._step
            if not self.group.broadcast(self._report is not None and self._report.has_validated(self._step)):
                self._validate()
            while self._step < self._config.max_steps:
                stop, save = self._train_step()
                if self._due(self._config.log_steps) and self._step > self._row_step:
                    self._report_row()
                if self._report:
                    self._report.progress(self._step)
                if stop or save or self._due(self._config.checkpoint_steps):
                    checkpoints.save(self._checkpoint())
                    self._saved = time.monotonic()
                if stop and self._step < self._config.max_steps:
                    self._stop()
                self._validate()
            self._judge()

    def _train_step(self) -> tuple[bool, bool]:
        """Make one step; return whether any process has to stop, and whether rank 0 wants a checkpoint."""
        started = time.perf_counter()
        rate = learning_rate(self._config, self._step)
        if isinstance(self.walks, Server):
            outcome, input_seconds = self.walks.step(self.learner, rate, lambda: self.interruption.requested), 0.0
            if outcome is None:
                return True, True
            outcome = outcome._replace(stop=self.interruption.requested, save=self._wants_checkpoint)
        else:
            batch = self.walks.batch()
            self.group.beat()  # a rank that never gets here stalls the rest, and the watchdog names it
            asked = time.perf_counter()
            outcome = self.learner.step(batch, rate, self.interruption.requested, self._wants_checkpoint)
            answered = time.perf_counter()
            self.walks.proceed(outcome.answers)
            input_seconds = asked - started + time.perf_counter() - answered
        moved = time.perf_counter()
        self._sums = self._sums + sums_of(outcome)  # waits for the device
        compute_seconds = outcome.compute_seconds + time.perf_counter() - moved
        parts = np.array([input_seconds, compute_seconds, outcome.allreduce_seconds])
        self._part_seconds += [*parts, max(0.0, time.perf_counter() - started - parts.sum())]
        self._step += 1
        self._require_progress(bool(outcome.finite))
        return outcome.stop, outcome.save

    def _require_progress(self, finite: bool) -> None:
        """End the job if too many steps in a row have been skipped."""
        self._ends_skipped = not finite
        self._skipped_in_row = 0 if finite else self._skipped_in_row + 1
        if self._skipped_in_row == MAX_SKIPPED_IN_ROW:
            found = f"train: the gradient was not finite in {MAX_SKIPPED_IN_ROW} steps up to {self._step}"
            self.group.fail(DivergenceError(f"{found}. Lower train.learning_rate or raise train.warmup_steps"))

    def _judge(self) -> None:
        """Tell all that is wrong with the training, and end the job where nothing was learnt."""
        is_lost = self._ends_skipped and not self._config.use_best
        if self._report is not None:
            self._report.complain(again=True)
            is_lost |= self._report.is_lost(self._config.use_best)
        if self.group.broadcast(is_lost):
            self.group.fail(DivergenceError("train: diverged, so no model is written: see the losses in metrics.csv"))

    @property
    def _wants_checkpoint(self) -> bool:
        """Whether it is time for a checkpoint. Rank 0 decides for all, whose clocks differ."""
        return self.group.rank == 0 and time.monotonic() - self._saved >= 60 * self._config.checkpoint_minutes

    def _due(self, interval: int | None) -> bool:
        return self._step == self._config.max_steps or (interval is not None and self._step % interval == 0)

    def _report_row(self) -> None:
        """Sum the counts of all processes; rank 0 writes them as a row."""
        own = [*self.walks.take_counts(), sum(self.walks.positions.values()), *self._part_seconds]
        totals = self.group.sum(np.array(own, np.float64))  # exact up to 2^53
        counts, examples = totals[:NUM_COUNTS], totals[NUM_COUNTS]
        seconds = totals[NUM_COUNTS + 1 :] / self.group.size
        num_steps = self._step - self._row_step
        row: MetricsRow = {
            "step": self._step,
            "epoch": float(examples / self.plan.records.total),
            **classification_scores(counts),
            "learning_rate": learning_rate(self._config, self._step - 1),
            "fovs_per_second": float(self._config.global_batch * num_steps / seconds.sum()),
            "seconds": self._seconds(),
            **means_of(self._sums),
            **dict(zip(PARTS_OF_STEP, (1000 * seconds / num_steps).tolist(), strict=True)),
        }
        self._sums, self._part_seconds, self._row_step = NO_STEPS, np.zeros_like(self._part_seconds), self._step
        if self._report:
            self._report.training(row)

    def _validate(self) -> None:
        """Validate if a validation is due."""
        if self.validation is None or not self._due(self._config.validation_steps):
            return
        with self.learner.averaged():
            row = self.validation.run(self.learner.forward, self._step)
        if self._report:
            self._report.validation(row, self.learner.averaged_weights)

    def _seconds(self) -> float:
        """Time of training so far, including the time before the checkpoint."""
        return self._seconds_before + time.monotonic() - self._started

    @property
    def _validation_digest(self) -> bytes:
        """Digest of the validation examples; without any, the checkpoint's, so that its scores stay valid."""
        return self.validation.digest if self.validation else self._validated_with

    def _checkpoint(self) -> Checkpoint:
        is_whole = _saves_walks(self._model, self._config)
        parts = {_lane_part(lane): state for lane, state in self.walks.states(is_whole).items()}
        if is_whole:
            workers = map(_worker_part, self.plan.workers(self.group.rank))
            parts |= dict(zip(workers, self.learner.worker_states(), strict=True))
        if self.group.rank == 0:
            parts[REPORTED] = {
                "sums": self._sums,
                "ends_skipped": np.array(self._ends_skipped),
                "seconds": np.array(self._seconds()),
                "validated_with": np.frombuffer(self._validation_digest, np.uint8),
            }
        return Checkpoint(self._step, self.learner.state(), parts)

    def _stop(self) -> None:
        """End the job; its checkpoint is already written."""
        reason = next(filter(None, self.group.gather(self.interruption.reason)))  # the lowest rank's
        found = f"train: stopped after step {self._step} by {reason}"
        self.group.fail(TrainError(f"{found}. A checkpoint is written, and the same command resumes from it"))


def _saves_walks(model: ModelConfig, train: TrainConfig) -> bool:
    """Whether checkpoints hold unfinished walks and errors of compression, to resume to the bit."""
    values = train.num_lanes * math.prod(patch_size(model, train))
    if train.compression in ("1-bit", "powersgd"):
        values += train.total_workers * num_weights(model)
    return train.is_synchronous and 4 * values <= WALK_BYTES


def _lane_part(lane: int) -> str:
    return f"lanes/{lane:06d}"


def _worker_part(worker: int) -> str:
    return f"workers/{worker:06d}"
