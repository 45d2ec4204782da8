"""Time inference and training on this CPU as it is and held down to older ones, one job and two side by side.

`ONEDNN_MAX_CPU_ISA` holds TensorFlow, OpenVINO and our kernels down. A job is a process. One job has all threads, each
of two has half of them. Every round runs all engines and precisions in turn, as one job and as two, so a machine that
slows down slows down all of them. Trust the ratios, which are taken within each round, more than the FOVs/s (fields of
view per second). The table has medians over the rounds. All figures are for the same network, on noise.

  one, two    FOVs/s of one job, and of two jobs in sum
  two/one     their ratio; range over the rounds
  of best     FOVs/s of one job as a share of the best of its level and task
  auto        marks what `auto` takes

  python benchmarks/portability.py
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ffn.config import FloodConfig, ModelConfig
from ffn.errors import ConfigError
from ffn.inference.inputs import chosen
from ffn.inference.lanes import create_engine
from ffn.machine.limits import ISA_LIMIT, cpu_flags, cpu_name
from ffn.model.choice import PRECISIONS
from ffn.model.store import Model
from ffn.training import loop
from ffn.training.config import TrainConfig
from ffn.training.data.examples import Example, patch_size
from ffn.training.parallel.joining import configure_libraries
from ffn.training.parallel.process_group import ProcessGroup
from ffn.training.plan import initial_weights
from ffn.training.train import chosen_engine

AS_IT_IS = "as it is"
# Levels to hold down to, with a flag that a CPU of that level has, and the beginnings of flags of better ones.
LEVELS = {
    AS_IT_IS: ("", ()),
    "AVX512_CORE_BF16": ("avx512_bf16", ("amx", "avx512_fp16")),
    "AVX512_CORE": ("avx512f", ("amx", "avx512_fp16", "avx512_bf16", "avx512_vnni")),
    "AVX2": ("avx2", ("amx", "avx512", "avx_vnni")),
}
TASKS = ("inference", "training")
Row = dict[str, Any]


class Job:
    """A process that runs one task at one level, with any engine and precision, when it is told to."""

    def __init__(self, level: str, task: str, threads: int, arguments: argparse.Namespace) -> None:
        size = {name: getattr(arguments, name) for name in ("depth", "features", "fov", "batch")}
        options = [f"--{name}={value}" for name, value in size.items()]
        command = [sys.executable, __file__, *options, f"--threads={threads}", f"--job={task}"]
        environment = {name: value for name, value in os.environ.items() if name != ISA_LIMIT}
        if level != AS_IT_IS:
            environment[ISA_LIMIT] = level
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.ready = json.loads(self._answer())

    def start(self, kind: str, seconds: float) -> None:
        """Run an engine and precision for some time."""
        assert self._process.stdin
        print(json.dumps([kind, seconds]), file=self._process.stdin, flush=True)

    def rate(self) -> float:
        """Return the FOVs/s of what was started."""
        return json.loads(self._answer())

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def _answer(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline()


def main() -> None:
    """Run the comparison, print the table, and write it as JSON with ``--json``."""
    arguments = parse()
    if arguments.job:
        work_when_told(arguments)
        return
    print(f"{cpu_name()}, {arguments.threads} threads, load {os.getloadavg()[0]:.1f}")
    print(f"depth {arguments.depth}, {arguments.features} features, FOV {arguments.fov}³, batch {arguments.batch}")
    print(f"{'CPU':17} {'task':10} {'engine':20} {'one':>7} {'two':>7} {'two/one':>20} {'of best':>8} auto")
    rows: list[Row] = []
    for level in arguments.levels:
        skip = reason_to_skip(level)
        if skip:
            print(f"{level:17} {skip}")
            continue
        for task in TASKS:
            for row in compare(level, task, arguments):
                print(line(row), flush=True)
                rows.append(row)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps({"cpu": cpu_name(), "rows": rows}, indent=1) + "\n")


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--depth", type=int, default=9, help="modules of the network (default: 9)")
    parser.add_argument("--features", type=int, default=32, help="feature maps of its convolutions (default: 32)")
    parser.add_argument("--fov", type=int, default=33, help="side of its FOV, voxels (default: 33)")
    parser.add_argument("--batch", type=int, default=1, help="FOVs per step of training (default: 1)")
    parser.add_argument("--seconds", type=float, default=5, help="time of one measurement (default: 5)")
    parser.add_argument("--rounds", type=int, default=5, help="the table has their medians (default: 5)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="(default: all cores)")
    parser.add_argument("--levels", nargs="+", choices=LEVELS, default=list(LEVELS), help="(default: all)")
    parser.add_argument("--json", metavar="FILE.json", help="also write all figures to this file")
    parser.add_argument("--job", choices=TASKS, help=argparse.SUPPRESS)
    return parser.parse_args()


def reason_to_skip(level: str) -> str:
    """Say why a level would show nothing new, empty if it would."""
    flag, better = LEVELS[level]
    if level == AS_IT_IS:
        return ""
    if flag not in cpu_flags():
        return f"skipped: the CPU has no {flag}"
    return "" if any(flag.startswith(better) for flag in cpu_flags()) else "skipped: the CPU has no more than that"


def compare(level: str, task: str, arguments: argparse.Namespace) -> list[Row]:
    """Run all engines and precisions of a task in turn; return one row for each."""
    alone = [Job(level, task, arguments.threads, arguments)]
    pair = [Job(level, task, arguments.threads // 2, arguments) for _ in range(2 if arguments.threads > 1 else 0)]
    kinds = alone[0].ready["kinds"]
    rounds = [
        [[rate(jobs, kind, arguments.seconds) if jobs else np.nan for jobs in (alone, pair)] for kind in kinds]
        for _ in range(arguments.rounds)
    ]
    for job in alone + pair:
        job.close()
    rates = np.array(rounds)  # rounds, kinds, one or two jobs
    best = int(np.median(rates[:, :, 0], axis=0).argmax())
    ratios = rates[:, :, 1] / rates[:, :, 0]
    return [
        {
            "level": level,
            "task": task,
            "kind": kind,
            "fovs_per_second": np.median(rates[:, i], axis=0).tolist(),
            "two_to_one": [float(np.median(ratios[:, i])), *map(float, (ratios[:, i].min(), ratios[:, i].max()))],
            "share_of_best": float(np.median(rates[:, i, 0] / rates[:, best, 0])),
            "auto": kind == alone[0].ready["auto"],
        }
        for i, kind in enumerate(kinds)
    ]


def rate(jobs: list[Job], kind: str, seconds: float) -> float:
    """Run jobs side by side; return their FOVs/s in sum."""
    for job in jobs:
        job.start(kind, seconds)
    return sum(job.rate() for job in jobs)


def line(row: Row) -> str:
    """Format one row of the table."""
    (one, two), (ratio, low, high) = row["fovs_per_second"], row["two_to_one"]
    spread = f"{ratio:.2f} ({low:.2f}-{high:.2f})"
    return (
        f"{row['level']:17} {row['task']:10} {row['kind']:20} {one:7.2f} {two:7.2f} {spread:>20} "
        f"{row['share_of_best']:8.2f} {'auto' if row['auto'] else ''}"
    )


def work_when_told(arguments: argparse.Namespace) -> None:
    """Be a job: say what can be run and what `auto` takes, then run what standard input asks for."""
    logging.disable()
    calls, auto = (inference if arguments.job == "inference" else training)(arguments)
    calls = {kind: call for kind, call in calls.items() if runs(call)}
    fovs = arguments.batch if arguments.job == "training" else 1
    print(json.dumps({"kinds": list(calls), "auto": auto}), flush=True)
    for request in sys.stdin:
        kind, seconds = json.loads(request)
        num, begin = 0, time.perf_counter()
        while (spent := time.perf_counter() - begin) < seconds:
            calls[kind]()
            num += fovs
        print(num / spent, flush=True)


def runs(call: Callable[[], object]) -> bool:
    """Whether a function runs; bfloat16 does not where oneDNN is held down to AVX2 on a CPU that has more."""
    from tensorflow.errors import AbortedError

    try:
        call()
    except AbortedError:
        return False
    return True


def inference(arguments: argparse.Namespace) -> tuple[dict[str, Callable[[], object]], str]:
    """Return functions that run the network once, by engine and precision, and which one `auto` takes."""
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    config = FloodConfig()
    network = architecture(arguments)
    model, calls = Model(network, initial_weights(network, rng_seed=0), {}), {}
    for engine in ("openvino", "kernels"):
        for precision in PRECISIONS:
            try:
                calls[f"{engine} {precision}"] = prediction_of_noise(model, engine, precision)
            except ConfigError:  # this machine has no such engine or precision
                continue
    auto = chosen(model, config)
    return calls, f"{auto.engine} {auto.precision}"


def prediction_of_noise(model: Model, engine: str, precision: str) -> Callable[[], object]:
    """Return a function that runs the network once, on noise."""
    built = create_engine(model, engine, precision)
    image = np.random.default_rng(0).normal(size=(1, *model.config.fov_size_zyx)).astype(np.float32)
    return lambda: built.predict(image, np.full(image.shape, -3, np.float32))


def step_on_noise(config: TrainConfig, model: ModelConfig, engine: str, precision: str) -> Callable[[], object]:
    """Return a function that makes one step on patches of noise."""
    config = config.model_copy(update={"num_workers": 1, "engine": engine, "precision": precision})
    learner = loop.make_learner(model, config, initial_weights(model, rng_seed=0), ProcessGroup())
    patches = loop.make_patches(learner, model, config)
    grey = np.random.default_rng(0).normal(size=patch_size(model, config)).astype(np.float32)
    example = Example(grey, None, (grey > 0).astype(np.uint8), 1.0, ())
    walks = [patches.walk(lane, example) for lane in range(config.batch_size)]
    return lambda: learner.step(patches.batch(walks), config.learning_rate)


def training(arguments: argparse.Namespace) -> tuple[dict[str, Callable[[], object]], str]:
    """Return functions that make one training step, by precision, and which one `auto` takes."""
    config = TrainConfig(batch_size=arguments.batch, intra_op_threads=arguments.threads)
    configure_libraries(ProcessGroup(), config, rng_seed=0)
    network = architecture(arguments)
    with tempfile.TemporaryDirectory() as folder:
        auto = chosen_engine(config, network, Path(folder))
    kinds = [("tensorflow", precision) for precision in PRECISIONS]
    steps = {" ".join(kind): step_on_noise(config, network, *kind) for kind in kinds}
    return steps, f"{auto.engine} {auto.precision}"


def architecture(arguments: argparse.Namespace) -> ModelConfig:
    """Return the network to measure."""
    size, delta = arguments.fov, arguments.fov // 4
    return ModelConfig(
        depth=arguments.depth,
        features=arguments.features,
        fov_size_zyx=(size, size, size),
        deltas_zyx=(delta, delta, delta),
    )


if __name__ == "__main__":
    main()
