"""What one process sends is what the others get, and nothing that arrives is run."""

import json
import math
import pickle
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from ffn.training.parallel.messages import decode, encode, join, split


class Pair(NamedTuple):
    a: int
    b: str


@pytest.mark.parametrize(
    "item",
    [
        None,
        True,
        -7,
        2**70,
        0.1,
        -math.inf,
        "ü\n\ud800",  # a path may have bytes that are no text
        b"\0\xff",
        Path("/a b/ü"),
        [],
        [(1, 0.5, -0.0), (2, 1e-300, 3.0)],
        (("own-0.h5", "ab12"), None),
        {"a": {"b": [1, (2,)]}, 7: "lane", (1, 2): None, "dict": {"tuple": []}},
    ],
)
def test_items_arrive_as_they_were(item):
    found = decode(encode(item))
    assert found == item and repr(found) == repr(item)


def test_not_a_number_arrives():
    assert math.isnan(decode(encode([math.nan]))[0])


@pytest.mark.parametrize("dtype", ["float32", ">f8", "uint8", "int64", "bool", "complex64"])
@pytest.mark.parametrize("shape", [(2, 3, 4), (0, 5), ()])
def test_arrays_arrive_bit_by_bit(dtype, shape):
    array = np.arange(math.prod(shape)).reshape(shape).astype(dtype)
    found = decode(encode({"w": array}))["w"]
    assert (found.dtype, found.shape, found.tobytes()) == (array.dtype, array.shape, array.tobytes())
    found[...] = 0  # it may be written to, as the sender's may


def test_arrays_in_any_order_in_memory_arrive():
    array = np.arange(24.0).reshape(2, 3, 4).transpose(2, 0, 1)[::2]
    np.testing.assert_array_equal(decode(encode(array)), array)


def test_scalars_of_numpy_keep_their_type():
    for scalar in (np.float32(0.1), np.float64(0.1), np.int64(3), np.bool_(True)):
        found = decode(encode(scalar))
        assert found == scalar and type(found) is type(scalar)


def test_a_named_tuple_arrives_as_a_tuple():
    assert decode(encode(Pair(1, "x"))) == (1, "x")


@pytest.mark.parametrize(
    "item", [object(), {1, 2}, np.array([object()]), np.array(["a"]), [lambda: None], np.zeros(2, "i4,f4")]
)
def test_anything_else_is_not_sent(item):
    with pytest.raises(TypeError, match="cannot be sent to other processes"):
        encode(item)


@pytest.mark.parametrize(
    "message",
    [
        pickle.dumps(7),
        b"",
        b"\xff\xfe",
        b'{"module": "os"}',
        json.dumps({"array": ["|O", [1], "AAAAAAAAAAA="]}).encode(),
        json.dumps({"array": ["<f4", [9], "AAAA"]}).encode(),
    ],
)
def test_a_message_of_a_stranger_is_an_error(message):
    with pytest.raises(ValueError, match="."):
        decode(message)


def test_joined_messages_are_found_again():
    messages = [encode(1), b"", encode("x" * 300)]
    assert list(split(join(messages))) == messages
