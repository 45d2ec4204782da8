"""Validation during training: scores of the averaged weights on examples that are never trained on."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import numpy as np

from ffn.config import ModelConfig
from ffn.training.config import TrainConfig
from ffn.training.lane_walks import stack_fovs
from ffn.training.monitoring.metrics import MetricsRow, scores_of
from ffn.training.parallel.process_group import ProcessGroup
from ffn.training.step import Batch
from ffn.training.validation_set import ValidationSet
from ffn.training.walk import NUM_COUNTS, Walk

Forward = Callable[[Batch], tuple[np.ndarray, np.ndarray]]


class Validation:
    """One process's part in the validations: all processes validate together, each on a share of the examples.

    Parameters
    ----------
    examples : ValidationSet
        The examples of all processes.
    model : ModelConfig
        FOV and deltas.
    train : TrainConfig
        Batch size and FOV policy.
    group : ProcessGroup
        The processes of the job.

    Attributes
    ----------
    digest : bytes
        Digest of the examples. Only scores of the same digest can be compared.
    """

    def __init__(self, examples: ValidationSet, model: ModelConfig, train: TrainConfig, group: ProcessGroup) -> None:
        self.digest = examples.digest
        self._examples = examples
        self._model = model
        self._train = train
        self._group = group

    def run(self, forward: Forward, step: int) -> MetricsRow:
        """Walk over all examples.

        Parameters
        ----------
        forward : callable
            Returns the updated POM of a batch, float32 of shape (B, Z, Y, X), and its losses, of shape (B,).
        step : int
            Steps done, for the row.

        Returns
        -------
        dict of str to float
            Row of ``validation.csv``: the same on all processes, and up to rounding for any number of processes.
        """
        start = time.monotonic()
        results = np.empty((len(self._examples.records), 3 + NUM_COUNTS))
        for rank, share in enumerate(self._group.gather(self._walk_share(forward))):
            results[rank :: self._group.size] = share
        # in the order of the examples, whichever process had which
        (loss_sum, weight_sum, num_fovs), counts = np.split(results.sum(axis=0), [3])
        return {
            "step": step,
            "examples": len(results),
            "fovs": int(num_fovs),
            "loss": float(loss_sum / weight_sum),
            **scores_of(counts),
            "validation_seconds": time.monotonic() - start,
        }

    def _walk_share(self, forward: Forward) -> np.ndarray:
        """Return loss sum, weight sum, FOVs and counts of each example of this process, shape (N, 16)."""
        numbers = range(len(self._examples.records))[self._group.rank :: self._group.size]
        results = np.zeros((len(numbers), 3 + NUM_COUNTS))
        waiting = deque(range(len(numbers)))
        walks: dict[int, Walk] = {}
        # all processes advance together, FOV by FOV, so that the watchdog notices and names one that hangs
        while any(self._group.gather(bool(waiting or walks))):
            while waiting and len(walks) < self._train.batch_size:
                index = waiting.popleft()
                walks[index] = Walk(self._examples.example(numbers[index]), self._model, self._train)
            if walks:
                self._make_move(forward, walks, results)
        return results

    def _make_move(self, forward: Forward, walks: dict[int, Walk], results: np.ndarray) -> None:
        """Run the network on the FOVs of all walks; note the results of walks that end, and remove them."""
        batch = stack_fovs(list(walks.values()))
        weights = batch.loss_weight.mean(axis=(1, 2, 3))
        for (index, walk), pom_logit, loss, weight in zip(list(walks.items()), *forward(batch), weights, strict=True):
            results[index, :3] += loss, weight, 1
            walk.write(pom_logit)
            if not walk.advance():
                results[index, 3:] = walk.counts()
                del walks[index]
