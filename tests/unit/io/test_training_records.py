import gzip
import hashlib
import json
import struct

import numpy as np
import pytest

from ffn.errors import RecordError
from ffn.io.training_records import encode_example, load_index, read_shard, shard_name, write_shard

from ...training_records import write_shards

CENTERS = np.array([[-n, n, 10 * n] for n in range(5)])


def record(content):
    return struct.pack("<Q4x", len(content)) + content + bytes(4)


@pytest.fixture
def folder(tmp_path):
    """Folder of two shards, of three and of two records."""
    write_shards(tmp_path / "records", CENTERS, (3, 2), "a")
    return tmp_path / "records"


def test_a_shard_is_read_as_zyx_with_or_without_weights(folder):
    centers, names = read_shard(folder / shard_name(0, 2))
    assert centers.tolist() == CENTERS[:3].tolist()
    assert names.tolist() == ["a", "a", "a"]
    change_index(folder, lambda index: index.pop("weights"))
    assert load_index(folder).weights == {}


def test_a_shard_has_the_bytes_of_tensorflow(tmp_path):
    """As `tf.io.TFRecordWriter` wrote a `tf.train.Example` of these features, serialised in order of their names."""
    written = bytes.fromhex(
        "40000000000000002817f495"
        "0a3e0a1b0a0663656e74657212111a0f0a0d7fac02feffffffffffffffff010a1f0a116c6162656c5f766f6c756d655f6e616d65"
        "120a0a080a06746973737565"
        "54bba3db"
    )
    write_shard(tmp_path / "r.gz", [encode_example([127, 300, -2], "tissue")])
    assert gzip.decompress((tmp_path / "r.gz").read_bytes()) == written


def test_a_shard_that_is_damaged_or_not_in_the_index_is_refused(folder):
    one, other = (folder / shard_name(number, 2) for number in range(2))
    stray = one.rename(folder / "stray.gz")
    for path in (one, stray, other):
        path.write_bytes(stray.read_bytes())
    for path in (stray, other):
        with pytest.raises(RecordError, match=f"{path.name}: .*SHA-256"):
            read_shard(path)


@pytest.mark.parametrize(
    ("records", "message"),
    [
        (bytes(2**20), "record 0 has 0 bytes"),
        (struct.pack("<Q4x", 2**40) + bytes(2**20), f"record 0 has {2**40} bytes"),
        (3 * record(encode_example((1, 2, 3), "a")) + bytes(2**20), "more than the 3 records"),
        (3 * record(encode_example((1, 2, 3), "a"))[:-20], "cannot be read"),
    ],
)
def test_a_shard_that_unpacks_to_something_else_is_refused(folder, records, message):
    """The index has its SHA-256, as the index of a stranger has; it ends at the first record that is none."""
    path = folder / shard_name(0, 2)
    path.write_bytes(gzip.compress(records))
    change_index(folder, lambda index: index["shards"][0].update(sha256=hashlib.sha256(path.read_bytes()).hexdigest()))
    with pytest.raises(RecordError, match=f"{path.name}: .*{message}"):
        read_shard(path)


def change_index(folder, change):
    index = json.loads((folder / "index.json").read_text())
    change(index)
    (folder / "index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("change", "message"),
    [(lambda index: index.update(format=2), "format"), (lambda index: index.pop("shards"), "shards: is missing")],
)
def test_an_inconsistent_index_is_refused(folder, change, message):
    change_index(folder, change)
    with pytest.raises(RecordError, match=message):
        load_index(folder)


def test_a_damaged_or_missing_index_is_refused(tmp_path, folder):
    (folder / "index.json").write_text("{")
    with pytest.raises(RecordError, match=r"index.json: "):
        load_index(folder)
    (folder / "index.json").unlink()
    with pytest.raises(RecordError, match="no index.json"):
        load_index(folder)
    with pytest.raises(RecordError, match="has no index.json"):
        load_index(tmp_path / "nowhere")
