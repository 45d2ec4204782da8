"""Training volumes: the box of image and labels, cache, checksum, statistics and normalisation."""

import numpy as np
import pytest

from ffn.config import Mask, ModelConfig
from ffn.errors import ModelError, VolumeError
from ffn.geometry import Box
from ffn.io.config import IngestConfig
from ffn.io.ingest import ingest
from ffn.io.open import open_volume
from ffn.io.volume import IGNORED, Placement
from ffn.model.store import Model
from ffn.model.tissue import Histogram, count_levels, distance
from ffn.training.config import TrainConfig
from ffn.training.data.examples import ExampleMaker, Record
from ffn.training.data.volumes import (
    TrainingVolume,
    block_statistics,
    mean_and_stddev,
    open_training_volumes,
    tissue_of,
    with_contrast,
)
from ffn.training.parallel.process_group import ProcessGroup

from ....volumes import create_volume, write_volume
from ..conftest import VOLUME_BOX


def test_image_and_labels_must_overlap_and_be_of_their_types(tmp_path):
    specs = {}
    for name, start, dtype in (("a", 0, np.uint8), ("b", 9, np.uint64), ("c", 0, np.float32)):
        specs[name] = f"{tmp_path}/{name}.h5:{name}"
        with create_volume(specs[name], dtype, Placement(Box.from_shape((4, 5, 6), (start, 0, 0)))):
            pass
    with open_volume(specs["a"]) as a, open_volume(specs["b"]) as b, open_volume(specs["c"]) as c:
        with pytest.raises(VolumeError, match=r"b\.h5:b: .* 9:13,0:5,0:6"):
            TrainingVolume("v", a, b)
        with pytest.raises(VolumeError, match="expected integer labels"):
            TrainingVolume("v", a, c)
        # image and labels exchanged: labels that pass for an image train a network, too
        with pytest.raises(VolumeError, match=r"b\.h5:b: .*uint64"):
            TrainingVolume("v", b, a)


def test_mean_and_stddev_do_not_depend_on_the_shares(volume, monkeypatch):
    monkeypatch.setattr("ffn.training.data.volumes.BLOCK_ZYX", (4, 7, 9))
    voxels = volume.read_image(volume.box).astype(float)
    shares = [block_statistics(volume, share, 3) for share in range(3)]
    assert min(map(len, shares)) > 0
    together = mean_and_stddev([block for share in shares for block in share])
    assert together == mean_and_stddev(block_statistics(volume, 0, 1))
    np.testing.assert_allclose(together, (voxels.mean(), voxels.std()))
    assert np.isnan(mean_and_stddev([(1, np.inf, np.inf), (1, -np.inf, np.inf)])).all()


def test_the_checksum_notices_a_corrected_label_anywhere(volume, tmp_path, monkeypatch):
    monkeypatch.setattr("ffn.training.data.volumes.CHECKSUM_BLOCK_ZYX", (2, 2, 2))
    found = volume.checksum()
    with create_volume(f"{tmp_path}/w.h5:labels", np.uint64, Placement(volume.box, (30.0, 8.0, 8.0))) as writer:
        corrected = volume.read_labels(volume.box).copy()
        corrected[0, 0, 0] = 7
        writer.write(volume.box, corrected)
    with open_volume(f"{tmp_path}/v.raw.h5:raw") as raw, open_volume(f"{tmp_path}/w.h5:labels") as truth:
        assert TrainingVolume("v", raw, truth).checksum() != found


def test_volumes_too_large_for_memory_are_read_where_they_are(volume, tmp_path, monkeypatch):
    monkeypatch.setattr("ffn.training.data.volumes.PRELOAD_BYTES", 0)
    with open_volume(f"{tmp_path}/v.raw.h5:raw") as raw, open_volume(f"{tmp_path}/v.labels.h5:labels") as truth:
        on_demand = TrainingVolume("v", raw, truth)
        on_demand.load(ProcessGroup())
        box = Box.from_shape((5, 9, 13), volume.box.start)
        np.testing.assert_array_equal(on_demand.read_image(box), volume.read_image(box))
        np.testing.assert_array_equal(on_demand.read_labels(box), volume.read_labels(box))
        with pytest.raises(VolumeError, match="outside"):
            on_demand.read_labels(box.shift((-20, 0, 0)))


