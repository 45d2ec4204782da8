"""The phantom has consistent labels, is reproducible, and is hard enough for an honest demo."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import ndimage
from skimage.feature import peak_local_max
from skimage.filters import threshold_otsu
from skimage.measure import label
from skimage.metrics import adapted_rand_error, variation_of_information
from skimage.segmentation import watershed

from ffn.synthetic.config import SynthConfig
from ffn.synthetic.neurites import Path
from ffn.synthetic.phantom import MIN_NEURITE_VOXELS, Phantom, connected_pieces, fill_territories, make_phantom

SMALL = SynthConfig(shape_zyx=(24, 40, 56))
DEMO = SynthConfig(shape_zyx=(64, 88, 104))


@pytest.fixture(scope="module")
def phantom() -> Phantom:
    return make_phantom(DEMO, rng_seed=1)


def test_every_label_is_one_connected_piece_and_ids_have_no_gap(phantom: Phantom):
    pieces, num_pieces = label(phantom.labels, connectivity=3, return_num=True)
    ids, sizes = np.unique(phantom.labels, return_counts=True)
    assert ids.tolist() == list(range(1, num_pieces + 1))
    assert sizes.min() >= MIN_NEURITE_VOXELS


def test_neurites_differ_in_size_and_run_through_the_volume(phantom: Phantom):
    sizes = np.bincount(phantom.labels.ravel())[1:]
    assert len(sizes) > 20
    assert sizes.max() < 0.3 * phantom.labels.size
    in_first_half, in_last_half = (set(np.unique(half)) for half in np.split(phantom.labels, 2))
    assert len(in_first_half & in_last_half) > 0.2 * len(sizes)
    assert in_last_half - in_first_half


def test_same_seed_gives_the_same_bytes_and_another_seed_does_not():
    first, again, other = (make_phantom(SMALL, rng_seed) for rng_seed in (5, 5, 6))
    assert first.image.tobytes() == again.image.tobytes()
    assert first.labels.tobytes() == again.labels.tobytes()
    assert (first.image != other.image).any()
    assert (first.labels != other.labels).any()


def test_anisotropic_voxels_image_the_same_scale_of_tissue():
    config = SynthConfig(shape_zyx=(16, 64, 64), voxel_size_zyx_nm=(40.0, 10.0, 10.0))
    labels = make_phantom(config, 7).labels
    changes = [np.mean(np.diff(labels.astype(np.int64), axis=axis) != 0) for axis in range(3)]
    # Sections are four times as far apart, so a step along z crosses a border more often.
    assert changes[0] > 1.8 * max(changes[1:])


def test_a_watershed_is_neither_useless_nor_good(phantom: Phantom):
    smooth = ndimage.gaussian_filter(phantom.image.astype(np.float32), 2)
    scores = [watershed_scores(smooth, offset, phantom.labels) for offset in (-8, 0)]
    assert 0.15 < min(are for are, _ in scores) < 0.65
    assert 1.0 < min(voi for _, voi in scores) < 2.8


def watershed_scores(smooth: np.ndarray, offset: float, truth: np.ndarray) -> tuple[float, float]:
    """Return ARE and VOI (bits) of a watershed that is seeded away from dark voxels."""
    distance = ndimage.gaussian_filter(ndimage.distance_transform_edt(smooth > threshold_otsu(smooth) + offset), 1)
    peaks = peak_local_max(distance, min_distance=9, threshold_abs=1.5, exclude_border=False)
    markers = np.zeros(truth.shape, np.int32)
    markers[tuple(peaks.T)] = np.arange(1, len(peaks) + 1)
    segmentation = watershed(-smooth, markers)
    return adapted_rand_error(truth, segmentation)[0], sum(variation_of_information(truth, segmentation))


def test_parts_get_their_own_ids_and_small_ones_that_of_a_neighbour():
    territories = np.full((3, 4, 30), 7)
    territories[..., 10:20] = 2
    territories[1, 1, 25] = 9
    pieces = connected_pieces(territories, min_voxels=5)
    assert np.unique(pieces).tolist() == [1, 2, 3]
    assert pieces[1, 1, 25] == pieces[0, 0, 29] != pieces[0, 0, 0]


def test_a_voxel_belongs_to_the_nearest_tube(monkeypatch):
    """Two parallel tubes along x: the thick one reaches beyond the middle between the axes."""
    along_x = np.arange(-200.0, 900.0, 20.0)
    tubes = [
        Path(number, np.stack([np.full_like(along_x, 160.0), np.full_like(along_x, y), along_x], axis=1), radii)
        for number, y, radii in ((1, 200.0, np.full_like(along_x, 120.0)), (2, 500.0, np.full_like(along_x, 40.0)))
    ]
    monkeypatch.setattr("ffn.synthetic.phantom.UNDULATION_NM", 0.0)
    labels = fill_territories(tubes, SynthConfig(shape_zyx=(32, 64, 64)), np.random.default_rng(0))
    assert labels.dtype == np.uint64
    border = [int(np.flatnonzero(np.diff(row))[0]) for row in labels[16, :, ::8].T.astype(int)]
    # d1² - r1² = d2² - r2² at y = 371 nm
    assert set(border) <= {36, 37} and np.unique(labels).tolist() == [1, 2]
