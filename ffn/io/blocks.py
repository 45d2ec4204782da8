"""Work on a volume block by block: in one process or in many jobs; a killed one resumes where it was.

A stage that writes voxels calls `map_blocks`, whose blocks are whole shards of the output, so that jobs share no file.
One that writes a table calls `reduce_blocks`, and one that needs a table before it writes voxels, `reduce_step`. With
``--job 3-of-1000``, a command does its share of the blocks, and what other jobs have not come to; without it, it does
all that is left, and writes the output. With ``--step NAME``, it does a step alone. The bytes are always the same.

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
>>> def starts(results):  # a table beside the volume, from the results of all blocks, in the order of the blocks
...     return np.concatenate([each["starts"] for each in results])
>>> spec, key = f"{folder}/copy.zarr", {"stage": "copy", "revision": 1}
>>> for job in (Job.parse("2-of-2"), Job.parse("1-of-2"), WHOLE):
...     map_blocks(spec, {"0": np.uint8}, placement, work, key, job, {"starts": starts})
>>> with open_volume(spec) as volume:
...     int(volume.read().min())
7
"""

from __future__ import annotations

import argparse
import contextlib
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ffn.errors import ConfigError, VolumeError
from ffn.geometry import Box
from ffn.io.atomic import write_json
from ffn.io.block_log import BlockLogs, Has, JobLog, Result, Work
from ffn.io.scratch import Table, Tables, read_tables, write_tables
from ffn.io.shards import Shards, shard_shape
from ffn.io.store_names import LAST, jobs_folder, store_to_write, tracked_file
from ffn.io.volume import Placement

if TYPE_CHECKING:
    from ffn.io.store import ShardWriter

Results = Sequence[Result]
Writers = Mapping[str, "ShardWriter"]
BlockWork = Callable[[Box, Writers], Result | None]


@dataclass(frozen=True)
class Job:
    """What a command does of a stage: everything, a step alone, or a share of the blocks of a step."""

    number: int = 0  # of the share, from 1; 0 of 0 for all that is left, and what comes after the blocks
    of: int = 0
    step: str = ""  # name of a step, see `reduce_step`; empty for everything, or for a share of `LAST`
    record_path: str | None = None  # to write when a share is done; changes with what the results depend on

    @classmethod
    def parse(cls, text: str) -> Job:
        """Read ``3-of-1000``.

        Raises
        ------
        ConfigError
            If it is something else.
        """
        match = re.fullmatch(r"(\d+)-of-(\d+)", text)
        if not match or not 1 <= int(match[1]) <= int(match[2]):
            raise ConfigError(f"--job: {text!r} is not a share, expected NUMBER-of-NUMBER, such as 3-of-1000")
        return cls(int(match[1]), int(match[2]))

    @property
    def finishes(self) -> bool:
        """Whether it also does the work after the blocks."""
        return not self.of

    @property
    def is_whole(self) -> bool:
        """Whether it does everything."""
        return not self.of and not self.step

    @property
    def writes(self) -> bool:
        """Whether it writes the output."""
        return not self.of and self.step in ("", LAST)

    def run(self, logs: BlockLogs, work: Work, has: Has = lambda _: True) -> None:
        """Do the job's part of some blocks."""
        self.remove_other_records()
        logs.run(work, self.number or 1, self.of or 1, has=has)
        self.write_record(logs)

    def remove_other_records(self) -> None:
        """Remove records of another number of jobs: their blocks may be done again, with other options."""
        if self.record_path:
            for path in Path(self.record_path).parent.glob("*-of-*.json"):
                if not path.stem.endswith(f"-of-{self.of}"):
                    path.unlink(missing_ok=True)

    def write_record(self, logs: BlockLogs) -> None:
        """Write the record of a share, which Snakemake watches."""
        if self.record_path:
            write_json(self.record_path, {"key": logs.digest})


WHOLE = Job()


def jobs_of(num_blocks: int, max_jobs: int) -> list[str]:
    """Return the shares of a number of blocks, as ``--job`` takes them.

    Examples
    --------
    >>> jobs_of(2, 1000), len(jobs_of(10**6, 1000))
    (['1-of-2', '2-of-2'], 1000)
    """
    number = max(1, min(num_blocks, max_jobs))
    return [f"{job}-of-{number}" for job in range(1, number + 1)]


def add_job_options(parser: argparse.ArgumentParser, steps: Sequence[str] = ()) -> None:
    """Give `parser` the options that `job_of` reads; a stage may have `steps` before it writes its output."""
    text = "do a share of the blocks, such as 3-of-1000, and help other jobs (default: all blocks, and the output)"
    parser.add_argument("--job", type=Job.parse, default=WHOLE, metavar="N-of-M", help=text)
    if steps:
        text = "do this step alone, or with --job a share of it (default: all steps, and the last one with --job)"
        parser.add_argument("--step", choices=[*steps, LAST], default="", help=text)
    parser.add_argument("--job-record", metavar="FILE.json", help="with --job: file to write when the share is done")


def job_of(arguments: argparse.Namespace) -> Job:
    """Return the job that the options of `add_job_options` ask for."""
    return replace(arguments.job, step=getattr(arguments, "step", ""), record_path=arguments.job_record)


def blocks_of(placement: Placement, dtypes: Mapping[str, np.dtype | type], layers: bool = False) -> list[Box]:
    """Return the blocks of a volume, which are its shards or layers of them, in zyx order; see `map_blocks`."""
    itemsize = max(np.dtype(dtype).itemsize for dtype in dtypes.values())
    box = placement.box
    shards = Shards(box, placement.shard_zyx or shard_shape(box.shape, itemsize))
    return shards.layers() if layers else shards.boxes()


