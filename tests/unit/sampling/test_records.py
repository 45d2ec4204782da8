"""Records: balanced, shuffled, alike for any number of processes, read by TensorFlow, refused if damaged."""

import gzip
import json
from collections import Counter

import numpy as np
import pytest

from ffn.cli import main
from ffn.config import RecordsConfig
from ffn.errors import RecordError
from ffn.io import hdf5
from ffn.io.tfrecord import decode_example, encode_example, read_records, write_records
from ffn.io.training_records import COORDINATES_FORMAT, COORDINATES_GROUP, load_index, read_shard, shard_name
from ffn.sampling.balance import draw, plan_records
from ffn.sampling.records import records
from ffn.sampling.shuffle import permutation_keys, permute

SIZES = {"a": {1: 40, 3: 7}, "b": {3: 20, 9: 500}}
CONFIG = RecordsConfig(num_shards=4, max_records=None)


def write_coordinates(path, sizes, x_start) -> str:
    """Tables of distinct voxels: x tells the volume, y the partition, z the place."""
    with hdf5.create_file(path) as file:
        file.attrs["format"] = COORDINATES_FORMAT
        for partition, size in sizes.items():
            table = hdf5.create_rows(file, f"{COORDINATES_GROUP}/{partition}", 3, np.int32)
            rows = np.stack([np.arange(size), np.full(size, partition), np.full(size, x_start)], axis=1)
            hdf5.append_rows(table, rows)
    return str(path)


@pytest.fixture
def paths(tmp_path) -> dict[str, str]:
    return {
        name: write_coordinates(tmp_path / f"{name}.h5", sizes, 100_000 * number)
        for number, (name, sizes) in enumerate(SIZES.items())
    }


@pytest.fixture
def folder(tmp_path, paths):
    records(paths, tmp_path / "records", CONFIG, rng_seed=5, processes=1)
    return tmp_path / "records"


