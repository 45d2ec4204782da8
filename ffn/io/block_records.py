"""Records of finished blocks: a killed job starts again where the first record is missing."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ffn.errors import VolumeError
from ffn.geometry import Box
from ffn.io.store_folder import StoreFolder

Checksums = Mapping[str, str | None]


class BlockRecords:
    """Small files ``z…-y…-x….json`` in a folder, one for each finished block, with the arrays of a block in ``….npz``.

    Parameters
    ----------
    folder : StoreFolder
        Where.
    made_of : dict
        What the results depend on, ready for JSON; a record of anything else does not count.
    checksums : callable
        Returns the checksums of the shards of a block, as they are now, None for one that is missing; by default a
        block has no shards.
    """

    def __init__(
        self,
        folder: StoreFolder,
        made_of: Mapping[str, Any],
        checksums: Callable[[Box], Checksums] = lambda block: {},
    ) -> None:
        self._folder = folder
        self._made_of = hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()
        self._checksums = checksums

    def is_done(self, block: Box) -> bool:
        """Whether a block has a record, and its shards and arrays are as they were when it was written."""
        record = self._record(block)
        if record is None or None in record["shards"].values() or record["shards"] != self._checksums(block):
            return False
        return record["arrays"] == self._folder.checksum(_arrays(block))

    def start(self, block: Box) -> None:
        """Remove the record of a block whose shards will change."""
        self._folder.delete(_json(block))

    def write(self, block: Box, learnt: dict[str, Any]) -> None:
        """Write the record of a block, once its shards are durable.

        Raises
        ------
        VolumeError
            If one of them is not there any more.
        """
        shards = dict(self._checksums(block))
        lost = next((name for name, checksum in shards.items() if checksum is None), None)
        if lost is not None:
            raise VolumeError(
                f"{self._folder.address}: {lost} has gone since it was written, expected one process to write it. "
                "Run the job again"
            )
        arrays = {name: value for name, value in learnt.items() if isinstance(value, np.ndarray)}
        if arrays:
            content = io.BytesIO()
            np.savez_compressed(content, **arrays)  # type: ignore[arg-type]
            self._folder.write(_arrays(block), content.getvalue())
        else:
            self._folder.delete(_arrays(block))
        record = {
            "made_of": self._made_of,
            "shards": shards,
            "arrays": self._folder.checksum(_arrays(block)),
            "learnt": {name: value for name, value in learnt.items() if name not in arrays},
        }
        self._folder.write(_json(block), (json.dumps(record, sort_keys=True) + "\n").encode())

    def has(self, block: Box) -> bool:
        """Whether a block has a record, whatever became of its shards and arrays."""
        return self._record(block) is not None

    def learnt(self, block: Box) -> dict[str, Any] | None:
        """Return what was learnt from a block, None if it is not finished, or its arrays are damaged."""
        record = self._record(block)
        if record is None or not record["arrays"]:
            return record and record["learnt"]
        content = self._folder.read(_arrays(block)) or b""
        if hashlib.sha256(content).hexdigest() != record["arrays"]:
            return None
        return {**record["learnt"], **np.load(io.BytesIO(content))}

    def shards(self, block: Box) -> Checksums:
        """Return the checksums in the record of a finished block."""
        record = self._record(block)
        return record["shards"] if record else {}

    def digest(self, blocks: Iterable[Box]) -> str:
        """Return a checksum of the records of blocks."""
        digest = hashlib.sha256()
        for block in blocks:
            digest.update(self._folder.read(_json(block)) or b"")
        return digest.hexdigest()

    def remove_others(self, blocks: Iterable[Box]) -> None:
        """Remove the records of all other blocks, which are of an earlier volume; not those in folders below."""
        known = {name for block in blocks for name in (_json(block), _arrays(block))}
        for name in self._folder.list():
            if "/" not in name and name not in known:
                self._folder.delete(name)

    def _record(self, block: Box) -> dict[str, Any] | None:
        try:
            record = json.loads(self._folder.read(_json(block)) or b"null")
        except ValueError:
            return None
        is_ours = isinstance(record, dict) and record.get("made_of") == self._made_of
        return record if is_ours and {"shards", "arrays", "learnt"} <= record.keys() else None


class AllLearnt(Sequence[dict[str, Any]]):
    """What was learnt from all blocks, each read from its record when it is asked for.

    Parameters
    ----------
    records : BlockRecords
        Of the blocks.
    blocks : sequence of Box
        All of them.
    path : str
        Of the store or folder, for messages.

    Raises
    ------
    VolumeError
        If a block is missing.
    """

    def __init__(self, records: BlockRecords, blocks: Sequence[Box], path: str) -> None:
        self._records, self._blocks, self._path = records, blocks, path
        self._require(blocks, records.has)

    def __len__(self) -> int:
        """Return how many blocks there are."""
        return len(self._blocks)

    def __getitem__(self, index: Any) -> Any:
        """Return what was learnt from one of them."""
        block = self._blocks[index]
        learnt = self._records.learnt(block)
        self._require([block], lambda _: learnt is not None)
        return learnt

    def _require(self, blocks: Sequence[Box], is_finished: Callable[[Box], bool]) -> None:
        missing = [str(block) for block in blocks if not is_finished(block)]
        if missing:
            raise VolumeError(
                f"{self._path}: {len(missing)} of {len(self)} blocks are not finished, such as {missing[0]}, expected "
                "all. Run the missing jobs"
            )


def _json(block: Box) -> str:
    return f"{block.stem}.json"


def _arrays(block: Box) -> str:
    return f"{block.stem}.npz"
