"""Adapted Rand error and variation of information of a contingency table, under three conventions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ffn.contingency import ContingencyTable
from ffn.evaluation.metrics import METRICS
from ffn.io.volume import IGNORED

BORDER_NM = 25.0  # the band that the CREMI challenge ignores


class Convention(NamedTuple):
    """How to treat voxels without a body or without a segment."""

    text: str  # in words
    ignored: np.uint64  # body whose voxels never count
    keeps_unsegmented: bool  # whether voxels without a segment count, as one segment with id 0
    unsegmented_in_rand: bool  # whether that segment also counts among the segment sizes of the Rand error
    is_cremi: bool  # whether the Rand error counts n² instead of n(n - 1) pairs, and other things as the challenge does


CONVENTIONS = {
    "foreground": Convention(
        "Only voxels with both a body and a segment. Read it together with the covered fraction.",
        ignored=np.uint64(0),
        keeps_unsegmented=False,
        unsegmented_in_rand=False,
        is_cremi=False,
    ),
    "all": Convention(
        "All voxels with a body. Unsegmented voxels count as one segment, as in scikit-image.",
        ignored=np.uint64(0),
        keeps_unsegmented=True,
        unsegmented_in_rand=True,
        is_cremi=False,
    ),
    "cremi": Convention(
        "All voxels that are farther than 25 nm from another body in their section; those without a body are one more "
        "body. Unsegmented voxels are one segment for VOI and none for ARE, as in the CREMI challenge.",
        ignored=IGNORED,
        keeps_unsegmented=True,
        unsegmented_in_rand=False,
        is_cremi=True,
    ),
}

Scores = dict[str, float | None]


def score(table: ContingencyTable, convention: str) -> Scores:
    """Compute the scores under one convention.

    Parameters
    ----------
    table : ContingencyTable
        Pairs of body and segment.
    convention : {"foreground", "all", "cremi"}
        Key of `CONVENTIONS`.

    Returns
    -------
    dict
        The values of `METRICS` that depend on the convention; all None if it leaves no voxel.

    Notes
    -----
    Sources: Arganda-Carreras et al. 2015 (ARE), Meilă 2007 (VOI). Mergers reduce precision, splits reduce recall.
    ``voi_split`` is H(segment | truth), ``voi_merge`` is H(truth | segment), both in bits.
    """
    rule = CONVENTIONS[convention]
    kept = table.keep((table.a != rule.ignored) & (rule.keeps_unsegmented | (table.b != 0)))
    if not kept.num_voxels:
        return dict.fromkeys(metric.name for metric in METRICS if metric.by_convention)
    return {**rand_error(kept, rule, table.num_voxels), **variation_of_information(kept)}


def rand_error(table: ContingencyTable, rule: Convention, num_voxels: int) -> Scores:
    """Compute the adapted Rand error: 1 - F1 over the pairs of voxels that belong together. A share of no pairs is 1.

    Where a convention does not take unsegmented voxels for a segment, their pairs are missing from the segmentation but
    still count in the ground truth. The challenge adds their share of all voxels, `num_voxels`.
    """
    segmented = table if rule.unsegmented_in_rand else table.keep(table.b != 0)
    added = (table.num_voxels - segmented.num_voxels) / num_voxels if rule.is_cremi else 0.0
    both = float(num_pairs(segmented.voxels, rule.is_cremi).sum()) + added
    in_segments = float(num_pairs(_totals(segmented.b, segmented.voxels)[0], rule.is_cremi).sum()) + added
    in_bodies = float(num_pairs(_totals(table.a, table.voxels)[0], rule.is_cremi).sum())
    return {
        "are": 1 - _share(2 * both, in_segments + in_bodies),
        "are_precision": _share(both, in_segments),
        "are_recall": _share(both, in_bodies),
    }


def variation_of_information(table: ContingencyTable) -> Scores:
    """Compute the variation of information and its two parts, in bits."""
    split = float(entropy_terms(table.a, table.voxels).sum())
    merge = float(entropy_terms(table.b, table.voxels).sum())
    return {"voi": split + merge, "voi_split": split, "voi_merge": merge}


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


def entropy_terms(given: np.ndarray, voxels: np.ndarray) -> np.ndarray:
    """Return the part of each row, bits, in the conditional entropy given the ids of one column."""
    return voxels / voxels.sum() * np.log2(group_totals(given, voxels) / voxels)


def group_totals(ids: np.ndarray, voxels: np.ndarray) -> np.ndarray:
    """Return for each row the voxels of all rows with the same id, as float64."""
    totals, inverse = _totals(ids, voxels)
    return totals[inverse]


def num_pairs(voxels: np.ndarray, squares: bool) -> np.ndarray:
    """Return the ordered pairs of voxels within groups of these sizes, with each voxel's own pair if `squares`.

    Float64, because the square of 10¹⁰ overflows int64.
    """
    sizes = voxels.astype(np.float64)
    return sizes * (sizes if squares else sizes - 1)


def _totals(ids: np.ndarray, voxels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Voxels of each distinct id, and the index of each row's id among them."""
    inverse = np.unique(ids, return_inverse=True)[1]
    return np.bincount(inverse, weights=voxels), inverse


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 1.0
