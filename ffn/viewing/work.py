"""The work of an export on blocks: voxels of all mips, counts of segments, meshes and skeletons.

Each step needs those before it, and does a job's share of its blocks.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from ffn.errors import ExportError
from ffn.geometry import Box
from ffn.io.atomic import write_json, write_text
from ffn.io.block_log import BlockLogs, Result, Work
from ffn.io.blocks import Job, forget_blocks, no_result, reduce_step
from ffn.io.scratch import Table, Tables, read_tables, write_tables
from ffn.io.store_names import LAST, jobs_folder
from ffn.machine.limits import threads_here
from ffn.viewing import COARSE, MIPS, PIECES, PLAN, STATE_FILE
from ffn.viewing.config import ExportConfig
from ffn.viewing.precomputed import INFO, Layer
from ffn.viewing.segments import FOLDER, Lengths, Segments, count_segments, merge_segments
from ffn.viewing.shards import SegmentFiles


@dataclass(frozen=True)
class ExportWork:
    """The work on the blocks of an export."""

    folder: Path  # to fill
    layers: Mapping[str, Layer]  # by name
    config: ExportConfig
    key: Mapping[str, Any]  # all that the blocks depend on
    job: Job  # which share of the blocks of a step

    def begin(self) -> None:
        """If this is the first step, remove another export, and write all metadata; else require that it was done."""
        jobs = self._jobs(PLAN)
        if not self.job.is_whole and self.job.step != PLAN:
            if read_tables(jobs, self.key) is None:
                raise ExportError(f"{self.folder}: has no export of these inputs and options. Run --step {PLAN} first")
            return
        key, mark = json.dumps(self.key, sort_keys=True), jobs / "key.json"  # not a file that Snakemake watches
        if not mark.exists() or mark.read_text() != key:
            mark.unlink(missing_ok=True)  # first: after a kill, nothing is taken for a whole export
            for path in self.folder.rglob("*"):
                if path.is_file() and not path.match("*-of-*.json"):  # records, which Snakemake watches
                    path.unlink()
            write_text(mark, key)
        Path(self._state).unlink(missing_ok=True)  # the export is not finished any more
        self._create()
        write_tables(jobs, {}, self.key)

    def _create(self) -> None:
        """Write the metadata of all volumes, without voxels."""
        for layer in self.layers.values():
            layer.create()
        for layer in self._labels:
            path = layer.folder / INFO
            members = {kind.name: kind.name for kind in self._kinds if kind.layer == layer.folder}
            write_json(path, {**json.loads(path.read_text()), "segment_properties": FOLDER, **members})

    def run(self) -> dict[str, Segments] | None:
        """Do the job; return all facts about the segments of each layer if it does the last step and finishes it."""
        if self.job.step in MIPS:
            self.write_mip(MIPS.index(self.job.step))
        if self.job.step in (PLAN, *MIPS):
            return None
        counted = self._reduce(COARSE, self._count)
        if counted is None:
            return None
        pieces = self._pieces(counted)
        if pieces is None:
            return None
        with self._processes() as pool:
            for kind in self._kinds:
                self._do(self._joined_logs(kind), partial(kind.join_shard, pieces), pool)
        names = Segments.__dataclass_fields__
        return {each.name: Segments(*(_column(counted, each.name, name) for name in names)) for each in self._labels}

    def write_mip(self, mip: int) -> None:
        """Write a mip of all volumes; with mip 0, count segments."""
        with ThreadPoolExecutor(self._threads) as pool:
            for layer in self.layers.values():
                if mip < len(layer.scales):
                    if mip:
                        self._mip_logs(layer, mip - 1).require_finished()
                    self._do(self._mip_logs(layer, mip), partial(self._write_shard, layer, mip), pool)

    def _count(self, _: object) -> dict[str, Table]:
        """Complete all mips, also those that no jobs shared; return all counts."""
        for mip in range(max(len(layer.scales) for layer in self.layers.values())):
            self.write_mip(mip)
        counted: dict[str, Table] = {}
        for layer in self._labels:
            parts = (Segments(**result) for result in self._mip_logs(layer, 0))
            counted |= {f"{layer.name}-{name}": rows for name, rows in vars(merge_segments(parts)).items()}
        return counted

    def _pieces(self, counted: Tables) -> Tables | None:
        """Make meshes and skeletons in blocks, and sort their pieces."""
        if self.job.is_whole or self.job.step == PIECES:
            with self._processes() as pool:
                for kind in self._kinds:
                    ids, voxels = (_column(counted, kind.layer.name, name) for name in ("ids", "voxels"))
                    shown = ids[voxels >= self.config.min_mesh_voxels]
                    self._do(self._piece_logs(kind), partial(kind.write_pieces, shown), pool)

        def combine(_: object) -> dict[str, Table]:
            made: dict[str, Table] = {}
            for kind in self._kinds:
                logs = self._piece_logs(kind)
                logs.require_finished()
                made |= kind.sort_pieces(logs, _column(counted, kind.layer.name, "ids"))
            return made

        return self._reduce(PIECES, combine)

    def lengths(self) -> Lengths:
        """Return the ids and lengths, nm, of all skeletons."""
        results = [each for kind in self._kinds for each in self._joined_logs(kind) if "nm" in each]
        ids, nm = ([each[name] for each in results] for name in ("ids", "nm"))
        return np.concatenate([np.empty(0, np.uint64), *ids]), np.concatenate([np.empty(0), *nm])

    def clear(self) -> None:
        """Remove pieces and logs, but those with which the last of several jobs can be repeated."""
        for kind in self._kinds:
            shutil.rmtree(kind.piece_folder, ignore_errors=True)
        forget_blocks(self._state)

    @cached_property
    def _threads(self) -> int:
        return self.config.threads or threads_here()

    @cached_property
    def _kinds(self) -> list[SegmentFiles]:
        from ffn.viewing.meshes import Meshes  # their libraries take a second to load
        from ffn.viewing.skeletons import Skeletons

        found: list[SegmentFiles] = []
        for layer in self._labels:
            mip = min(self.config.mesh_mip, len(layer.scales) - 1)
            for kind in (Meshes, Skeletons) if layer.name == "segmentation" else (Meshes,):
                folder = self._jobs(PIECES) / f"{layer.name}-{kind.name}"
                found.append(kind(layer.folder, mip, layer.scales[mip], folder, self.config.swc))
        return found

    @property
    def _labels(self) -> list[Layer]:
        return [layer for layer in self.layers.values() if layer.is_labels]

    def _write_shard(self, layer: Layer, mip: int, shard: Box) -> Result:
        if mip:
            layer.downsample_shard(mip, shard)
            return {}
        voxels = layer.copy_shard(shard)
        return vars(count_segments(shard, voxels)) if layer.is_labels else {}

    @property
    def _state(self) -> str:
        return str(self.folder / STATE_FILE)

    def _jobs(self, step: str) -> Path:
        return jobs_folder(self._state, step)

    def _mip_logs(self, layer: Layer, mip: int) -> BlockLogs:
        return BlockLogs(self._jobs(f"mip{mip}") / layer.name, self.key, layer.shards(mip))

    def _piece_logs(self, kind: SegmentFiles) -> BlockLogs:
        return BlockLogs(kind.piece_folder, self.key, kind.blocks)

    def _joined_logs(self, kind: SegmentFiles) -> BlockLogs:
        return BlockLogs(self._jobs(LAST) / kind.key, self.key, kind.shards)

    def _do(self, logs: BlockLogs, work: Work, pool: Executor | None) -> None:
        logs.run(work, self.job.number or 1, self.job.of or 1, (pool, self._threads) if pool else None)

    def _reduce(self, step: str, combine: Callable[[object], dict[str, Table]]) -> Tables | None:
        return reduce_step(self._state, step, [], no_result, combine, self.key, self.job)

    @contextlib.contextmanager
    def _processes(self) -> Iterator[Executor | None]:
        """Yield processes, because meshing holds Python's lock; None if this one is enough."""
        if self._threads <= 1:
            yield None
            return
        # TensorStore has threads, and a forked process would inherit their locks.
        with ProcessPoolExecutor(self._threads, get_context("spawn")) as pool:
            yield pool


def _column(tables: Tables, layer: str, name: str) -> np.ndarray:
    return tables.read(f"{layer}-{name}")
