"""Seeds: in the middle of objects, or at given points; in order, and the same on every call."""

import numpy as np
import pytest
from scipy import ndimage

from ffn.config import SegmentConfig
from ffn.errors import ConfigError
from ffn.geometry import Box
from ffn.inference.canvas import MASKED, REJECTED
from ffn.inference.inputs import read_points
from ffn.inference.subvolume import find_seeds, in_order, peak_seeds, points_inside

BOX = Box((10, 20, 30), (20, 40, 60))
CUBES = (10.0, 10.0, 10.0)
PUBLISHED = SegmentConfig(mirror=False)
IN_SECTIONS = SegmentConfig(seed_policy="peaks_2d", mirror=False)


def image_with(*tubes, shape=(30, 40, 60)):
    """Return a dark image with bright tubes along x, each given by its slices in z and y."""
    image = np.full(shape, -1, np.float32)
    for z, y in tubes:
        image[z, y] = 1
    return image


def two_tubes():
    """Return tubes of 11 x 11 voxels around (10, 10), and of 9 x 13 voxels around (22, 28)."""
    return image_with((slice(5, 16), slice(5, 16)), (slice(18, 27), slice(22, 35)))


def bright(seeds, image):
    return seeds[image[tuple(seeds.T)] > 0]


def test_distances_to_membranes_and_masks_follow_the_voxel_size():
    """A flat tube, 11 voxels high and 27 wide: its middle is a plane; in thick sections, each has a line."""
    image = image_with((slice(14, 25), slice(10, 37)), shape=(40, 50, 60))
    cubes, high = (bright(peak_seeds(image, PUBLISHED, size), image) for size in (CUBES, (40.0, 10.0, 10.0)))
    assert set(cubes[:, 0]) == {19} and np.ptp(cubes[:, 1]) > 9
    assert set(high[:, 1]) == {23} and len(set(high[:, 0])) > 5
    image, masked = two_tubes(), np.zeros((30, 40, 60), bool)
    masked[:, :, :20] = True
    image[masked] = -9  # black, as outside of the tissue
    seeds = bright(peak_seeds(image, PUBLISHED, CUBES, masked), image)
    assert not masked[tuple(seeds.T)].any()
    assert (seeds[:, 2] >= 23).all() and len(seeds) > 5


@pytest.mark.parametrize("size", [(10.0, 10.0, 10.0), (7.7, 7.7, 7.7)])
@pytest.mark.parametrize("policy", ["peaks", "peaks_2d"])
def test_seeds_are_the_peaks_of_the_whole_however_many_threads_search_parts(policy, size):
    from skimage.feature import peak_local_max

    image = ndimage.gaussian_filter(np.random.default_rng(1).random((21, 50, 30), np.float32), 1.5)
    config = SegmentConfig(seed_policy=policy, mirror=False, seed_distance_nm=2 * size[0])
    depth = 0 if policy == "peaks" else 20
    seeds = peak_seeds(image, config, size, threads=3)
    places = [(slice(None),)] if policy == "peaks" else [(z,) for z in range(len(image))]
    expected = []
    for place in places:
        part = image[place]
        sobel = ndimage.generic_gradient_magnitude(part, ndimage.sobel)
        walls = sobel > ndimage.gaussian_filter(sobel, 490 / 6 / size[0])
        sides = size[3 - part.ndim :]
        distance = ndimage.distance_transform_edt(~walls, sampling=sides)
        noisy = np.random.RandomState(42).rand(*part.shape) * 1e-4 + distance.astype(np.float32)
        expected += [
            [*(place if part.ndim == 2 else ()), *peak]
            for peak in peak_local_max(noisy, 2, threshold_abs=depth).tolist()
        ]
    assert seeds.tolist() == sorted(expected) and len(seeds) > 20


@pytest.mark.parametrize("side", [4.0, 8.0])
def test_seeds_of_a_section_have_google_s_distance_at_any_pixel_size(side):
    noise = np.random.default_rng(0).random((1, 200, 200), np.float32)
    image = ndimage.gaussian_filter(noise, (0, 30 / side, 30 / side))
    seeds = peak_seeds(image, IN_SECTIONS, (40.0, side, side))
    apart = np.abs(seeds[:, None] - seeds[None]).max(axis=2)[~np.eye(len(seeds), dtype=bool)]
    assert len(seeds) > 10 and 56 < apart.min() * side < 80


