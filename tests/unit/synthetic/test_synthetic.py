"""The phantom: consistent labels, reproducible, and hard enough for an honest demo."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError
from scipy import ndimage
from skimage.feature import peak_local_max
from skimage.filters import threshold_otsu
from skimage.measure import label
from skimage.metrics import adapted_rand_error, variation_of_information
from skimage.segmentation import watershed

from ffn.synthetic.config import SynthConfig
from ffn.synthetic.neurites import grow_neurites
from ffn.synthetic.phantom import Phantom, make_phantom
from ffn.synthetic.power_diagram import PowerDiagram
from ffn.synthetic.territories import connected_pieces
from ffn.synthetic.texture import paint_balls, smooth_noise
from ffn.synthetic.tissue import border_distance_nm

SMALL = SynthConfig(shape_zyx=(24, 40, 56), min_neurite_voxels=100)
DEMO = SynthConfig(shape_zyx=(64, 88, 104))


@pytest.fixture(scope="module")
def phantom() -> Phantom:
    return make_phantom(DEMO, rng_seed=1)


def differing(**changes: object) -> SynthConfig:
    return SynthConfig.model_validate({**SMALL.model_dump(), **changes})


def test_arrays_have_the_configured_shape_and_type(phantom: Phantom) -> None:
    assert phantom.image.shape == phantom.labels.shape == DEMO.shape_zyx
    assert phantom.image.dtype == np.uint8
    assert phantom.labels.dtype == np.uint64


def test_every_label_is_one_connected_piece_and_ids_have_no_gap(phantom: Phantom) -> None:
    pieces, num_pieces = label(phantom.labels, connectivity=3, return_num=True)
    ids, sizes = np.unique(phantom.labels, return_counts=True)
    assert ids.tolist() == list(range(1, num_pieces + 1))
    assert sizes.min() >= DEMO.min_neurite_voxels


def test_neurites_differ_in_calibre_and_run_through_the_volume(phantom: Phantom) -> None:
    sizes = np.bincount(phantom.labels.ravel())[1:]
    assert len(sizes) > 20
    assert sizes.max() < 0.3 * phantom.labels.size
    in_first_half, in_last_half = (set(np.unique(half)) for half in np.split(phantom.labels, 2))
    assert len(in_first_half & in_last_half) > 0.2 * len(sizes)
    assert in_last_half - in_first_half


def test_same_seed_gives_the_same_bytes_and_another_seed_does_not() -> None:
    first, again, other = (make_phantom(SMALL, rng_seed) for rng_seed in (5, 5, 6))
    assert first.image.tobytes() == again.image.tobytes()
    assert first.labels.tobytes() == again.labels.tobytes()
    assert (first.image != other.image).any()
    assert (first.labels != other.labels).any()


def test_imaging_settings_leave_the_labels_alone() -> None:
    plain = make_phantom(SMALL, 3)
    noisy = make_phantom(differing(noise=30.0, mitochondria_per_um3=0.0), 3)
    assert (plain.labels == noisy.labels).all()
    assert noisy.image.std() > plain.image.std()


def test_membranes_are_dark_and_neurites_bright(phantom: Phantom) -> None:
    border_nm = border_distance_nm(phantom.labels, DEMO.voxel_size_zyx_nm)
    on_border = phantom.image[border_nm == 0].mean()
    inside = np.median(phantom.image[border_nm >= 40])
    assert on_border < 115
    assert inside - on_border > 35


def test_only_the_defective_section_is_spoilt() -> None:
    clean = make_phantom(differing(defect_position=None), 2).image
    spoilt = make_phantom(differing(defect_position=1.0), 2).image
    assert (clean[:-1] == spoilt[:-1]).all()
    assert spoilt[-1].mean() < clean[-1].mean() - 25
    edges = [ndimage.gaussian_gradient_magnitude(image[-1].astype(float), 2).mean() for image in (clean, spoilt)]
    assert edges[1] < 0.8 * edges[0]


def test_weak_spots_brighten_membranes() -> None:
    border = border_distance_nm(make_phantom(SMALL, 4).labels, SMALL.voxel_size_zyx_nm) == 0
    without, many = (make_phantom(differing(weak_spots_per_um3=n), 4).image[border].mean() for n in (0.0, 2000.0))
    assert many > without + 5


def test_mitochondria_darken_the_inside() -> None:
    without, many = (make_phantom(differing(mitochondria_per_um3=n), 4).image.mean() for n in (0.0, 200.0))
    assert many < without - 2


def test_anisotropic_voxels_image_the_same_scale_of_tissue() -> None:
    config = differing(shape_zyx=(16, 64, 64), voxel_size_zyx_nm=(40.0, 10.0, 10.0))
    labels = make_phantom(config, 7).labels
    changes = [np.mean(np.diff(labels.astype(np.int64), axis=axis) != 0) for axis in range(3)]
    # Sections are four times as far apart, so a step along z crosses a border more often.
    assert changes[0] > 1.8 * max(changes[1:])


def test_threshold_and_connected_components_merge_most_neurites(phantom: Phantom) -> None:
    smooth = ndimage.gaussian_filter(phantom.image.astype(np.float32), 1)
    pieces = label(smooth > threshold_otsu(smooth), connectivity=3)
    ids, sizes = np.unique(phantom.labels, return_counts=True)
    piece_of = [most_common_piece(pieces[phantom.labels == i]) for i in ids[sizes > 1000]]
    _, member, num_members = np.unique(piece_of, return_inverse=True, return_counts=True)
    # 0.86 and more at the default size; this smaller volume has fewer neurites to merge.
    assert np.mean(num_members[member] > 1) > 0.5


def most_common_piece(pieces: np.ndarray) -> int:
    return int(np.bincount(pieces[pieces > 0]).argmax())


def test_watershed_is_neither_useless_nor_good(phantom: Phantom) -> None:
    smooth = ndimage.gaussian_filter(phantom.image.astype(np.float32), 2)
    scores = [watershed_scores(smooth, offset, phantom.labels) for offset in (-8, 0)]
    assert 0.15 < min(are for are, _ in scores) < 0.65
    assert 1.0 < min(voi for _, voi in scores) < 2.8


def watershed_scores(smooth: np.ndarray, offset: float, truth: np.ndarray) -> tuple[float, float]:
    """Adapted Rand error and variation of information (bits) of a watershed seeded away from dark voxels."""
    distance = ndimage.gaussian_filter(ndimage.distance_transform_edt(smooth > threshold_otsu(smooth) + offset), 1)
    peaks = peak_local_max(distance, min_distance=9, threshold_abs=1.5, exclude_border=False)
    markers = np.zeros(truth.shape, np.int32)
    markers[tuple(peaks.T)] = np.arange(1, len(peaks) + 1)
    segmentation = watershed(-smooth, markers)
    return adapted_rand_error(truth, segmentation)[0], sum(variation_of_information(truth, segmentation))


def test_neurites_keep_within_the_configured_calibres() -> None:
    paths = grow_neurites(DEMO, np.random.default_rng(0))
    radii_nm = np.concatenate([path.radii_nm for path in paths])
    low, high = DEMO.neurite_radius_nm
    assert low <= radii_nm.min() < 1.2 * low
    assert 0.8 * high < radii_nm.max() <= high


def test_a_straight_neurite_does_not_turn() -> None:
    straight = SynthConfig(shape_zyx=(16, 20, 200), tortuosity=0.0, branch_spacing_nm=1e9)
    for path in grow_neurites(straight, np.random.default_rng(0))[:5]:
        steps = np.diff(path.points_nm, axis=0)
        assert np.allclose(steps, steps[0])


def test_power_diagram_agrees_with_its_definition() -> None:
    rng = np.random.default_rng(0)
    points, radii, places = (
        rng.uniform(0, 100, (30, 3)),
        rng.uniform(1, 20, 30),
        rng.uniform(0, 100, (200, 3)),
    )
    power = ((places[:, None] - points) ** 2).sum(axis=-1) - radii**2
    diagram = PowerDiagram(points, radii)
    assert diagram.owner(places).tolist() == power.argmin(axis=1).tolist()
    on_surface = points[:1] + np.array([[radii[0], 0, 0]])
    assert PowerDiagram(points[:1], radii[:1]).clearance_nm(on_surface) == pytest.approx([0.0])


def test_an_empty_power_diagram_leaves_all_room() -> None:
    assert np.isinf(PowerDiagram(np.empty((0, 3)), np.empty(0)).clearance_nm(np.zeros((2, 3)))).all()


def test_connected_pieces_separates_parts_and_gives_small_ones_away() -> None:
    territories = np.full((3, 4, 30), 7)
    territories[..., 10:20] = 2
    territories[1, 1, 25] = 9
    pieces = connected_pieces(territories, min_voxels=5)
    assert np.unique(pieces).tolist() == [1, 2, 3]
    assert pieces[1, 1, 25] == pieces[0, 0, 29] != pieces[0, 0, 0]


def test_connected_pieces_keeps_what_there_is_when_all_is_small() -> None:
    territories = np.arange(1, 9).reshape(2, 2, 2)
    assert np.unique(connected_pieces(territories, min_voxels=100)).tolist() == list(range(1, 9))


def test_painted_ball_has_its_depth_in_nanometres() -> None:
    depth_nm = paint_balls((5, 9, 9), (20.0, 10.0, 10.0), np.array([[50.0, 45.0, 45.0]]), np.array([35.0]))
    assert depth_nm[2, 4, 4] == pytest.approx(35)
    assert depth_nm[3, 4, 4] == pytest.approx(15)
    assert depth_nm[2, 4, 6] == pytest.approx(15)
    assert depth_nm[2, 4, 8] == 0


def test_ball_outside_the_volume_paints_nothing() -> None:
    assert not paint_balls((4, 5, 6), (1.0, 1.0, 1.0), np.array([[-9.0, 2.0, 90.0]]), np.array([3.0])).any()


def test_border_distance_counts_anisotropic_voxels() -> None:
    labels = np.ones((4, 6, 8), np.uint64)
    labels[..., 4:] = 2
    distance_nm = border_distance_nm(labels, (30.0, 10.0, 5.0))
    assert distance_nm[0, 0].tolist() == [15, 10, 5, 0, 0, 5, 10, 15]


def test_smooth_noise_is_standardised_and_smooth() -> None:
    noise = smooth_noise((12, 20, 30), np.array([2.0, 2.0, 2.0]), np.random.default_rng(0))
    assert noise.mean() == pytest.approx(0, abs=1e-5)
    assert noise.std() == pytest.approx(1, abs=1e-5)
    assert np.abs(np.diff(noise, axis=2)).mean() < 0.5


def test_descending_range_is_refused() -> None:
    with pytest.raises(ValidationError, match="neurite_radius_nm: 50.0 20.0 is not a range"):
        SynthConfig(neurite_radius_nm=(50.0, 20.0))


@pytest.mark.parametrize("wrong", [{"radius": 3}, {"shape_zyx": (8, 64, 64)}, {"weak_spot_fading": 1.5}])
def test_unusable_settings_are_refused(wrong: dict) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        SynthConfig(**wrong)
