"""Examples: the right voxels, softened labels, and augmentation that keeps image and labels together."""

import numpy as np
import pytest

from ffn.config import ModelConfig
from ffn.errors import ConfigError, RecordError, VolumeError
from ffn.geometry import Box
from ffn.io.hdf5_volume import create_volume
from ffn.io.open import open_volume
from ffn.io.volume import Placement
from ffn.training.config import TrainConfig
from ffn.training.data import volumes
from ffn.training.data.examples import ExampleMaker, moves, patch_size
from ffn.training.data.lanes import Record
from ffn.training.data.prefetch import DEPTH, Prefetcher
from ffn.training.data.volumes import TrainingVolume, block_statistics, mean_and_stddev

MODEL = ModelConfig(fov_size_zyx=(3, 5, 7), deltas_zyx=(1, 2, 3), image_mean=100, image_stddev=20)  # patch 5, 9, 13
PLAIN = TrainConfig(permutable_axes=(), reflectable_axes=())
IMAGE_BOX = Box((2, 0, 4), (14, 20, 34))
LABELS_BOX = Box((4, 1, 5), (14, 20, 34))


@pytest.fixture
def volume(tmp_path):
    """Image over `IMAGE_BOX`, labels 0, 1, 2 in slabs of x over the smaller `LABELS_BOX`."""
    image = np.random.default_rng(5).integers(0, 255, IMAGE_BOX.shape).astype(np.uint8)
    labels = np.zeros(LABELS_BOX.shape, np.uint64)
    labels[..., 5:15], labels[..., 15:] = 1, 2
    for name, box, voxels in (("raw", IMAGE_BOX, image), ("labels", LABELS_BOX, labels)):
        with create_volume(f"{tmp_path}/v.{name}.h5:{name}", voxels.dtype, Placement(box, (30.0, 8.0, 8.0))) as writer:
            writer.write(box, voxels)
    with (
        open_volume(f"{tmp_path}/v.raw.h5:raw") as raw,
        open_volume(f"{tmp_path}/v.labels.h5:labels") as truth,
    ):
        yield TrainingVolume("v", raw, truth)


def test_example_is_the_normalised_patch_with_soft_labels(volume):
    center = (8, 10, 18)
    example = ExampleMaker({"v": volume}, MODEL, PLAIN).make(Record(center, "v"), np.random.default_rng(0))
    box = Box((6, 6, 12), (11, 15, 25))  # the centre ± (2, 4, 6)
    assert example.image.shape == example.labels.shape == patch_size(MODEL, PLAIN) == (5, 9, 13)
    assert example.image.dtype == example.labels.dtype == np.float32
    np.testing.assert_allclose(example.image, (volume.read_image(box) - 100.0) / 20.0, rtol=1e-6)
    same_object = volume.read_labels(box) == volume.read_labels(box)[2, 4, 6]
    assert 0 < same_object.mean() < 1
    np.testing.assert_array_equal(example.labels, np.where(same_object, np.float32(0.95), np.float32(0.05)))


def test_a_patch_centred_on_background_has_no_object(volume):
    model = MODEL.model_copy(update={"fov_size_zyx": (3, 3, 3), "deltas_zyx": (1, 1, 1)})
    example = ExampleMaker({"v": volume}, model, PLAIN).make(Record((8, 10, 8), "v"), np.random.default_rng(0))
    assert (example.labels == np.float32(0.05)).all()


def test_moves_are_the_six_neighbours_in_an_order_of_the_generator(volume):
    maker = ExampleMaker({"v": volume}, MODEL, PLAIN)
    orders = {maker.make(Record((8, 10, 18), "v"), np.random.default_rng(i)).moves_zyx for i in range(8)}
    assert len(orders) > 4
    expected = {(-1, 0, 0), (1, 0, 0), (0, -2, 0), (0, 2, 0), (0, 0, -3), (0, 0, 3)}
    assert all(set(order) == expected and len(order) == 6 for order in orders)
    assert moves((0, 4, 4)) == [(0, -4, 0), (0, 4, 0), (0, 0, -4), (0, 0, 4)]


