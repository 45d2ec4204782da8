"""Filling: gaps go to the segment on their side of the membrane, no farther than asked, and nothing else changes."""

import numpy as np
import pytest

from ffn.assembly.fill import fill, fill_gaps
from ffn.config import FillConfig
from ffn.errors import VolumeError
from ffn.geometry import Box
from ffn.io.hdf5_volume import create_volume
from ffn.io.open import open_volume
from ffn.io.volume import Placement

SIZE = (10.0, 10.0, 20.0)
CONFIG = FillConfig(max_distance=6, sigma=0, block_size_zyx=(9, 12, 10))


def two_segments(shape=(18, 24, 31)):
    """Two segments with a gap between them; the membrane is nearer to the first."""
    labels = np.zeros(shape, np.uint64)
    labels[:, :, :8] = 2**40 + 1
    labels[:, :, 16:20] = 7
    image = np.full(shape, 200, np.uint8)
    image[:, :, 10] = 20
    return labels, image


def test_gaps_meet_on_the_membrane_not_in_the_middle():
    labels, image = two_segments()
    filled = fill_gaps(labels, image, (10, 10, 10), CONFIG)
    assert (filled[:, :, :10] == 2**40 + 1).all()
    assert (filled[:, :, 11:20] == 7).all()
    assert (filled[labels > 0] == labels[labels > 0]).all()


def test_distance_counts_in_the_smallest_side():
    labels, image = two_segments()
    assert (fill_gaps(labels, image, (10, 10, 10), CONFIG)[0, 0] > 0).sum() == 26
    assert (fill_gaps(labels, image, SIZE, CONFIG)[0, 0] > 0).sum() == 21  # 3 voxels of 20 nm


def test_blocks_do_not_show(tmp_path):
    labels, image = two_segments()
    box = Box.from_shape(labels.shape, (5, 6, 7))
    for name, voxels in (("labels", labels), ("image", image)):
        with create_volume(f"{tmp_path}/{name}.h5:{name}", voxels.dtype, Placement(box, (10, 10, 10))) as writer:
            writer.write(box, voxels)
    fill(
        f"{tmp_path}/labels.h5:labels",
        f"{tmp_path}/image.h5:image",
        f"{tmp_path}/out.h5:segmentation",
        CONFIG,
    )
    with open_volume(f"{tmp_path}/out.h5:segmentation") as volume:
        assert volume.box == box
        assert np.array_equal(volume.read(), fill_gaps(labels, image, (10, 10, 10), CONFIG))


def test_leaving_out_the_inside_of_segments_changes_nothing():
    from scipy import ndimage
    from skimage.segmentation import watershed

    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (20, 24, 28)).astype(np.uint8)
    blobs = ndimage.gaussian_filter(rng.random(image.shape), 2)
    labels = ndimage.label(blobs > np.quantile(blobs, 0.6))[0].astype(np.uint64)
    near = ndimage.distance_transform_edt(labels == 0, sampling=(1, 1, 2)) <= CONFIG.max_distance
    smooth = ndimage.gaussian_filter(image.astype(np.float32), 1.5, truncate=4.0)
    expected = watershed(-smooth, labels.astype(np.int32), mask=near)
    found = fill_gaps(labels, image, SIZE, CONFIG.model_copy(update={"sigma": 1.5}))
    assert len(np.unique(labels)) > 4
    assert np.array_equal(found, expected)


def test_less_than_a_voxel_fills_nothing():
    labels, image = two_segments()
    config = CONFIG.model_copy(update={"max_distance": 0.5})
    assert np.array_equal(fill_gaps(labels, image, SIZE, config), labels)


@pytest.mark.parametrize("labels", [np.zeros((4, 5, 6), np.uint64), np.full((4, 5, 6), 3, np.uint64)])
def test_nothing_to_fill(labels):
    assert np.array_equal(fill_gaps(labels, np.zeros(labels.shape, np.uint8), SIZE, CONFIG), labels)


def test_image_has_to_cover_the_segmentation(tmp_path):
    labels, image = two_segments()
    box = Box.from_shape(labels.shape)
    with create_volume(f"{tmp_path}/labels.h5:labels", np.uint64, Placement(box.shift((0, 0, 9)))) as writer:
        writer.write(box.shift((0, 0, 9)), labels)
    with create_volume(f"{tmp_path}/image.h5:image", np.uint8, Placement(box)) as writer:
        writer.write(box, image)
    with pytest.raises(VolumeError, match="outside of the volume"):
        fill(
            f"{tmp_path}/labels.h5:labels",
            f"{tmp_path}/image.h5:image",
            f"{tmp_path}/out.h5:segmentation",
            CONFIG,
        )
    assert not (tmp_path / "out.h5").exists()


@pytest.mark.parametrize("replaced", ["labels", "image"])
def test_inputs_are_not_replaced(replaced, tmp_path):
    labels, image = two_segments()
    box = Box.from_shape(labels.shape)
    for name, voxels in (("labels", labels), ("image", image)):
        with create_volume(f"{tmp_path}/{name}.h5:{name}", voxels.dtype, Placement(box)) as writer:
            writer.write(box, voxels)
    specs = f"{tmp_path}/labels.h5:labels", f"{tmp_path}/image.h5:image"
    with pytest.raises(VolumeError, match=f"{replaced}.h5:{replaced}: is the file of the input"):
        fill(*specs, f"{tmp_path}/{replaced}.h5:{replaced}", CONFIG)