@pytest.mark.parametrize(("largest", "held"), [(100, np.int8), (300, np.int16), (2**40, np.uint64)])
def test_labels_of_a_large_volume_are_held_in_the_smallest_type(
    volume, tmp_path, run_processes, monkeypatch, largest, held
):
    labels = volume.read_labels(volume.box).copy()
    labels[-1, -1, -2:] = largest, IGNORED
    spec = write_volume(f"{tmp_path}/w.h5:labels", labels, Placement(volume.box, (30.0, 8.0, 8.0)))
    monkeypatch.setattr("ffn.training.data.volumes.PRELOAD_BYTES", 3 * volume.box.num_voxels)
    monkeypatch.setattr("ffn.training.data.volumes.BLOCK_ZYX", (4, 7, 9))

    def load(group):
        with open_volume(f"{tmp_path}/v.raw.h5:raw") as raw, open_volume(spec) as truth:
            loaded = TrainingVolume("v", raw, truth)
            checksum = loaded.checksum()
            loaded.load(group)
            found = loaded.read_labels(volume.box)
            assert found.dtype == held and loaded.checksum() == checksum
            np.testing.assert_array_equal(found.astype(np.uint64), labels)

    assert run_processes(2, load) == [None] * 2


def test_a_volume_in_memory_has_the_same_voxels_and_checksum(volume):
    expected, checksum = (volume.read_image(volume.box), volume.read_labels(volume.box)), volume.checksum()
    volume.load(ProcessGroup())
    np.testing.assert_equal((volume.read_image(volume.box), volume.read_labels(volume.box)), expected)
    assert volume.checksum() == checksum


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
        return model, example.image(), raw


def test_volumes_are_normalised_as_recorded_in_the_model(make_volume, image):
    specs = make_volume(image)
    _, usual, raw = seen(specs, {})
    np.testing.assert_array_equal(usual, (raw.astype(np.float32) - 100) / 20)
    _, own, raw = seen(specs, {"a": "volume"})
    np.testing.assert_allclose(own, (raw - image.mean()) / image.std(), rtol=1e-4, atol=1e-5)
    whole = Histogram.of_counts(count_levels(image))
    assert seen(specs, {})[0].histogram.counts.tolist() == whole.counts.tolist()
    found = seen(specs, {"a": "volume"})[0].histogram
    assert (found.mean, found.stddev) == pytest.approx((100, 20), rel=1e-4)


def test_masked_voxels_do_not_count(make_volume, image, tmp_path):
    """A mask need not cover all of the volume; beyond it, nothing is known."""
    box = VOLUME_BOX.grow((0, -2, 0))
    masked = np.random.default_rng(2).random(box.shape) < 0.4
    mask = write_volume(f"{tmp_path}/mask.h5:mask", masked.astype(np.uint8), Placement(box))
    masks, known = (Mask(path=mask),), image[:, 2:-2][~masked]
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


def test_the_clahe_of_all_images_is_recorded(make_volume, image, tmp_path):
    image_spec, labels = make_volume(image)["a"]
    equalised = write_volume(
        f"{tmp_path}/even.h5:raw", image, Placement(VOLUME_BOX, provenance={"config": {"clahe_tile": 64}})
    )
    again = f"{tmp_path}/again.zarr"  # as `ffn round` takes the image of its run
    ingest(equalised, again, IngestConfig())
    known = {"a": (equalised, labels), "b": (again, labels)}
    for specs, tile in (known, 64), ({**known, "c": (image_spec, labels)}, None):
        with open_training_volumes(specs) as volumes:
            assert tissue_of(volumes).clahe_tile == tile
