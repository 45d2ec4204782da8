import numba
import numpy as np

from ffn import edges

VOXEL_SIZE = (30.0, 8.0, 10.0)


def test_the_strength_of_a_step_is_the_same_along_any_axis():
    for axis in range(3):
        step = np.moveaxis(np.arange(12)[:, None, None] >= 6 + np.zeros((12, 9, 7)), 0, axis)
        strength = edges.edge_strength(step)
        assert strength.dtype == np.float32
        profile = np.moveaxis(strength, axis, 0)[:, 3, 3]
        np.testing.assert_array_equal(np.flatnonzero(profile), [5, 6])
        assert profile[5] == 16


def test_a_voxel_depends_only_on_those_within_reach():
    image = np.random.default_rng(0).random((50, 9, 8)).astype(np.float32)
    size, blur = (10.0, 10.0, 20.0), 20.0
    reach, *_ = edges.reach(size, blur)
    whole, part = edges.edges(image, size, blur), edges.edges(image[:40], size, blur)
    np.testing.assert_array_equal(part[: 40 - reach], whole[: 40 - reach])
    assert (part[40 - reach :] != whole[40 - reach : 40]).any()


def test_distance_is_to_the_nearest_edge_in_nm():
    marks = np.random.default_rng(3).random((7, 9, 11)) < 0.02
    voxels = np.argwhere(np.ones(marks.shape)) * VOXEL_SIZE
    offsets = voxels[:, None] - np.argwhere(marks) * VOXEL_SIZE
    expected = np.sqrt((offsets**2).sum(axis=2)).min(axis=1).reshape(marks.shape)
    np.testing.assert_allclose(edges.distance(marks, VOXEL_SIZE), expected, rtol=1e-6)
    flat = np.full((7, 9, 11), 100, np.uint8)
    assert np.isinf(edges.distance(edges.edges(flat, VOXEL_SIZE), VOXEL_SIZE)).all()


def test_thick_sections_are_looked_at_one_by_one():
    image, masked = np.random.default_rng(1).random((6, 30, 30)), np.zeros((6, 30, 30), bool)
    masked[2, 9:20, 9:20] = True
    found = edges.edges(image, VOXEL_SIZE, 20.0, masked)
    for section, marks, hidden in zip(image, found, masked, strict=True):
        np.testing.assert_array_equal(marks, edges.edges(section, VOXEL_SIZE[1:], 20.0, hidden))
    thin = edges.edges(image, (16.0, 8.0, 10.0), 20.0, masked)
    assert (thin != found).any() and edges.reach(VOXEL_SIZE)[0] == 0


def test_where_no_folder_can_be_written_functions_are_compiled_all_the_same(monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_LOCATOR_CLASSES", "ZipCacheLocator")
    assert edges.compiled(lambda number: number + 1)(2) == 3
