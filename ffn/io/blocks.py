"""Work on a volume block by block: in one process or in many jobs; a killed one resumes where it was.

A stage that writes voxels calls `write_blocks` once. A block is a whole shard of the output, so that jobs share no
file. ``--job 3-of-1000`` walks the third of 1000 parts of the list of blocks, ``--job finish`` comes after all parts,
and without the option one process does everything. All of them end with the same bytes.

Examples
--------
A stage that copies a volume and counts its voxels. `add_job_options` gives its command the options, `job_of` reads
them:

>>> import tempfile
>>> from ffn.io.open import open_volume
>>> box, folder = Box((0, 0, 0), (4, 6, 300)), tempfile.mkdtemp()
>>> placement = Placement(box, (40.0, 4.0, 4.0), {"stage": "copy"}, shard_zyx=(4, 6, 128))
>>> def work(block, writers):  # reads what it needs, with any halo; writes inside of the block, in parts of any size
...     for part in block.blocks((4, 6, 64)):
...         writers["0"].write(part, np.full(part.shape, 7, np.uint8))
...     return {"voxels": block.num_voxels, "starts": np.array([block.start])}  # values for JSON, and arrays
>>> def starts(learnt):  # a table beside the volume, from what all blocks returned, in the order of the blocks
...     return np.concatenate([each["starts"] for each in learnt])
>>> spec, made_of = f"{folder}/copy.zarr", {"stage": "copy", "revision": 1}
>>> for job in (Job.parse("2-of-2"), Job.parse("1-of-2"), Job.parse("finish")):
...     write_blocks(spec, {"0": np.uint8}, placement, work, made_of, job, {"starts": starts})
>>> with open_volume(spec) as volume:
...     int(volume.read().min())
7
"""

from __future__ import annotations

import argparse
import logging
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ffn.errors import ConfigError, VolumeError
from ffn.geometry import Box
from ffn.io.atomic import write_json
from ffn.io.create import Writer, create_volumes
from ffn.io.shards import Shards, shard_shape
from ffn.io.store_names import blocks_folder, split_store
from ffn.io.volume import Placement, Tables
from ffn.progress import track

if TYPE_CHECKING:
    from ffn.io.block_records import BlockRecords

log = logging.getLogger(__name__)

T = TypeVar("T")
Learnt = dict[str, Any]  # from a block: values for JSON, and arrays
Writers = Mapping[str, Writer]
BlockWork = Callable[[Box, Writers], Learnt | None]


