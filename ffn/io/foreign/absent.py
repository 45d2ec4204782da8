"""Find the chunks that an array declares but does not have, which TensorStore reads as the fill value."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorstore as ts

from ffn.io.foreign.locations import METADATA, Folder
from ffn.io.store_names import files_in

FIRST = ("0.0.0", "0/0/0")  # chunks, by either separator


@dataclass(frozen=True)
class ChunkNames:
    """How the chunks of an array are named.

    Attributes
    ----------
    folder : Folder
        Where they are.
    pattern : re.Pattern
        Of names in `folder`; with a group for each axis, unless files hold chunks of several places.
    size : tuple of int
        What the groups count in, along the axes of the array.
    """

    folder: Folder
    pattern: re.Pattern[str]
    size: tuple[int, ...]

    @classmethod
    def of(cls, store: ts.TensorStore, folder: Folder) -> ChunkNames:
        """Return those of an array that TensorStore has opened at `folder`."""
        spec: dict[str, Any] = store.spec().to_json()
        if "scale_metadata" in spec:
            scale, number = spec["scale_metadata"], r"(-?\d+)--?\d+"
            name = r"[0-9a-f]+\.shard" if scale.get("sharding") else "_".join([number] * 3)
            return cls(folder.below(scale["key"]), re.compile(name), write_chunk(store)[:3])
        metadata, prefix = spec["metadata"], ""
        encoding = metadata.get("chunk_key_encoding", {})
        separator = encoding.get("configuration", {}).get("separator") or metadata.get("dimension_separator", "/")
        if encoding.get("name") == "default":
            prefix = f"c{separator}"
        name = re.escape(prefix) + re.escape(separator).join([r"(\d+)"] * store.rank)
        return cls(folder, re.compile(name), (1,) * store.rank)

    def exist(self) -> bool:
        """Whether there is one."""
        return any(map(self.pattern.fullmatch, names_in(self.folder)))

    def missing(self, store: ts.TensorStore) -> np.ndarray | None:
        """Return which chunks are missing, bool, along the axes of the array; None where names do not tell."""
        if not self.pattern.groups:
            return None
        chunk, first = write_chunk(store), store.domain.inclusive_min
        missing = np.ones([-(-n // side) for n, side in zip(store.shape, chunk, strict=True)], bool)
        for name in names_in(self.folder):
            if match := self.pattern.fullmatch(name):
                found = zip(map(int, match.groups()), first, self.size, strict=False)
                place = tuple((n - start) // side for n, start, side in found)
                with contextlib.suppress(IndexError):  # of an array that was made smaller
                    missing[place] = False
        return missing


def write_chunk(store: ts.TensorStore) -> tuple[int, ...]:
    """Return the shape of what a file holds, along the axes of the array."""
    return tuple(int(n or 1) for n in store.chunk_layout.write_chunk.shape or ())


def names_in(folder: Folder) -> Iterator[str]:
    """Yield the names of files in a folder and those inside; of a store on another machine, those of `FIRST` there."""
    if folder.spec["driver"] == "file":
        path = folder.spec["path"]
        names = (file.removeprefix(path) for file in files_in(path))
        yield from (name for name in names if os.path.basename(name) not in METADATA)
        return
    for name in FIRST:
        with contextlib.suppress(ValueError, OSError):
            if folder.files.read(name).result().state == "value":
                yield name