def read_all(folder) -> tuple[np.ndarray, np.ndarray]:
    parts = [read_shard(folder / shard.file) for shard in load_index(folder).shards]
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def content(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_partitions_are_equally_often_and_their_voxels_nearly(folder):
    centers, names = read_all(folder)
    assert Counter(centers[:, 1].tolist()) == {1: 500, 3: 500, 9: 500}
    counts = Counter(map(tuple, centers.tolist()))
    assert len(counts) == 40 + 27 + 500
    for partition, allowed in {1: {12, 13}, 3: {18, 19}, 9: {1}}.items():
        assert {n for center, n in counts.items() if center[1] == partition} == allowed
    np.testing.assert_array_equal(names, np.where(centers[:, 2] == 0, "a", "b"))


def test_a_cap_samples_large_partitions_without_replacement(tmp_path, paths):
    records(paths, tmp_path / "r", RecordsConfig(num_shards=2, max_records=301), processes=1)
    centers, _ = read_all(tmp_path / "r")
    counts = Counter(map(tuple, centers.tolist()))
    assert Counter(centers[:, 1].tolist()) == {1: 100, 3: 100, 9: 100}
    assert max(n for center, n in counts.items() if center[1] == 9) == 1
    assert {n for center, n in counts.items() if center[1] == 1} == {2, 3}


def counts_by_voxel(tmp_path, paths, weights, config=CONFIG) -> Counter[tuple[int, int, int]]:
    """How often each (z, partition, x of the volume) occurs."""
    records(paths, tmp_path / "weighted", config, 5, 1, weights)
    return Counter(map(tuple, read_all(tmp_path / "weighted")[0].tolist()))


@pytest.mark.parametrize("weight", [3.0, 0.25, 1.7])
def test_a_weight_is_how_often_a_voxel_of_the_volume_is_drawn(tmp_path, paths, weight):
    counts = counts_by_voxel(tmp_path, paths, {"a": weight})
    assert len(read_all(tmp_path / "weighted")[0]) == 1500  # as without weights
    for partition in (1, 3, 9):  # partitions stay equally frequent, 1 and 9 are in one volume only
        assert sum(n for center, n in counts.items() if center[1] == partition) == 500
    each = {x: [counts[z, 3, x] for z in range(SIZES["ab"[x > 0]][3])] for x in (0, 100_000)}  # 7 and 20 voxels
    a, b = np.mean(each[0]), np.mean(each[100_000])
    assert a / b == pytest.approx(weight, rel=0.1)
    for times in each.values():  # alike within a volume
        assert max(times) - min(times) <= 2 * max(1, a / b, b / a)
    assert {counts[z, 1, 0] for z in range(40)} <= {11, 12, 13, 14}


def test_weights_are_relative_and_equal_ones_change_nothing(tmp_path, paths, folder):
    records(paths, tmp_path / "r", CONFIG, 5, 1, {"a": 0.5, "b": 0.5})
    ours, theirs = content(tmp_path / "r"), content(folder)
    assert {n: c for n, c in ours.items() if n != "index.json"} == {
        n: c for n, c in theirs.items() if n != "index.json"
    }
    assert load_index(tmp_path / "r").weights == {"a": 0.5, "b": 0.5}
    assert load_index(folder).weights == {"a": 1.0, "b": 1.0}


def test_a_heavy_volume_goes_through_all_its_voxels_before_one_comes_again(paths):
    plan = plan_records(paths, CONFIG, 5, {"a": 2.5})
    assert plan.slots(3).tolist() == [18, 20]  # 2.5 x 7 of the heavy one
    partitions, voxels = draw(plan, 0, plan.num_records)
    times = np.bincount(voxels[partitions == 3], minlength=27)
    assert np.ptp(times[:7]) <= 2 and np.ptp(times[7:]) <= 1


def test_an_index_without_weights_is_read(folder):
    index = json.loads((folder / "index.json").read_text())
    del index["weights"]
    (folder / "index.json").write_text(json.dumps(index))
    assert load_index(folder).weights == {}


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_bad_weights_are_refused(paths, weight):
    with pytest.raises(RecordError, match="--weight: .* for 'a', expected a positive number"):
        plan_records(paths, CONFIG, 5, {"a": weight})
    with pytest.raises(
        RecordError, match=r"--weight: 1 is more than 1e\+06 times 1e-09, so the lighter volume would hardly ever"
    ):
        plan_records(paths, CONFIG, 5, {"a": 1e-9})
    with pytest.raises(RecordError, match=r"--weight: found volume 'c', expected one of \['a', 'b'\]"):
        plan_records(paths, CONFIG, 5, {"c": 1.0})


def test_the_order_is_shuffled_through_all_shards(folder):
    for shard in load_index(folder).shards:
        centers, _ = read_shard(folder / shard.file)
        share = np.bincount(centers[:, 1], minlength=10)[[1, 3, 9]] / len(centers)
        assert np.all(np.abs(share - 1 / 3) < 0.1)
        assert abs(np.corrcoef(np.arange(len(centers)), centers[:, 0])[0, 1]) < 0.15


def test_the_seed_alone_decides(tmp_path, paths, folder):
    for name, rng_seed, processes in (("again", 5, 1), ("parallel", 5, 2), ("other", 6, 1)):
        records(paths, tmp_path / name, CONFIG, rng_seed, processes)
    assert content(tmp_path / "again") == content(folder)
    assert content(tmp_path / "parallel") == content(folder)
    assert not np.array_equal(read_all(tmp_path / "other")[0], read_all(folder)[0])


def test_any_part_of_the_sequence_is_drawn_alone(paths):
    plan = plan_records(paths, CONFIG, 5)
    whole = draw(plan, 0, plan.num_records)
    for some, every in zip(draw(plan, 700, 1100), whole, strict=True):
        np.testing.assert_array_equal(some, every[700:1100])


def test_index_describes_the_folder(folder):
    index = load_index(folder)
    assert (index.num_records, index.rng_seed) == (1500, 5)
    assert index.volumes == {"a": 47, "b": 520}
    assert {p: n.num_voxels for p, n in index.partitions.items()} == {1: 40, 3: 27, 9: 500}
    assert [shard.file for shard in index.shards] == [shard_name(i, 4) for i in range(4)]
    assert {shard.num_records for shard in index.shards} == {375}
    assert index.provenance["stage"] == "records"


def test_shards_of_unequal_length_differ_by_one(tmp_path, paths):
    records(paths, tmp_path / "r", RecordsConfig(num_shards=7, max_records=300), processes=1)
    lengths = [shard.num_records for shard in load_index(tmp_path / "r").shards]
    assert sum(lengths) == 300 and set(lengths) == {42, 43}


def test_tensorflow_reads_the_shards(folder):
    tf = pytest.importorskip("tensorflow")
    path = folder / shard_name(2, 4)
    batch = next(iter(tf.data.TFRecordDataset(str(path), compression_type="GZIP").batch(1000)))
    features = {
        "center": tf.io.FixedLenFeature([1, 3], tf.int64),
        "label_volume_name": tf.io.FixedLenFeature([1], tf.string),
    }
    parsed = tf.io.parse_example(batch, features)
    centers, names = read_shard(path)
    np.testing.assert_array_equal(parsed["center"].numpy()[:, 0, ::-1], centers)
    assert [name.decode() for name in parsed["label_volume_name"].numpy()[:, 0]] == names.tolist()


def test_files_of_google_ffn_are_read(tmp_path):
    tf = pytest.importorskip("tensorflow")
    path = tmp_path / "coordinates-00000-of-00001.tfrecord.gz"
    with tf.io.TFRecordWriter(str(path), tf.io.TFRecordOptions(compression_type="GZIP")) as writer:
        for x in (3, 40_000):
            example = tf.train.Example()
            example.features.feature["label_volume_name"].bytes_list.value.append(b"validation1")
            example.features.feature["center"].int64_list.value.extend([x, 2, 1])
            example.features.feature["ignored"].float_list.value.append(1.5)
            writer.write(example.SerializeToString())
    centers, names = read_shard(path)
    assert centers.tolist() == [[1, 2, 3], [1, 2, 40_000]]
    assert names.tolist() == ["validation1", "validation1"]


def test_examples_have_the_bytes_of_protobuf():
    tf = pytest.importorskip("tensorflow")
    for center, name in (([0, 127, 128], b"x"), ([2**40, 300, 7], b"long" * 60), ([-1, -300, 0], b"y")):
        ours = encode_example({"center": center, "label_volume_name": [name]})
        theirs = tf.train.Example.FromString(ours)
        assert list(theirs.features.feature["center"].int64_list.value) == center
        assert ours == theirs.SerializeToString(deterministic=True)
        assert decode_example(ours) == {"center": center, "label_volume_name": [name]}


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 31, 32, 33, 1000])
def test_permute_is_a_permutation_for_every_tweak(size):
    keys = permutation_keys(np.random.default_rng(size))
    images = [permute(np.arange(size), size, keys, tweak) for tweak in range(5)]
    for image in images:
        assert sorted(image.tolist()) == list(range(size))
    mixed = permute(np.arange(size), size, keys, np.arange(size) % 5)
    assert all(mixed[i] == images[i % 5][i] for i in range(size))


