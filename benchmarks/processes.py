"""Time training with two processes against one, one thread each: the cost of exchanging and of waiting.

The contenders run in turn, one round each, and are suspended while others run:

- one: one process.
- two without Horovod: two processes that know nothing of each other. This is what the machine allows, because cores
  share caches and execution units, and hosts are busy.
- two: two processes with Horovod.

Every process is bound to one core. Ratios are taken within each round. If the two without Horovod are not twice as fast
as one, look at the ratio to them. "two in step" is computed from the steps of the two without Horovod, as if each step
of both took as long as the slower one. It is what a free exchange would reach on cores that are disturbed at different
times. The processor time is that of one step of one process, over all its threads.

The core of a virtual machine may be a hyperthread, and the second hyperthread of the real core may be busy. Steps then
take two to three times as long, for seconds at a time and on each core independently. So each process times a small
matrix product between its steps, and the second table compares only steps in the same state: one process on a core at
full speed ("free") with two on two such cores, and one process on a slowed core ("shared") with two on two slowed ones.

  python benchmarks/processes.py --batch 1 4 --rounds 20
  python benchmarks/processes.py --launcher "mpirun --oversubscribe --bind-to none -np {ranks}"
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import socket
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
from training import common_options, learner_on_noise

from ffn.machine.launchers import launched_rank
from ffn.training.parallel.joining import process_group
from ffn.training.parallel.process_group import ProcessGroup
from ffn.training.step import Outcome
from ffn.workflow.rank_layout import LOCAL_LAUNCHER, Layout

ONE, APART, IN_STEP, TWO = "one", "two without Horovod", "two in step", "two"
PROCESSES = {ONE: 1, APART: 2, TWO: 2}
WARM_UP = 6  # steps
SLOWED = 1.3  # times the fastest probe's time; a busy second hyperthread makes probes 1.5 times as slow
START_SECONDS = 300


class Round(NamedTuple):
    """One round of a contender: wall and processor seconds of shape (processes, steps).

    The probes are the seconds of a fixed matrix product before each step and after the last one, of shape
    (processes, steps + 1).
    """

    seconds: np.ndarray
    processor_seconds: np.ndarray
    probes: np.ndarray

    @property
    def steps_per_second(self) -> float:
        """Steps per second of all processes together."""
        return float((1 / self.seconds.mean(axis=1)).sum())

    def in_step(self) -> Round:
        """Return the round as if the processes had waited for each other after each step."""
        return self._replace(seconds=np.broadcast_to(self.seconds.max(axis=0), self.seconds.shape))


class Contender:
    """Processes that train when they are told to, and are suspended otherwise."""

    def __init__(self, name: str, address: Path, arguments: argparse.Namespace) -> None:
        self._launched: list[subprocess.Popen[bytes]] = []
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(address))
            server.listen()
            server.settimeout(START_SECONDS)
            command = [sys.executable, __file__, "--contender", name, "--address", str(address), *sizes(arguments)]
            try:
                for launch in launches(name, command, arguments.launcher):
                    self._launched.append(subprocess.Popen(launch, env={**os.environ, "OMP_NUM_THREADS": "1"}))
                self._members = [server.accept()[0].makefile("rw") for _ in range(PROCESSES[name])]
                self.train(WARM_UP)
            except BaseException:
                self.close()
                raise

    def train(self, steps: int) -> Round:
        """Train `steps` steps."""
        self._each(psutil.Process.resume)
        for member in self._members:
            print(steps, file=member, flush=True)
        answers = [json.loads(member.readline()) for member in self._members]
        self._each(psutil.Process.suspend)
        return Round(*(np.array(parts) for parts in zip(*answers, strict=True)))

    def close(self) -> None:
        """Kill the processes, also suspended ones."""
        self._each(psutil.Process.kill)
        for launched in self._launched:
            launched.wait()

    def _each(self, action: Callable[[psutil.Process], None]) -> None:
        for launched in self._launched:
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(launched.pid)
                for member in (*process.children(recursive=True), process):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        action(member)


def main() -> None:
    """Run the comparison, print tables, and write all figures as JSON with ``--json``."""
    arguments = parse()
    if arguments.contender:
        train_when_told(arguments)
        return
    columns = ("batch", "processes", "FOVs/s", "to one", "quartiles", "to without Horovod", "processor ms")
    print("{:>5} {:20} {:>7} {:>7} {:>11} {:>19} {:>13}".format(*columns))
    report = []
    for batch_size in arguments.batch:
        arguments.batch = [batch_size]
        rounds = compare(arguments)
        rounds[IN_STEP] = [each.in_step() for each in rounds[APART]]
        rates = {
            name: batch_size * np.array([each.steps_per_second for each in rounds[name]])
            for name in (ONE, APART, IN_STEP, TWO)
        }
        for name, rate in rates.items():
            ratios = rate / rates[ONE]
            quartiles = "-".join(f"{part:.2f}" for part in np.quantile(ratios, (0.25, 0.75)))
            processor = 1000 * np.median([each.processor_seconds for each in rounds[name]])
            print(
                f"{batch_size:5} {name:20} {np.median(rate):7.1f} {np.median(ratios):7.2f} {quartiles:>11} "
                f"{np.median(rate / rates[APART]):19.2f} {processor:13.1f}",
                flush=True,
            )
            steps, probes = ([each[part].tolist() for each in rounds[name]] for part in (0, 2))
            report.append(
                {
                    "batch": batch_size,
                    "processes": name,
                    "fovs_per_second": rate.tolist(),
                    "seconds": steps,
                    "probes": probes,
                }
            )
        print_alike(rounds)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(report, indent=1) + "\n")


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = common_options(__doc__, rounds=20)
    parser.add_argument("--launcher", default=LOCAL_LAUNCHER, help="as in a profile (default: %(default)s)")
    parser.add_argument("--contender", choices=PROCESSES, help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    parser.add_argument("--core", type=int, default=0, help=argparse.SUPPRESS)
    parser.set_defaults(threads=1)
    return parser.parse_args()


def sizes(arguments: argparse.Namespace) -> list[str]:
    """Return the part of the command line that says what is trained."""
    (batch_size,) = arguments.batch
    values = {"batch": batch_size, "depth": arguments.depth, "features": arguments.features, "fov": arguments.fov}
    return [part for name, value in values.items() for part in (f"--{name}", str(value))]


def launches(name: str, command: list[str], launcher: str) -> list[list[str]]:
    """Return the command lines that start a contender."""
    if name != TWO:
        return [[*command, "--core", str(core)] for core in range(PROCESSES[name])]
    program, *options = shlex.split(Layout(PROCESSES[TWO], PROCESSES[TWO], PROCESSES[TWO], launcher).command)
    own = Path(sys.executable).with_name(program)
    return [[str(own) if own.exists() else program, *options, *command]]


def compare(arguments: argparse.Namespace) -> dict[str, list[Round]]:
    """Run the contenders in turn, in another order each round; return the rounds of each."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        contenders = {}
        for index, name in enumerate(PROCESSES):
            contenders[name] = Contender(name, Path(folder, str(index)), arguments)
            stack.callback(contenders[name].close)
        rounds: dict[str, list[Round]] = {name: [] for name in contenders}
        order = list(contenders)
        for _ in range(arguments.rounds):
            order.append(order.pop(0))
            for name in order:
                rounds[name].append(contenders[name].train(arguments.steps))
    return rounds


