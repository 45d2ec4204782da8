"""Adapted Rand error and variation of information under three conventions, from a contingency table."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ffn.contingency import ContingencyTable
from ffn.evaluation.metrics import METRICS


class Convention(NamedTuple):
    """What is done with voxels that have no truth or no segment; voxels without truth are always dropped.

    Parameters
    ----------
    text : str
        The convention in words.
    keeps_unsegmented : bool
        Whether voxels without a segment count, as one segment of id 0.
    unsegmented_in_rand : bool
        Whether segment 0 also counts among the segment sizes of the Rand error.
    squares : bool
        Whether the Rand error pairs each voxel with itself too (n² instead of n(n - 1) pairs).
    """

    text: str
    keeps_unsegmented: bool
    unsegmented_in_rand: bool
    squares: bool


CONVENTIONS = {
    "foreground": Convention(
        "Only voxels that have both a truth body and a segment: read it together with the covered fraction.",
        keeps_unsegmented=False,
        unsegmented_in_rand=False,
        squares=False,
    ),
    "all": Convention(
        "All voxels of the truth; unsegmented ones count as one segment (as in scikit-image).",
        keeps_unsegmented=True,
        unsegmented_in_rand=True,
        squares=False,
    ),
    "cremi": Convention(
        "All voxels of the truth outside of the border band, if any; unsegmented ones are one segment for "
        "VOI, and none for ARE (as in the CREMI challenge).",
        keeps_unsegmented=True,
        unsegmented_in_rand=False,
        squares=True,
    ),
}

Scores = dict[str, float | None]


def score(table: ContingencyTable, convention: str) -> Scores:
    """Compute all scores under one convention.

    Parameters
    ----------
    table : ContingencyTable
        Pairs of truth and segment.
    convention : {"foreground", "all", "cremi"}
        Key of `CONVENTIONS`.

    Returns
    -------
    dict
        The values of `METRICS` that depend on the convention; all None where it leaves no voxel.

    Notes
    -----
    Definitions: Arganda-Carreras et al. 2015 (ARE), Meilă 2007 (VOI). Precision falls with mergers, recall
    with splits; ``voi_split`` is H(segment | truth), ``voi_merge`` is H(truth | segment).
    """
    rule = CONVENTIONS[convention]
    kept = table.keep((table.a != 0) & (rule.keeps_unsegmented | (table.b != 0)))
    if not kept.num_voxels:
        return dict.fromkeys(metric.name for metric in METRICS if metric.by_convention)
    return {**rand_error(kept, rule.unsegmented_in_rand, rule.squares), **variation_of_information(kept)}


def rand_error(table: ContingencyTable, with_unsegmented: bool = True, squares: bool = False) -> Scores:
    """Adapted Rand error: 1 - F1 of the pairs of voxels that belong together.

    Parameters
    ----------
    table : ContingencyTable
        All its rows count.
    with_unsegmented : bool
        Whether voxels of segment 0 are a segment; else they are found in no pair, but missed in the truth's.
    squares : bool
        Count n² instead of n(n - 1) pairs in n voxels.

    Returns
    -------
    dict
        ``are``, ``are_precision``, ``are_recall``; a share of no pairs at all is 1.
    """
    segmented = table if with_unsegmented else table.keep(table.b != 0)
    both = _num_pairs(segmented.voxels, squares)
    in_segments = _num_pairs(_totals(segmented.b, segmented.voxels)[0], squares)
    in_bodies = _num_pairs(_totals(table.a, table.voxels)[0], squares)
    return {
        "are": 1 - _share(2 * both, in_segments + in_bodies),
        "are_precision": _share(both, in_segments),
        "are_recall": _share(both, in_bodies),
    }


def variation_of_information(table: ContingencyTable) -> Scores:
    """Variation of information in bits and its two parts; all rows of `table` count.

    Returns
    -------
    dict
        ``voi``, ``voi_split``, ``voi_merge``.
    """
    split = float(entropy_terms(table.a, table.voxels).sum())
    merge = float(entropy_terms(table.b, table.voxels).sum())
    return {"voi": split + merge, "voi_split": split, "voi_merge": merge}


def cremi_score(scores: Scores) -> float | None:
    """Return the score that the CREMI challenge ranks by, the geometric mean of VOI and ARE.

    Parameters
    ----------
    scores : dict
        Of the convention ``cremi``.

    Examples
    --------
    >>> cremi_score({"voi": 0.5, "are": 0.08})
    0.2
    """
    voi, are = scores["voi"], scores["are"]
    return None if voi is None or are is None else math.sqrt(voi * max(are, 0.0))


def summarize(table: ContingencyTable, cremi_table: ContingencyTable) -> dict[str, Any]:
    """Collect what a score file says about one segmentation.

    Parameters
    ----------
    table : ContingencyTable
        Every voxel of the box.
    cremi_table : ContingencyTable
        The same without the border band of the convention ``cremi``.

    Returns
    -------
    dict
        ``scores`` by convention, ``cremi_score``, ``covered_fraction``, ``num_segments``, ``num_truth``.
    """
    labelled = table.keep(table.a != 0)
    scores = {name: score(cremi_table if name == "cremi" else table, name) for name in CONVENTIONS}
    return {
        "scores": scores,
        "cremi_score": cremi_score(scores["cremi"]),
        "covered_fraction": labelled.foreground().num_voxels / labelled.num_voxels,
        "num_segments": int(np.count_nonzero(np.unique(table.b))),
        "num_truth": int(np.count_nonzero(np.unique(table.a))),
    }


def entropy_terms(given: np.ndarray, voxels: np.ndarray) -> np.ndarray:
    """Return each row's part of the conditional entropy, given the ids of another column.

    Parameters
    ----------
    given : uint64 ndarray of shape (N,)
        Ids that are known.
    voxels : int64 ndarray of shape (N,)
        Voxels of each row.

    Returns
    -------
    float64 ndarray of shape (N,)
        Bits.
    """
    totals, inverse = _totals(given, voxels)
    return voxels / voxels.sum() * np.log2(totals[inverse] / voxels)


def _totals(ids: np.ndarray, voxels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Voxels of each distinct id, and the place of each row's id among them."""
    inverse = np.unique(ids, return_inverse=True)[1]
    return np.bincount(inverse, weights=voxels), inverse


def _num_pairs(voxels: np.ndarray, squares: bool) -> float:
    """Ordered pairs of voxels in groups of these sizes; float, because 10¹⁰ voxels squared overflow int64."""
    sizes = voxels.astype(np.float64)
    return float((sizes * (sizes if squares else sizes - 1)).sum())


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 1.0
