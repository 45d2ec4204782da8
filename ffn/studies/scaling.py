"""Throughput, measured on a few processes and modelled on many nodes (Fig. 3 of Dong et al. 2019).

The model is synchronous training: a step takes as long as the slowest node, plus the exchange of gradients.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ffn.errors import EvaluationError
from ffn.io import hdf5
from ffn.io.atomic import unreadable
from ffn.model.choice import FOLDER
from ffn.model.network import num_weights
from ffn.progress import track
from ffn.provenance import provenance
from ffn.studies.config import WARM_UP_STEPS, ScalingConfig
from ffn.studies.pages import GREY, Line, Panel, write_study
from ffn.training.loop import make_learner, make_patches
from ffn.training.optimizers import learning_rate
from ffn.training.parallel.process_group import ProcessGroup
from ffn.training.plan import Training, TrainingPlan
from ffn.training.train import training_job, with_engine
from ffn.training.walk import LaneWalks, Prefetcher

# Dong et al. 2019, Fig. 3 and text: one and 1024 nodes of Theta (64-core Knights Landing), depth 9, FOV 33³, batch 1.
PAPER_FOVS_PER_SECOND = {1: 0.72, 1024: 523.0}
PAPER_WEIGHTS = 472_353
PAPER_STEP_SECONDS = 1 / PAPER_FOVS_PER_SECOND[1]
SPREAD = 0.1  # of the logarithms of its times, where none were measured; our choice

FLOAT_BYTES = 4
LOG = {"xscale": "log"}
COUNTS = ("processes", "fovs_per_step", "num_weights")  # attributes of a measurement


class Interconnect(NamedTuple):
    """The network between two neighbours of a ring."""

    latency: float
    bandwidth: float


# Figures for one pair of nodes without other traffic: lower bounds of the cost, as the model needs to show which losses
# are *not* due to the network.
NETWORKS = {
    # Cray XC Series Network, white paper WP-Aries01-1112 (2012): MPI between two nodes, approximately
    "aries": Interconnect(1.3e-6, 10e9),
    # 200 Gb/s of a Slingshot 11 NIC; latency as in De Sensi et al. 2020 (SC'20), approximately
    "slingshot": Interconnect(2.0e-6, 25e9),
    # 10 Gb/s of IEEE 802.3ae; a typical latency of MPI over TCP, our assumption
    "ethernet": Interconnect(30e-6, 1.25e9),
}


def ring_allreduce_seconds(num_nodes: int, num_bytes: float, network: Interconnect) -> float:
    """Return the time of a ring allreduce: every node sends 2 (N - 1) messages of a share of the data.

    The alltoall and the allgather of exact sums send as many. Source: Patarasuk & Yuan 2009, the algorithm of Horovod
    (Sergeev & Del Balso 2018).

    Examples
    --------
    >>> ring_allreduce_seconds(2, 1e6, Interconnect(latency=0.5, bandwidth=1e6))
    2.0
    """
    return 2 * (num_nodes - 1) * (network.latency + num_bytes / num_nodes / network.bandwidth)


@dataclass(frozen=True)
class Cluster:
    """Equal nodes that train together, as fast as one node was measured.

    Each of the measured times of a step is as likely as any other, independently between nodes and between steps. Of
    more nodes than measured steps, the slowest takes about as long as the longest measured step.
    """

    times: np.ndarray  # s
    network: Interconnect
    num_bytes: float
    fovs_per_step: int = 1
    overhead: float = 0.0  # of an exchange besides its messages, s

    @property
    def alone_seconds(self) -> float:
        """Mean step of a single node, s."""
        return float(self.times.mean())

    def slowest_seconds(self, num_nodes: int) -> float:
        """Return the expected step of the slowest node, s."""
        share = np.arange(self.times.size + 1) / self.times.size
        return float(np.sum(np.sort(self.times) * np.diff(share**num_nodes)))

    def exchange_seconds(self, num_nodes: int) -> float:
        """Return the part of a step in which gradients are exchanged, s."""
        return self.overhead * (num_nodes > 1) + ring_allreduce_seconds(num_nodes, self.num_bytes, self.network)

    def step_seconds(self, num_nodes: int) -> float:
        """Return the expected time of a step of all nodes, s."""
        return self.slowest_seconds(num_nodes) + self.exchange_seconds(num_nodes)

    def fovs_per_second(self, num_nodes: int) -> float:
        """Return the throughput of all nodes."""
        return num_nodes * self.fovs_per_step / self.step_seconds(num_nodes)


class Measurement(NamedTuple):
    """The output of `measure`: times of (processes, steps), s."""

    processes: int
    fovs_per_step: int
    num_weights: int
    compute_seconds: np.ndarray
    allreduce_seconds: np.ndarray

    @property
    def fovs_per_second(self) -> float:
        """Throughput of all processes."""
        step = float((self.compute_seconds + self.allreduce_seconds).mean())
        return self.processes * self.fovs_per_step / step

    @property
    def exchange_seconds(self) -> float:
        """Mean exchange of the process that came last, so without a wait for others, s."""
        return float(self.allreduce_seconds.min(axis=0).mean())


def measure(training: Training, out_path: str, num_steps: int) -> None:
    """Train new weights for some steps and record how long each takes on each process. All processes call this.

    Rank 0 writes an HDF5 file: ``compute_seconds`` (everything that a process does without the others) and
    ``allreduce_seconds``, float64 (processes, steps).
    """
    config = training.config
    cores = sorted(os.sched_getaffinity(0))
    if config.num_workers == 1 and 0 < config.intra_op_threads < len(cores):  # as if others took the rest
        os.sched_setaffinity(0, cores[: config.intra_op_threads])
    steps = WARM_UP_STEPS + num_steps  # also where the run itself does not train
    config = config.model_copy(update={"max_steps": max(steps, config.max_steps)})
    with training_job(training._replace(config=config)) as (group, plan, _):
        plan.load_records(group)
        plan = with_engine(plan, Path(out_path).with_name(FOLDER), group)
        times = np.stack(group.gather(_step_seconds(plan, group, num_steps)))
        if group.rank == 0:
            counts = group.size, config.batch_size * config.virtual_workers, num_weights(training.model)
            arrays = {"compute_seconds": times[..., 0], "allreduce_seconds": times[..., 1]}
            hdf5.write_arrays(out_path, arrays, dict(zip(COUNTS, counts, strict=True)))
        group.barrier()


def _step_seconds(plan: TrainingPlan, group: ProcessGroup, num_steps: int) -> np.ndarray:
    """Return the seconds that this process computed and averaged, for every step, shape (steps, 2)."""
    at = dict.fromkeys(plan.lanes(group.rank), 0)
    times = []
    with Prefetcher(plan.example_source(at), at) as prefetcher:
        learner = make_learner(plan.initial.config, plan.train, plan.initial.weights, group, plan.rng_seed)
        walks = LaneWalks(prefetcher, at, make_patches(learner, plan.initial.config, plan.train))
        steps = range(WARM_UP_STEPS + num_steps)
        for step in track(steps, len(steps), "measure", unit="step") if group.rank == 0 else steps:
            started = time.perf_counter()
            group.beat()
            outcome = learner.step(walks.batch(), learning_rate(plan.train, step))
            walks.proceed(outcome.answers)
            float(outcome.gradient_norm)  # waits for the update
            times.append((time.perf_counter() - started - outcome.allreduce_seconds, outcome.allreduce_seconds))
    return np.array(times[WARM_UP_STEPS:])


def study_scaling(measured: list[str], out_path: str, config: ScalingConfig) -> None:
    """Compare measured throughputs, and extrapolate them by a model of stragglers and exchange.

    `measured` are outputs of `measure`, one for each number of processes. The figure gets the name of the JSON file
    with ``.png``.
    """
    measurements = sorted((read_measurement(path) for path in measured), key=lambda m: m.processes)
    alone, network = measurements[0], NETWORKS[config.network]
    here = cluster_of(alone, config.network)
    here = replace(here, overhead=fitted_overhead(measurements, here))
    like_here = here.times * (PAPER_STEP_SECONDS / here.alone_seconds)
    paper = Cluster(like_here, NETWORKS["aries"], FLOAT_BYTES * PAPER_WEIGHTS)
    nodes = sorted({2**i for i in range(config.max_nodes.bit_length())} | {config.max_nodes})
    content: dict[str, Any] = {
        "measured": {m.processes: m.fovs_per_second for m in measurements},
        "fovs_per_step": here.fovs_per_step,
        "network": {"name": config.network, **network._asdict(), "overhead_seconds": here.overhead},
        "nodes": nodes,
        "fovs_per_second": [here.fovs_per_second(n) for n in nodes],
        "step_seconds": [here.step_seconds(n) for n in nodes],
        "exchange_seconds": [here.exchange_seconds(n) for n in nodes],
        "paper": PAPER_FOVS_PER_SECOND,
        "paper_model": [paper.fovs_per_second(n) for n in nodes],
    }
    write_study(out_path, provenance("study scaling", config, measured=" ".join(measured)), content, _panels(content))


def fitted_overhead(measurements: list[Measurement], cluster: Cluster) -> float:
    """Return the time of a measured exchange, s, beyond that of its messages, which are fast on one machine.

    Two processes exchange by one call, more of them by two, so measurements of more count where there are any.
    """
    several = [m for m in measurements if m.processes > 2] or [m for m in measurements if m.processes == 2]
    beyond = [m.exchange_seconds - cluster.exchange_seconds(m.processes) for m in several]
    return max(0.0, float(np.mean(beyond))) if beyond else 0.0


def read_measurement(path: str) -> Measurement:
    """Read an output file of `measure`."""
    arrays, counts = hdf5.read_arrays(path, EvaluationError)
    with unreadable(path, "output of 'ffn study measure'", EvaluationError):
        processes, fovs_per_step, num_weights = (int(counts[name]) for name in COUNTS)
        times = arrays["compute_seconds"], arrays["allreduce_seconds"]
    return Measurement(processes, fovs_per_step, num_weights, *times)


def cluster_of(measurement: Measurement | None, network: str) -> Cluster:
    """Return nodes as they were measured, else those of the paper, whose times are spread by `SPREAD`."""
    if measurement is None:
        times = PAPER_STEP_SECONDS * np.random.default_rng(1).lognormal(0, SPREAD, 1000)
        return Cluster(times, NETWORKS[network], FLOAT_BYTES * PAPER_WEIGHTS)
    num_bytes = FLOAT_BYTES * measurement.num_weights
    return Cluster(measurement.compute_seconds.ravel(), NETWORKS[network], num_bytes, measurement.fovs_per_step)


def _panels(content: dict[str, Any]) -> list[Panel]:
    """Draw throughput and efficiency over the number of nodes."""
    nodes = content["nodes"]

    def line(throughput: Mapping[int, float], label: str, style: str = "-", colour: int = 0) -> Line:
        return Line(np.array(list(throughput)), np.array(list(throughput.values())), label, style, colour)

    lines = [
        line(dict(zip(nodes, content["fovs_per_second"], strict=True)), f"model, {content['network']['name']}"),
        line(dict(zip(nodes, content["paper_model"], strict=True)), "model, paper's nodes", colour=1),
        line(content["measured"], "measured here", "o"),
        line(content["paper"], "paper", "s", 1),
    ]
    efficiency = [line._replace(y=line.y / line.x * line.x[0] / line.y[0]) for line in lines]
    ideal = [Line(line.x, line.x * line.y[0], None, ":", GREY) for line in lines[:2]]
    return [
        Panel(lines + ideal, "nodes", "FOVs/s", {**LOG, "yscale": "log"}, nodes[::2], legend=""),
        Panel(efficiency, "nodes", "efficiency", {**LOG, "ylim": (0, 1.1)}, nodes[::2], legend=""),
    ]
