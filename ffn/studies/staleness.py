"""Synchronous training, backup workers and asynchronous training, compared in virtual time.

One process computes the gradients of all workers, each from the weights that the worker would have. Only the time that
they would take is made up, so a run is the same every time.
"""

from __future__ import annotations

import heapq
import json
import logging
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ffn.errors import ConfigError
from ffn.io import atomic
from ffn.model.choice import FOLDER
from ffn.progress import track
from ffn.provenance import provenance
from ffn.studies.config import StalenessConfig
from ffn.studies.pages import BLACK, Line, Panel, draw, write_study
from ffn.studies.scaling import (
    FLOAT_BYTES,
    LOG,
    NETWORKS,
    PAPER_STEP_SECONDS,
    PAPER_WEIGHTS,
    Interconnect,
    read_measurement,
    ring_allreduce_seconds,
)
from ffn.training.choice import make_learner
from ffn.training.loop import MAX_SKIPPED_IN_ROW
from ffn.training.optimizers import learning_rate
from ffn.training.parallel.process_group import ProcessGroup
from ffn.training.parallel.updates import UpdateRule
from ffn.training.plan import Training, TrainingPlan, initial_weights
from ffn.training.step import Outcome
from ffn.training.train import training_job, with_engine
from ffn.training.validation import Validation, ValidationBox, make_validation
from ffn.training.walk import HostPatches, LaneWalks, Prefetcher

FACTORS = (0.25, 1.0, 4.0)  # of train.learning_rate, to try with the first seed; our choice
SEEDS = 3  # at the best rate, with the first; our choice
STRAGGLER_FACTOR = 5.0  # by which a straggler's gradient takes longer; our choice
TARGET_SHARE = 0.9  # of the F1 that most runs of every way reach; our choice
WAYS = ("synchronous", "backup", "asynchronous")
SPREAD = 0.1  # of the logarithms of compute times where none were measured; our choice

log = logging.getLogger(__name__)


