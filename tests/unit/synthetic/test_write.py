import numpy as np
import pytest
from pydantic import ValidationError

from ffn.errors import VolumeError
from ffn.geometry import Box
from ffn.io.open import open_volume
from ffn.synthetic.config import SynthConfig
from ffn.synthetic.write import synth

CONFIG = SynthConfig(shape_zyx=(16, 20, 24), voxel_size_zyx_nm=(20, 10, 12))


def make(folder, rng_seed=1, image="raw.zarr", labels="labels.zarr"):
    synth(f"{folder}/{image}", f"{folder}/{labels}", CONFIG, rng_seed)


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
