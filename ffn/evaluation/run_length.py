"""Expected run length: how far one can trace a neuron in a segmentation before the first error."""

from __future__ import annotations

from typing import Any

import numpy as np

from ffn.evaluation.skeletons import Skeletons


def expected_run_length(skeletons: Skeletons, segments: np.ndarray, tolerance_nm: float = 0.0) -> dict[str, Any]:
    """Compute the expected run length (ERL) of a segmentation along skeletons of the ground truth.

    Parameters
    ----------
    skeletons : Skeletons
        Nodes, edges and owners.
    segments : uint64 ndarray of shape (N,)
        Segment at each node; 0 is background.
    tolerance_nm : float
        A skeleton does not make a segment a merger if less than this length of it lies in the segment. 0 is the strict
        definition, in which a single node is enough.

    Returns
    -------
    dict
        ``erl_nm``, ``erl_truth_nm`` (of a perfect segmentation), ``nerl`` (their ratio), ``length_nm``,
        ``num_skeletons``, and ``shares`` of the length: ``correct``, ``split`` (the ends of an edge lie in different
        segments), ``omitted`` (an end lies in background) and ``merged`` (in a segment with several skeletons).

    Notes
    -----
    Source: Januszewski et al. 2018. Edges in a segment that contains nodes of two or more skeletons do not count as
    correct. Weighting skeletons by their lengths L gives ERL = Σ l² / Σ L, where l is the correct length of one
    skeleton in one segment.
    """
    lengths = skeletons.edge_lengths_nm()
    ends = segments[skeletons.edges]
    owners = skeletons.owners[skeletons.edges[:, 0]]
    omitted = (ends == 0).any(axis=1)
    split = ~omitted & (ends[:, 0] != ends[:, 1])
    whole = ~(omitted | split)
    if tolerance_nm:
        mergers = _merging(*_long_pairs(ends[whole, 0], owners[whole], lengths[whole], tolerance_nm))
    else:
        mergers = _merging(segments, skeletons.owners)
    merged = whole & np.isin(ends[:, 0], mergers)
    correct = whole & ~merged
    total = float(lengths.sum())
    erl = _squares(lengths[correct], owners[correct], ends[correct, 0]) / total
    erl_truth = _squares(lengths, owners, owners) / total
    kinds = {"correct": correct, "split": split, "omitted": omitted, "merged": merged}
    return {
        "erl_nm": erl,
        "erl_truth_nm": erl_truth,
        "nerl": erl / erl_truth,
        "length_nm": total,
        "num_skeletons": len(np.unique(owners)),
        "shares": {name: float(lengths[chosen].sum()) / total for name, chosen in kinds.items()},
    }


def _merging(segments: np.ndarray, owners: np.ndarray) -> np.ndarray:
    """Segments that contain two or more skeletons."""
    pairs = np.unique(np.stack([segments, owners])[:, segments != 0], axis=1)
    ids, counts = np.unique(pairs[0], return_counts=True)
    return ids[counts > 1]


def _long_pairs(
    segments: np.ndarray, owners: np.ndarray, lengths: np.ndarray, least_nm: float
) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of segment and skeleton that share at least `least_nm`."""
    pairs, inverse = np.unique(np.stack([segments, owners]), axis=1, return_inverse=True)
    shared = np.bincount(inverse.ravel(), weights=lengths, minlength=pairs.shape[1])
    segments, owners = pairs[:, shared >= least_nm]
    return segments, owners


def _squares(lengths: np.ndarray, owners: np.ndarray, segments: np.ndarray) -> float:
    """Sum of the squared lengths of each skeleton in each segment."""
    if not len(lengths):
        return 0.0
    inverse = np.unique(np.stack([owners, segments]), axis=1, return_inverse=True)[1].ravel()
    return float(np.square(np.bincount(inverse, weights=lengths)).sum())
