"""The watershed baseline finds clear membranes."""

import numpy as np
import pytest
from scipy import ndimage

from ffn.contingency import count_pairs
from ffn.evaluation.baseline import SWEEP, best_watershed, markers, watersheds
from ffn.evaluation.scores import score


@pytest.fixture(scope="module")
def tissue():
    """Image and labels of six bodies between dark membranes, sections twice as thick as a pixel."""
    labels = np.zeros((12, 40, 60), np.uint64)
    for body, (y, x) in enumerate(np.ndindex(2, 3), start=1):
        labels[:, 20 * y : 20 * y + 20, 20 * x : 20 * x + 20] = body
    membrane = ndimage.maximum_filter(labels, (1, 3, 3)) != ndimage.minimum_filter(labels, (1, 3, 3))
    image = np.where(membrane, 60, 160) + np.random.default_rng(0).normal(0, 15, labels.shape)
    return image.clip(0, 255).astype(np.uint8), labels


def test_clear_membranes_are_found(tissue):
    segmentation, sweep = best_watershed(*tissue, (20.0, 10.0, 10.0))
    scores = score(count_pairs(tissue[1], segmentation), "all")
    assert segmentation.min() > 0
    assert scores["are"] < 0.05
    assert sweep[0]["voi"] == pytest.approx(scores["voi"])


def test_the_best_setting_comes_first_and_all_are_listed(tissue):
    _, sweep = best_watershed(*tissue, (20.0, 10.0, 10.0))
    assert len(sweep) == len(SWEEP)
    assert [entry["voi"] for entry in sweep] == sorted(entry["voi"] for entry in sweep)
    assert sweep[0]["settings"].keys() == {"sigma", "level", "distance"}


def test_a_finished_sweep_gives_the_same_best(tissue):
    kept = []
    best, sweep = best_watershed(*tissue, (20.0, 10.0, 10.0), keep=lambda part: kept.append(list(part)))
    assert [len(part) for part in kept] == list(range(1, len(SWEEP) + 1))
    again, same = best_watershed(*tissue, (20.0, 10.0, 10.0), kept[-1], keep=pytest.fail)
    assert same == sweep and np.array_equal(again, best)


def test_the_watersheds_are_deterministic(tissue):
    first, second = (dict(watersheds(tissue[0], (20.0, 10.0, 10.0))) for _ in range(2))
    assert first.keys() == second.keys() == set(SWEEP)
    assert all(np.array_equal(first[settings], second[settings]) for settings in SWEEP)


def test_distance_follows_the_voxel_size():
    """A slab of 3 sections is thin if a section is as thick as a pixel, and thick if it is as thick as 4."""
    image = np.full((15, 32, 48), 50, np.uint8)
    image[6:9] = 200
    thin, thick = (dict(watersheds(image, (z, 1.0, 1.0)))[SWEEP[2]] for z in (1.0, 4.0))
    assert SWEEP[2].distance == 3
    assert not thin.any()
    assert (thick == 1).all()


def test_specks_are_not_markers():
    distance = np.zeros((6, 12, 20), np.float32)
    distance[1:5, 2:6, 2:8] = 2  # 96 voxels
    distance[1:3, 8:11, 14:18] = 2  # 24 voxels
    labels = markers(distance, 1.0)
    assert set(np.unique(labels[1:5, 2:6, 2:8])) == {1}
    assert np.count_nonzero(labels) == 96


def test_a_blank_image_gives_an_empty_segmentation(tissue):
    segmentation, _ = best_watershed(np.full(tissue[1].shape, 7, np.uint8), tissue[1], (1.0, 1.0, 1.0))
    assert not segmentation.any()
