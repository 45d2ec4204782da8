"""Time training: TensorFlow's convolutions in float32 and bfloat16, this package's kernels, PyTorch, in turn.

A step consists of forward pass, loss, backward pass and Adam; by default with depth 9, 32 features and FOV 33³. Every
contender is a separate process with the same number of threads, and sleeps while another one runs. Every round runs all
of them, so a machine that slows down slows down all of them. Trust the ratio to TensorFlow float32, which is taken
within each round, more than the FOVs/s (fields of view per second).

The profile of a step with the kernels gives the processor time of the parts of the network, divided by the number of
threads. The rest of the wall time is threads waiting for each other, loss, Adam and TensorFlow.

  python benchmarks/training.py --torch-python ~/torch/bin/python
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from ffn import kernels
from ffn.config import ModelConfig
from ffn.model.precision import PRECISIONS
from ffn.training.config import TrainConfig
from ffn.training.initial import initial_weights
from ffn.training.learners import make_learner
from ffn.training.parallel.placement import configure_libraries
from ffn.training.parallel.process_group import ProcessGroup
from ffn.training.step import Batch, Learner

CONTENDERS = {  # engine and precision
    f"{library} {precision}": (engine, precision)
    for library, engine in (("tensorflow", "tensorflow"), ("kernels", "tensorflow"), ("jax", "jax"))
    for precision in PRECISIONS
}
PYTORCH = "pytorch bfloat16"
WARM_UP = 4  # steps


class Contender:
    """A process that trains when it is told to."""

    def __init__(self, name: str, command: list[str]) -> None:
        self.name = name
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def train(self, steps: int) -> dict[str, float]:
        """Return the seconds of `steps` steps, and of those parts that the contender measures."""
        assert self._process.stdin and self._process.stdout
        print(steps, file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def main() -> None:
    """Run the comparison, print tables, and write them as JSON with ``--json``."""
    arguments = parse()
    if arguments.contender:
        train_when_told(arguments)
        return
    print(f"{'batch':>5} {'contender':20} {'FOVs/s':>7} {'ratio':>6}")
    report = []
    for batch_size in arguments.batch:
        names, rounds = compare(batch_size, arguments)
        for index, name in enumerate(names):
            rates = [batch_size * arguments.steps / each[index]["seconds"] for each in rounds]
            ratios = [each[0]["seconds"] / each[index]["seconds"] for each in rounds]
            print(f"{batch_size:5} {name:20} {np.median(rates):7.1f} {np.median(ratios):6.2f}", flush=True)
            report.append({"batch": batch_size, "contender": name, "fovs_per_second": rates, "ratio": ratios})
        for index, name in enumerate(names):
            parts = {part: np.median([each[index][part] for each in rounds]) for part in rounds[0][index]}
            del parts["seconds"]
            if not parts:
                continue
            profile = ", ".join(f"{part} {1000 * seconds / arguments.steps:.2f}" for part, seconds in parts.items())
            print(f"      {name}: {profile}")
            report.append({"batch": batch_size, "contender": name, "profile": parts})
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(report, indent=1) + "\n")


def common_options(description: str | None, rounds: int) -> argparse.ArgumentParser:
    """Return a parser with options for what is trained, how often, and where the figures go."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4], help="FOVs per process and step (default: 1 4)")
    parser.add_argument("--depth", type=int, default=9, help="modules of the network (default: 9)")
    parser.add_argument("--features", type=int, default=32, help="feature maps of its convolutions (default: 32)")
    parser.add_argument("--fov", type=int, default=33, help="side of its FOV, voxels (default: 33)")
    parser.add_argument("--steps", type=int, default=10, help="steps per round (default: 10)")
    parser.add_argument("--rounds", type=int, default=rounds, help=f"the table has their medians (default: {rounds})")
    parser.add_argument("--json", metavar="FILE.json", help="also write all figures to this file")
    return parser


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = common_options(__doc__, rounds=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="(default: all cores)")
    parser.add_argument("--torch-python", metavar="PYTHON", help="an interpreter with PyTorch (default: no PyTorch)")
    parser.add_argument("--contender", choices=CONTENDERS, help=argparse.SUPPRESS)
    return parser.parse_args()


