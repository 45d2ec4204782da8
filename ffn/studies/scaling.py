"""Throughput, measured on a few processes and modelled on many nodes (Fig. 3 of Dong et al. 2019)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ffn.errors import EvaluationError
from ffn.io import hdf5
from ffn.provenance import provenance
from ffn.studies.cluster import (
    FLOAT_BYTES,
    NETWORKS,
    PAPER_EFFICIENCY,
    PAPER_FOVS_PER_SECOND,
    PAPER_NODES,
    PAPER_STEP_SECONDS,
    PAPER_WEIGHTS,
    Cluster,
    Interconnect,
    StepTimes,
    curve,
    fit_network,
)
from ffn.studies.config import ScalingConfig
from ffn.studies.pages import BLACK, GREY, Line, Panel, draw, write_study
from ffn.training.config import TrainConfig
from ffn.training.parallel.compression import OneBit, Qsgd

QSGD_LEVELS = TrainConfig.model_fields["qsgd_levels"].default  # in the what-if
BACKUP_WORKERS = 8  # in a what-if, at most; our choice
STRAGGLER_RATE, SLOWDOWN = 0.001, 3.0  # in a what-if: share of a node's steps that are slowed down; our choice
LOG = {"xscale": "log"}
STYLES = ("-", "--", ":", "-.", "--", ":")


class Measurement(NamedTuple):
    """The output of `ffn.studies.trainings.measure`: times of (processes, steps) and of (sizes, repeats), s."""

    processes: int
    fovs_per_step: int
    num_weights: int
    compute_seconds: np.ndarray
    allreduce_seconds: np.ndarray
    message_bytes: np.ndarray
    message_seconds: np.ndarray

    @property
    def fovs_per_second(self) -> float:
        """Throughput of all processes."""
        step = float((self.compute_seconds + self.allreduce_seconds).mean())
        return self.processes * self.fovs_per_step / step


def study_scaling(measured: list[str], out_path: str, config: ScalingConfig) -> None:
    """Compare measured throughputs, and extrapolate them by a model of stragglers and ring allreduce.

    Parameters
    ----------
    measured : list of str
        Output files of `measure`, one for each number of processes.
    out_path : str
        JSON file; a PNG and an HTML file get the same name.
    config : ScalingConfig
        Largest number of nodes, and the network between them.
    """
    measurements = sorted((read_measurement(path) for path in measured), key=lambda m: m.processes)
    alone = measurements[0]
    local = _local_network(measurements)
    network = _network(config, local)
    times = StepTimes.of(alone.compute_seconds)
    here = Cluster(times, times.mean, network, FLOAT_BYTES * alone.num_weights, alone.fovs_per_step)
    paper = _paper_cluster(times)
    nodes = sorted({2**i for i in range(config.max_nodes.bit_length())} | {config.max_nodes})
    content: dict[str, Any] = {
        "provenance": provenance("study scaling", config, measured=" ".join(measured)),
        "measured": [_measured_row(m, alone) for m in measurements],
        "times": {
            "mean_seconds": times.mean,
            "variation": times.variation,
            "num_steps": alone.compute_seconds.size,
        },
        "network": {"name": config.network, **network._asdict()},
        "measured_network": local._asdict() if local else None,
        "nodes": nodes,
        "here": curve(here, nodes),
        "exchange_seconds": [here.exchange_seconds(n) for n in nodes],
        "paper": {
            "fovs_per_second": {str(n): value for n, value in PAPER_FOVS_PER_SECOND.items()},
            "efficiency": {str(PAPER_NODES): PAPER_EFFICIENCY},
            "model": curve(paper, nodes),
            "variation_needed": _variation_for(paper, PAPER_EFFICIENCY, PAPER_NODES),
        },
        "what_if": {name: curve(c, nodes)["efficiency"] for name, c in _what_ifs(here).items()},
    }
    statements = [_measured_statement(content), _here_statement(content, here), _paper_statement(content, paper)]
    write_study(out_path, "Scaling", content, draw(_panels(content)), statements)


def read_measurement(path: str) -> Measurement:
    """Read an output file of `measure`."""
    arrays, attributes = hdf5.read_arrays(path, EvaluationError)
    counts = ("processes", "fovs_per_step", "num_weights")
    names = ("compute_seconds", "allreduce_seconds", "message_bytes", "message_seconds")
    missing = [name for name in counts if name not in attributes] + [name for name in names if name not in arrays]
    if missing:
        raise EvaluationError(f"{path}: has no {missing[0]}, expected output of 'ffn study measure'")
    processes, fovs_per_step, num_weights = (int(attributes[name]) for name in counts)
    return Measurement(processes, fovs_per_step, num_weights, *(arrays[name] for name in names))


def _local_network(measurements: list[Measurement]) -> Interconnect | None:
    """Fit the network between the processes here, from all measurements with several processes."""
    rings = [m for m in measurements if m.processes > 1]
    if not rings:
        return None
    return fit_network(
        np.concatenate([np.full(len(m.message_bytes), m.processes) for m in rings]),
        np.concatenate([m.message_bytes for m in rings]),
        np.concatenate([np.median(m.message_seconds, axis=1) for m in rings]),
    )


def _network(config: ScalingConfig, local: Interconnect | None) -> Interconnect:
    if config.network != "measured":
        return NETWORKS[config.network]
    if local is None:
        raise EvaluationError(
            "study.network: measured, but only one process was measured, expected a number above 1 in study.processes. "
            f"Add one, or choose one of {sorted(NETWORKS)}"
        )
    return local


def _paper_cluster(times: StepTimes) -> Cluster:
    """Return the paper's nodes, with step times that vary as those measured here."""
    like_here = times.scaled(PAPER_STEP_SECONDS)
    return Cluster(like_here, like_here.mean, NETWORKS["aries"], FLOAT_BYTES * PAPER_WEIGHTS)


