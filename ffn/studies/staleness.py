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
from ffn.provenance import provenance
from ffn.studies.config import StalenessConfig
from ffn.studies.pages import BLACK, Line, Panel, write_study
from ffn.studies.scaling import LOG, Cluster, cluster_of, read_measurement
from ffn.training.loop import MAX_SKIPPED_IN_ROW, make_learner
from ffn.training.optimizers import learning_rate
from ffn.training.parallel.process_group import ProcessGroup
from ffn.training.parallel.serving import UpdateRule
from ffn.training.plan import Training, TrainingPlan, initial_weights
from ffn.training.step import Learner
from ffn.training.train import training_job, with_engine
from ffn.training.validation import Validation, ValidationBox, make_validation
from ffn.training.walk import HostPatches, LaneWalks, Prefetcher

FACTORS = (0.25, 1.0, 4.0)  # of train.learning_rate, to try with the first seed; our choice
SEEDS = 3  # at the best rate, with the first; our choice
BACKUP_OF = 16  # workers of which one is a backup, at least one; our choice
STRAGGLER_FACTOR = 5.0  # by which a straggler's gradient takes longer; our choice
TARGET_SHARE = 0.9  # of the F1 that most runs of every way reach; our choice
WAYS = ("synchronous", "backup", "asynchronous")

log = logging.getLogger(__name__)


