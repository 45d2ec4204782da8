"""Independent random streams from one seed, one for each purpose."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

# their order decides the streams
Purpose = Literal["weights", "shard order", "lane order", "example", "validation", "validation example"]


def generator(rng_seed: int, purpose: Purpose, *position: int) -> np.random.Generator:
    """Return the generator for one purpose and position. It depends on nothing but the arguments.

    Parameters
    ----------
    rng_seed : int
        Seed of the run, not negative.
    purpose : Purpose
        Use of the random numbers.
    *position : int
        Further coordinates, such as an epoch, or a lane and a position in it.

    Notes
    -----
    The key is a spawn key of `numpy.random.SeedSequence`. A plain list of integers would not do: NumPy pads it with
    zeros, so ``[1, 2]`` and ``[1, 2, 0]`` would give the same stream.
    """
    key = (get_args(Purpose).index(purpose), *position)
    return np.random.default_rng(np.random.SeedSequence(rng_seed, spawn_key=key))