def _variation_for(cluster: Cluster, efficiency: float, num_nodes: int) -> float:
    """Return the variation of step times at which the model gives this efficiency, if they vary as here, but more."""
    alone = cluster.alone_seconds
    lost = alone / efficiency - alone - cluster.exchange_seconds(num_nodes)
    slowest = cluster.step_seconds(num_nodes) - alone - cluster.exchange_seconds(num_nodes)
    return cluster.times.variation * lost / slowest if slowest else 0.0


def _what_ifs(here: Cluster) -> dict[str, Cluster]:
    """Return variants of the cluster, by name."""
    num_weights = round(here.num_bytes / FLOAT_BYTES)
    one_bit, qsgd = OneBit([num_weights]), Qsgd(num_weights, QSGD_LEVELS, rng_seed=0)
    slow = replace(here, times=here.times.with_stragglers(STRAGGLER_RATE, SLOWDOWN))
    return {
        f"up to {BACKUP_WORKERS} backup workers": replace(here, backup_workers=BACKUP_WORKERS),
        f"stragglers ({STRAGGLER_RATE:.1%} × {SLOWDOWN:g})": slow,
        f"stragglers, up to {BACKUP_WORKERS} backup workers": replace(slow, backup_workers=BACKUP_WORKERS),
        "fp16": replace(here, num_bytes=here.num_bytes / 2),
        "1-bit": replace(here, num_bytes=one_bit.payload_size, collective="allgather"),
        f"QSGD, {QSGD_LEVELS} levels": replace(here, num_bytes=qsgd.payload_size, collective="allgather"),
    }


def _measured_row(measurement: Measurement, alone: Measurement) -> dict[str, float]:
    single = alone.fovs_per_second / alone.processes
    compute, allreduce = measurement.compute_seconds, measurement.allreduce_seconds
    return {
        "processes": measurement.processes,
        "fovs_per_second": measurement.fovs_per_second,
        "efficiency": measurement.fovs_per_second / measurement.processes / single,
        "compute_seconds": float(compute.mean()),
        "slowest_compute_seconds": float(compute.max(axis=0).mean()),
        "allreduce_seconds": float(allreduce.min(axis=0).mean()),
    }