class VirtualCluster:
    """Workers on equal nodes, and the link of a server, which takes one message each way at a time.

    Without a server, all exchange their gradients by a ring allreduce. `nodes` have the times of a gradient, `way` is
    one of the `WAYS`, and the share `stragglers` of gradients takes longer by `STRAGGLER_FACTOR`.
    """

    def __init__(self, nodes: Cluster, stragglers: float, way: str, workers: int, rng_seed: int) -> None:
        self._nodes, self._stragglers = nodes, stragglers
        few = {"backup": workers - -(-workers // BACKUP_OF), "asynchronous": 1}
        self.rule = UpdateRule(workers, few.get(way, workers), None if way == "asynchronous" else 0)
        self._rngs = [np.random.default_rng([rng_seed, worker]) for worker in range(workers)]
        self._free = {"in": 0.0, "out": 0.0}  # when the link will be
        self._has_server = way != "synchronous"
        self._arriving: list[tuple[float, int, int, Any]] = []

    def begin(self, worker: int, now: float, gradient: Any) -> None:
        """Let a worker take the newest weights; the gradient that it computes arrives later."""
        rng = self._rngs[worker]
        seconds = float(rng.choice(self._nodes.times))
        seconds *= STRAGGLER_FACTOR if rng.random() < self._stragglers else 1.0
        computed = self.delivered("out", now) + seconds
        heapq.heappush(self._arriving, (computed, worker, self.rule.version, gradient))

    def next(self) -> tuple[float, list[Any] | None, list[int]]:
        """Take the gradient that comes next.

        Return the time, the gradients of an update that it completes, and the workers that begin another one then.
        """
        computed, worker, version, gradient = heapq.heappop(self._arriving)
        now, waited = self.delivered("in", computed), self.rule.waiting
        complete = self.rule.arrive(worker, version, gradient)
        if complete and not self._has_server:
            now += self._nodes.exchange_seconds(len(complete))
        return now, complete, sorted({*waited, worker} - self.rule.waiting)

    def delivered(self, direction: Literal["in", "out"], at: float) -> float:
        """Return when a message arrives at the server, or from there, that is sent after all others so far."""
        if not self._has_server:
            return at
        network = self._nodes.network
        self._free[direction] = max(at, self._free[direction]) + self._nodes.num_bytes / network.bandwidth
        return self._free[direction] + network.latency


def study_staleness(training: Training, out_path: str, measured: str | None, config: StalenessConfig) -> None:
    """Train in each way with 2, 4, … up to all workers of `training`, and compare times to a validation F1.

    Every run uses as many gradients as `max_steps` synchronous steps of all workers have, and validates as often as
    they would. Finished runs are kept beside the output, in a folder of its name: a killed study continues with the
    next one.

    The learning rate of `training` is tried with each of `FACTORS`. The time of a gradient and the size of messages
    come from an output of `ffn.studies.scaling.measure`; without one, they are those of the nodes and the network of
    Dong et al. 2019, with a spread of 10 %. The figure gets the name of the JSON file with ``.png``.
    """
    workers = training.config.total_workers
    train = training.config.model_copy(update={"num_workers": 1, "virtual_workers": workers})
    nodes = cluster_of(read_measurement(measured) if measured else None, config.network)
    with training_job(training._replace(config=train)) as (group, plan, opened):
        boxes = {name: ValidationBox(opened[name], source.box) for name, source in training.data.validation.items()}
        validation = make_validation(boxes, plan.initial.config, plan.train, plan.rng_seed, group)
        if validation is None or train.validation_steps > train.max_steps or workers < 2 or train.compression != "none":
            needed = "--validate, validation_steps up to max_steps, 2 virtual_workers or more, and no compression"
            raise ConfigError(f"ffn study staleness: found {train.validation_steps=}, {workers=}, expected {needed}")
        plan.load_records(group)
        plan = with_engine(plan, Path(out_path).with_name(FOLDER), group)
        made_up = nodes.times.tolist(), nodes.num_bytes, config.model_dump()
        parts = plan.fingerprint(), plan.train.model_dump(mode="json"), validation.digest.hex(), made_up
        folder = Path(out_path).with_suffix("") / sha256(json.dumps(parts).encode()).hexdigest()[:16]
        study = _Study(plan, validation, nodes, config.stragglers, folder)
        counts = [workers >> i for i in range(workers.bit_length() - 1)][::-1]
        results = [study.at_best_rate(way, count) for count in counts for way in WAYS]
    highest = [np.median([max(run["f1"], default=0.0) for run in result["runs"]]) for result in results]
    target = TARGET_SHARE * float(min(highest))
    rows = [result | _summary(result["runs"], target) for result in results]
    content = {"train": train.model_dump(mode="json"), "f1_target": target, "results": rows}
    provided = provenance("study staleness", config, measured=measured or "")
    write_study(out_path, provided, content, _panels(rows, target), num_rows=2)


@dataclass(frozen=True)
class _Study:
    """The runs of a study, which `folder` keeps."""

    plan: TrainingPlan
    validation: Validation
    nodes: Cluster
    stragglers: float
    folder: Path

    def at_best_rate(self, way: str, workers: int) -> dict[str, Any]:
        """Find the best rate with the first seed; return the runs of all seeds at this rate."""
        first, rates = self.plan.rng_seed, [factor * self.plan.train.learning_rate for factor in FACTORS]
        tried = {rate: _final(self._run(way, workers, rate, first), "f1") for rate in rates}
        rate = max(tried, key=lambda rate: tried[rate])
        log.info("%s, %d workers: F1 by rate %s", way, workers, tried)
        runs = [self._run(way, workers, rate, seed) for seed in range(first, first + SEEDS)]
        return {"way": way, "workers": workers, "rate": rate, "tried": tried, "runs": runs}

    def _run(self, way: str, workers: int, rate: float, seed: int) -> dict[str, Any]:
        """Train, or read what a killed study has written."""
        path = self.folder / f"{way}-{workers}-rate-{rate!r}-seed-{seed}.json"
        if path.is_file():
            return json.loads(path.read_text())
        train = self.plan.train.model_copy(update={"virtual_workers": workers, "learning_rate": rate})
        weights = initial_weights(self.plan.initial.config, seed, train.initial)
        plan = replace(self.plan, train=train, rng_seed=seed, initial=replace(self.plan.initial, weights=weights))
        cluster = VirtualCluster(self.nodes, self.stragglers, way, workers, seed)
        updates = train.max_steps * self.plan.train.num_lanes // (train.batch_size * cluster.rule.gradients)
        result, _ = train_virtually(plan, cluster, updates, self.validation)
        run = {"seed": seed, **result}
        atomic.write_json(path, run)
        return run


def train_virtually(
    plan: TrainingPlan, cluster: VirtualCluster, updates: int, validation: Validation | None = None
) -> tuple[dict[str, Any], Learner]:
    """Train by the workers of `plan` in the time of `cluster`; return scores over time, staleness, and the learner.

    A gradient is computed when its worker takes the weights, and is kept until it arrives, so no weights but the newest
    are kept.
    """
    model, rule, lanes, size = plan.initial.config, cluster.rule, plan.lanes(0), plan.train.batch_size
    # the learner averages the gradients of an update
    train = plan.train.model_copy(update={"virtual_workers": rule.gradients, "max_steps": updates})
    learner = make_learner(model, train, plan.initial.weights, ProcessGroup(), plan.rng_seed)
    num_scores = plan.train.max_steps // plan.train.validation_steps if validation else 0
    scored = {round(updates * (i + 1) / num_scores) for i in range(num_scores)}
    rows, skipped = [], 0
    with Prefetcher(plan.example_source(lanes), dict.fromkeys(lanes, 0)) as prefetcher:
        patches = HostPatches(model, train)
        walks = [LaneWalks(prefetcher, dict.fromkeys(lanes[i : i + size], 0), patches) for i in lanes[::size]]
        now, free = 0.0, list(range(len(walks)))
        while rule.version < updates and skipped < MAX_SKIPPED_IN_ROW:
            for worker in free:
                (answers,), (vector,) = learner.differentiate(walks[worker].batch())
                walks[worker].proceed(np.asarray(answers))
                cluster.begin(worker, now, vector)
            now, complete, free = cluster.next()
            if complete:
                outcome = learner.update(complete, learning_rate(train, rule.version - 1))
                skipped = 0 if outcome.finite else skipped + 1
                if validation and rule.version in scored:
                    with learner.averaged():
                        rows.append({"seconds": now, **validation.run(learner.forward, rule.version)})
    scores = {name: [float(np.nan_to_num(row[name])) for row in rows] for name in ("seconds", "f1", "accuracy")}
    ages = {"dropped": rule.dropped, "mean_staleness": rule.mean_staleness, "max_staleness": max(rule.staleness)}
    return {"updates": rule.version, "diverged": rule.version < updates, **ages, **scores}, learner


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

    def line(name: str, way: str) -> Line:
        y, bars = ([row[key] for row in rows if row["way"] == way] for key in (name, f"{name}_stddev"))
        return Line(counts, y, way, "o-", WAYS.index(way), bars)

    lines = {name: [line(name, way) for way in WAYS] for name in labels}
    lines["mean_staleness"].append(Line(counts, np.array(counts) - 1, "workers - 1", ":", BLACK))
    return [Panel(lines[name], "workers", label, LOG, counts, legend="") for name, label in labels.items()]