def rule_of(way: str, workers: int) -> UpdateRule[Any]:
    """Return the rule of one of the `WAYS`; one worker in sixteen is a backup, at least one."""
    gradients = {"synchronous": workers, "backup": workers - -(-workers // 16), "asynchronous": 1}[way]
    return UpdateRule(workers, gradients, None if way == "asynchronous" else 0)


@dataclass
class VirtualCluster:
    """Equal nodes, and the link of a server, which takes one message each way at a time.

    Without a server, all exchange their gradients by a ring allreduce.
    """

    times: np.ndarray  # measured, of a gradient, s
    num_bytes: float  # of a gradient, or of the weights
    stragglers: float  # share of gradients that take longer by `STRAGGLER_FACTOR`
    network: Interconnect

    def begin(self, workers: int, has_server: bool, rng_seed: int) -> None:
        """Begin at time 0."""
        self._rngs = [np.random.default_rng([rng_seed, worker]) for worker in range(workers)]
        self._free = {"in": 0.0, "out": 0.0}  # when the link will be
        message = self.network.latency, self.num_bytes / self.network.bandwidth
        self._latency, self._message_seconds = message if has_server else (0.0, 0.0)
        ring = ring_allreduce_seconds(workers, self.num_bytes, self.network)
        self.exchange_seconds = 0.0 if has_server else ring

    def delivered(self, direction: Literal["in", "out"], at: float) -> float:
        """Return when a message arrives at the server, or from there, that is sent after all others so far."""
        self._free[direction] = max(at, self._free[direction]) + self._message_seconds
        return self._free[direction] + self._latency

    def compute_seconds(self, worker: int) -> float:
        """Draw the time of a worker's next gradient."""
        rng = self._rngs[worker]
        return float(rng.choice(self.times)) * (STRAGGLER_FACTOR if rng.random() < self.stragglers else 1.0)


def study_staleness(training: Training, out_path: str, measured: str | None, config: StalenessConfig) -> None:
    """Train in each way with 2, 4, … up to all workers of `training`, and compare times to a validation F1.

    Every run uses as many gradients as `max_steps` synchronous steps of all workers have, and validates as often as
    they would. Finished runs are kept beside the output, in a folder of its name: a killed study continues with the
    next one.

    Parameters
    ----------
    training : Training
        Data with a validation box, network and options; their learning rate is tried with each of `FACTORS`.
    out_path : str
        JSON file; the figure gets the same name with ``.png``.
    measured : str or None
        Output of `ffn.studies.scaling.measure`, for the time of a gradient and the size of messages; None: the nodes
        and the network of Dong et al. 2019, with a spread of 10 %.
    config : StalenessConfig
        Stragglers, and the network.
    """
    workers = training.config.num_workers * training.config.virtual_workers
    train = training.config.model_copy(update={"num_workers": 1, "virtual_workers": workers})
    cluster = VirtualCluster(*_node(measured), config.stragglers, NETWORKS[config.network])
    with training_job(training._replace(config=train)) as (group, plan, opened):
        boxes = {name: ValidationBox(opened[name], source.box) for name, source in training.data.validation.items()}
        validation = make_validation(boxes, plan.initial.config, plan.train, plan.rng_seed, group)
        if validation is None or train.validation_steps > train.max_steps or workers < 2 or train.compression != "none":
            needed = "--validate, validation_steps up to max_steps, 2 virtual_workers or more, and no compression"
            raise ConfigError(f"ffn study staleness: found {train.validation_steps=}, {workers=}, expected {needed}")
        plan.load_records(group)
        plan = with_engine(plan, Path(out_path).with_name(FOLDER), group)
        made_up = cluster.times.tolist(), cluster.num_bytes, config.model_dump()
        parts = plan.fingerprint(), plan.train.model_dump(mode="json"), validation.digest.hex(), made_up
        identity = sha256(json.dumps(parts).encode()).hexdigest()
        study = _Study(plan, validation, cluster, Path(out_path).with_suffix(""), identity)
        counts = [workers >> i for i in range(workers.bit_length() - 1)][::-1]
        results = [study.at_best_rate(way, count) for count in counts for way in WAYS]
    highest = [np.median([max(run["f1"], default=0.0) for run in result["runs"]]) for result in results]
    target = TARGET_SHARE * float(min(highest))
    rows = [result | _summary(result["runs"], target) for result in results]
    content = {
        "provenance": provenance("study staleness", config, measured=measured or ""),
        "train": train.model_dump(mode="json"),
        "f1_target": target,
        "results": rows,
    }
    write_study(out_path, content, draw(_panels(rows, target), num_rows=2))


def _node(measured: str | None) -> tuple[np.ndarray, float]:
    """Return the times of a gradient, s, and its size, bytes."""
    if measured is None:
        return PAPER_STEP_SECONDS * np.random.default_rng(1).lognormal(0, SPREAD, 1000), FLOAT_BYTES * PAPER_WEIGHTS
    measurement = read_measurement(measured)
    return measurement.compute_seconds.ravel(), FLOAT_BYTES * measurement.num_weights


@dataclass(frozen=True)
class _Study:
    """The runs of a study, which are kept in a folder if they are of the same `identity`."""

    plan: TrainingPlan
    validation: Validation
    cluster: VirtualCluster
    folder: Path
    identity: str

    def at_best_rate(self, way: str, workers: int) -> dict[str, Any]:
        """Find the best rate with the first seed; return the runs of all seeds at this rate."""
        first, rates = self.plan.rng_seed, [factor * self.plan.train.learning_rate for factor in FACTORS]
        tried = {rate: _final(self._run(way, workers, rate, first), "f1") for rate in rates}
        rate = max(tried, key=lambda rate: tried[rate])
        log.info("%s, %d workers: F1 by rate %s", way, workers, tried)
        seeds = track(range(first, first + SEEDS), SEEDS, f"{way}, {workers} workers", unit="run")
        runs = [self._run(way, workers, rate, seed) for seed in seeds]
        return {"way": way, "workers": workers, "rate": rate, "tried": tried, "runs": runs}

    def _run(self, way: str, workers: int, rate: float, seed: int) -> dict[str, Any]:
        """Train, or read what an earlier study of the same has written."""
        path = self.folder / f"{way}-{workers}-rate-{rate!r}-seed-{seed}.json"
        if path.is_file() and (known := json.loads(path.read_text()))["identity"] == self.identity:
            return known
        train = self.plan.train.model_copy(update={"virtual_workers": workers, "learning_rate": rate})
        weights = initial_weights(self.plan.initial.config, seed, train.initial)
        plan = replace(self.plan, train=train, rng_seed=seed, initial=replace(self.plan.initial, weights=weights))
        self.cluster.begin(workers, way != "synchronous", seed)
        rule = rule_of(way, workers)
        updates = train.max_steps * self.plan.train.num_lanes // (train.batch_size * rule.needed)
        result = VirtualTraining(plan, self.cluster, rule, updates).run(self.validation)
        atomic.write_json(path, {"identity": self.identity, "seed": seed, **result})
        return result


@dataclass
class VirtualTraining:
    """A training by the workers of `plan` in the time of `cluster`, which has begun.

    A gradient is computed when its worker takes the weights, and is kept until it arrives, so no weights but the newest
    are kept.
    """

    plan: TrainingPlan
    cluster: VirtualCluster
    rule: UpdateRule[Any]
    updates: int

    def __post_init__(self) -> None:
        """Begin before the first update."""
        initial = self.plan.initial
        update = {"virtual_workers": self.rule.needed, "max_steps": self.updates}
        self._train = self.plan.train.model_copy(update=update)  # its exchange averages what an update needs
        group = ProcessGroup()
        self.learner = make_learner(initial.config, self._train, initial.weights, group, self.plan.rng_seed)
        self._arriving: list[tuple[float, int, int, Any]] = []
        self._skipped = 0

    def run(self, validation: Validation | None = None) -> dict[str, Any]:
        """Train to the end; return scores over time, and the staleness of gradients."""
        rule, lanes, size = self.rule, self.plan.lanes(0), self._train.batch_size
        patches = HostPatches(self.plan.initial.config, self._train)
        num_scores = self.plan.train.max_steps // self.plan.train.validation_steps if validation else 0
        scored = {round(self.updates * (i + 1) / num_scores) for i in range(num_scores)}
        rows = []
        with Prefetcher(self.plan.example_source(lanes), dict.fromkeys(lanes, 0)) as prefetcher:
            walks = [LaneWalks(prefetcher, dict.fromkeys(lanes[i : i + size], 0), patches) for i in lanes[::size]]
            for worker, own in enumerate(walks):
                self._begin(worker, own, 0.0)
            while rule.version < self.updates and self._skipped < MAX_SKIPPED_IN_ROW:
                before = rule.version
                now, free = self._next()
                if validation and rule.version > before and rule.version in scored:
                    with self.learner.averaged():
                        rows.append({"seconds": now, **validation.run(self.learner.forward, rule.version)})
                for worker in free:
                    self._begin(worker, walks[worker], now)
        return {
            "updates": rule.version,
            "diverged": rule.version < self.updates,
            "dropped": rule.dropped,
            "mean_staleness": rule.mean_staleness,
            "max_staleness": max(rule.staleness),
            **{name: [float(np.nan_to_num(row[name])) for row in rows] for name in ("seconds", "f1", "accuracy")},
        }

    def _begin(self, worker: int, walks: LaneWalks, now: float) -> None:
        """Compute a worker's next gradient from the newest weights."""
        (answers,), (vector,) = self.learner.differentiate(walks.batch())
        walks.proceed(Outcome(np.asarray(answers), loss=0.0, finite=True))
        computed = self.cluster.delivered("out", now) + self.cluster.compute_seconds(worker)
        heapq.heappush(self._arriving, (computed, worker, self.rule.version, vector))

    def _next(self) -> tuple[float, list[int]]:
        """Take the next gradient that arrives; return the time, and the workers that begin another one then."""
        computed, worker, version, vector = heapq.heappop(self._arriving)
        now, waited = self.cluster.delivered("in", computed), self.rule.waiting
        complete = self.rule.arrive(worker, version, vector)
        if complete is not None:
            now += self.cluster.exchange_seconds
            outcome = self.learner.update(complete, learning_rate(self._train, self.rule.version - 1))
            self._skipped = 0 if outcome.finite else self._skipped + 1
        return now, sorted({*waited, worker} - self.rule.waiting)


def _final(run: dict[str, Any], name: str) -> float:
    """Return the mean score of the last quarter of a run, 0 where it diverged."""
    scores = run[name]
    return 0.0 if run["diverged"] else float(np.mean(scores[-max(1, len(scores) // 4) :]))


def seconds_to_reach(run: dict[str, Any], target: float) -> float:
    """Return the virtual time at which the validation F1 first reaches a target, interpolated; NaN if it does not.

    Examples
    --------
    >>> seconds_to_reach({"f1": [0.2, 0.1, 0.4], "seconds": [10.0, 20.0, 30.0]}, 0.25)
    25.0
    """
    f1, seconds = np.array([0.0, *run["f1"]]), [0.0, *run["seconds"]]
    i = int(np.argmax(f1 >= target))
    return float(np.interp(target, f1[i - 1 : i + 1], seconds[i - 1 : i + 1])) if i else float("nan")


def _summary(runs: list[dict[str, Any]], target: float) -> dict[str, Any]:
    """Return mean and standard deviation over seeds of all that the figure shows."""
    seconds = np.array([seconds_to_reach(run, target) for run in runs])
    values = {
        "seconds_to_f1": seconds[np.isfinite(seconds)],
        **{f"final_{name}": [_final(run, name) for run in runs] for name in ("f1", "accuracy")},
        "mean_staleness": [run["mean_staleness"] for run in runs],
    }
    spread = {f"{name}_stddev": float(np.std(each, ddof=1)) if len(each) > 1 else 0.0 for name, each in values.items()}
    means = {name: float(np.mean(each)) if len(each) else float("nan") for name, each in values.items()}
    return {**means, **spread, "failed": int(np.isnan(seconds).sum())}


def _panels(rows: list[dict[str, Any]], target: float) -> list[Panel]:
    """Draw time, staleness and final scores over the number of workers."""
    counts = sorted({row["workers"] for row in rows})
    labels = {
        "seconds_to_f1": f"time to F1 {target:.2f}, s",
        "mean_staleness": "mean staleness, updates",
        "final_f1": "F1 at the end",
        "final_accuracy": "accuracy at the end",
    }
    panels: list[Panel] = []
    for name, label in labels.items():
        lines = []
        for i, way in enumerate(WAYS):
            own = [row for row in rows if row["way"] == way]
            y, bars = ([row[key] for row in own] for key in (name, f"{name}_stddev"))
            lines.append(Line(counts, y, way, "o-", i, bars))
        if name == "mean_staleness":
            lines.append(Line(counts, np.array(counts) - 1, "workers - 1", ":", BLACK))
        panels.append(Panel(lines, "workers", label, LOG, counts, legend="" if not panels else None))
    return panels