def compare(batch_size: int, arguments: argparse.Namespace) -> tuple[list[str], list[list[dict[str, float]]]]:
    """Run the contenders in turn; return their names and what each measured in each round."""
    contenders = start(batch_size, arguments)
    for each in contenders:
        each.train(WARM_UP)
    rounds = [[each.train(arguments.steps) for each in contenders] for _ in range(arguments.rounds)]
    for each in contenders:
        each.close()
    return [each.name for each in contenders], rounds


def start(batch_size: int, arguments: argparse.Namespace) -> list[Contender]:
    """Start the processes of all contenders."""
    size = ["--batch", batch_size, "--depth", arguments.depth, "--threads", arguments.threads]
    size += ["--features", arguments.features, "--fov", arguments.fov]
    own = [sys.executable, __file__, *map(str, size)]
    contenders = [Contender(name, [*own, "--contender", name]) for name in CONTENDERS]
    if not arguments.torch_python:
        print(f"{PYTORCH} is left out, because --torch-python was not given", file=sys.stderr)
        return contenders
    script = Path(__file__).with_name("training_pytorch.py")
    numbers = map(str, (arguments.depth, batch_size, arguments.threads, arguments.features, arguments.fov))
    return [*contenders, Contender(PYTORCH, [arguments.torch_python, str(script), *numbers])]


def train_when_told(arguments: argparse.Namespace) -> None:
    """Be a contender: read numbers of steps from standard input, train that many, and print the seconds."""
    if not arguments.contender.startswith("kernels"):
        kernels.library_path = lambda: Path("none, for comparison")
    learner, batch = learner_on_noise(*CONTENDERS[arguments.contender], arguments, ProcessGroup())
    for line in sys.stdin:
        before, begin = parts_of(arguments), time.perf_counter()
        outcomes = [learner.step(batch, 1e-4) for _ in range(int(line))]
        seconds = {"seconds": time.perf_counter() - begin}
        after = parts_of(arguments)
        spent = {part: (after[part] - before[part]) / arguments.threads for part in after}
        rest = seconds["seconds"] - sum(spent.values())
        print(json.dumps(seconds | spent | ({"waiting, loss, Adam, TensorFlow": rest} if spent else {})), flush=True)
        assert all(outcome.finite for outcome in outcomes)


def parts_of(arguments: argparse.Namespace) -> dict[str, float]:
    """Return the processor seconds spent by the kernels, if this contender uses them."""
    return kernels.processor_seconds() if arguments.contender.startswith("kernels") else {}


def learner_on_noise(
    engine: str, precision: str, arguments: argparse.Namespace, group: ProcessGroup
) -> tuple[Learner, Batch]:
    """Return a learner and random FOVs to train on."""
    (batch_size,) = arguments.batch
    threads = {"intra_op_threads": arguments.threads, "pin_threads": False}
    train = TrainConfig.model_validate({"engine": engine, "precision": precision, "batch_size": batch_size, **threads})
    configure_libraries(group, train, rng_seed=0)
    delta = arguments.fov // 4
    config = ModelConfig(
        depth=arguments.depth,
        features=arguments.features,
        fov_size_zyx=(arguments.fov, arguments.fov, arguments.fov),
        deltas_zyx=(delta, delta, delta),
    )
    rng = np.random.default_rng(0)
    image, pom, labels = rng.normal(size=(3, batch_size, *config.fov_size_zyx)).astype(np.float32)
    batch = Batch(image, pom, (labels > 0).astype(np.float32), np.ones_like(image))
    return make_learner(config, train, initial_weights(config, rng_seed=0), group), batch


if __name__ == "__main__":
    main()
