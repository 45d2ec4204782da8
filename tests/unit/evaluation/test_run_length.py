"""The expected run length follows its definition."""

import numpy as np
import pytest

from ffn.evaluation.run_length import expected_run_length
from ffn.evaluation.skeletons import join

from .conftest import line


def erl_of(skeletons, segments, tolerance_nm=0.0):
    return expected_run_length(skeletons, np.array(segments, np.uint64), tolerance_nm)


def test_a_perfect_segmentation_has_the_run_length_of_the_truth(two):
    result = erl_of(two, [7] * 11 + [8] * 6)
    assert result["erl_nm"] == result["erl_truth_nm"] == pytest.approx((1000**2 + 500**2) / 1500)
    assert result["nerl"] == 1 and result["num_skeletons"] == 2 and result["length_nm"] == pytest.approx(1500)
    assert result["shares"] == {"correct": 1, "split": 0, "omitted": 0, "merged": 0}


def test_a_split_shortens_the_run(two):
    result = erl_of(two, [7] * 6 + [9] * 5 + [8] * 6)
    assert result["erl_nm"] == pytest.approx((500**2 + 400**2 + 500**2) / 1500)
    assert result["shares"]["split"] == pytest.approx(100 / 1500)


def test_a_hole_costs_the_edges_that_end_in_it(two):
    result = erl_of(two, [7] * 5 + [0] + [7] * 5 + [8] * 6)
    assert result["erl_nm"] == pytest.approx((800**2 + 500**2) / 1500)  # one segment on both sides: one run
    assert result["shares"]["omitted"] == pytest.approx(200 / 1500)


def test_one_merged_node_costs_the_whole_segment(two):
    segments = [7] * 11 + [8] * 5 + [7]
    result = erl_of(two, segments)
    assert result["erl_nm"] == pytest.approx(400**2 / 1500)
    assert result["shares"]["merged"] == pytest.approx(1000 / 1500)
    tolerant = erl_of(two, segments, tolerance_nm=50)
    assert tolerant["erl_nm"] == pytest.approx((1000**2 + 400**2) / 1500)
    assert erl_of(two, [7] * 17, tolerance_nm=400)["erl_nm"] == erl_of(two, [7] * 17)["nerl"] == 0
    assert erl_of(two, [7] * 17, tolerance_nm=600)["nerl"] == 1  # the short one is within the tolerance


def test_background_is_not_a_merger(two):
    assert erl_of(two, [0] * 17)["shares"]["omitted"] == 1
    assert erl_of(two, [7] * 10 + [0] + [8] * 5 + [0])["shares"]["merged"] == 0


def brute_force(skeletons, segments):
    """The definition, edge by edge and skeleton by skeleton."""
    touched = {}
    for segment, owner in zip(segments.tolist(), skeletons.owners.tolist(), strict=True):
        touched.setdefault(segment, set()).add(owner)
    total, weighted = 0.0, 0.0
    for owner in set(skeletons.owners.tolist()):
        length, runs = 0.0, {}
        for (u, v), edge in zip(skeletons.edges.tolist(), skeletons.edge_lengths_nm().tolist(), strict=True):
            if skeletons.owners[u] == owner:
                length += edge
                if segments[u] == segments[v] != 0 and len(touched[int(segments[u])]) == 1:
                    runs[int(segments[u])] = runs.get(int(segments[u]), 0) + edge
        total += length
        weighted += length * sum(run**2 for run in runs.values()) / length
    return weighted / total


@pytest.mark.parametrize("seed", range(5))
def test_the_run_length_agrees_with_the_definition(seed):
    rng = np.random.default_rng(seed)
    skeletons = join([line(owner, int(rng.integers(2, 30)), float(rng.uniform(10, 90))) for owner in range(1, 8)])
    segments = (
        skeletons.owners * 3 + rng.choice([0, 1, 2, 7], len(skeletons.owners), p=[0.6, 0.2, 0.17, 0.03])
    ).astype(np.uint64)
    segments[rng.random(len(segments)) < 0.1] = 0
    assert erl_of(skeletons, segments)["erl_nm"] == pytest.approx(brute_force(skeletons, segments))