@pytest.mark.parametrize("center", [(5, 10, 18), (8, 4, 18), (8, 10, 28), (8, 10, 10)])
def test_a_patch_that_leaves_image_or_labels_names_the_coordinate(volume, center):
    maker = ExampleMaker({"v": volume}, MODEL, PLAIN)
    with pytest.raises(RecordError, match=rf"v: the patch .* around record \(z, y, x\) = \({center[0]}, {center[1]}"):
        maker.make(Record(center, "v"), np.random.default_rng(0))


def test_without_defects_orientation_and_moves_are_all_that_is_drawn(volume):
    """The stream that checkpoints of earlier versions rely on."""
    model = ModelConfig(fov_size_zyx=(3, 5, 5), deltas_zyx=(1, 2, 2), image_mean=100, image_stddev=20)
    maker = ExampleMaker({"v": volume}, model, TrainConfig(permutable_axes=("y", "x"), reflectable_axes=("z", "x")))
    box = Box((6, 6, 14), (11, 15, 23))
    for seed in range(20):
        rng, reference = np.random.default_rng(seed), np.random.default_rng(seed)
        example = maker.make(Record((8, 10, 18), "v"), rng)
        order, (z, _, x) = reference.permutation((1, 2)), reference.random(3) < 0.5
        for array, voxels in (
            (example.image, (volume.read_image(box) - np.float32(100)) / np.float32(20)),
            (example.labels, np.where(volume.read_labels(box) == 1, np.float32(0.95), np.float32(0.05))),
        ):
            expected = voxels.transpose(0, *order)[:: -1 if z else 1, :, :: -1 if x else 1]
            np.testing.assert_array_equal(array, expected)
        assert example.moves_zyx == tuple(moves(model.deltas_zyx)[i] for i in reference.permutation(6))
        assert rng.bit_generator.state == reference.bit_generator.state


def test_unlabelled_voxels_get_their_weight_and_turn_with_the_image(volume):
    center = Record((8, 10, 14), "v")  # background in its patch, as far as x = 10
    train = TrainConfig(unlabelled_weight=0.25, permutable_axes=(), reflectable_axes=("x",))
    maker = ExampleMaker({"v": volume}, MODEL, train)
    turned = set()
    for seed in range(8):
        example = maker.make(center, np.random.default_rng(seed))
        background = np.zeros(13, bool)
        background[:2] = True  # x = 8 and 9
        turned.add(flipped := bool(example.loss_weight[0, 0, -1] == 0.25))
        expected = np.where(background[:: -1 if flipped else 1], np.float32(0.25), np.float32(1))
        np.testing.assert_array_equal(example.loss_weight, np.broadcast_to(expected, (5, 9, 13)))
        assert example.labels[0, 0, 1 if flipped else -2] == np.float32(0.95)
    assert turned == {False, True}


def test_equal_weights_are_shared(volume):
    maker = ExampleMaker({"v": volume}, MODEL, PLAIN)
    one, other = (maker.make(Record((8, 10, x), "v"), np.random.default_rng(0)) for x in (16, 18))
    assert (one.loss_weight == 1).all() and one.loss_weight.shape == (5, 9, 13)
    assert one.loss_weight is other.loss_weight and not one.loss_weight.flags.writeable


def test_image_and_labels_of_a_misaligned_patch_belong_together(volume, tmp_path):
    """Where the image is the label, they stay equal voxel by voxel, and the central slice stays where it is."""
    model = MODEL.model_copy(update={"image_mean": 0.0, "image_stddev": 1.0})
    shifted = PLAIN.model_copy(update={"misaligned_slice_rate": 0.5, "max_misalignment": 3})
    record, changed = Record((8, 10, 21), "v"), 0
    with open_volume(f"{tmp_path}/v.labels.h5:labels") as truth:
        same = {"v": TrainingVolume("v", truth, truth)}
    still = ExampleMaker(same, model, PLAIN).make(record, np.random.default_rng(0))
    for seed in range(10):
        example = ExampleMaker(same, model, shifted).make(record, np.random.default_rng(seed))
        np.testing.assert_array_equal(example.labels > 0.5, example.image == 2)
        np.testing.assert_array_equal(example.labels[2], still.labels[2])
        changed += not np.array_equal(example.labels, still.labels)
    assert changed > 4


