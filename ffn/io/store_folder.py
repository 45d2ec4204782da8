"""The files of a store that is written, in a folder or an object store."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import tensorstore as ts

from ffn.errors import UnwritableError, VolumeError
from ffn.io.atomic import atomic_path, this_job
from ffn.io.faults import first_line, line_of
from ffn.io.foreign.locations import CONTEXT, CREDENTIALS, DENIED, Folder, Location, writable_store
from ffn.io.ome_zarr import encode, table_metadata
from ffn.io.store_names import METADATA


class StoreFolder(Folder):
    """Files of a store; each is written whole or not at all, and durable once it is written."""

    def __init__(self, place: str) -> None:
        location = Location.parse(place)
        self.place, self.path = place.rstrip("/"), location.path  # no path in an object store
        # A shard has one writer, and locks are unreliable on NFS.
        context = ts.Context({**CONTEXT, "file_io_locking": {"mode": "none"}})
        with self.reached():
            super().__init__(writable_store(location), context)

    def open_array(self, name: str) -> ts.TensorStore:
        """Open an array in the folder, whose metadata exist."""
        # Also what is all 0 is stored, so that a missing shard is an error.
        spec = {
            "driver": "zarr3",
            "kvstore": {**self.spec, "path": f"{self.spec['path']}{name}/"},
            "store_data_equal_to_fill_value": True,
            "fill_missing_data_reads": False,
        }
        with self.reached(name):
            return ts.open(spec, open=True, context=self.context).result()

    def read(self, key: str) -> bytes | None:
        """Return the content of a file, None if there is none."""
        with self.reached():
            result = self.files.read(key).result()
        return result.value if result.state == "value" else None

    def has(self, key: str) -> bool:
        """Whether a file exists."""
        if self.path:
            return (self.path / key).exists()
        with self.reached():
            return bool(self.files.list(ts.KvStore.KeyRange(key, key + "\0")).result())

    def write(self, key: str, content: bytes, writer: str = "") -> None:
        """Write a file; `writer` as in `atomic_path`."""
        with self.reached(key):
            if self.path:
                with atomic_path(self.path / key, writer) as temporary:
                    temporary.write_bytes(content)
            else:
                self.files.write(key, content).result()

    def write_metadata(self, name: str, metadata: dict[str, Any]) -> None:
        """Write the metadata of an array or a group, unless they are there; several processes may do so at once."""
        key, content = f"{name}/{METADATA}".lstrip("/"), encode(metadata)
        if self.read(key) != content:
            self.write(key, content, this_job())

    def write_table(self, name: str, table: np.ndarray) -> None:
        """Write a small array, in place of any that is there."""
        self.remove(name)
        self.write_metadata(name, table_metadata(table.shape, table.dtype))
        with self.reached(name):
            self.open_array(name).write(table).result()

    def delete(self, key: str) -> None:
        """Delete a file, if it exists."""
        with self.reached():
            self.files.write(key, None).result()

    def remove(self, name: str) -> None:
        """Delete a folder with all files in it, if it exists."""
        if self.path:
            shutil.rmtree(self.path / name, ignore_errors=True)
        for key in self.list(f"{name}/"):
            self.delete(key)

    def list(self, prefix: str = "") -> list[str]:
        """Return the names of the files below `prefix`, which ends with a slash; by default of all."""
        with self.reached():
            keys = self.files.list(ts.KvStore.KeyRange(prefix, prefix[:-1] + "0" if prefix else "")).result()
        return sorted(key.decode() for key in keys)

    def checksum(self, key: str) -> str | None:
        """Return the SHA-256 of a file, None if there is none."""
        content = self.read(key)
        return None if content is None else hashlib.sha256(content).hexdigest()

    @contextlib.contextmanager
    def reached(self, key: str = "") -> Iterator[None]:
        """Turn errors about addresses, rights or free space into one that names the file `key`."""
        try:
            yield
        except (ValueError, OSError) as reason:
            if self.path and (line := line_of(reason, self.path)):
                raise UnwritableError(line) from None
            found = f"{self.place}/{key}".rstrip("/") + f": cannot be written ({first_line(reason)})"
            scheme = urlsplit(self.place).scheme
            if scheme in CREDENTIALS and str(reason).startswith(DENIED):
                found = f"{found}, expected the right to write, read, list and delete. {CREDENTIALS[scheme]}"
                raise VolumeError(found) from None
            raise VolumeError(
                f"{found}, expected a folder, s3:// or gs://. Check address, free space, rights and network"
            ) from None