def map_blocks(
    path: str,
    dtypes: Mapping[str, np.dtype | type],
    placement: Placement,
    work: BlockWork,
    key: Mapping[str, Any],
    job: Job = WHOLE,
    tables: Mapping[str, np.ndarray | Callable[[Results], np.ndarray | None]] | None = None,
    at_end: Callable[[Results], None] = lambda results: None,
    layers: bool = False,
) -> None:
    """Write volumes block by block; finished blocks are skipped.

    Parameters
    ----------
    path, dtypes, placement
        The store and its volumes, see `ffn.io.store.create_volumes`.
    work : callable
        Takes a block and a writer for each volume, and writes all voxels of the block; what it leaves out is 0. It may
        return a result: values for JSON and arrays, by name. Nothing may depend on other blocks.
    key : dict
        All that voxels and results depend on, ready for JSON: `ffn.provenance.fingerprint` with `ffn.io.open.identity`
        of each input. With another key, all blocks are done again.
    job, layers
        Which blocks, and whether to finish; whether a block is a layer of shards, all that have the same z.
    tables, at_end
        Small arrays in the store, or callables that make one, or None, of the results in the order of the blocks; what
        is called with the results before the volumes appear.
    """
    from ffn.io.store import Store, require_replaceable

    require_replaceable(path, {*dtypes, *(tables or {})})
    store = Store(store_to_write(path), Path(path).stem, dtypes, placement)
    volumes = {name: dtype.name for name, dtype in store.dtypes.items()}
    logs = BlockLogs(
        jobs_folder(path, LAST),
        {**key, "box": str(placement.box), "shard": store.shards.shape_zyx, "volumes": volumes},
        blocks_of(placement, dtypes, layers),
    )
    store.make_arrays()

    def write(block: Box) -> Result:
        writers = store.writers(block)
        result = work(block, writers) or {}
        for writer in writers.values():
            writer.finish()
        checksums = store.checksums(block)
        if None in checksums.values():  # another job at the same block has just removed a shard, to write it, too
            return write(block)
        return {**result, "shards": checksums}

    job.run(logs, write, store.has_shards)
    if job.finishes:
        logs.require_finished()
        at_end(logs)
        made = {name: table(logs) if callable(table) else table for name, table in (tables or {}).items()}
        store.finish(made, {name: checksum for each in logs for name, checksum in each["shards"].items()})
        forget_blocks(path)


def reduce_blocks(
    path: str, blocks: Sequence[Box], work: Work, key: Mapping[str, Any], job: Job = WHOLE, step: str = LAST
) -> Results | None:
    """Do a job's part of the blocks of a stage that writes no voxels; finished blocks are skipped.

    `path` is what the stage writes; logs are next to it, and `forget_blocks` comes after it. `work` takes a block and
    returns its result, see `map_blocks`. The results, in the order of the blocks, are read when they are asked for;
    they are None if `job` does not finish.
    """
    logs = BlockLogs(jobs_folder(path, step), key, blocks)
    job.run(logs, work)
    if not job.finishes:
        return None
    logs.require_finished()
    return logs


def reduce_step(
    path: str,
    step: str,
    blocks: Sequence[Box],
    work: Work,
    combine: Callable[[Iterable[Result]], Mapping[str, Table]],
    key: Mapping[str, Any],
    job: Job = WHOLE,
) -> Tables | None:
    """Do a job's part of a step, which makes tables that the jobs of what comes next read.

    See `reduce_blocks`. There are no blocks if the step only combines. `combine` goes through the results once and
    makes tables of them: arrays of one or more dimensions, by name. They are None if `job` does nothing after this
    step.

    Raises
    ------
    VolumeError
        If `job` is of a later step, and the tables are missing, or are those of another key.
    """
    folder = jobs_folder(path, step)
    if job.is_whole or job.step == step:
        results = reduce_blocks(path, blocks, work, key, job, step)
        if results is not None:
            write_tables(folder, combine(results), key)
    if job.step == step:
        return None
    made = read_tables(folder, key)
    if made is None:
        raise VolumeError(f"{folder}: has no tables of these inputs and options. Run --step {step} first")
    return made


@contextlib.contextmanager
def make_files(
    folder: str, suffix: str, boxes: Sequence[Box], key: Mapping[str, Any], job: Job = WHOLE
) -> Iterator[JobLog]:
    """Yield the boxes that a job makes files of, one after the other; each is given to `JobLog.finish` when it is made.

    The files are ``z…-y…-x….SUFFIX`` in `folder`. `boxes` are those of all jobs, with different starts; a file must not
    depend on the other boxes. One that is gone is made again.
    """
    logs = BlockLogs(jobs_folder(folder, LAST), key, boxes)

    def has(box: Box) -> bool:
        return Path(tracked_file(f"{folder}{box.stem}{suffix}")).exists()

    job.remove_other_records()
    with contextlib.closing(JobLog(logs, job.number or 1, job.of or 1, has)) as left:
        yield left
    job.write_record(logs)


def no_result(block: Box) -> Result:
    """Return nothing: the work of a step without blocks."""
    return {}


def forget_blocks(path: str) -> None:
    """Remove the logs and tables of a finished output, unless the workflow made them in several jobs."""
    folder = jobs_folder(path)
    if not any(folder.rglob("*-of-*.json")):
        shutil.rmtree(folder, ignore_errors=True)
