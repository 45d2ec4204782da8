"""Steps: what a stage has to learn from all blocks of a volume before it writes the first one.

A step ends with tables, which are computed once and kept in a folder (`ffn.io.store_names.steps_folder`), so that the
jobs of the next step each read what they need. ``--job STEP-3-of-1000`` walks the blocks of a step, ``--job
STEP-finish`` makes its tables, and the jobs of `ffn.io.blocks` write the voxels. One process without ``--job`` does all
of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ffn.errors import VolumeError
from ffn.geometry import Box
from ffn.io.atomic import write_json
from ffn.io.blocks import WHOLE, Job, Learnt, learn_blocks
from ffn.io.scratch import Table
from ffn.io.store_names import METADATA, steps_folder

if TYPE_CHECKING:
    from ffn.io.store_folder import StoreFolder

RECORDS, TABLES = "blocks", "tables.json"  # in the folder of a step


@dataclass(frozen=True)
class StepTables:
    """Tables of a finished step.

    Parameters
    ----------
    arrays : dict of str to array
        In memory, or on disk until they are read.
    digest : str
        Checksum of all of them.
    path : str
        Folder of the step, where they are on disk.
    """

    arrays: Mapping[str, Any]
    digest: str = ""
    path: str = ""

    def read(self, name: str, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Return rows `start` … `stop` of a table, by default all.

        Raises
        ------
        VolumeError
            If a file of the table is missing or damaged.
        """
        try:
            return np.asarray(self.arrays[name][start:stop])
        except ValueError as reason:
            from ffn.io.foreign.locations import first_line

            raise VolumeError(
                f"{self.path}/{name}: is damaged ({first_line(reason)}), expected a whole table. "
                f"Run --job {self.path.rpartition('/')[2]}-finish again"
            ) from None


def learn_tables(
    path: str,
    step: str,
    blocks: Sequence[Box],
    work: Callable[[Box], Learnt],
    combine: Callable[[Iterable[Learnt]], Mapping[str, Table]],
    made_of: Mapping[str, Any],
    job: Job = WHOLE,
) -> StepTables | None:
    """Do what `job` has to do of a step, and return its tables for what comes next.

    Parameters
    ----------
    path : str
        Store ``NAME.zarr``, JSON file or HDF5 file that the stage writes.
    step : str
        Name of the step; the steps of a stage have different ones.
    blocks : sequence of Box
        Blocks of the step, with different starts; none if it only combines.
    work : callable
        Takes a block and returns what it learnt, see `ffn.io.blocks.write_blocks`.
    combine : callable
        Makes the tables of what was learnt, in the order of the blocks: arrays of one or more dimensions, by name. It
        goes through what was learnt once, as that is read from the records one block at a time.
    made_of : dict
        What the tables depend on, see `ffn.io.blocks.write_blocks`. Tables of anything else are not read.
    job : Job
        What to do.

    Returns
    -------
    StepTables or None
        None if `job` does nothing after this step.

    Raises
    ------
    VolumeError
        If the step is not finished and `job` does not belong to it, a block is missing at the end of it, or several
        jobs are to write an HDF5 file.
    """
    address = steps_folder(path)
    if address is None:
        if not job.is_whole:
            raise VolumeError(
                f"{path}: cannot be written by several jobs, expected NAME.zarr or NAME.json. Leave out --job"
            )
        return StepTables(combine(work(block) for block in blocks))
    from ffn.io.store_folder import StoreFolder

    folder = StoreFolder(f"{address}/{step}")
    key = hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()
    if job.is_whole or job.step == step:
        part = replace(job, record_path=None) if job.finishes else job
        learnt = learn_blocks(f"{folder.address}/{RECORDS}", blocks, work, made_of, part)
        if job.finishes:
            _write(folder, combine(learnt), key)
    if job.step == step:
        if job.finishes and job.record_path:
            write_json(job.record_path, {"content": _read(folder, key, step).digest})
        return None
    return _read(folder, key, step)


def _write(folder: StoreFolder, tables: Mapping[str, Table], key: str) -> None:
    """Write the tables of a step, chunk by chunk; those of a killed job do not count."""
    from ffn.io.ome_zarr import ROWS_PER_CHUNK, table_metadata

    folder.delete(TABLES)
    digest = hashlib.sha256()
    for name, table in sorted(tables.items()):
        folder.remove(name)
        folder.write_metadata(name, table_metadata(table.shape, table.dtype))
        digest.update(f"{name} {table.shape} {table.dtype}".encode())
        array = folder.open_array(name)
        for start in range(0, len(table), ROWS_PER_CHUNK):
            rows = table[start : start + ROWS_PER_CHUNK]
            array[start : start + len(rows)].write(rows).result()
            digest.update(rows.tobytes())
    written = {"made_of": key, "digest": digest.hexdigest(), "tables": sorted(tables)}
    folder.write(TABLES, (json.dumps(written, sort_keys=True) + "\n").encode())


def _read(folder: StoreFolder, key: str, step: str) -> StepTables:
    try:
        written = json.loads(folder.read(TABLES) or b"{}")
    except ValueError:
        written = {}
    names = written.get("tables", ())
    if written.get("made_of") != key or any(folder.read(f"{name}/{METADATA}") is None for name in names):
        raise VolumeError(
            f"{folder.address}: has no tables of these inputs and options, expected those of the step before. "
            f"Run --job {step}-finish"
        )
    return StepTables({name: folder.open_array(name) for name in names}, written["digest"], folder.address)