def test_permute_reaches_every_order_of_three_and_leaves_no_trend():
    orders = {tuple(permute(np.arange(3), 3, permutation_keys(np.random.default_rng(seed)))) for seed in range(100)}
    assert len(orders) == 6
    image = permute(np.arange(30_000), 30_000, permutation_keys(np.random.default_rng(0)))
    assert abs(np.corrcoef(np.arange(30_000), image)[0, 1]) < 0.02
    assert abs(np.corrcoef(image[:-1], image[1:])[0, 1]) < 0.02
    assert np.count_nonzero(image == np.arange(30_000)) < 10


def flip(path, position=-20):
    damaged = bytearray(path.read_bytes())
    damaged[position] ^= 16
    path.write_bytes(damaged)


def exchange(path):
    first, *rest = read_records(path)
    write_records(path, [*rest, first])


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-30]), "is damaged"),
        (flip, "is damaged"),
        (lambda path: path.write_bytes(b"not gzip"), "is damaged"),
        (
            lambda path: path.write_bytes(gzip.compress(b"\x05" + bytes(40))),
            "the length of the record at byte 0",
        ),
        (
            lambda path: write_records(path, list(read_records(path))[1:]),
            "holds 374 records, the index lists 375",
        ),
        (exchange, "its SHA-256 differs from the index"),
        (lambda path: write_records(path, [b"\xff"]), "an example that cannot be read"),
        (
            lambda path: write_records(path, [encode_example({"center": [1, 2]})]),
            "an example that cannot be read",
        ),
        (lambda path: path.unlink(), "no such file, expected a shard of records. Rerun the stage records"),
    ],
)
def test_damaged_shards_are_refused_by_name(folder, damage, reason):
    path = folder / shard_name(1, 4)
    damage(path)
    with pytest.raises(RecordError, match=rf"{path.name}: .*{reason}"):
        read_shard(path)


