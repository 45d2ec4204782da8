"""Membranes: blocks equal the whole, distances are true, bad input is one clear error."""

import numpy as np
import pytest
from scipy import ndimage

from ffn import edges
from ffn.cli import main
from ffn.config import MembraneConfig
from ffn.errors import VolumeError
from ffn.geometry import Box
from ffn.io.hdf5_volume import create_volume
from ffn.io.open import open_volume
from ffn.io.volume import Placement
from ffn.sampling.membrane import membrane

BOX = Box((5, 0, 20), (47, 60, 97))
VOXEL_SIZE = (30.0, 8.0, 10.0)
CONFIG = MembraneConfig(sigma=2.0, max_distance=9.0, block_size_zyx=(13, 32, 17))


def texture(dtype, rng_seed=0) -> np.ndarray:
    """Smooth grey levels with structure at several scales."""
    rng = np.random.default_rng(rng_seed)
    image = sum(ndimage.gaussian_filter(rng.standard_normal(BOX.shape), s) * s**1.5 for s in (1, 3, 6))
    return (127 + 40 * image / image.std()).clip(0, 255).astype(dtype)


def write_image(path, image, box=BOX, voxel_size=VOXEL_SIZE) -> str:
    spec = f"{path}:raw"
    with create_volume(spec, image.dtype, Placement(box, voxel_size)) as writer:
        writer.write(box, image)
    return spec


def read(path, box=None) -> tuple[np.ndarray, np.ndarray]:
    with open_volume(f"{path}:edges") as marks, open_volume(f"{path}:distance") as distance:
        return marks.read(box), distance.read(box)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
def test_blocks_equal_the_whole_volume(tmp_path, dtype):
    image = texture(dtype)
    membrane(write_image(tmp_path / "raw.h5", image), tmp_path / "m.h5", CONFIG)
    whole = edges.edges(image, 2.0)
    marks, distance = read(tmp_path / "m.h5")
    assert marks.dtype == np.uint8 and distance.dtype == np.float32
    np.testing.assert_array_equal(marks, whole)
    np.testing.assert_array_equal(distance, np.minimum(edges.distance(whole, VOXEL_SIZE), np.float32(9)))
    assert 0.1 < whole.mean() < 0.6 and (distance > 3).any()


def test_the_default_blur_reaches_across_blocks_of_any_size(tmp_path):
    spec = write_image(tmp_path / "raw.h5", texture(np.uint8))
    for size in ((128, 128, 128), (42, 25, 31)):
        membrane(spec, tmp_path / f"{size[0]}.h5", MembraneConfig(block_size_zyx=size))
    for blocked, whole in zip(read(tmp_path / "42.h5"), read(tmp_path / "128.h5"), strict=True):
        np.testing.assert_array_equal(blocked, whole)


def test_a_box_gives_its_part_of_the_whole(tmp_path):
    spec, box = write_image(tmp_path / "raw.h5", texture(np.uint8)), Box((11, 20, 30), (31, 47, 60))
    membrane(spec, tmp_path / "all.h5", CONFIG)
    membrane(spec, tmp_path / "part.h5", CONFIG, box)
    for part, whole in zip(read(tmp_path / "part.h5"), read(tmp_path / "all.h5", box), strict=True):
        np.testing.assert_array_equal(part, whole)


def test_distance_is_the_nearest_edge_in_smallest_sides():
    marks = np.random.default_rng(3).random((7, 9, 11)) < 0.02
    voxels = np.argwhere(np.ones(marks.shape)) * VOXEL_SIZE
    offsets = voxels[:, None] - np.argwhere(marks) * VOXEL_SIZE
    expected = np.sqrt((offsets**2).sum(axis=2)).min(axis=1).reshape(marks.shape) / 8.0
    np.testing.assert_allclose(edges.distance(marks, VOXEL_SIZE), expected, rtol=1e-6)


def test_without_an_edge_nothing_is_near(tmp_path):
    flat = np.full(BOX.shape, 100, np.uint8)
    assert np.isinf(edges.distance(edges.edges(flat), VOXEL_SIZE)).all()
    membrane(write_image(tmp_path / "raw.h5", flat), tmp_path / "m.h5", CONFIG)
    marks, distance = read(tmp_path / "m.h5")
    assert not marks.any() and (distance == 9).all()


def test_strength_is_the_same_for_a_step_along_any_axis():
    for axis in range(3):
        step = np.moveaxis(np.arange(12)[:, None, None] >= 6 + np.zeros((12, 9, 7)), 0, axis)
        strength = edges.edge_strength(step)
        assert strength.dtype == np.float32
        profile = np.moveaxis(strength, axis, 0)[:, 3, 3]
        np.testing.assert_array_equal(np.flatnonzero(profile), [5, 6])
        assert profile[5] == 16


def test_a_volume_without_voxel_size_counts_as_isotropic(tmp_path, caplog):
    from ffn.io import hdf5

    image = texture(np.uint8)
    hdf5.write_arrays(tmp_path / "foreign.h5", {"raw": image}, {})
    membrane(f"{tmp_path / 'foreign.h5'}:raw", tmp_path / "m.h5", CONFIG)
    _, distance = read(tmp_path / "m.h5")
    expected = edges.distance(edges.edges(image, 2.0), (1.0, 1.0, 1.0))
    np.testing.assert_array_equal(distance, np.minimum(expected, np.float32(9)))
    assert "no voxel size" in caplog.text


def test_bad_images_and_boxes_are_one_error(tmp_path):
    labels = write_image(tmp_path / "labels.h5", np.ones(BOX.shape, np.uint64))
    with pytest.raises(VolumeError, match="has type uint64, expected an image of uint8, uint16 or float"):
        membrane(labels, tmp_path / "m.h5", CONFIG)
    image = write_image(tmp_path / "raw.h5", texture(np.uint8))
    with pytest.raises(VolumeError, match="box 0:9,0:9,0:9 is empty or outside of the volume 5:47,0:60,20:97"):
        membrane(image, tmp_path / "m.h5", CONFIG, Box((0, 0, 0), (9, 9, 9)))
    assert not (tmp_path / "m.h5").exists()


def test_command_line(tmp_path, capsys):
    image = write_image(tmp_path / "raw.h5", texture(np.uint8))
    out = str(tmp_path / "m.h5")
    assert main(["membrane", "--image", image, "--out", out, "--box", "5:20,0:20,20:50", "--sigma", "2"]) == 0
    with open_volume(f"{out}:edges") as marks:
        assert marks.box == Box((5, 0, 20), (20, 20, 50))
        assert marks.voxel_size_zyx_nm == VOXEL_SIZE
        assert marks.provenance["config"]["sigma"] == 2
    assert main(["membrane", "--image", image, "--out", out, "--sigma", "0"]) == 2
    assert "--sigma: found '0', input should be greater than 0" in capsys.readouterr().err
