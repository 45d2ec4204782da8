"""Scores agree with their definitions under each convention."""

import numpy as np
import pytest
from skimage import metrics

from ffn.contingency import count_pairs
from ffn.evaluation.scores import CONVENTIONS, METRICS, score, summarize
from ffn.io.volume import IGNORED


def scores_of(truth, segmentation, convention):
    return score(count_pairs(np.asarray(truth), np.asarray(segmentation)), convention)


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_a_merger_costs_precision_and_a_split_recall(convention):
    scores = scores_of([1] * 300 + [2] * 300, [5] * 600, convention)
    assert scores["are_precision"] == pytest.approx(0.5, abs=2e-3)
    assert scores["are_recall"] == 1
    assert (scores["voi_split"], scores["voi_merge"]) == (0, 1)
    scores = scores_of([5] * 600, [1] * 300 + [2] * 300, convention)
    assert scores["are_precision"] == 1
    assert scores["are_recall"] == pytest.approx(0.5, abs=2e-3)
    assert (scores["voi_split"], scores["voi_merge"]) == (1, 0)


def test_all_agrees_with_scikit_image(random_volumes):
    truth, segmentation = random_volumes
    ours = scores_of(truth, segmentation, "all")
    are, *precision_and_recall = metrics.adapted_rand_error(truth, segmentation, ignore_labels=(0,))
    labelled = truth != 0
    split, merge = metrics.variation_of_information(truth[labelled], segmentation[labelled])
    assert ours["are"] == pytest.approx(are, abs=1e-9)
    # scikit-image returns the two in the reverse of the documented order
    assert (ours["are_recall"], ours["are_precision"]) == pytest.approx(precision_and_recall, abs=1e-9)
    assert (ours["voi_split"], ours["voi_merge"]) == pytest.approx((split, merge), abs=1e-9)
    assert ours["voi"] == pytest.approx(split + merge, abs=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_cremi_agrees_with_the_definition_of_the_challenge(seed):
    """Of cremi_python: truth 0 is a body, only 2⁶⁴ - 1 is ignored, and unsegmented voxels count a little in ARE."""
    rng = np.random.default_rng(seed)
    truth, segmentation = rng.integers(0, 6, (2, 4, 6, 7)).astype(np.uint64)
    ignored = rng.random(truth.shape) < 0.2
    n = np.histogram2d(truth[~ignored], segmentation[~ignored], bins=(np.arange(7), np.arange(7)))[0]
    share = n[:, 0].sum() / truth.size
    found = (n[:, 1:] ** 2).sum() + share
    precision, recall = found / ((n[:, 1:].sum(0) ** 2).sum() + share), found / (n.sum(1) ** 2).sum()
    ours = scores_of(np.where(ignored, IGNORED, truth), segmentation, "cremi")
    assert (ours["are_precision"], ours["are_recall"]) == pytest.approx((precision, recall), abs=1e-12)
    assert ours["are"] == pytest.approx(1 - 2 * precision * recall / (precision + recall), abs=1e-12)
    split, merge = metrics.variation_of_information(truth[~ignored], segmentation[~ignored])
    assert (ours["voi_split"], ours["voi_merge"]) == pytest.approx((split, merge), abs=1e-12)


@pytest.mark.parametrize(("share", "cremi", "all_voxels", "voi"), [(10, 0.105, 0.289, 1.03), (30, 0.342, 0.806, 2.57)])
def test_holes_weigh_differently_under_each_convention(share, cremi, all_voxels, voi):
    """The values for a perfect segmentation of 50 bodies with holes are those of the published implementations."""
    truth = np.repeat(np.arange(1, 51), 10_000).reshape(50, 100, 100)
    segmentation = truth.copy()
    segmentation[:, :share] = 0
    by_name = {name: scores_of(truth, segmentation, name) for name in CONVENTIONS}
    assert by_name["foreground"]["are"] == pytest.approx(0)
    assert by_name["foreground"]["voi"] == 0
    assert by_name["cremi"]["are"] == pytest.approx(cremi, abs=5e-4)
    assert by_name["all"]["are"] == pytest.approx(all_voxels, abs=2e-3)
    assert by_name["cremi"]["voi"] == by_name["all"]["voi"] == pytest.approx(voi, abs=5e-3)


@pytest.mark.parametrize(("convention", "ignored"), [("foreground", 0), ("all", 0), ("cremi", IGNORED)])
def test_ignored_voxels_never_count(convention, ignored, random_volumes):
    truth, segmentation = random_volumes
    truth = np.where(truth == 0, np.uint64(ignored), truth)
    changed = np.where(truth == ignored, 77, segmentation)
    assert scores_of(truth, changed, convention) == scores_of(truth, segmentation, convention)


def test_an_empty_segmentation_is_scored():
    truth = np.repeat([1, 2], 50)
    table = count_pairs(truth, np.zeros_like(truth))
    summary = summarize(dict.fromkeys(CONVENTIONS, table))
    assert summary["covered_fraction"] == 0
    assert summary["num_segments"] == 0
    assert set(summary["scores"]["foreground"].values()) == {None}
    assert summary["scores"]["cremi"]["are"] == pytest.approx(1, abs=1e-3)
    assert summary["scores"]["all"]["voi"] == pytest.approx(1)


def test_the_summary_counts_ids_and_every_metric_is_in_the_file():
    table = count_pairs(np.array([0, 0, 1, 1, 1, 2]), np.array([9, 9, 0, 3, 3, 4]))
    summary = summarize(dict.fromkeys(CONVENTIONS, table))
    assert summary["covered_fraction"] == pytest.approx(3 / 4)
    assert (summary["num_segments"], summary["num_truth"]) == (3, 2)
    table = count_pairs(np.array([1, 1, 2, 2]), np.array([5, 5, 5, 0]))
    scores = summarize(dict.fromkeys(CONVENTIONS, table))
    for convention in CONVENTIONS:
        assert all(isinstance(metric.value(scores, convention), float) for metric in METRICS)
        assert set(scores["scores"][convention]) == {metric.name for metric in METRICS if metric.by_convention}
    nothing = count_pairs(np.array([1, 1]), np.array([0, 0]))
    assert score(nothing, "foreground") == dict.fromkeys(scores["scores"]["all"])
