"""Adapted Rand error and variation of information of a contingency table, under three conventions, with intervals.

Tables, the report and `ffn select` follow the list `METRICS`: name, title, where each is found in a score file, and
whether lower or higher is better.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from ffn.contingency import ContingencyTable
from ffn.io.volume import IGNORED


@dataclass(frozen=True)
class Metric:
    """One metric."""

    name: str
    title: str
    better: Literal["lower", "higher"] | None = None
    by_convention: bool = True
    is_fraction: bool = False

    def value(self, scores: Mapping[str, Any], convention: str) -> float | None:
        """Return the value from the content of a score file; None if the convention leaves no voxel."""
        return scores["scores"][convention][self.name] if self.by_convention else scores[self.name]

    def rank(self, value: float) -> float:
        """Return a number that is lower for a better value."""
        return -value if self.better == "higher" else value


METRICS = (
    Metric("are", "ARE", "lower"),
    Metric("are_precision", "precision", "higher"),
    Metric("are_recall", "recall", "higher"),
    Metric("voi", "VOI", "lower"),
    Metric("voi_split", "split", "lower"),
    Metric("voi_merge", "merge", "lower"),
    Metric("covered_fraction", "covered", by_convention=False, is_fraction=True),
)


NUM_RESAMPLES = 1000
LEVEL = 0.95
DRAWS_AT_ONCE = 2**18  # bounds memory: this many numbers for each of the six terms
BORDER_NM = 25.0  # the band that the CREMI challenge ignores


class Convention(NamedTuple):
    """How to treat voxels without a body or without a segment."""

    text: str  # in words
    keeps_unsegmented: bool = True  # whether voxels without a segment count, as one segment with id 0
    is_cremi: bool = False  # whether voxels without a body, pairs and unsegmented voxels count as in the challenge


CONVENTIONS = {
    "foreground": Convention(
        "Only voxels with both a body and a segment. Read it together with the covered fraction.",
        keeps_unsegmented=False,
    ),
    "all": Convention("All voxels with a body. Unsegmented voxels count as one segment, as in scikit-image."),
    "cremi": Convention(
        "All voxels that are farther than 25 nm from another body in their section; those without a body are one more "
        "body. Unsegmented voxels are one segment for VOI and none for ARE, as in the CREMI challenge.",
        is_cremi=True,
    ),
}

Scores = dict[str, float | None]
RATIOS = [metric.name for metric in METRICS if metric.by_convention]


def score(table: ContingencyTable, convention: str) -> Scores:
    """Return the values of `METRICS` that depend on the convention, a key of `CONVENTIONS`; all None without voxels.

    Notes
    -----
    Sources: Arganda-Carreras et al. 2015 (ARE), Meilă 2007 (VOI). Mergers reduce precision, splits reduce recall.
    ``voi_split`` is H(segment | truth), ``voi_merge`` is H(truth | segment), both in bits.
    """
    sums = body_terms(table, CONVENTIONS[convention]).sum(axis=1, keepdims=True)
    return {name: value.item() for name, value in ratios(sums).items()} if sums[-1] else dict.fromkeys(RATIOS)


def body_terms(table: ContingencyTable, rule: Convention) -> np.ndarray:
    """Return each body's terms in the sums whose ratios are the scores: six rows, a column for each body."""
    labelled = table.keep(table.a != (IGNORED if rule.is_cremi else 0))
    ids, bodies = np.unique(labelled.a, return_inverse=True)
    kept = (labelled.b != 0) | rule.keeps_unsegmented
    part, body, segment, bodies = labelled.voxels[kept], labelled.a[kept], labelled.b[kept], bodies[kept]
    part = part.astype(np.float64)  # the square of 10¹⁰ overflows int64
    of_body, of_segment = group_totals(body, part), group_totals(segment, part)
    in_rand = (segment != 0) | (not rule.is_cremi)
    itself = 0.0 if rule.is_cremi else 1.0  # a voxel that is not paired with itself; the challenge counts n² pairs
    added = part * ~in_rand / table.num_voxels if rule.is_cremi else 0.0  # the challenge adds their share of all voxels
    rows = (
        part * np.log2(of_body / part),
        part * np.log2(of_segment / part),
        part * (part - itself) * in_rand + added,
        part * (of_segment - itself) * in_rand + added,
        part * (of_body - itself),
        part,
    )
    return np.stack([np.bincount(bodies, row, len(ids)) for row in rows])


def ratios(sums: np.ndarray) -> dict[str, np.ndarray]:
    """Return the scores that follow from sums of `body_terms`; they may have a second axis."""
    split, merge, both, in_segments, in_bodies, voxels = sums
    with np.errstate(invalid="ignore", divide="ignore"):  # a draw of bodies may hold no voxel of the convention
        return {
            "are": 1 - _share(2 * both, in_segments + in_bodies, voxels),
            "are_precision": _share(both, in_segments, voxels),
            "are_recall": _share(both, in_bodies, voxels),
            "voi": (split + merge) / voxels,
            "voi_split": split / voxels,
            "voi_merge": merge / voxels,
        }


def _share(part: np.ndarray, whole: np.ndarray, voxels: np.ndarray) -> np.ndarray:
    """Return shares of pairs: of no pairs 1, and NaN without voxels."""
    return np.where((whole == 0) & (voxels > 0), 1.0, part / whole)


def summarize(tables: Mapping[str, ContingencyTable]) -> dict[str, Any]:
    """Return the part of a score file that describes one segmentation.

    `tables` has the pairs of body and segment by convention. That of ``foreground``, which must be there, also gives
    coverage and numbers; that of ``cremi`` is without the border band.
    """
    scores = {name: score(table, name) for name, table in tables.items()}
    table = tables["foreground"]
    labelled = table.keep(table.a != 0)
    return {
        "scores": scores,
        "cremi_score": _cremi_score(scores["cremi"]) if "cremi" in scores else None,
        "covered_fraction": labelled.foreground().num_voxels / labelled.num_voxels,
        "num_segments": int(np.count_nonzero(np.unique(table.b))),
        "num_truth": int(np.count_nonzero(np.unique(table.a))),
    }


def _cremi_score(scores: Scores) -> float | None:
    """Return the score of the CREMI challenge, the geometric mean of VOI and ARE."""
    voi, are = scores["voi"], scores["are"]
    return None if voi is None or are is None else math.sqrt(voi * max(are, 0.0))


def group_totals(ids: np.ndarray, voxels: np.ndarray) -> np.ndarray:
    """Return for each row the voxels of all rows with the same id, as float64."""
    inverse = np.unique(ids, return_inverse=True)[1]
    return np.bincount(inverse, voxels)[inverse]


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
        return dict.fromkeys(RATIOS)
    drawn, limits = ratios(_resampled(terms, np.random.default_rng(rng_seed))), ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
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
