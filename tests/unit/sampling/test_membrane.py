"""The stage `membrane` gives the same result in blocks, in boxes and as a whole."""

import numpy as np
import pytest
from scipy import ndimage

from ffn import edges
from ffn.errors import VolumeError
from ffn.geometry import Box
from ffn.io.open import open_volume
from ffn.io.volume import Placement
from ffn.sampling import membrane as stage
from ffn.sampling.config import MembraneConfig
from ffn.sampling.membrane import membrane

from ...jobs import require_same_files, running
from ...volumes import write_volume

BOX = Box((5, 0, 20), (47, 60, 97))
VOXEL_SIZE = (15.0, 8.0, 10.0)
CONFIG = MembraneConfig(blur_nm=20.0)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(stage, "MAX_DISTANCE_NM", 80.0)
    monkeypatch.setattr(stage, "MEMBRANE_BLOCK_ZYX", (13, 32, 17))


def texture(dtype, rng_seed=0) -> np.ndarray:
    """Return smooth grey levels with structure at several scales."""
    rng = np.random.default_rng(rng_seed)
    image = sum(ndimage.gaussian_filter(rng.standard_normal(BOX.shape), s) * s**1.5 for s in (1, 3, 6))
    return (127 + 40 * image / image.std()).clip(0, 255).astype(dtype)


def write_image(path, image, box=BOX, voxel_size=VOXEL_SIZE) -> str:
    return write_volume(f"{path}:raw", image, Placement(box, voxel_size))


def read(path, box=None) -> tuple[np.ndarray, np.ndarray]:
    with open_volume(f"{path}/edges") as marks, open_volume(f"{path}/distance") as distance:
        return marks.read(box), distance.read(box)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
def test_blocks_equal_the_whole_volume(tmp_path, dtype):
    image = texture(dtype)
    membrane(write_image(tmp_path / "raw.h5", image), tmp_path / "m.zarr", CONFIG)
    whole = edges.edges(image, VOXEL_SIZE, 20.0)
    marks, distance = read(tmp_path / "m.zarr")
    assert marks.dtype == np.uint8 and distance.dtype == np.float32
    np.testing.assert_array_equal(marks, whole)
    np.testing.assert_array_equal(distance, np.minimum(edges.distance(whole, VOXEL_SIZE), np.float32(80)))
    assert 0.1 < whole.mean() < 0.6 and (distance > 24).any()


def test_jobs_that_share_the_blocks_and_killed_ones_give_the_bytes_of_one(tmp_path, monkeypatch):
    monkeypatch.setattr("ffn.io.shards.MAX_SHARD", 64)
    command = ["membrane", "--image", write_image(tmp_path / "raw.h5", texture(np.uint8)), "--blur", "20"]
    made = require_same_files(running(command, "m.zarr"), tmp_path, ["2-of-2", "1-of-2", ""])
    assert len([name for name in made if name.startswith("m.zarr/edges/0/c/")]) == 2


def test_a_box_gives_its_part_and_no_edge_the_largest_distance(tmp_path):
    spec, box = write_image(tmp_path / "raw.h5", texture(np.uint8)), Box((11, 20, 30), (31, 47, 60))
    membrane(spec, tmp_path / "all.zarr", CONFIG)
    membrane(spec, tmp_path / "part.zarr", CONFIG, box)
    for part, whole in zip(read(tmp_path / "part.zarr"), read(tmp_path / "all.zarr", box), strict=True):
        np.testing.assert_array_equal(part, whole)
    flat = np.full(BOX.shape, 100, np.uint8)
    membrane(write_image(tmp_path / "flat.h5", flat), tmp_path / "m.zarr", CONFIG)
    marks, distance = read(tmp_path / "m.zarr")
    assert not marks.any() and (distance == 80).all()


def test_unusable_images_and_boxes_are_one_error(tmp_path):
    labels = write_image(tmp_path / "labels.h5", np.ones(BOX.shape, np.uint64))
    with pytest.raises(VolumeError, match="uint64"):
        membrane(labels, tmp_path / "m.zarr", CONFIG)
    image = write_image(tmp_path / "raw.h5", texture(np.uint8))
    with pytest.raises(VolumeError, match="5:47,0:60,20:97"):
        membrane(image, tmp_path / "m.zarr", CONFIG, Box((0, 0, 0), (9, 9, 9)))
    assert not (tmp_path / "m.zarr").exists()
