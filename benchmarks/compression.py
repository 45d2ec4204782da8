"""Measure what compressing gradients costs and saves: bytes, time to encode and decode, links on which it pays.

The gradient has the size of the paper's network (472,353 weights) and consists of random numbers. `encode + decode` is
the CPU time of one process with one thread, which decodes its own message once for each of N workers. `exchange` is
the wall time with two local Horovod processes: the bandwidth is that of memory, so mostly latency remains.
`pays below` is the bandwidth of a process's link at which the saved bytes, sent around a ring, take as long as the
compression. On faster links, compression loses time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from ffn.config import ModelConfig
from ffn.model.network import num_weights, weight_shapes
from ffn.training.config import TrainConfig
from ffn.training.parallel.joining import process_group
from ffn.training.parallel.process_group import ProcessGroup
from ffn.workflow.rank_layout import Layout

if TYPE_CHECKING:
    import tensorflow as tf

KINDS = {
    "none": TrainConfig(),
    "fp16": TrainConfig(compression="fp16"),
    "1-bit": TrainConfig(compression="1-bit"),
    "qsgd, 7 levels": TrainConfig(compression="qsgd", qsgd_levels=7),
    "qsgd, 127 levels": TrainConfig(compression="qsgd", qsgd_levels=127),
}
PROCESSES = 2
STALL_SECONDS = 60  # then Horovod gives up


class Pretended(ProcessGroup):
    """The first of many processes whose messages are all the same and arrive at once."""

    def __init__(self, size: int) -> None:
        self.size = size

    def all_gather(self, vector: tf.Tensor) -> tf.Tensor:
        """Return the vector once for each process."""
        import tensorflow as tf

        return tf.repeat(vector[None], self.size, 0)


def main() -> None:
    """Print the table; in a child process, measure the exchange."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--depth", type=int, default=9, help="depth of the network (default: 9, as in the paper)")
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 16, 128], help="how many (default: 2 16 128)")
    parser.add_argument("--rounds", type=int, default=30, help="exchanges; the table has the median (default: 30)")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    model = ModelConfig(depth=arguments.depth)
    if arguments.child:
        child(model, arguments.rounds)
        return
    exchanged = run_children(arguments.depth, arguments.rounds)
    print(f"{num_weights(model)} weights; exchange between {PROCESSES} local processes; times in ms per step")
    print(f"{'':18} {'workers':>8} {'MB sent':>8} {'encode + decode':>16} {'exchange':>9} {'pays below':>14}")
    for workers in arguments.workers:
        plain = None
        for name, train in KINDS.items():
            milliseconds, sent = cost(model, train, Pretended(workers), arguments.rounds, time.process_time)
            plain = plain or (milliseconds, sent)
            link = breakeven(milliseconds - plain[0], plain[1] - sent)
            exchange = f"{exchanged[name]:9.1f}" if workers == PROCESSES else f"{'':9}"
            print(f"{name:18} {workers:8} {sent / 1e6:8.3f} {milliseconds:16.2f} {exchange} {link:>14}", flush=True)


def breakeven(extra_ms: float, saved_bytes: int) -> str:
    """Return the bandwidth at which sending the saved bytes takes as long as saving them."""
    if saved_bytes <= 0:
        return "never" if saved_bytes < 0 else ""
    return f"{saved_bytes * 8 / max(extra_ms, 1e-3) / 1e6:.2f} Gbit/s"


def cost(
    model: ModelConfig, train: TrainConfig, group: ProcessGroup, rounds: int, clock: Callable[[], float]
) -> tuple[float, int]:
    """Return the time of averaging one step's gradients, ms of `clock`, and the bytes that a process sends."""
    import tensorflow as tf

    from ffn.training.parallel.exchange import TAIL, make_exchange

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    sizes = [int(np.prod(shape)) for shape in weight_shapes(model).values()]
    vector = tf.constant(np.random.default_rng(group.rank).normal(0, 1e-3, sum(sizes) + TAIL), tf.float32)
    exchange = make_exchange(train, sizes, group, rng_seed=1)
    mean = tf.function(exchange.mean, autograph=False)
    times = []
    for _ in range(rounds + 3):  # the first three do not count
        start = clock()
        mean([vector], tf.constant(0, tf.int64)).numpy()
        times.append(clock() - start)
    return 1000 * float(np.median(times[3:])), exchange.bytes_sent


def run_children(depth: int, rounds: int) -> dict[str, float]:
    """Return the time of the whole exchange between two local processes, ms."""
    launcher = [sys.executable, "-m", *Layout(PROCESSES, PROCESSES, PROCESSES).command.split()]
    command = [sys.executable, __file__, "--child", "--depth", str(depth), "--rounds", str(rounds)]
    output = subprocess.check_output(launcher + command, text=True)
    return json.loads(output[output.index("{") : output.rindex("}") + 1])


def child(model: ModelConfig, rounds: int) -> None:
    """Measure as one of the processes; rank 0 prints."""
    with process_group(PROCESSES, STALL_SECONDS) as group:
        results = {name: cost(model, train, group, rounds, time.perf_counter)[0] for name, train in KINDS.items()}
        if group.rank == 0:
            print(json.dumps(results), flush=True)


if __name__ == "__main__":
    main()
