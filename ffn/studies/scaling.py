"""Throughput, measured on a few processes and modelled on many nodes (Fig. 3 of Dong et al. 2019)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ffn.errors import EvaluationError
from ffn.io import hdf5
from ffn.provenance import provenance
from ffn.studies.config import ScalingConfig
from ffn.studies.networks import FLOAT_BYTES, NETWORKS, Interconnect, fit_network
from ffn.studies.order_statistics import CHECKED_WORKERS, MeasuredTimes, fit_step_times, with_stragglers
from ffn.studies.pages import write_study
from ffn.studies.scaling_figure import draw_scaling
from ffn.studies.scaling_model import (
    PAPER_EFFICIENCY,
    PAPER_FOVS_PER_SECOND,
    PAPER_NODES,
    PAPER_STEP_SECONDS,
    PAPER_WEIGHTS,
    Cluster,
    curve,
    log_spread_for,
)
from ffn.training.config import TrainConfig
from ffn.training.parallel.compression import OneBit, Qsgd

QSGD_LEVELS = TrainConfig.model_fields["qsgd_levels"].default  # in the what-if


class Measurement(NamedTuple):
    """The output of `measure`.

    Parameters
    ----------
    processes, fovs_per_step, num_weights : int
        Number of processes, of FOVs per process and step, and of weights.
    compute_seconds, allreduce_seconds : float64 ndarray of shape (processes, steps)
        Time of computing and of averaging gradients, s.
    message_bytes : int64 ndarray of shape (sizes,)
        Sizes of averaged vectors.
    message_seconds : float64 ndarray of shape (sizes, repeats)
        Times of averaging them, s.
    """

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
        Options of the studies.

    Raises
    ------
    EvaluationError
        If a file is damaged, or the network should be the measured one but only one process was measured.
    """
    measurements = sorted((read_measurement(path) for path in measured), key=lambda m: m.processes)
    alone = measurements[0]
    fit = fit_step_times(alone.compute_seconds.ravel())
    local = _local_network(measurements)
    network = _network(config, local)
    times = MeasuredTimes(np.sort(alone.compute_seconds, axis=None)[::-1], fit.times)
    num_bytes = FLOAT_BYTES * alone.num_weights
    here = Cluster(times.inverse_survival, times.mean, network, num_bytes, alone.fovs_per_step)
    paper = _paper_cluster(times)
    nodes = sorted({2**i for i in range(config.max_nodes.bit_length())} | {config.max_nodes})
    content: dict[str, Any] = {
        "provenance": provenance("study scaling", config, measured=" ".join(measured)),
        "measured": [_measured_row(m, alone) for m in measurements],
        "fit": {
            **fit.times._asdict(),
            "mean_seconds": times.mean,
            "variation": times.variation,
            "distance": fit.distance,
            "longest_ratio": fit.longest_ratio,
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
            "variation_needed": log_spread_for(paper, PAPER_EFFICIENCY, PAPER_NODES),
        },
        "what_if": {name: curve(c, nodes)["efficiency"] for name, c in _what_ifs(here, times, config).items()},
    }
    statements = [_measured_statement(content), _here_statement(content, here), _paper_statement(content, paper)]
    write_study(out_path, "Scaling", content, draw_scaling(content), statements)


def read_measurement(path: str) -> Measurement:
    """Read an output file of `measure`.

    Raises
    ------
    EvaluationError
        If the file is missing, damaged or of another kind.
    """
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
            f"study.network: measured, but study.processes is {config.processes}, expected a number above 1. "
            f"Add one, or choose one of {sorted(NETWORKS)}"
        )
    return local


def _paper_cluster(times: MeasuredTimes) -> Cluster:
    """Return the paper's nodes, with step times that vary as those measured here."""
    like_here = times.scaled(PAPER_STEP_SECONDS)
    return Cluster(like_here.inverse_survival, like_here.mean, NETWORKS["aries"], FLOAT_BYTES * PAPER_WEIGHTS)


def _what_ifs(here: Cluster, times: MeasuredTimes, config: ScalingConfig) -> dict[str, Cluster]:
    """Return variants of the cluster, by name."""
    num_weights = round(here.num_bytes / FLOAT_BYTES)
    one_bit, qsgd = OneBit([num_weights]), Qsgd(num_weights, QSGD_LEVELS, rng_seed=0)
    slow = replace(here, inverse_survival=with_stragglers(times, config.straggler_rate, config.straggler_slowdown))
    backup = config.backup_workers
    return {
        f"up to {backup} backup workers": replace(here, backup_workers=backup),
        f"stragglers ({config.straggler_rate:.1%} × {config.straggler_slowdown:g})": slow,
        f"stragglers, up to {backup} backup workers": replace(slow, backup_workers=backup),
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
    fit = content["fit"]
    return (
        f"Measured here: {rows} processes. Step times vary by {fit['variation']:.1%} of their mean. The fitted "
        f"log-normal distribution differs from the measured one by at most {fit['distance']:.2f}, and its longest of "
        f"{CHECKED_WORKERS} steps is {fit['longest_ratio']:.2f} times the measured one ({fit['num_steps']} steps)."
    )


def _here_statement(content: dict[str, Any], here: Cluster) -> str:
    nodes, measured = content["nodes"][-1], content["fit"]["num_steps"]
    exchange = here.exchange_seconds(nodes)
    slowest, throughput = here.step_seconds(nodes) - exchange, content["here"]["fovs_per_second"][-1]
    horovod = "a constant overhead of Horovod" if here.network.constant else "no overhead of Horovod"
    return (
        f"Model with the network '{content['network']['name']}': {throughput:,.0f} FOVs/s at "
        f"{content['here']['efficiency'][-1]:.0%} efficiency on {nodes} such nodes. A step there takes "
        f"{slowest * 1e3:.3g} ms until the slowest node is done (the mean is {here.mean_seconds * 1e3:.3g} ms) and "
        f"{exchange * 1e3:.3g} ms for the allreduce. This is an upper bound: the model assumes equal and independent "
        f"nodes, no contention in the network, and {horovod}. Beyond {measured} nodes, the {measured} measured steps "
        "do not show the slowest one, so its time depends on the shape of the fitted distribution."
    )


def _paper_statement(content: dict[str, Any], paper: Cluster) -> str:
    efficiency = paper.efficiency(PAPER_NODES)
    needed, ours = content["paper"]["variation_needed"], content["fit"]["variation"]
    verdict = "reproduces" if abs(efficiency - PAPER_EFFICIENCY) < 0.05 else "does not reproduce"
    return (
        f"The paper's nodes (0.72 FOVs/s, Aries), with step times that vary as here, would reach {efficiency:.0%} on "
        f"{PAPER_NODES} nodes, which {verdict} the measured {PAPER_EFFICIENCY:.0%}. Step times that vary by "
        f"{needed:.0%} of their mean would (ours: {ours:.1%}). The allreduce, "
        f"{paper.exchange_seconds(PAPER_NODES) * 1e3:.2g} ms of {PAPER_STEP_SECONDS:.2f} s, does not explain the loss."
    )
