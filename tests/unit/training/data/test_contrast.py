import numpy as np
import pytest

from ffn.config import Mask, ModelConfig
from ffn.errors import ModelError, VolumeError
from ffn.io.volume import Placement
from ffn.model.grey_levels import Histogram, count_levels, distance
from ffn.model.store import Model
from ffn.training.config import TrainConfig
from ffn.training.data.examples import ExampleMaker
from ffn.training.data.lanes import Record
from ffn.training.data.volumes import open_training_volumes, with_contrast
from ffn.training.parallel.process_group import ProcessGroup

from ....volumes import create_volume
from ..conftest import VOLUME_BOX

CONFIG = ModelConfig(depth=1, features=2, fov_size_zyx=(3, 5, 7), deltas_zyx=(1, 1, 2), image_mean=100, image_stddev=20)
PLAIN = TrainConfig(permutable_axes=())


def seen(specs, methods, histogram=None):
    """Return the model, and all that its network sees of the volume `a`."""
    with open_training_volumes(specs) as volumes:
        model = with_contrast(Model(CONFIG, {}, {}, histogram), volumes, specs, methods, ProcessGroup())
        center = tuple((a + b) // 2 for a, b in zip(volumes["a"].box.start, volumes["a"].box.stop, strict=True))
        example = ExampleMaker(volumes, CONFIG, PLAIN, reflects=False).make(
            Record(center, "a"), np.random.default_rng(0)
        )
        raw = volumes["a"].read_image(ExampleMaker(volumes, CONFIG, PLAIN).patch_box(Record(center, "a")))
        return model, example.image, raw


def test_training_volumes_are_normalised_as_they_will_be_segmented(make_volume, image):
    specs = make_volume(image)
    _, usual, raw = seen(specs, {})
    np.testing.assert_array_equal(usual, (raw.astype(np.float32) - 100) / 20)
    _, own, raw = seen(specs, {"a": "volume"})
    np.testing.assert_allclose(own, (raw - image.mean()) / image.std(), rtol=1e-4, atol=1e-5)


def test_the_model_records_what_its_network_saw(make_volume, image):
    whole = Histogram.of_counts(count_levels(image))
    specs = make_volume(image)
    assert seen(specs, {})[0].histogram.counts.tolist() == whole.counts.tolist()
    found = seen(specs, {"a": "volume"})[0].histogram
    assert (found.mean, found.stddev) == pytest.approx((100, 20), rel=1e-4)


def test_masked_voxels_do_not_count(make_volume, image, tmp_path):
    """A mask need not cover all of the volume; beyond it, nothing is known."""
    box = VOLUME_BOX.grow((0, -2, 0))
    masked = np.random.default_rng(2).random(box.shape) < 0.4
    with create_volume(f"{tmp_path}/mask.h5:mask", np.uint8, Placement(box)) as writer:
        writer.write(box, masked.astype(np.uint8))
    masks, known = (Mask(path=f"{tmp_path}/mask.h5:mask"),), image[:, 2:-2][~masked]
    specs = make_volume(image)
    with open_training_volumes(specs, {"a": masks}) as volumes:
        model = with_contrast(Model(CONFIG, {}, {}), volumes, specs, {"a": "volume"}, ProcessGroup())
        assert model.histogram.counts.sum() == known.size
        normalisation = volumes["a"].normalisation
        assert (normalisation.mean, normalisation.stddev) == pytest.approx((known.mean(), known.std()))
    with open_training_volumes(specs, {"a": (Mask(box="-99:99,-99:99,-99:99"),)}) as volumes:
        assert with_contrast(Model(CONFIG, {}, {}), volumes, specs, {}, ProcessGroup()).histogram is None
        with pytest.raises(VolumeError, match="a: normalize: volume"):
            with_contrast(Model(CONFIG, {}, {}), volumes, specs, {"a": "volume"}, ProcessGroup())


def test_a_volume_can_be_matched_to_what_the_initial_weights_saw(make_volume, image):
    specs = make_volume(image)
    trained = Histogram.of_counts(count_levels(np.random.default_rng(1).normal(100, 20, 9999).astype(np.uint8)))
    assert distance(seen(specs, {"a": "match"}, trained)[0].histogram, trained) < 0.1
    with pytest.raises(ModelError, match=r"volumes.a.normalize"):
        seen(specs, {"a": "match"})


def test_float_images_have_no_histogram(make_volume, image):
    specs = make_volume(image.astype(np.float32))
    assert seen(specs, {})[0].histogram is None
    with pytest.raises(VolumeError, match="a: normalize: volume"):
        seen(specs, {"a": "volume"})