def test_what_is_validated_on_is_not_shown(volume):
    record = Record((8, 10, 18), "v")  # its patch ends at x = 25
    for box, is_shown in ((Box((4, 1, 25), (14, 20, 34)), True), (Box((10, 14, 24), (14, 20, 34)), False)):
        maker = ExampleMaker({"v": volume}, MODEL, PLAIN, {"v": box})
        if is_shown:
            maker.make(record, np.random.default_rng(0))
        else:
            with pytest.raises(RecordError, match="overlaps the validation box 10:14,14:20,24:34"):
                maker.make(record, np.random.default_rng(0))
    shifted = PLAIN.model_copy(update={"misaligned_slice_rate": 0.5, "max_misalignment": 1})
    beside = ExampleMaker({"v": volume}, MODEL, shifted, {"v": Box((4, 1, 25), (14, 20, 34))})
    with pytest.raises(RecordError, match="overlaps the validation box"):
        beside.make(record, np.random.default_rng(0))


def test_patches_grow_with_the_moves():
    assert patch_size(MODEL, TrainConfig(fov_policy="max_pred", fov_moves=3)) == (9, 17, 25)


def test_axes_of_different_patch_size_cannot_be_exchanged(volume):
    with pytest.raises(
        ConfigError, match=r"permutable_axes: y and x cannot be exchanged, patches have 9 and 13 voxels"
    ):
        ExampleMaker({"v": volume}, MODEL, TrainConfig(permutable_axes=("x", "y")))


def test_axes_of_different_voxel_size_cannot_be_exchanged(volume):
    cubic = ModelConfig(fov_size_zyx=(3, 3, 3), deltas_zyx=(1, 1, 1), image_mean=0, image_stddev=1)
    ExampleMaker({"v": volume}, cubic, TrainConfig(permutable_axes=("y", "x")))
    with pytest.raises(ConfigError, match=r"z and y cannot be exchanged, voxels of v measure 30 and 8 nm"):
        ExampleMaker({"v": volume}, cubic, TrainConfig())


def test_image_and_labels_must_overlap_and_labels_be_integers(tmp_path):
    specs = {}
    for name, start, dtype in (("a", 0, np.uint8), ("b", 9, np.uint64), ("c", 0, np.float32)):
        specs[name] = f"{tmp_path}/{name}.h5:{name}"
        with create_volume(specs[name], dtype, Placement(Box.from_shape((4, 5, 6), (start, 0, 0)))):
            pass
    with open_volume(specs["a"]) as a, open_volume(specs["b"]) as b, open_volume(specs["c"]) as c:
        with pytest.raises(
            VolumeError,
            match=r"b\.h5:b: the labels cover 9:13,0:5,0:6 and the image .* covers 0:4,0:5,0:6, expected an overlap",
        ):
            TrainingVolume("v", a, b)
        with pytest.raises(VolumeError, match="expected integer labels"):
            TrainingVolume("v", a, c)


def test_mean_and_stddev_do_not_depend_on_the_shares(volume, monkeypatch):
    monkeypatch.setattr("ffn.training.data.volumes.BLOCK_ZYX", (4, 7, 9))
    voxels = volume.read_image(LABELS_BOX).astype(float)
    shares = [block_statistics(volume, share, 3) for share in range(3)]
    assert min(map(len, shares)) > 0
    together = mean_and_stddev([block for share in shares for block in share])
    assert together == mean_and_stddev(block_statistics(volume, 0, 1))
    np.testing.assert_allclose(together, (voxels.mean(), voxels.std()))


