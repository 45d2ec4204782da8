"""Intervals of scores: how far they would move if the volume held other bodies."""

from __future__ import annotations

import numpy as np

from ffn.contingency import ContingencyTable
from ffn.evaluation.scores import CONVENTIONS, body_terms, ratios

NUM_RESAMPLES = 1000
LEVEL = 0.95
DRAWS_AT_ONCE = 2**18  # bounds memory: this many numbers for each of the six terms

Intervals = dict[str, list[float] | None]


def intervals(table: ContingencyTable, convention: str, rng_seed: int) -> Intervals:
    """Return 95 % intervals of the scores under one convention, from a bootstrap over bodies.

    Bodies are drawn with replacement, as many as there are. A body brings its own voxels and its share of the mergers
    that it is part of, so the scores of all bodies together are those of `ffn.evaluation.scores.score`.

    Source: percentile bootstrap of a ratio, Efron and Tibshirani 1993. Two bodies may hold half of all errors, which no
    number of voxels makes up for. With fewer than about ten bodies the intervals are too narrow.
    """
    terms = body_terms(table, CONVENTIONS[convention])
    if np.count_nonzero(terms[-1]) < 2:
        return dict.fromkeys(ratios(np.ones((len(terms), 1))))
    return _limits(ratios(_resampled(terms, np.random.default_rng(rng_seed))))


def change_intervals(before: ContingencyTable, after: ContingencyTable, convention: str, rng_seed: int) -> Intervals:
    """Return 95 % intervals of the scores of one segmentation minus those of another, of the same bodies.

    Both are scored on the same draws, so these are narrower than the intervals of the two suggest: a body that is
    hard for one is hard for both.
    """
    terms = [body_terms(table, CONVENTIONS[convention]) for table in (before, after)]
    if min(np.count_nonzero(one[-1]) for one in terms) < 2:
        return dict.fromkeys(ratios(np.ones((len(terms[0]), 1))))
    first, second = (ratios(_resampled(one, np.random.default_rng(rng_seed))) for one in terms)
    return _limits({name: second[name] - first[name] for name in first})


def _limits(drawn: dict[str, np.ndarray]) -> Intervals:
    limits = (1 - LEVEL) / 2, (1 + LEVEL) / 2
    return {name: np.nanquantile(values, limits).tolist() for name, values in drawn.items()}


def _resampled(terms: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the sums of the terms over the bodies drawn: a column for each resample."""
    count = terms.shape[1]
    step = max(1, DRAWS_AT_ONCE // count)
    sums = []
    for first in range(0, NUM_RESAMPLES, step):
        drawn = rng.integers(count, size=(min(step, NUM_RESAMPLES - first), count))
        sums.append(np.stack([row[drawn].sum(axis=1) for row in terms]))
    return np.concatenate(sums, axis=1)