def test_a_checksum_inside_the_compression_is_checked(tmp_path):
    path = tmp_path / "r.gz"
    write_records(path, [encode_example({"center": [1, 2, 3], "label_volume_name": [b"a"]})] * 2)
    plain = bytearray(gzip.decompress(path.read_bytes()))
    plain[-10] ^= 1
    path.write_bytes(gzip.compress(bytes(plain)))
    with pytest.raises(RecordError, match="the checksum of the record at byte 65 is wrong"):
        read_shard(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda index: index.update(format=2), "has format 2, expected 1"),
        (lambda index: index.update(num_records=3), "its shards hold 1500 records, num_records is 3"),
        (lambda index: index.pop("shards"), "shards: field required"),
        (
            lambda index: index["shards"][0].update(file="x.gz"),
            "x.gz: no such file, expected every shard that the index lists",
        ),
    ],
)
def test_a_bad_index_is_refused(folder, change, message):
    index = json.loads((folder / "index.json").read_text())
    change(index)
    (folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(RecordError, match=message):
        load_index(folder)


def test_an_unfinished_folder_is_refused(tmp_path, folder):
    (folder / "index.json").write_text("{")
    with pytest.raises(RecordError, match=r"index.json: is damaged"):
        load_index(folder)
    (folder / "index.json").unlink()
    with pytest.raises(RecordError, match="has no index.json, expected a folder from 'ffn records'"):
        load_index(folder)
    with pytest.raises(RecordError, match="has no index.json"):
        load_index(tmp_path / "nowhere")


def test_a_stray_shard_is_refused(folder):
    stray = folder / shard_name(4, 5)
    stray.write_bytes((folder / shard_name(0, 4)).read_bytes())
    with pytest.raises(RecordError, match="is not in the index of its folder"):
        read_shard(stray)


def test_records_replace_records_and_nothing_else(tmp_path, paths, folder):
    records(paths, folder, RecordsConfig(num_shards=2, max_records=90), processes=1)
    assert sorted(content(folder)) == [shard_name(0, 2), shard_name(1, 2), "index.json"]
    (folder / "notes.txt").write_text("mine")
    before = content(folder)
    with pytest.raises(RecordError, match="holds 'notes.txt', expected no folder or a folder of records"):
        records(paths, folder, CONFIG, processes=1)
    (tmp_path / "file").touch()
    with pytest.raises(RecordError, match="cannot be written"):
        records(paths, tmp_path / "file" / "r", CONFIG, processes=1)
    assert content(folder) == before


def test_an_interrupted_run_leaves_the_old_folder(tmp_path, paths, folder, monkeypatch):
    before = content(folder)

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("ffn.sampling.records.write_json", interrupt)
    with pytest.raises(KeyboardInterrupt):
        records(paths, folder, RecordsConfig(num_shards=2), processes=1)
    assert content(folder) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.h5", "b.h5", "records"]


def test_bad_coordinates_are_one_error(tmp_path, paths):
    hdf5.write_arrays(tmp_path / "other.h5", {"partitions": np.zeros((3, 4, 5))}, {})
    with pytest.raises(RecordError, match="other.h5: holds .'partitions'., .* written by 'ffn coordinates'"):
        records({"a": str(tmp_path / "other.h5")}, tmp_path / "r", CONFIG)
    with pytest.raises(RecordError, match="missing.h5: no such file"):
        records({"a": str(tmp_path / "missing.h5")}, tmp_path / "r", CONFIG)
    with pytest.raises(RecordError, match="--max-records: 2 leaves no record for each of the 3 partitions"):
        records(paths, tmp_path / "r", RecordsConfig(max_records=2))
    with pytest.raises(RecordError, match="--num-shards: 16 is more than the 9 records"):
        records(paths, tmp_path / "r", RecordsConfig(max_records=11))
    assert not (tmp_path / "r").exists()


def test_command_line(tmp_path, paths, folder, capsys):
    named = [f"{name}={path}" for name, path in paths.items()]
    words = ["records", "--num-shards", "4", "--max-records", "none", "--processes", "1"]
    out = tmp_path / "cli"
    assert main([*words, "--coordinates", *named, "--rng-seed", "5", "--out", str(out)]) == 0
    assert content(out) == content(folder)
    for bad, message in (
        (["a.h5"], "found 'a.h5', expected NAME=FILE.h5"),
        (["a=1.h5", "a=2.h5"], "found the volume 'a' twice"),
    ):
        assert main([*words, "--coordinates", *bad, "--out", str(out)]) == 2
        assert message in capsys.readouterr().err
    assert main([*words, "--coordinates", *named, "--weight", "a=2", "--weight", "b=0.5", "--out", str(out)]) == 0
    assert load_index(out).weights == {"a": 2.0, "b": 0.5}
    for bad, message in (
        ("a", "--weight: found 'a', expected NAME=WEIGHT"),
        ("a=heavy", "--weight: found 'heavy' for 'a', expected a positive number"),
    ):
        assert main([*words, "--coordinates", *named, "--weight", bad, "--out", str(out)]) == 2
        assert message in capsys.readouterr().err