def test_checksum_notices_another_image(volume, tmp_path):
    with create_volume(f"{tmp_path}/w.h5:raw", np.uint8, Placement(IMAGE_BOX, (30.0, 8.0, 8.0))):
        pass
    with open_volume(f"{tmp_path}/w.h5:raw") as raw, open_volume(f"{tmp_path}/v.labels.h5:labels") as truth:
        assert TrainingVolume("v", raw, truth).checksum() != volume.checksum()


def test_checksum_notices_labels_that_were_corrected_anywhere(volume, tmp_path, monkeypatch):
    monkeypatch.setattr("ffn.training.data.volumes.CHECKSUM_BLOCK_ZYX", (2, 2, 2))
    found = volume.checksum()
    with create_volume(f"{tmp_path}/w.h5:labels", np.uint64, Placement(LABELS_BOX, (30.0, 8.0, 8.0))) as writer:
        corrected = volume.read_labels(LABELS_BOX).copy()
        corrected[0, 0, 0] = 7
        writer.write(LABELS_BOX, corrected)
    with open_volume(f"{tmp_path}/v.raw.h5:raw") as raw, open_volume(f"{tmp_path}/w.h5:labels") as truth:
        assert TrainingVolume("v", raw, truth).checksum() != found


@pytest.mark.parametrize("num_bytes", [0, 300, 10**6])
def test_volumes_too_large_for_memory_are_read_in_chunks_that_stay_there(volume, tmp_path, monkeypatch, num_bytes):
    monkeypatch.setattr("ffn.training.data.volumes.PRELOAD_BYTES", 0)
    monkeypatch.setattr("ffn.training.data.volumes.CHUNK_ZYX", (4, 7, 9))
    rng = np.random.default_rng(0)
    with (
        open_volume(f"{tmp_path}/v.raw.h5:raw") as raw,
        open_volume(f"{tmp_path}/v.labels.h5:labels") as truth,
    ):
        on_demand = TrainingVolume("v", raw, truth)
        on_demand._labels._free = num_bytes
        reads, read = [], truth.read
        truth.read = lambda box: reads.append(box) or read(box)
        for _ in range(30):
            start = rng.integers(LABELS_BOX.start, np.array(LABELS_BOX.stop) - (5, 9, 13), endpoint=True)
            box = Box.from_shape((5, 9, 13), tuple(start.tolist()))
            np.testing.assert_array_equal(on_demand.read_image(box), volume.read_image(box))
            np.testing.assert_array_equal(on_demand.read_labels(box), volume.read_labels(box))
            assert on_demand.read_labels(box).dtype == np.uint64
        kept = sum(chunk.nbytes for chunk in on_demand._labels._chunks.values())
        assert kept + on_demand._labels._free == num_bytes and kept <= num_bytes
        assert len(set(reads)) == 3 * 3 * 4  # every chunk there is
        assert (len(reads) == len(set(reads))) == (num_bytes == 10**6)
        with pytest.raises(VolumeError, match="outside of the volume"):
            on_demand.read_labels(box.shift((20, 0, 0)))


def test_chunks_are_kept_in_the_smallest_type():
    for values, dtype in (([0, 255], np.uint8), ([0, 2**16], np.uint32), ([2**40, 1], np.uint64)):
        compact = volumes._compact(np.array(values, np.uint64))
        assert compact.dtype == dtype and compact.tolist() == values
    assert volumes._compact(np.array([-1, 5], np.int64)).dtype == np.int64
    assert volumes._compact(np.array([0.5], np.float32)).dtype == np.float32


def test_prefetcher_serves_each_lane_in_order_and_passes_errors_on():
    def make(lane, position):
        if (lane, position) == (4, 9):
            raise RecordError("a: bad record")
        return lane, position

    with Prefetcher(make, {3: 0, 4: 7}) as prefetcher:
        assert [prefetcher.take(3) for _ in range(DEPTH + 3)] == [(3, i) for i in range(DEPTH + 3)]
        assert [prefetcher.take(4) for _ in range(2)] == [(4, 7), (4, 8)]
        with pytest.raises(RecordError, match="bad record"):
            prefetcher.take(4)
