"""The learning rate of each step."""

from __future__ import annotations

import math

from ffn.training.config import TrainConfig

CYCLE_STEPS, CYCLE_LOW = 2000, 0.1  # of the cyclic schedule: length, and lowest rate as a share of the peak; our choice
EXPONENTS = {"constant": 0.0, "linear": 1.0, "sqrt": 0.5}  # of the global batch, by scaling rule


def learning_rate(train: TrainConfig, step: int) -> float:
    """Return the rate of the 0-based `step`: a linear warm-up, then the schedule.

    The scaling rule sets the peak rate from the global batch. Cosine falls from the peak to 0 at ``max_steps``. Cyclic
    (Smith 2017) falls linearly to a share of the peak and rises again.

    Examples
    --------
    >>> train = TrainConfig(num_workers=1, learning_rate=0.4, warmup_steps=4, max_steps=8)
    >>> [round(learning_rate(train, step), 3) for step in (0, 1, 3, 7)]
    [0.1, 0.2, 0.4, 0.4]
    >>> cosine = train.model_copy(update={"schedule": "cosine"})
    >>> [round(learning_rate(cosine, step), 3) for step in (0, 4, 6, 8)]
    [0.1, 0.4, 0.2, 0.0]
    >>> cyclic = train.model_copy(update={"schedule": "cyclic"})
    >>> [round(learning_rate(cyclic, 4 + since), 3) for since in (0, 500, 1000, 1500, 2000)]
    [0.4, 0.22, 0.04, 0.22, 0.4]
    >>> sqrt = train.model_copy(update={"scaling_rule": "sqrt", "num_workers": 9})
    >>> [round(learning_rate(sqrt, step), 3) for step in (0, 1, 3, 7)]
    [0.3, 0.6, 1.2, 1.2]
    """
    peak = train.learning_rate * scaling(train)
    if step < train.warmup_steps:
        return peak * (step + 1) / train.warmup_steps
    since = step - train.warmup_steps
    progress = min(1.0, since / max(1, train.max_steps - train.warmup_steps))
    if train.schedule == "cosine":
        return peak * (1 + math.cos(math.pi * progress)) / 2
    if train.schedule == "cyclic":
        above_low = abs(1 - 2 * (since % CYCLE_STEPS) / CYCLE_STEPS)
        return peak * (CYCLE_LOW + (1 - CYCLE_LOW) * above_low)
    return peak


def scaling(train: TrainConfig) -> float:
    """Return the factor that the scaling rule applies to the learning rate, a power of the global batch.

    Dong et al. 2019 found linear scaling best up to 16 workers of batch size 1, and the square root beyond.

    Examples
    --------
    >>> train = TrainConfig(num_workers=4, virtual_workers=2, batch_size=2)
    >>> [scaling(train.model_copy(update={"scaling_rule": rule})) for rule in ("constant", "linear", "sqrt")]
    [1.0, 16.0, 4.0]
    """
    return float(train.num_lanes ** EXPONENTS[train.scaling_rule])
