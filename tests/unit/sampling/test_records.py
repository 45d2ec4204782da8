"""Records are balanced and shuffled, and TensorFlow reads them."""

from collections import Counter

import numpy as np
import pytest

from ffn.errors import RecordError
from ffn.io import hdf5
from ffn.io.training_records import load_index, read_shard, shard_name
from ffn.sampling.config import RecordsConfig
from ffn.sampling.coordinates import COORDINATES_FORMAT, COORDINATES_GROUP
from ffn.sampling.records import records

CONFIG = RecordsConfig(num_shards=4, max_records=None)
SIZES = {"a": {1: 40, 3: 7}, "b": {3: 20, 9: 500}}  # voxels by volume and partition


def write_coordinates(path, sizes, x) -> str:
    """Write tables of distinct voxels: x tells the volume, y the partition, z the row."""
    with hdf5.create_file(path) as file:
        file.attrs["format"] = COORDINATES_FORMAT
        for partition, size in sizes.items():
            table = hdf5.create_rows(file, f"{COORDINATES_GROUP}/{partition}", 3, np.int32)
            rows = np.stack([np.arange(size), np.full(size, partition), np.full(size, x)], axis=1)
            hdf5.append_rows(table, rows)
    return str(path)


@pytest.fixture
def paths(tmp_path) -> dict[str, str]:
    """Files of coordinates of the volumes in `SIZES`."""
    return {
        name: write_coordinates(tmp_path / f"{name}.h5", sizes, 100_000 * number)
        for number, (name, sizes) in enumerate(SIZES.items())
    }


@pytest.fixture
def folder(tmp_path, paths):
    records(paths, tmp_path / "records", CONFIG, rng_seed=5)
    return tmp_path / "records"


def read_all(folder) -> tuple[np.ndarray, np.ndarray]:
    parts = [read_shard(folder / shard.file) for shard in load_index(folder).shards]
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def content(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_partitions_occur_equally_often_and_their_voxels_nearly(folder):
    centers, names = read_all(folder)
    assert Counter(centers[:, 1].tolist()) == {1: 500, 3: 500, 9: 500}
    counts = Counter(map(tuple, centers.tolist()))
    assert len(counts) == 40 + 27 + 500
    for partition, allowed in {1: {12, 13}, 3: {18, 19}, 9: {1}}.items():
        assert {n for center, n in counts.items() if center[1] == partition} == allowed
    np.testing.assert_array_equal(names, np.where(centers[:, 2] == 0, "a", "b"))


def test_a_cap_samples_large_partitions_without_replacement(tmp_path, paths):
    records(paths, tmp_path / "r", RecordsConfig(num_shards=2, max_records=301))
    centers, _ = read_all(tmp_path / "r")
    counts = Counter(map(tuple, centers.tolist()))
    assert Counter(centers[:, 1].tolist()) == {1: 100, 3: 100, 9: 100}
    assert max(n for center, n in counts.items() if center[1] == 9) == 1
    assert {n for center, n in counts.items() if center[1] == 1} == {2, 3}


def test_a_few_stray_voxels_are_no_share_of_the_records(tmp_path):
    path = write_coordinates(tmp_path / "c.h5", {3: 3, 4: 181, 10: 36, 6: 14_000}, 0)
    records({"a": path}, tmp_path / "r", RecordsConfig(num_shards=1, max_records=300))
    assert Counter(read_all(tmp_path / "r")[0][:, 1].tolist()) == {4: 150, 6: 150}


def test_the_result_depends_on_the_seed_and_is_described(tmp_path, paths, folder):
    for name, rng_seed in (("again", 5), ("other", 6)):
        records(paths, tmp_path / name, CONFIG, rng_seed)
    assert content(tmp_path / "again") == content(folder)
    assert not np.array_equal(read_all(tmp_path / "other")[0], read_all(folder)[0])
    index = load_index(folder)
    assert (index.num_records, index.rng_seed) == (1500, 5)
    assert index.volumes == {"a": 47, "b": 520}
    assert {p: n.num_voxels for p, n in index.partitions.items()} == {1: 40, 3: 27, 9: 500}
    assert [shard.file for shard in index.shards] == [shard_name(i, 4) for i in range(4)]
    assert {shard.num_records for shard in index.shards} == {375}
    assert index.provenance["stage"] == "records"


def test_records_replace_only_records(tmp_path, paths, folder):
    records(paths, folder, RecordsConfig(num_shards=2, max_records=90))
    assert sorted(content(folder)) == [shard_name(0, 2), shard_name(1, 2), "index.json"]
    (folder / "notes.txt").write_text("mine")
    before = content(folder)
    with pytest.raises(RecordError, match="notes.txt"):
        records(paths, folder, CONFIG)
    assert content(folder) == before


def test_unusable_coordinates_are_one_error(tmp_path, paths):
    hdf5.write_arrays(tmp_path / "other.h5", {"partitions": np.zeros((3, 4, 5))}, {})
    with pytest.raises(RecordError, match="other.h5"):
        records({"a": str(tmp_path / "other.h5")}, tmp_path / "r", CONFIG)
    with pytest.raises(RecordError, match="missing.h5"):
        records({"a": str(tmp_path / "missing.h5")}, tmp_path / "r", CONFIG)
    assert not (tmp_path / "r").exists()


def test_a_heavy_volume_uses_all_its_voxels_before_one_repeats(tmp_path, paths):
    records(paths, tmp_path / "r", CONFIG, 5, {"a": 2.5})
    centers, names = read_all(tmp_path / "r")
    of_three = centers[:, 1] == 3
    counts = {name: Counter(centers[of_three & (names == name), 0].tolist()).values() for name in "ab"}
    assert sum(counts["a"]) == round(500 * 17.5 / 37.5)  # 2.5 × 7 voxels of 2.5 × 7 + 20
    assert [set(counts[name]) for name in "ab"] == [{33, 34}, {13, 14}]


def test_records_have_no_trend(tmp_path):
    path = write_coordinates(tmp_path / "c.h5", {3: 30_000}, 0)
    records({"a": path}, tmp_path / "r", CONFIG)
    rows = read_all(tmp_path / "r")[0][:, 0]
    assert abs(np.corrcoef(np.arange(30_000), rows)[0, 1]) < 0.02
    assert abs(np.corrcoef(rows[:-1], rows[1:])[0, 1]) < 0.02


def test_weights_that_cannot_be_and_too_few_records_are_refused(tmp_path, paths):
    cases = [("a", weight, "a=") for weight in (0.0, -1.0, float("nan"), float("inf"))]
    for volume, weight, named in (*cases, ("c", 1.0, "c=")):
        with pytest.raises(RecordError, match=f"--weight: .*{named}"):
            records(paths, tmp_path / "r", CONFIG, 5, {volume: weight})
    with pytest.raises(RecordError, match="--max-records: 2"):
        records(paths, tmp_path / "r", RecordsConfig(max_records=2), 5)
    with pytest.raises(RecordError, match="--num-shards: 16"):
        records(paths, tmp_path / "r", RecordsConfig(max_records=11), 5)