@dataclass(frozen=True)
class Job:
    """A part of the work on a list of blocks.

    Parameters
    ----------
    number, of : int
        Which part, from 1, of how many; 0 for none.
    finishes : bool
        Whether it also does what comes after all blocks.
    record_path : str, optional
        File to write when its blocks are done, with a checksum of their records.
    step : str
        Step of the stage, see `ffn.io.steps`; empty for the last one, which writes the voxels.
    """

    number: int = 1
    of: int = 1
    finishes: bool = True
    record_path: str | None = None
    step: str = ""

    @classmethod
    def parse(cls, text: str, steps: Sequence[str] = ()) -> Job:
        """Read ``3-of-1000`` or ``finish``; of an earlier one of `steps`, ``STEP-3-of-1000`` or ``STEP-finish``.

        Raises
        ------
        ConfigError
            If it is none of these.
        """
        match = re.fullmatch(r"(?:([a-z]+\d*)-)?(?:(\d+)-of-(\d+)|finish)", text)
        if not match or (match[1] or "") not in ("", *steps) or (match[2] and not 1 <= int(match[2]) <= int(match[3])):
            also = "".join(f", or {step}-…" for step in steps)
            raise ConfigError(f"--job: {text!r} is no job, expected NUMBER-of-NUMBER, as in 3-of-1000, or finish{also}")
        return cls(int(match[2] or 0), int(match[3] or 0), finishes=match[2] is None, step=match[1] or "")

    @property
    def is_whole(self) -> bool:
        """Whether the job does everything."""
        return self.of == 1 and self.finishes

    def moved(self, by: int) -> Job:
        """Return the job that comes so many places later, after the last one the first."""
        return replace(self, number=(self.number - 1 + by) % self.of + 1) if self.of else self

    def part_of(self, blocks: Sequence[T]) -> Sequence[T]:
        """Return the blocks of the job: neighbours in the list, as many as in any other job or one more.

        Examples
        --------
        >>> [Job.parse(f"{number}-of-3").part_of(range(8)) for number in (1, 2, 3)]
        [range(0, 2), range(2, 5), range(5, 8)]
        """
        if not self.of:
            return blocks[:0]
        return blocks[(self.number - 1) * len(blocks) // self.of : self.number * len(blocks) // self.of]


WHOLE = Job()


def jobs_of(num_blocks: int, max_jobs: int) -> list[str]:
    """Return the jobs that walk a list of blocks, as ``--job`` takes them; after them comes ``finish``.

    Examples
    --------
    >>> jobs_of(2, 1000), len(jobs_of(10**6, 1000))
    (['1-of-2', '2-of-2'], 1000)
    """
    number = max(1, min(num_blocks, max_jobs))
    return [f"{job}-of-{number}" for job in range(1, number + 1)]


def add_job_options(parser: argparse.ArgumentParser, steps: Sequence[str] = ()) -> None:
    """Give `parser` the options ``--job`` and ``--job-record``; see `job_of`. A stage may have earlier `steps`."""
    text = "part of the blocks to work on, as in 3-of-1000, or finish, after all parts (default: everything)"
    text += f"; before that, {', '.join(f'{step}-…' for step in steps)}" * bool(steps)
    parser.add_argument("--job", type=partial(Job.parse, steps=steps), default=WHOLE, metavar="N-of-M", help=text)
    text = "with --job: file to write when the part is done"
    parser.add_argument("--job-record", metavar="FILE.json", help=text)


def job_of(arguments: argparse.Namespace) -> Job:
    """Return the job that the options of `add_job_options` ask for."""
    return replace(arguments.job, record_path=arguments.job_record)


def blocks_of(placement: Placement, dtypes: Mapping[str, np.dtype | type], layers: bool = False) -> list[Box]:
    """Return the blocks of a volume, which are its shards or layers of them, in zyx order; see `write_blocks`."""
    itemsize = max(np.dtype(dtype).itemsize for dtype in dtypes.values())
    box = placement.box
    shards = Shards(box, placement.shard_zyx or shard_shape(box.shape, itemsize))
    return shards.layers() if layers else shards.boxes()


def write_blocks(
    path: str,
    dtypes: Mapping[str, np.dtype | type],
    placement: Placement,
    work: BlockWork,
    made_of: Mapping[str, Any],
    job: Job = WHOLE,
    tables: Mapping[str, np.ndarray | Callable[[Sequence[Learnt]], np.ndarray]] | None = None,
    at_end: Callable[[Sequence[Learnt]], None] = lambda learnt: None,
    layers: bool = False,
) -> None:
    """Write volumes block by block; finished blocks are skipped.

    Parameters
    ----------
    path : str
        Store ``NAME.zarr``, or HDF5 file, which a single process writes, always from its beginning.
    dtypes : dict of str to dtype
        Type of each volume, see `ffn.io.create.create_volumes`.
    placement : Placement
        Box, voxel size, provenance, shards.
    work : callable
        Takes a block and a writer for each volume, and writes all voxels of the block; what it leaves out is 0. It
        returns what it learnt: values for JSON and arrays, by name. The result must not depend on other blocks.
    made_of : dict
        What the result depends on, ready for JSON: `ffn.provenance.fingerprint` with `ffn.io.open.identity` of each
        input. Blocks made of anything else are made again.
    job : Job
        Which blocks, and whether to finish.
    tables : dict of str to ndarray or callable, optional
        Small arrays beside the volumes; a callable makes one of what was learnt from the blocks, in their order. Of a
        store, each is read from its record whenever it is asked for.
    at_end : callable
        Takes the same, before the volumes appear.
    layers : bool
        Whether a block is a layer of shards, all that have the same z, rather than one.

    Raises
    ------
    VolumeError
        If a block is missing at the end, several jobs are to write an HDF5 file, or nothing can be written.
    """
    blocks = blocks_of(placement, dtypes, layers)
    learnt: Sequence[Learnt] = []

    def take(found: Sequence[Learnt]) -> None:
        nonlocal learnt
        learnt = found
        at_end(learnt)

    def made(table: Callable[[Sequence[Learnt]], np.ndarray]) -> np.ndarray:
        return table(learnt)

    late = {name: partial(made, table) if callable(table) else table for name, table in (tables or {}).items()}

    if split_store(path):
        _write_store(path, dtypes, placement, blocks, work, made_of, job, late, take)
        return
    if not job.is_whole:
        raise VolumeError(f"{path}: cannot be written by several jobs, expected NAME.zarr. Leave out --job")
    with create_volumes(path, dtypes, placement, late) as writers:
        take([work(block, writers) or {} for block in track(blocks, len(blocks), "blocks")])


def learn_blocks(
    folder: str,
    blocks: Sequence[Box],
    work: Callable[[Box], Learnt],
    made_of: Mapping[str, Any],
    job: Job = WHOLE,
) -> Sequence[Learnt]:
    """Learn something from each block of a volume, for a stage that writes no voxels; finished blocks are skipped.

    Parameters
    ----------
    folder : str
        Folder or URL for the records, see `ffn.io.store_names.blocks_folder`; `forget_blocks` comes after it. A
        single block that is all that there is to do leaves no record.
    blocks : sequence of Box
        Of a box, in zyx order.
    work, made_of, job
        See `write_blocks`.

    Returns
    -------
    sequence of dict
        What was learnt from each block, in their order, read from its record whenever it is asked for; empty if `job`
        does not finish.

    Raises
    ------
    VolumeError
        If a block is missing or damaged at the end.
    """
    from ffn.io.block_records import AllLearnt, BlockRecords
    from ffn.io.store_folder import StoreFolder

    if job.is_whole and len(blocks) == 1:
        return [work(blocks[0])]
    grid = [str(block) for block in (*blocks[:1], *blocks[-1:])]
    records = BlockRecords(StoreFolder(folder), {**made_of, "blocks": [*grid, len(blocks)]})
    for block in _to_do(records, blocks, job):
        records.write(block, work(block))
    write_job_record(job, records, blocks)
    if not job.finishes:
        return []
    learnt = AllLearnt(records, blocks, folder)
    records.remove_others(blocks)
    return learnt


def forget_blocks(folder: str, job: Job = WHOLE) -> None:
    """Remove what `learn_blocks` left, once the stage has its output.

    What several jobs left stays, so that the one that finishes can be repeated.
    """
    if job.is_whole:
        shutil.rmtree(folder, ignore_errors=True)


def _write_store(
    path: str,
    dtypes: Mapping[str, np.dtype | type],
    placement: Placement,
    blocks: Sequence[Box],
    work: BlockWork,
    made_of: Mapping[str, Any],
    job: Job,
    tables: Tables,
    take: Callable[[Sequence[Learnt]], None],
) -> None:
    """Write a store; when the job finishes, let `take` have what was learnt before the `tables` are made."""
    from ffn.io.block_records import AllLearnt, BlockRecords
    from ffn.io.store import Store, require_replaceable
    from ffn.io.store_folder import StoreFolder

    require_replaceable(path, {*dtypes, *tables})
    store = Store(StoreFolder(path), path, dtypes, placement)
    volumes = {name: dtype.name for name, dtype in store.dtypes.items()}
    made_of = {**made_of, "box": str(placement.box), "shard": store.shards.shape_zyx, "volumes": volumes}
    records = BlockRecords(StoreFolder(blocks_folder(path)), made_of, store.checksums)
    store.make_arrays()
    for block in _to_do(records, blocks, job):
        writers = store.writers(block)
        of_block = work(block, writers) or {}
        for writer in writers.values():
            writer.finish()
        records.write(block, of_block)
    write_job_record(job, records, blocks)
    if job.finishes:
        take(AllLearnt(records, blocks, path))
        checksums = {key: checksum for block in blocks for key, checksum in records.shards(block).items()}
        records.remove_others(blocks)
        store.finish(tables, checksums)


def _to_do(records: BlockRecords, blocks: Sequence[Box], job: Job) -> Iterator[Box]:
    """Yield the blocks of the job that are not finished."""
    mine = job.part_of(blocks)
    num_done = 0
    for block in track(mine, len(mine), "blocks"):
        if records.is_done(block):
            num_done += 1
            continue
        records.start(block)
        yield block
    if num_done:
        log.info("%d of %d blocks were finished before", num_done, len(mine))


def write_job_record(job: Job, records: BlockRecords, blocks: Sequence[Box]) -> None:
    """Write what Snakemake sees of a finished part: it changes when a block changes."""
    if job.record_path:
        mine = job.part_of(blocks)
        write_json(job.record_path, {"blocks": len(mine), "content": records.digest(mine)})
