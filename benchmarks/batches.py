"""Measure the wall and processor time of a FOV in training, by batch size.

    OMP_NUM_THREADS=2 python benchmarks/batches.py --rounds 20 [options of ffn train]

Steps of all batch sizes are taken in turn, as many FOVs of each.
"""

import argparse
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np

from ffn.config import ModelConfig
from ffn.options import add_options, from_arguments
from ffn.training.config import TrainConfig
from ffn.training.loop import make_learner, make_patches
from ffn.training.plan import Training, add_data_arguments, training_data
from ffn.training.train import training_job, with_engine
from ffn.training.walk import LaneWalks, Prefetcher

BATCHES = (1, 2, 4, 8, 16)


def seconds(training: Training, rounds: int, out: Path) -> np.ndarray:
    """Return wall and processor time of a FOV, s, by batch size."""
    times = np.zeros((rounds + 1, len(BATCHES), 2))  # the first round compiles
    with training_job(training) as (group, plan, _), ExitStack() as stack:
        plan.load_records(group)
        plan, running = with_engine(plan, out / "machine", group), []
        for batch in BATCHES:
            own = replace(plan, train=plan.train.model_copy(update={"batch_size": batch}))
            at = dict.fromkeys(own.lanes(0), 0)
            learner = make_learner(own.initial.config, own.train, own.initial.weights, group)
            prefetcher = stack.enter_context(Prefetcher(own.example_source(at), at))
            running.append((learner, LaneWalks(prefetcher, at, make_patches(learner, own.initial.config, own.train))))
        for number, column in np.ndindex(times.shape[:2]):
            learner, walks = running[column]
            start = time.perf_counter(), time.process_time()
            for _ in range(BATCHES[-1] // BATCHES[column]):
                outcome = learner.step(walks.batch(), 1e-5)
                walks.proceed(outcome.answers)
                float(outcome.gradient_norm)  # waits for the update
            times[number, column] = np.subtract((time.perf_counter(), time.process_time()), start)
    return times[1:].mean(0) / BATCHES[-1]


def main() -> None:
    """Print a row for each batch size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("batches"), metavar="FOLDER", help="for the chosen engine")
    parser.add_argument("--rounds", type=int, default=20, help="of measured steps")
    for add in (ModelConfig, TrainConfig):
        add_options(parser, add)
    add_data_arguments(parser)
    given = parser.parse_args()
    config = from_arguments(TrainConfig, given).model_copy(update={"num_workers": 1})
    training = Training(training_data(given), from_arguments(ModelConfig, given), config, given.rng_seed)
    for batch, (wall, processor) in zip(BATCHES, seconds(training, given.rounds, given.out), strict=True):
        print(f"| {batch} | {1 / wall:.1f} FOVs/s | {1e3 * processor:.1f} ms |")


if __name__ == "__main__":
    main()
