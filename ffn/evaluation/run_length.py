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
    pairs = np.unique(np.stack([segments, skeletons.owners])[:, segments != 0], axis=1)
    if tolerance_nm:
        pairs, shared = _shared(ends[whole, 0], owners[whole], lengths[whole])
        pairs = pairs[:, shared >= tolerance_nm]
    ids, counts = np.unique(pairs[0], return_counts=True)
    merged = whole & np.isin(ends[:, 0], ids[counts > 1])
    correct = whole & ~merged
    total = float(lengths.sum())
    erl = np.square(_shared(ends[correct, 0], owners[correct], lengths[correct])[1]).sum() / total
    erl_truth = np.square(_shared(owners, owners, lengths)[1]).sum() / total
    kinds = {"correct": correct, "split": split, "omitted": omitted, "merged": merged}
    return {
        "erl_nm": float(erl),
        "erl_truth_nm": float(erl_truth),
        "nerl": float(erl / erl_truth),
        "length_nm": total,
        "num_skeletons": len(np.unique(owners)),
        "shares": {name: float(lengths[chosen].sum()) / total for name, chosen in kinds.items()},
    }


def _shared(segments: np.ndarray, owners: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the pairs of segment and skeleton, and the length that each shares."""
    pairs, inverse = np.unique(np.stack([segments, owners]), axis=1, return_inverse=True)
    return pairs, np.bincount(inverse.ravel(), lengths, pairs.shape[1])
