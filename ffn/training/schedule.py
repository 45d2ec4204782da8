"""The learning rate of every step."""

from __future__ import annotations

import math

from ffn.training.config import TrainConfig


def learning_rate(train: TrainConfig, step: int) -> float:
    """Return the rate of the 0-based `step`: a linear rise over the warm-up, then the schedule.

    Examples
    --------
    >>> train = TrainConfig(learning_rate=0.4, warmup_steps=4, max_steps=8)
    >>> [round(learning_rate(train, step), 3) for step in (0, 1, 3, 7)]
    [0.1, 0.2, 0.4, 0.4]
    >>> cosine = train.model_copy(update={"schedule": "cosine"})
    >>> [round(learning_rate(cosine, step), 3) for step in (0, 4, 6, 8)]
    [0.1, 0.4, 0.2, 0.0]
    """
    if step < train.warmup_steps:
        return train.learning_rate * (step + 1) / train.warmup_steps
    if train.schedule == "constant":
        return train.learning_rate
    progress = (step - train.warmup_steps) / max(1, train.max_steps - train.warmup_steps)
    return train.learning_rate * (1 + math.cos(math.pi * min(1.0, progress))) / 2
