import gzip

import pytest

from ffn.errors import RecordError
from ffn.io.tfrecord import decode_example, encode_example, read_records, write_records

EXAMPLE = encode_example({"center": [1, 2, 3], "label_volume_name": [b"a"]})


def test_records_are_read_back_in_order(tmp_path):
    records = [EXAMPLE, b"", b"x" * 100_000]
    write_records(tmp_path / "r.gz", records)
    assert list(read_records(tmp_path / "r.gz")) == records


def test_equal_records_make_equal_files(tmp_path):
    for name in ("a.gz", "b.gz"):
        write_records(tmp_path / name, [EXAMPLE])
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()


@pytest.mark.parametrize(
    ("center", "name"), [([0, 127, 128], b"x"), ([2**40, 300, 7], b"long" * 60), ([-1, -300, 0], b"y")]
)
def test_examples_have_the_bytes_of_protobuf(center, name):
    tf = pytest.importorskip("tensorflow")
    ours = encode_example({"center": center, "label_volume_name": [name]})
    theirs = tf.train.Example.FromString(ours)
    assert list(theirs.features.feature["center"].int64_list.value) == center
    assert ours == theirs.SerializeToString(deterministic=True)
    assert decode_example(ours) == {"center": center, "label_volume_name": [name]}


def flip(content, position):
    damaged = bytearray(content)
    damaged[position] ^= 16
    return bytes(damaged)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda content: content[:-30], ""),
        (lambda content: flip(content, -20), ""),
        (lambda content: b"not gzip", ""),
        (lambda content: gzip.compress(b"\x05" + bytes(40)), "the length of the record at byte 0 is wrong"),
        (
            lambda content: gzip.compress(flip(gzip.decompress(content), -10)),
            "the checksum of the record at byte 65 is wrong",
        ),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, damage, reason):
    path = tmp_path / "r.gz"
    write_records(path, [EXAMPLE] * 2)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(RecordError, match=f"r.gz: .*{reason}"):
        list(read_records(path))


@pytest.mark.parametrize("data", [b"\xff", b"\x0a\x05abc", b"\x08\x01", EXAMPLE[:-1]])
def test_what_is_not_an_example_is_an_error(data):
    with pytest.raises(ValueError, match="beyond its message|bytes"):
        decode_example(data)
