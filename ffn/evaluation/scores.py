"""Adapted Rand error and variation of information under three conventions, from a contingency table."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ffn.contingency import ContingencyTable


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
        ``are``, ``are_precision``, ``are_recall``, ``voi``, ``voi_split``, ``voi_merge`` (bits); all None
        where the convention leaves no voxel.

    Notes
    -----
    Definitions: Arganda-Carreras et al. 2015 (ARE), Meilă 2007 (VOI). Precision falls with mergers, recall
    with splits; ``voi_split`` is H(segment | truth), ``voi_merge`` is H(truth | segment).
    """
    rule = CONVENTIONS[convention]
    kept = table.keep((table.truth != 0) & (rule.keeps_unsegmented | (table.segment != 0)))
    if not kept.num_voxels:
        return dict.fromkeys(("are", "are_precision", "are_recall", "voi", "voi_split", "voi_merge"))
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
    segmented = table if with_unsegmented else table.keep(table.segment != 0)
    both = _num_pairs(segmented.voxels, squares)
    in_segments = _num_pairs(_totals(segmented.segment, segmented.voxels)[0], squares)
    in_bodies = _num_pairs(_totals(table.truth, table.voxels)[0], squares)
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
    split = float(_entropy_terms(table.truth, table.voxels).sum())
    merge = float(_entropy_terms(table.segment, table.voxels).sum())
    return {"voi": split + merge, "voi_split": split, "voi_merge": merge}


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
        ``scores`` by convention, ``covered_fraction``, ``num_segments``, ``num_truth``.
    """
    labelled = table.keep(table.truth != 0)
    return {
        "scores": {name: score(cremi_table if name == "cremi" else table, name) for name in CONVENTIONS},
        "covered_fraction": labelled.keep(labelled.segment != 0).num_voxels / labelled.num_voxels,
        "num_segments": int(np.count_nonzero(np.unique(table.segment))),
        "num_truth": int(np.count_nonzero(np.unique(table.truth))),
    }


def worst_bodies(table: ContingencyTable, count: int = 10) -> dict[str, list[dict[str, Any]]]:
    """List the bodies and segments that cost most bits of VOI, convention ``foreground``.

    Parameters
    ----------
    table : ContingencyTable
        Pairs of truth and segment.
    count : int
        Length of each list at most; faultless ones are not listed.

    Returns
    -------
    dict
        ``worst_splits`` (truth bodies, their parts are segments) and ``worst_mergers`` (segments, their parts
        are truth bodies): ``id``, ``voxels``, ``voi`` and the largest ``parts`` with ``id`` and ``voxels``.
    """
    both = table.keep((table.truth != 0) & (table.segment != 0))
    return {
        "worst_splits": _worst(both.truth, both.segment, both.voxels, count),
        "worst_mergers": _worst(both.segment, both.truth, both.voxels, count),
    }


def _worst(ids: np.ndarray, part_ids: np.ndarray, voxels: np.ndarray, count: int) -> list[dict[str, Any]]:
    unique, inverse = np.unique(ids, return_inverse=True)
    cost = np.bincount(inverse, weights=_entropy_terms(ids, voxels))
    worst = [i for i in np.argsort(-cost, kind="stable")[:count] if cost[i] > 0]
    return [
        {
            "id": int(unique[i]),
            "voxels": int(voxels[inverse == i].sum()),
            "voi": float(cost[i]),
            "parts": _largest(part_ids[inverse == i], voxels[inverse == i]),
        }
        for i in worst
    ]


def _largest(ids: np.ndarray, voxels: np.ndarray, count: int = 3) -> list[dict[str, int]]:
    order = np.argsort(-voxels, kind="stable")[:count]
    return [{"id": int(ids[i]), "voxels": int(voxels[i])} for i in order]


def _entropy_terms(given: np.ndarray, voxels: np.ndarray) -> np.ndarray:
    """Each row's part of the conditional entropy, given the ids `given`, in bits."""
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
