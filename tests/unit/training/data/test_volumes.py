"""Training volumes: the box of image and labels, cache, checksum and statistics."""

import numpy as np
import pytest

from ffn.errors import VolumeError
from ffn.geometry import Box
from ffn.io.open import open_volume
from ffn.io.volume import Placement, is_ignored
from ffn.training.data.volumes import TrainingVolume, block_statistics, mean_and_stddev, open_training_volumes
from ffn.training.parallel.process_group import ProcessGroup

from ....volumes import create_volume


def test_image_and_labels_must_overlap_and_be_of_their_types(tmp_path):
    specs = {}
    for name, start, dtype in (("a", 0, np.uint8), ("b", 9, np.uint64), ("c", 0, np.float32)):
        specs[name] = f"{tmp_path}/{name}.h5:{name}"
        with create_volume(specs[name], dtype, Placement(Box.from_shape((4, 5, 6), (start, 0, 0)))):
            pass
    with open_volume(specs["a"]) as a, open_volume(specs["b"]) as b, open_volume(specs["c"]) as c:
        with pytest.raises(
            VolumeError,
            match=r"b\.h5:b: .* 9:13,0:5,0:6",
        ):
            TrainingVolume("v", a, b)
        with pytest.raises(VolumeError, match="expected integer labels"):
            TrainingVolume("v", a, c)
        # image and labels exchanged: labels that pass for an image train a network, too
        with pytest.raises(VolumeError, match=r"b\.h5:b: .*uint64"):
            TrainingVolume("v", b, a)


@pytest.mark.parametrize(("dtype", "outside"), [(np.uint64, 2**64 - 3), (np.int64, -3)])
def test_labels_of_cremi_are_ignored_as_if_ingest_had_brought_them_in(tmp_path, dtype, outside):
    box = Box((0, 0, 0), (2, 3, 4))
    labels = np.full(box.shape, 5, dtype)
    labels[1] = outside
    for name, voxels in {"raw": np.zeros(box.shape, np.uint8), "labels": labels}.items():
        with create_volume(f"{tmp_path}/{name}.h5:{name}", voxels.dtype, Placement(box)) as writer:
            writer.write(box, voxels)
    with open_training_volumes({"cremi": (f"{tmp_path}/raw.h5", f"{tmp_path}/labels.h5")}) as volumes:
        found = volumes["cremi"].read_labels(box)
    np.testing.assert_array_equal(is_ignored(found), labels != 5)


def test_mean_and_stddev_do_not_depend_on_the_shares(volume, monkeypatch):
    monkeypatch.setattr("ffn.training.data.volumes.BLOCK_ZYX", (4, 7, 9))
    voxels = volume.read_image(volume.box).astype(float)
    shares = [block_statistics(volume, share, 3) for share in range(3)]
    assert min(map(len, shares)) > 0
    together = mean_and_stddev([block for share in shares for block in share])
    assert together == mean_and_stddev(block_statistics(volume, 0, 1))
    np.testing.assert_allclose(together, (voxels.mean(), voxels.std()))


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
    with (
        open_volume(f"{tmp_path}/v.raw.h5:raw") as raw,
        open_volume(f"{tmp_path}/v.labels.h5:labels") as truth,
    ):
        on_demand = TrainingVolume("v", raw, truth)
        on_demand.load(ProcessGroup())
        box = Box.from_shape((5, 9, 13), volume.box.start)
        np.testing.assert_array_equal(on_demand.read_image(box), volume.read_image(box))
        np.testing.assert_array_equal(on_demand.read_labels(box), volume.read_labels(box))
        with pytest.raises(VolumeError, match="outside"):
            on_demand.read_labels(box.shift((-20, 0, 0)))


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_processes_on_a_machine_read_a_volume_once(volume, tmp_path, run_processes, size, monkeypatch):
    monkeypatch.setattr("ffn.training.data.volumes.CHUNK_ZYX", (2, 64, 64))
    expected, checksum, num_read = (
        (volume.read_image(volume.box), volume.read_labels(volume.box)),
        volume.checksum(),
        [],
    )

    class Counting:
        def __init__(self, volume):
            self._volume = volume
            self.name, self.box, self.dtype = volume.name, volume.box, volume.dtype
            self.voxel_size_zyx_nm = volume.voxel_size_zyx_nm

        def read(self, box):
            num_read.append(box.num_voxels)
            return self._volume.read(box)

    def load(group):
        group.local_rank, group.local_size = group.rank, group.size
        with open_volume(f"{tmp_path}/v.raw.h5:raw") as raw, open_volume(f"{tmp_path}/v.labels.h5:labels") as truth:
            loaded = TrainingVolume("v", Counting(raw), Counting(truth))
            loaded.load(group)
        np.testing.assert_equal((loaded.read_image(loaded.box), loaded.read_labels(loaded.box)), expected)
        assert loaded.checksum() == checksum

    assert run_processes(size, load) == [None] * size
    assert sum(num_read) == 2 * volume.box.num_voxels
