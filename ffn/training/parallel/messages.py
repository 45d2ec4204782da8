"""Items that processes exchange, as JSON. Unlike unpickling, reading a message can never run code of its sender."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

NUMBERS = "biufc"  # kinds of NumPy's types: no objects, no structures
LENGTH_BYTES = 8


def encode(item: object) -> bytes:
    """Return an item as bytes.

    Parameters
    ----------
    item : object
        None, a bool, int, float, str, bytes or path, an array or scalar of NumPy, or a list, tuple or dict of such
        items. A named tuple arrives as a tuple.

    Raises
    ------
    TypeError
        If there is anything else in it.

    Examples
    --------
    >>> decode(encode({"step": 3, "names": ("a", "b")}))
    {'step': 3, 'names': ('a', 'b')}
    """
    return json.dumps(_tagged(item)).encode()


def decode(message: bytes) -> Any:
    """Return the item of a message.

    Raises
    ------
    ValueError
        If `encode` did not make it.
    """
    return _item(json.loads(message))


def join(messages: Iterable[bytes]) -> bytes:
    """Put messages one after the other, each behind its length."""
    return b"".join(len(message).to_bytes(LENGTH_BYTES, "big") + message for message in messages)


def split(joined: bytes) -> Iterator[bytes]:
    """Return the messages that were joined.

    Examples
    --------
    >>> list(split(join([b"a", b""]) + join([b"cd"])))
    [b'a', b'', b'cd']
    """
    start = 0
    while start < len(joined):
        first = start + LENGTH_BYTES
        start = first + int.from_bytes(joined[start:first], "big")
        yield joined[first:start]


def _tagged(item: object) -> object:
    """Return what JSON can hold; what it has no type for becomes a pair in a dict: type and content."""
    match item:
        case np.generic():
            return {"scalar": _tagged(np.asarray(item))}
        case np.ndarray() if item.dtype.kind in NUMBERS:
            return {"array": [item.dtype.str, item.shape, _text(item.tobytes())]}
        case None | bool() | int() | float() | str():
            return item
        case list():
            return [_tagged(value) for value in item]
        case tuple():
            return {"tuple": [_tagged(value) for value in item]}
        case dict():
            return {"dict": [[_tagged(key), _tagged(value)] for key, value in item.items()]}
        case bytes():
            return {"bytes": _text(item)}
        case Path():
            return {"path": str(item)}
    raise TypeError(f"{item!r} of type {type(item).__name__} cannot be sent to other processes")


def _item(tagged: Any) -> Any:
    match tagged:
        case list():
            return [_item(value) for value in tagged]
        case {"array": [str(dtype), list(shape), str(text)]}:
            return np.frombuffer(bytearray(base64.b64decode(text)), np.dtype(dtype)).reshape(shape)
        case {"scalar": array}:
            return _item(array)[()]
        case {"tuple": list(values)}:
            return tuple(_item(value) for value in values)
        case {"dict": list(pairs)}:
            return {_item(key): _item(value) for key, value in pairs}
        case {"bytes": str(text)}:
            return base64.b64decode(text)
        case {"path": str(path)}:
            return Path(path)
        case dict():
            raise ValueError(f"found a message with {', '.join(tagged)}, expected one of this version of ffn")
    return tagged


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()
