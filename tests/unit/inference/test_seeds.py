"""Seeds: middle of every object, on a grid or as listed; in order, the same on every call."""

import numpy as np
import pytest

from ffn.config import SegmentConfig
from ffn.errors import ConfigError
from ffn.geometry import Box
from ffn.inference.points import points_file, read_points
from ffn.inference.seeds import empty_space_seeds, find_seeds, peak_seeds, slice_peak_seeds

BOX = Box((10, 20, 30), (20, 40, 60))


def two_tubes():
    """Two bright neurites along x with dark membranes around them."""
    image = np.full((30, 40, 60), -1, np.float32)
    image[5:16, 5:16] = 1
    image[18:27, 22:35] = 1
    return image


def test_seeds_lie_in_the_middle_of_objects_in_ascending_order():
    image = two_tubes()
    seeds = peak_seeds(image, (10, 10, 10), 3)
    assert len(seeds) > 2
    assert seeds.tolist() == sorted(seeds.tolist())
    inside = seeds[image[tuple(seeds.T)] > 0]
    assert {10} <= {int(z) for z, y, _ in inside if y < 16}
    assert any(y > 22 for _, y, _ in inside)


def test_seeds_are_reproducible_and_apart():
    image = two_tubes() + np.random.default_rng(0).normal(0, 0.05, (30, 40, 60)).astype(np.float32)
    first, second = peak_seeds(image, (10, 10, 10), 3), peak_seeds(image, (10, 10, 10), 3)
    assert np.array_equal(first, second)
    gaps = np.abs(first[:, None] - first[None]).max(axis=-1)
    assert gaps[np.triu_indices(len(first), 1)].min() > 3


def test_anisotropic_voxels_move_the_distance():
    image = two_tubes()
    assert not np.array_equal(peak_seeds(image, (10, 10, 10), 3), peak_seeds(image, (40, 10, 10), 3))


def test_a_blank_image_has_no_seeds():
    assert peak_seeds(np.zeros((12, 13, 14), np.float32), (10, 10, 10), 3).shape == (0, 3)


def sections():
    """Three slices: a bright square on the left, on the right, and nothing at all."""
    image = np.zeros((3, 30, 44), np.float32)
    image[0, 8:21, 6:19] = image[1, 8:21, 24:37] = 1
    return image


def find(config, image=None, box=BOX):
    image = np.zeros(box.shape, np.float32) if image is None else image
    points = None if config.seed_points is None else read_points(config.seed_points)
    return find_seeds(image, config, (40.0, 8.0, 8.0), box, points)


def test_peaks_are_the_default():
    image = two_tubes()
    found = find_seeds(image, SegmentConfig(), (20, 10, 10), Box.from_shape(image.shape))
    assert found.dtype == np.int64
    assert np.array_equal(found, peak_seeds(image, (20, 10, 10), 3))


def test_seeds_of_a_slice_depend_on_that_slice_alone():
    image = sections()
    seeds = slice_peak_seeds(image, (40, 8, 8), 3)
    assert [0, 14, 12] in seeds.tolist() and [1, 14, 30] in seeds.tolist()
    assert 2 not in seeds[:, 0]
    assert seeds.tolist() == sorted(seeds.tolist())
    for z in (0, 1):
        alone = slice_peak_seeds(image[z : z + 1], (40, 8, 8), 3)
        assert np.array_equal(alone[:, 1:], seeds[seeds[:, 0] == z][:, 1:])
    assert np.array_equal(find(SegmentConfig(seed_policy="peaks_2d"), image, Box.from_shape(image.shape)), seeds)


def test_blank_slices_have_no_seeds():
    assert slice_peak_seeds(np.zeros((2, 12, 13), np.float32), (40, 8, 8), 3).shape == (0, 3)


def test_overlapping_subvolumes_share_the_points_of_the_grid():
    config = SegmentConfig(seed_policy="grid", seed_grid_step_zyx=(4, 5, 6))
    one, other = BOX, Box((12, 23, 31), (20, 40, 61))
    points = [{tuple(s) for s in (find(config, box=b) + b.start).tolist()} for b in (one, other)]
    common = one.intersect(other)
    expected = {
        (z, y, x)
        for z in range(common.start[0], common.stop[0])
        for y in range(common.start[1], common.stop[1])
        for x in range(common.start[2], common.stop[2])
        if z % 4 == 2 and y % 5 == 2 and x % 6 == 3
    }
    for found in points:
        assert {
            p for p in found if np.all(np.array(p) >= common.start) and np.all(p < np.array(common.stop))
        } == expected
    assert len(expected) > 3


