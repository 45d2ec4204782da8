import gzip
import hashlib
import json

import numpy as np
import pytest

from ffn.errors import RecordError
from ffn.io import hdf5
from ffn.io.tfrecord import encode_example, read_records, write_records
from ffn.io.training_records import (
    COORDINATES_FORMAT,
    COORDINATES_GROUP,
    coordinate_tables,
    load_index,
    read_shard,
    shard_name,
)

CENTERS_XYZ = [[10 * n, n, -n] for n in range(5)]


@pytest.fixture
def folder(tmp_path):
    """Folder of two shards, of three and of two records."""
    folder = tmp_path / "records"
    folder.mkdir()
    shards = []
    for number, centers in enumerate((CENTERS_XYZ[:3], CENTERS_XYZ[3:])):
        path = folder / shard_name(number, 2)
        write_records(path, [encode_example({"center": c, "label_volume_name": [b"a"]}) for c in centers])
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        shards.append({"file": path.name, "num_records": len(centers), "sha256": digest})
    index = {
        "format": 1,
        "num_records": 5,
        "rng_seed": 1,
        "volumes": {"a": 7},
        "weights": {"a": 1.0},
        "partitions": {"1": {"num_voxels": 7, "num_records": 5}},
        "shards": shards,
        "provenance": {},
    }
    (folder / "index.json").write_text(json.dumps(index))
    return folder


def test_a_shard_is_read_in_its_order_as_zyx(folder):
    centers, names = read_shard(folder / shard_name(0, 2))
    assert centers.tolist() == [[z, y, x] for x, y, z in CENTERS_XYZ[:3]]
    assert names.tolist() == ["a", "a", "a"]


def test_shards_of_google_ffn_are_read(tmp_path):
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


def exchange(path):
    first, *rest = read_records(path)
    write_records(path, [*rest, first])


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-30]), "is damaged"),
        (lambda path: path.write_bytes(gzip.compress(b"\x05" + bytes(40))), "the length of the record at byte 0"),
        (lambda path: write_records(path, list(read_records(path))[1:]), "holds 2 records, the index lists 3"),
        (exchange, "its SHA-256 differs from the index"),
        (lambda path: write_records(path, [b"\xff"]), "an example that cannot be read"),
        (lambda path: write_records(path, [encode_example({"center": [1, 2]})]), "an example that cannot be read"),
        (lambda path: path.unlink(), "no such file, expected a shard of records. Rerun the stage records"),
    ],
)
def test_the_error_for_a_damaged_shard_names_the_file(folder, damage, reason):
    path = folder / shard_name(0, 2)
    damage(path)
    with pytest.raises(RecordError, match=rf"{path.name}: .*{reason}"):
        read_shard(path)


def test_a_shard_that_is_not_in_the_index_is_refused(folder):
    stray = folder / shard_name(4, 5)
    stray.write_bytes((folder / shard_name(0, 2)).read_bytes())
    with pytest.raises(RecordError, match="in the index"):
        read_shard(stray)


def change_index(folder, change):
    index = json.loads((folder / "index.json").read_text())
    change(index)
    (folder / "index.json").write_text(json.dumps(index))


def test_an_index_without_weights_is_read(folder):
    change_index(folder, lambda index: index.pop("weights"))
    assert load_index(folder).weights == {}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda index: index.update(format=2), "has format 2, expected 1"),
        (lambda index: index.update(num_records=3), "its shards hold 5 records, num_records is 3"),
        (lambda index: index.pop("shards"), "shards: field required"),
        (
            lambda index: index["shards"][0].update(file="x.gz"),
            "x.gz: no such file, expected every shard that the index lists",
        ),
    ],
)
def test_an_inconsistent_index_is_refused(folder, change, message):
    change_index(folder, change)
    with pytest.raises(RecordError, match=message):
        load_index(folder)


def test_a_damaged_or_missing_index_is_refused(tmp_path, folder):
    (folder / "index.json").write_text("{")
    with pytest.raises(RecordError, match=r"index.json: is damaged"):
        load_index(folder)
    (folder / "index.json").unlink()
    with pytest.raises(RecordError, match="no index.json"):
        load_index(folder)
    with pytest.raises(RecordError, match="has no index.json"):
        load_index(tmp_path / "nowhere")


def test_tables_of_coordinates_come_in_the_order_of_partitions(tmp_path):
    with hdf5.create_file(tmp_path / "c.h5") as file:
        file.attrs["format"] = COORDINATES_FORMAT
        for partition in (10, 9, 1):
            hdf5.create_rows(file, f"{COORDINATES_GROUP}/{partition}", 3, np.int32)
    with hdf5.open_file(tmp_path / "c.h5") as file:
        assert list(coordinate_tables(file, "c.h5")) == [1, 9, 10]


def test_a_file_without_coordinates_is_refused(tmp_path):
    hdf5.write_arrays(tmp_path / "other.h5", {"partitions": np.zeros((3, 4, 5))}, {})
    with (
        hdf5.open_file(tmp_path / "other.h5") as file,
        pytest.raises(RecordError, match="other.h5: holds .'partitions'"),
    ):
        coordinate_tables(file, "other.h5")
