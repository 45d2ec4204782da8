"""Make a file for each of many boxes: in one process or in many jobs; a killed one resumes where it was."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ffn.geometry import Box
from ffn.io.blocks import WHOLE, Job, write_job_record

log = logging.getLogger(__name__)

Made = Callable[[Box], None]


def make_files(
    folder: str,
    suffix: str,
    boxes: Sequence[Box],
    work: Callable[[list[Box], Made], None],
    made_of: Mapping[str, Any],
    job: Job = WHOLE,
) -> None:
    """Make the files of the boxes of a job; those that are finished are skipped.

    Parameters
    ----------
    folder : str
        Where ``z…-y…-x….SUFFIX`` go, and a folder with the records of the finished ones.
    suffix : str
        Such as ``.h5``.
    boxes : sequence of Box
        Of all jobs, with different starts.
    work : callable
        Makes the files of the boxes that it is given, and tells of each that is finished by the function that it is
        given as well. A file must not depend on the other boxes.
    made_of : dict
        As in `ffn.io.blocks.write_blocks`.
    job : Job
        Which of the boxes; see `ffn.io.blocks`.
    """
    from ffn.io.block_records import BlockRecords
    from ffn.io.store import BLOCKS
    from ffn.io.store_folder import StoreFolder

    files = StoreFolder(folder)

    def checksum(box: Box) -> dict[str, str | None]:
        name = f"{box.stem}{suffix}"
        return {name: files.checksum(name)}

    records = BlockRecords(StoreFolder(f"{folder.rstrip('/')}/{BLOCKS}"), made_of, checksum)
    mine = job.part_of(boxes)
    left = [box for box in mine if not records.is_done(box)]
    if len(left) < len(mine):
        log.info("%d of %d files were finished before", len(mine) - len(left), len(mine))
    if left:
        work(left, lambda box: records.write(box, {}))
    write_job_record(job, records, boxes)
