"""Lists of blocks that the jobs of a step share, such as the shards of all volumes that a stage writes.

Each list has a folder with the records of its finished blocks; a killed job loses those in flight.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ffn.geometry import Box
from ffn.io.atomic import write_json
from ffn.io.block_records import AllLearnt, BlockRecords, Checksums
from ffn.io.blocks import WHOLE, Job, Learnt
from ffn.io.store_folder import StoreFolder
from ffn.progress import track

log = logging.getLogger(__name__)

Work = Callable[[Box], Learnt]
Spread = Callable[[Work, Sequence[Box]], Iterable[Learnt]]  # applies the work to each block, in their order


class BlockList(NamedTuple):
    """Blocks, and what to do with each.

    Parameters
    ----------
    name : str
        Folder of its records.
    blocks : sequence of Box
        With different starts.
    work : callable
        Writes the files of a block, each whole or not at all, and returns what it learnt: values for JSON, and arrays.
        The result must not depend on the other blocks of the list.
    files : callable
        Returns the files of a block; those that do not exist count as such.
    """

    name: str
    blocks: Sequence[Box]
    work: Work
    files: Callable[[Box], Sequence[Path]] = lambda block: ()


class BlockLists:
    """Work on lists of blocks, in one process or in many jobs.

    Parameters
    ----------
    folder : Path
        For the records.
    made_of : dict
        As in `ffn.io.blocks.write_blocks`.
    """

    def __init__(self, folder: Path, made_of: Mapping[str, Any]) -> None:
        self._folder = folder
        self._made_of = made_of

    def work_on(
        self, lists: Sequence[BlockList], job: Job = WHOLE, spread: Spread = map, is_checked: bool = True
    ) -> None:
        """Do the part of a job of the lists, one after the other; finished blocks are skipped.

        Parameters
        ----------
        lists : sequence of BlockList
            Of all jobs; a job gets neighbours in each of them, as a block of one may take longer than one of another.
            Short lists go to different jobs.
        job : Job
            Which part. Its record, if it leaves one, changes when a block changes.
        spread : callable
            Applies the work, maybe in several threads or processes.
        is_checked : bool
            Whether the files of finished blocks are compared with their checksums, rather than taken as they are.
        """
        digest, number = hashlib.sha256(), 0
        for position, each in enumerate(lists):
            mine, records = job.moved(position).part_of(each.blocks), self._records(each)
            is_done = records.is_done if is_checked else records.has
            left = [block for block in mine if not is_done(block)]
            if len(left) < len(mine):
                log.info("%s: %d of %d blocks were finished before", each.name, len(mine) - len(left), len(mine))
            if left:
                for block in left:  # the work is spread, so that all may be in flight
                    records.start(block)
                for block, learnt in zip(left, track(spread(each.work, left), len(left), each.name), strict=True):
                    records.write(block, learnt)
            if job.record_path:
                digest.update(records.digest(mine).encode())
                number += len(mine)
        if job.record_path:
            write_json(job.record_path, {"blocks": number, "content": digest.hexdigest()})

    def learnt(self, each: BlockList, blocks: Sequence[Box] | None = None) -> AllLearnt:
        """Return what was learnt from the blocks of a list, or from some of them; each is read when it is asked for.

        Raises
        ------
        VolumeError
            If a block is not finished.
        """
        wanted = each.blocks if blocks is None else blocks
        return AllLearnt(self._records(each), wanted, str(self._folder / each.name))

    def _records(self, each: BlockList) -> BlockRecords:
        def checksums(block: Box) -> Checksums:
            return {path.name: _checksum(path) for path in each.files(block) if path.exists()}

        grid = [str(block) for block in (*each.blocks[:1], *each.blocks[-1:])]
        made_of = {**self._made_of, "blocks": [*grid, len(each.blocks)]}
        return BlockRecords(StoreFolder(str(self._folder / each.name)), made_of, checksums)


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
