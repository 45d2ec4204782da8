"""Validation while training: how well the averaged weights do on examples that are never learnt from."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import numpy as np

from ffn.config import ModelConfig
from ffn.training.config import TrainConfig
from ffn.training.lane_walks import stack_fovs
from ffn.training.monitoring.metrics import MetricsRow, classification_scores
from ffn.training.parallel.process_group import ProcessGroup
from ffn.training.step import Batch
from ffn.training.validation_set import ValidationSet
from ffn.training.walk import Walk

Forward = Callable[[Batch], tuple[np.ndarray, np.ndarray]]


class Validation:
    """What one process does of every validation: all validate together, each on a share of the examples.

    Parameters
    ----------
    examples : ValidationSet
        Those of all processes.
    model : ModelConfig
        FOV and deltas.
    train : TrainConfig
        Batch size and policy of the FOV.
    group : ProcessGroup
        The processes of the job.

    Attributes
    ----------
    digest : bytes
        Of the examples; scores on others cannot be compared.
    shown : Walk or None
        The first walk of this process as the last validation left it, for a picture.
    """

    def __init__(self, examples: ValidationSet, model: ModelConfig, train: TrainConfig, group: ProcessGroup) -> None:
        self.digest = examples.digest
        self.shown: Walk | None = None
        self._examples = examples
        self._model = model
        self._train = train
        self._group = group

    def run(self, forward: Forward, step: int) -> MetricsRow:
        """Walk over all examples.

        Parameters
        ----------
        forward : callable
            Returns the updated POM, float32 of shape (B, Z, Y, X), and the losses, of shape (B,), of a batch.
        step : int
            Steps done, for the row.

        Returns
        -------
        dict of str to float
            Row of ``validation.csv``, the same on all processes and for any number of them up to rounding.
        """
        start = time.monotonic()
        results = np.empty((len(self._examples.records), 7))
        for rank, share in enumerate(self._group.gather(self._walk_share(forward))):
            results[rank :: self._group.size] = share
        # in the order of the examples, whoever had which
        (loss_sum, weight_sum, num_fovs), counts = np.split(results.sum(axis=0), [3])
        return {
            "step": step,
            "examples": len(results),
            "fovs": int(num_fovs),
            "loss": float(loss_sum / weight_sum),
            **classification_scores(counts),
            "validation_seconds": time.monotonic() - start,
        }

    def _walk_share(self, forward: Forward) -> np.ndarray:
        """Return sums of losses and of their weights, FOVs, and four counts of each example of this process, (N, 7)."""
        numbers = range(len(self._examples.records))[self._group.rank :: self._group.size]
        results = np.zeros((len(numbers), 7))
        waiting = deque(range(len(numbers)))
        walks: dict[int, Walk] = {}
        # all go on together, FOV by FOV, so that a process that hangs is noticed and named as in training
        while any(self._group.gather(bool(waiting or walks))):
            while waiting and len(walks) < self._train.batch_size:
                index = waiting.popleft()
                walks[index] = Walk(self._examples.example(numbers[index]), self._model, self._train)
            if walks:
                self._make_move(forward, walks, results)
        return results

    def _make_move(self, forward: Forward, walks: dict[int, Walk], results: np.ndarray) -> None:
        """Run the network on the FOVs of all walks; take out those that end, with their results."""
        batch = stack_fovs(list(walks.values()))
        weights = batch.loss_weight.mean(axis=(1, 2, 3))
        for (index, walk), pom_logit, loss, weight in zip(list(walks.items()), *forward(batch), weights, strict=True):
            results[index, :3] += loss, weight, 1
            walk.write(pom_logit)
            if not walk.advance():
                results[index, 3:] = walk.score()
                if index == 0:
                    self.shown = walk
                del walks[index]