@pytest.mark.parametrize(
    ("policy", "shape"), [("peaks", (30, 40, 12)), ("peaks", (1, 40, 60)), ("peaks_2d", (5, 40, 5))]
)
def test_objects_at_faces_have_seeds_where_the_image_is_mirrored(policy, shape):
    """A tube along x, 5 voxels high, whose middle is 2 voxels from a face; in one section, it is that face."""
    image = image_with((slice(0, 5), slice(14, 21)), shape=shape)
    for mirror in (True, False):
        config = SegmentConfig(seed_policy=policy, mirror=mirror)
        first = find_seeds(image, config, CUBES, None)
        second = find_seeds(image, config, CUBES, np.zeros(shape, bool), image < 0)
        assert bool(len(bright(first, image))) == bool(len(bright(second, image))) == mirror


def test_a_blank_image_has_no_seeds():
    assert peak_seeds(np.zeros((12, 13, 14), np.float32), PUBLISHED, CUBES).shape == (0, 3)


def test_points_inside_keep_their_order_unless_it_is_reversed(caplog):
    points = np.array([[19, 39, 59], [10, 20, 30], [20, 25, 35], [11, 22, 33]])
    inside = points_inside(points, BOX)
    assert in_order(inside, SegmentConfig()).tolist() == [[9, 19, 29], [0, 0, 0], [1, 2, 3]]
    assert in_order(inside, SegmentConfig(seed_order="reversed")).tolist() == [[1, 2, 3], [0, 0, 0], [9, 19, 29]]
    points = np.array([[9, 22, 32], [10, 20, 60]])
    assert points_inside(points, BOX.grow((1, 0, 0))).tolist() == [[0, 2, 2]] and not caplog.messages
    assert points_inside(points, BOX).shape == (0, 3)
    assert caplog.messages[0].startswith("0 of 2 ") and f"{BOX}" in caplog.messages[0]


def test_seeds_of_the_second_pass_are_in_empty_space_only():
    image = two_tubes()
    segmentation = np.zeros(image.shape, np.int32)
    segmentation[5:16, 5:16] = 7
    segmentation[18:27, 22:35, :30] = MASKED
    segmentation[22, 28, 45] = REJECTED
    seeds = find_seeds(image, SegmentConfig(mirror=False), CUBES, segmentation == MASKED, segmentation > 0)
    assert seeds.tolist() == sorted(seeds.tolist())
    values = segmentation[tuple(seeds.T)]
    assert len(seeds) > 2 and set(values.tolist()) <= {0, REJECTED}
    inside = bright(seeds, image)
    assert len(inside) > 0 and inside[:, 2].min() > 30  # maxima keep their distance from the mask


def test_points_keep_the_order_of_the_file(tmp_path):
    path = tmp_path / "seeds.csv"
    path.write_text('"z","y","x"\n19,39,59\n10, 20, 30\n20,-25,35\n\n"11","22","33"\n')  # as R writes it
    assert read_points(str(path)).tolist() == [[19, 39, 59], [10, 20, 30], [20, -25, 35], [11, 22, 33]]
    assert read_points("12, 22,32").tolist() == [[12, 22, 32]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "seeds.csv line 1: found ''"),
        ("x,y,z\n1,2,3\n", "seeds.csv line 1: found 'x,y,z'"),
        ("z,y,x\n1,2,3\n4,5\n", "seeds.csv line 3: found '4,5'"),
        ("z,y,x\n1,2,3.5\n", "seeds.csv line 2: found '1,2,3.5'"),
        (b"z,y,x\n\xff\xfe\n", "seeds.csv"),
        ("z,y,x\n99999999999999999999,1,1\n", "seeds.csv line 2: found '9{20},1,1'"),
        (None, "seed points: found '.*seeds.csv'"),
    ],
)
def test_malformed_points_are_one_clear_error(tmp_path, content, message):
    path = tmp_path / "seeds.csv"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError, match=message):
        read_points(str(path))
