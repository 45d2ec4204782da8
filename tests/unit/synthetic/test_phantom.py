"""The phantom has consistent labels, is reproducible, and is hard enough for an honest demo."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError
from skimage.measure import label

from ffn.errors import VolumeError
from ffn.geometry import Box
from ffn.io.open import open_volume
from ffn.synthetic.config import SynthConfig
from ffn.synthetic.write import MIN_NEURITE_VOXELS, Phantom, connected_pieces, make_phantom, synth

SMALL = SynthConfig(shape_zyx=(24, 40, 56))
DEMO = SynthConfig(shape_zyx=(64, 88, 104))


@pytest.fixture(scope="module")
def phantom() -> Phantom:
    return make_phantom(DEMO, rng_seed=1)


def test_neurites_of_different_size_are_single_pieces_through_the_volume(phantom):
    pieces, num_pieces = label(phantom.labels, connectivity=3, return_num=True)
    ids, sizes = np.unique(phantom.labels, return_counts=True)
    assert ids.tolist() == list(range(1, num_pieces + 1))
    assert sizes.min() >= MIN_NEURITE_VOXELS
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


def test_parts_get_their_own_ids_and_small_ones_that_of_a_neighbour():
    territories = np.full((3, 4, 30), 7)
    territories[..., 10:20] = 2
    territories[1, 1, 25] = 9
    pieces = connected_pieces(territories, min_voxels=5)
    assert np.unique(pieces).tolist() == [1, 2, 3]
    assert pieces[1, 1, 25] == pieces[0, 0, 29] != pieces[0, 0, 0]


WRITTEN = SynthConfig(shape_zyx=(16, 20, 24), voxel_size_zyx_nm=(20, 10, 12))


def make(folder, rng_seed=1, image="raw.zarr", labels="labels.zarr"):
    synth(f"{folder}/{image}", f"{folder}/{labels}", WRITTEN, rng_seed)


def test_image_and_labels_have_the_same_box_and_voxel_size(tmp_path):
    make(tmp_path)
    with open_volume(f"{tmp_path}/raw.zarr") as raw, open_volume(f"{tmp_path}/labels.zarr") as labels:
        assert raw.box == labels.box == Box.from_shape((16, 20, 24))
        assert raw.voxel_size_zyx_nm == labels.voxel_size_zyx_nm == (20, 10, 12)
        assert (raw.dtype, labels.dtype) == (np.uint8, np.uint64)
        assert raw.provenance["stage"] == "synth" and raw.provenance["inputs"]["rng_seed"] == "1"
        assert np.ptp(raw.read()) > 0 and labels.read().any()


@pytest.mark.parametrize(
    ("image", "labels", "error", "message"),
    [
        ("one.zarr", "one.zarr", VolumeError, "one.zarr"),
        ("raw.h5:raw", "labels.zarr", VolumeError, "raw.h5"),
        ("raw.zarr", "labels.tif", VolumeError, "labels.tif"),
    ],
)
def test_unusable_outputs_are_refused_before_anything_is_written(tmp_path, image, labels, error, message):
    with pytest.raises(error, match=message):
        make(tmp_path, image=image, labels=labels)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wrong", [{"radius": 3}, {"shape_zyx": (8, 64, 64)}, {"neurite_radius_nm": (50.0, 20.0)}])
def test_unusable_options_are_refused(wrong: dict):
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        SynthConfig(**wrong)