def test_points_keep_their_order_and_lose_those_outside(tmp_path):
    path = tmp_path / "seeds.csv"
    path.write_text("z,y,x\n19,39,59\n10, 20, 30\n20,25,35\n\n11,22,33\n")
    config = SegmentConfig(seed_policy="points", seed_points=str(path))
    assert find(config).tolist() == [[9, 19, 29], [0, 0, 0], [1, 2, 3]]
    backward = config.model_copy(update={"seed_order": "reversed"})
    assert find(backward).tolist() == [[1, 2, 3], [0, 0, 0], [9, 19, 29]]


def test_a_single_point_needs_no_file():
    assert find(SegmentConfig(seed_policy="points", seed_points="12, 22,32")).tolist() == [[2, 2, 2]]
    assert points_file("12, 22,32") is None and str(points_file("a/12.csv")) == "a/12.csv"


def test_points_that_all_lie_outside_are_a_warning(tmp_path, caplog):
    path = tmp_path / "seeds.csv"
    path.write_text("z,y,x\n9,22,32\n10,20,60\n")
    config = SegmentConfig(seed_policy="points", seed_points=str(path))
    assert find(config).shape == (0, 3)
    assert caplog.messages == [f"0 of 2 seed points lie in {BOX}, so nothing will be segmented there"]
    caplog.clear()
    assert len(find(config, box=Box((9, 20, 30), (20, 40, 60)))) == 1 and not caplog.messages


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "seeds.csv line 1: found '', expected the header 'z,y,x'"),
        ("x,y,z\n1,2,3\n", "seeds.csv line 1: found 'x,y,z', expected the header 'z,y,x'"),
        ("z,y,x\n1,2,3\n4,5\n", "seeds.csv line 3: found '4,5', expected three whole numbers z,y,x"),
        ("z,y,x\n1,2,3.5\n", "seeds.csv line 2: found '1,2,3.5', expected three whole numbers"),
        (b"z,y,x\n\xff\xfe\n", "seeds.csv: cannot be read as CSV"),
        ("z,y,x\n99999999999999999999,1,1\n", "seeds.csv line 2: found '9{20},1,1', .* at most 18 digits"),
        (None, "seed points: found '.*seeds.csv', expected a CSV file or three whole numbers z,y,x"),
    ],
)
def test_malformed_points_are_one_clear_error(tmp_path, content, message):
    path = tmp_path / "seeds.csv"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError, match=message):
        read_points(str(path))


def test_a_single_point_has_to_fit_into_64_bits():
    assert read_points("-999999999999999999,0,1").tolist() == [[-999999999999999999, 0, 1]]
    with pytest.raises(ConfigError, match="found '9{20},1,1', expected .* at most 18 digits"):
        read_points("99999999999999999999,1,1")


def test_points_and_policy_belong_together():
    with pytest.raises(ValueError, match="seed_points: None is given, seed_policy points needs"):
        SegmentConfig(seed_policy="points")
    with pytest.raises(ValueError, match="seed_policy: grid would ignore seed_points"):
        SegmentConfig(seed_policy="grid", seed_points="1,2,3")


def test_second_seeds_lie_only_in_what_is_empty():
    image = two_tubes()
    segmentation = np.zeros(image.shape, np.int32)
    segmentation[5:16, 5:16] = 7
    segmentation[18:27, 22:35, :30] = -2
    segmentation[22, 28, 45] = -1
    seeds = empty_space_seeds(image, segmentation, (10, 10, 10), 3)
    assert seeds.tolist() == sorted(seeds.tolist())
    values = segmentation[tuple(seeds.T)]
    assert len(seeds) > 2 and set(values.tolist()) <= {0, -1}
    inside = seeds[(image[tuple(seeds.T)] > 0)]
    assert len(inside) > 0 and inside[:, 2].min() > 30  # the maxima keep away from what is masked, too


def test_second_seeds_of_an_empty_segmentation_are_the_first():
    image = two_tubes()
    empty = np.zeros(image.shape, np.int32)
    assert np.array_equal(empty_space_seeds(image, empty, (20, 10, 10), 3), peak_seeds(image, (20, 10, 10), 3))
    assert empty_space_seeds(image, empty + 1, (20, 10, 10), 3).shape == (0, 3)