def print_alike(rounds: dict[str, list[Round]]) -> None:
    """Print the speed of two processes relative to one on cores in the same state, from the medians of such steps."""
    fastest = float(min(each.probes.min() for name in PROCESSES for each in rounds[name]))
    random = np.random.default_rng(0)
    print(f"{'':5} {'cores':20} {'one ms':>8} {'steps':>5} {'two ms':>8} {'steps':>5} {'to one':>7} {'90 %':>11}")
    for state in ("free", "shared"):
        one, two = (steps_in_state(rounds[name], state == "shared", fastest) for name in (ONE, TWO))
        num_one, num_two = sum(map(len, one)), sum(map(len, two))
        if min(num_one, num_two) < 10:
            print(f"{'':5} {state:20} {'too few':>8} {num_one:5} {'':8} {num_two:5}")
            continue
        drawn = [2 * median_of_draw(one, random) / median_of_draw(two, random) for _ in range(2000)]
        bounds = "-".join(f"{bound:.2f}" for bound in np.quantile(drawn, (0.05, 0.95)))
        one_ms, two_ms = (1000 * np.median(np.concatenate(steps)) for steps in (one, two))
        print(
            f"{'':5} {state:20} {one_ms:8.1f} {num_one:5} {two_ms:8.1f} {num_two:5} {2 * one_ms / two_ms:7.2f} "
            f"{bounds:>11}",
            flush=True,
        )


def steps_in_state(rounds: list[Round], slowed: bool, fastest: float) -> list[np.ndarray]:
    """Return, for each round, the seconds of the steps before and after which all cores were slowed, or none was."""
    found = []
    for each in rounds:
        is_slow = each.probes > SLOWED * fastest
        alike = (is_slow == slowed).all(axis=0)
        found.append(each.seconds.max(axis=0)[alike[:-1] & alike[1:]])
    return [steps for steps in found if len(steps)]


def median_of_draw(steps: list[np.ndarray], random: np.random.Generator) -> float:
    """Return the median step of rounds drawn with replacement (whole rounds, because their steps are correlated)."""
    return float(np.median(np.concatenate([steps[i] for i in random.integers(len(steps), size=len(steps))])))


def train_when_told(arguments: argparse.Namespace) -> None:
    """Be one process of a contender: read numbers of steps, train that many, and answer with the times."""
    launch = launched_rank() if arguments.contender == TWO else None
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[launch.rank if launch else arguments.core]})
    with socket.socket(socket.AF_UNIX) as channel:
        channel.connect(arguments.address)
        if launch:
            with process_group(2, stall_seconds=600) as group:
                answer(channel, group, arguments)
        else:
            answer(channel, ProcessGroup(), arguments)


def answer(channel: socket.socket, group: ProcessGroup, arguments: argparse.Namespace) -> None:
    """Train as the other end of the channel asks."""
    learner, batch = learner_on_noise("tensorflow", "bfloat16", arguments, group)
    matrix = np.ones((384, 384), np.float32)
    with channel.makefile("rw") as lines:
        for line in lines:
            probes, steps = [probe(matrix)], []
            for _ in range(int(line)):
                group.barrier()  # so that a slow probe does not count as part of the other process's step
                steps.append(timed(lambda: learner.step(batch, 1e-4)))
                probes.append(probe(matrix))
            print(json.dumps([*np.transpose(steps).tolist(), probes]), file=lines, flush=True)


def probe(matrix: np.ndarray) -> float:
    """Return the shortest of three times of a product that takes about a millisecond, seconds."""
    return min(timeit.repeat(lambda: matrix @ matrix, number=1, repeat=3))


def timed(step: Callable[[], Outcome]) -> tuple[float, float]:
    """Return the wall and processor seconds of a step."""
    begin, before = time.perf_counter(), time.process_time()
    assert step().finite
    return time.perf_counter() - begin, time.process_time() - before


if __name__ == "__main__":
    main()