def _measured_statement(content: dict[str, Any]) -> str:
    rows = ", ".join(
        f"{row['fovs_per_second']:.3g} FOVs/s ({row['efficiency']:.0%}) with {row['processes']}"
        for row in content["measured"]
    )
    times = content["times"]
    return (
        f"Measured here: {rows} processes. Step times vary by {times['variation']:.1%} of their mean "
        f"({times['num_steps']} steps)."
    )


def _here_statement(content: dict[str, Any], here: Cluster) -> str:
    nodes, measured = content["nodes"][-1], content["times"]["num_steps"]
    exchange = here.exchange_seconds(nodes)
    slowest, throughput = here.step_seconds(nodes) - exchange, content["here"]["fovs_per_second"][-1]
    horovod = "a constant overhead of Horovod" if here.network.constant else "no overhead of Horovod"
    return (
        f"Model with the network '{content['network']['name']}': {throughput:,.0f} FOVs/s at "
        f"{content['here']['efficiency'][-1]:.0%} efficiency on {nodes} such nodes. A step there takes "
        f"{slowest * 1e3:.3g} ms until the slowest node is done (the mean is {here.alone_seconds * 1e3:.3g} ms) and "
        f"{exchange * 1e3:.3g} ms for the allreduce. This is an upper bound: the model assumes equal and independent "
        f"nodes, no contention in the network, and {horovod}. Beyond {measured} nodes, the {measured} measured steps "
        "do not show the slowest one, which then takes as long as the longest of them."
    )


def _paper_statement(content: dict[str, Any], paper: Cluster) -> str:
    efficiency = paper.efficiency(PAPER_NODES)
    needed, ours = content["paper"]["variation_needed"], content["times"]["variation"]
    verdict = "reproduces" if abs(efficiency - PAPER_EFFICIENCY) < 0.05 else "does not reproduce"
    return (
        f"The paper's nodes (0.72 FOVs/s, Aries), with step times that vary as here, would reach {efficiency:.0%} on "
        f"{PAPER_NODES} nodes, which {verdict} the measured {PAPER_EFFICIENCY:.0%}. Step times that vary by "
        f"{needed:.0%} of their mean would (ours: {ours:.1%}). The allreduce, "
        f"{paper.exchange_seconds(PAPER_NODES) * 1e3:.2g} ms of {PAPER_STEP_SECONDS:.2f} s, does not explain the loss."
    )


def _panels(content: dict[str, Any]) -> list[Panel]:
    """Draw throughput, efficiency and what-ifs over the number of nodes."""
    nodes, here, paper = np.array(content["nodes"]), content["here"], content["paper"]
    rows = content["measured"]
    processes, model = [row["processes"] for row in rows], f"model, {content['network']['name']}"

    def compared(measure: str) -> list[Line]:
        published = {int(n): value for n, value in paper[measure].items()}
        return [
            Line(nodes, here[measure], model),
            Line(nodes, paper["model"][measure], "model, paper's nodes", colour=1),
            Line(processes, [row[measure] for row in rows], "measured here", "o"),
            Line(list(published), list(published.values()), "paper", "s", 1),
        ]

    ideal = [
        Line(nodes, nodes * one[0], label, ":", GREY)
        for one, label in ((here["fovs_per_second"], "ideal"), (paper["model"]["fovs_per_second"], None))
    ]
    what_ifs = [Line(nodes, here["efficiency"], "as modelled", colour=BLACK)] + [
        Line(nodes, values, name, style, i)
        for i, (style, (name, values)) in enumerate(zip(STYLES, content["what_if"].items(), strict=True))
    ]
    share = {**LOG, "ylim": (0, 1.1)}
    ticks = content["nodes"][::2]
    return [
        Panel(ideal + compared("fovs_per_second"), "nodes", "FOVs/s", {**LOG, "yscale": "log"}, ticks, legend=""),
        Panel(compared("efficiency"), "nodes", "efficiency", share, ticks, legend=""),
        Panel(what_ifs, "nodes", "efficiency, what if", share, ticks, legend=""),
    ]
