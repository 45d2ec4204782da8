"""Time training with two processes against one, a thread each: what the exchange of gradients costs.

The contenders run in turn, a round each, and are suspended while another one runs: one process; two that know nothing
of each other, which is what the machine allows (cores share caches and units, hosts are busy); and two under Horovod.
Ratios are taken within each round. Where the two without Horovod are not twice as fast as one, read what Horovod
reaches of them.

  python benchmarks/processes.py --batch 1 4 --rounds 20
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
from training import make_learner

from ffn.training.distributed import ProcessGroup, process_group

PROCESSES = {"one": 1, "two without Horovod": 2, "two": 2}
WARM_UP = 6  # steps


class Contender:
    """Processes that train when told to, and are suspended otherwise."""

    def __init__(self, name: str, address: Path, arguments: argparse.Namespace) -> None:
        self.name = name
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(address))
            server.listen()
            command = [sys.executable, __file__, "--contender", name, "--address", str(address), *sizes(arguments)]
            together = name == "two"
            launches = [["horovodrun", "--gloo", "-np", "2", *command]] if together else [command] * PROCESSES[name]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            self._launched = [subprocess.Popen(launch, env=environment) for launch in launches]
            self._members = [server.accept()[0].makefile("rw") for _ in range(PROCESSES[name])]
        self.train(WARM_UP)

    def train(self, steps: int) -> float:
        """Return the seconds of `steps` steps, the mean over the processes."""
        self._each(psutil.Process.resume)
        for member in self._members:
            print(steps, file=member, flush=True)
        seconds = [json.loads(member.readline()) for member in self._members]
        self._each(psutil.Process.suspend)
        return float(np.mean(seconds))

    def close(self) -> None:
        """End the processes."""
        self._each(psutil.Process.resume)
        for member in self._members:
            member.close()
        for process in self._launched:
            process.wait()

    def _each(self, action: Callable[[psutil.Process], None]) -> None:
        for launched in self._launched:
            process = psutil.Process(launched.pid)
            for one in (process, *process.children(recursive=True)):
                action(one)


def main() -> None:
    """Run the comparison, print a table, write it as JSON where asked."""
    arguments = parse()
    if arguments.contender:
        train_when_told(arguments)
        return
    print(f"{'batch':>5} {'processes':20} {'FOVs/s':>7} {'to one':>7} {'quartiles':>11} {'to without Horovod':>19}")
    report = []
    for batch_size in arguments.batch:
        rounds = compare(argparse.Namespace(**{**vars(arguments), "batch": [batch_size]}))
        for name, rates in rounds.items():
            ratios = rates / rounds["one"]
            quartiles = "-".join(f"{part:.2f}" for part in np.quantile(ratios, (0.25, 0.75)))
            to_apart = np.median(rates / rounds["two without Horovod"])
            print(
                f"{batch_size:5} {name:20} {np.median(rates):7.1f} {np.median(ratios):7.2f} {quartiles:>11} "
                f"{to_apart:19.2f}",
                flush=True,
            )
            report.append({"batch": batch_size, "processes": name, "fovs_per_second": rates.tolist()})
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(report, indent=1) + "\n")


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4], help="FOVs of a process's step (default: 1 4)")
    parser.add_argument("--depth", type=int, default=9, help="modules of the network (default: 9)")
    parser.add_argument("--features", type=int, default=32, help="of its convolutions (default: 32)")
    parser.add_argument("--fov", type=int, default=33, help="side of its FOV, voxels (default: 33)")
    parser.add_argument("--steps", type=int, default=10, help="of a round (default: 10)")
    parser.add_argument("--rounds", type=int, default=20, help="the table gives medians over them (default: 20)")
    parser.add_argument("--json", metavar="FILE.json", help="write all figures here, too")
    parser.add_argument("--contender", choices=PROCESSES, help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    parser.set_defaults(threads=1)
    return parser.parse_args()


def sizes(arguments: argparse.Namespace) -> list[str]:
    """Return the part of the command line that says what is trained."""
    (batch_size,) = arguments.batch
    values = {"batch": batch_size, "depth": arguments.depth, "features": arguments.features, "fov": arguments.fov}
    return [part for name, value in values.items() for part in (f"--{name}", str(value))]


def compare(arguments: argparse.Namespace) -> dict[str, np.ndarray]:
    """Run the contenders in turn; the FOVs per second of each, round by round."""
    (batch_size,) = arguments.batch
    with tempfile.TemporaryDirectory() as folder:
        contenders = [Contender(name, Path(folder, f"{i}"), arguments) for i, name in enumerate(PROCESSES)]
        seconds = np.array([[each.train(arguments.steps) for each in contenders] for _ in range(arguments.rounds)])
        for each in contenders:
            each.close()
    return {
        name: PROCESSES[name] * batch_size * arguments.steps / seconds[:, index] for index, name in enumerate(PROCESSES)
    }


def train_when_told(arguments: argparse.Namespace) -> None:
    """Be a process of a contender: for each line, a number of steps, train and answer with the seconds."""
    with socket.socket(socket.AF_UNIX) as channel:
        channel.connect(arguments.address)
        if arguments.contender == "two":
            with process_group(2, stall_seconds=600) as group:
                answer(channel, group, arguments)
        else:
            answer(channel, ProcessGroup(), arguments)


def answer(channel: socket.socket, group: ProcessGroup, arguments: argparse.Namespace) -> None:
    """Train as the other end of the channel says."""
    learner, batch = make_learner("bfloat16", arguments, group)
    with channel.makefile("rw") as lines:
        for line in lines:
            begin = time.perf_counter()
            outcomes = [learner.step(batch, 1e-4) for _ in range(int(line))]
            print(time.perf_counter() - begin, file=lines, flush=True)
            assert all(outcome.finite for outcome in outcomes)


if __name__ == "__main__":
    main()
