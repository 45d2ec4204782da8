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

from ffn.geometry import Box, Grid, cut
from ffn.io.atomic import write_json
from ffn.io.block_log import BlockLogs, Result, Work
from ffn.io.blocks import Job, forget_blocks, no_result, reduce_step
from ffn.io.scratch import Table
from ffn.io.store_names import LAST, jobs_folder
from ffn.io.tables import Tables
from ffn.machine.limits import threads_here
from ffn.viewing import COARSE, PIECES, ome_zarr, precomputed
from ffn.viewing.config import ExportConfig
from ffn.viewing.mips import Pyramid, one_at_a_time
from ffn.viewing.properties import FOLDER, Lengths
from ffn.viewing.segments import Counts, count_segments, merge_counts, seeds_near
from ffn.viewing.shards import (
    SegmentPieces,
    Sharding,
    num_shards,
    pieces_of_shard,
    shard_path,
    sort_pieces,
    write_pieces,
)
from ffn.viewing.state import STATE_FILE
from ffn.viewing.volumes import LABELS_LAYERS, Part

OME_ZARR = "ome.zarr"  # folder of the image, with the labels in it
MESHES, SKELETONS = "mesh", "skeletons"  # folders in that of a layer


@dataclass(frozen=True)
class _Kind:
    """Meshes or skeletons of one layer."""

    layer: Path
    name: str
    blocks: Grid
    piece_folder: Path
    make: Callable[[np.ndarray, Box], Any]  # takes the segments that have one, and a block
    join: Callable[[Sharding, Path, SegmentPieces], Result]
    info: Callable[[Sharding], dict[str, Any]]
    encoded: float

    @property
    def folder(self) -> Path:
        return self.layer / self.name

    @property
    def key(self) -> str:
        return f"{self.layer.name}-{self.name}"

    @property
    def sharding(self) -> Sharding:
        return json.loads((self.folder / "info").read_text())["sharding"]

    def piece_file(self, block: int) -> Path:
        return self.piece_folder / self.blocks[block].stem

    def make_pieces(self, shown: np.ndarray, block: Box) -> Result:
        """Write the pieces in a block."""
        return {"rows": write_pieces(self.piece_folder / block.stem, self.make(shown, block))}

    def join_shard(self, pieces: Tables, shard: Box) -> Result:
        """Write a shard; one without segments has no file."""
        number = shard.start[0]
        first, last = [0, *pieces.read(f"{self.key}-ends").tolist()][number : number + 2]
        if first == last:
            return {}
        rows, sharding = pieces.read(f"{self.key}-rows", first, last), self.sharding
        segments = pieces_of_shard(rows, self.piece_file)
        return self.join(sharding, shard_path(self.folder, sharding, number), segments)


@dataclass(frozen=True)
class ExportWork:
    """The work on the blocks of an export."""

    folder: Path  # to fill
    parts: Mapping[str, Part]  # by the name of the layer
    config: ExportConfig
    key: Mapping[str, Any]  # all that the blocks depend on
    job: Job  # which share of the blocks of a step
    planned: Tables | None = None  # of the first step

    def create(self) -> None:
        """Write the metadata of all volumes, without voxels."""
        for name, part in self.parts.items():
            precomputed.create(self.folder / name, part.encoding(self.config), part.scales)
            if self._has_ome_zarr(name):
                ome_zarr.create(self._group(name), part.dtype, part.scales)

    def write_mip(self, mip: int) -> None:
        """Write a mip of all volumes; with mip 0, count segments, and look up those at the seeds."""
        with ThreadPoolExecutor(self._threads) as pool:
            for pyramid in self._pyramids:
                if mip < len(pyramid.scales):
                    if mip:
                        self._mip_logs(pyramid, mip - 1).require_finished()
                    self._run(self._mip_logs(pyramid, mip), partial(self._write_shard, pyramid, mip), pool)

    def count(self) -> Tables | None:
        """Complete all mips, also those that no jobs shared; return the tables of `facts`.

        None if the job does nothing after this step.
        """

        def combine(_: object) -> dict[str, Table]:
            for mip in range(max(len(pyramid.scales) for pyramid in self._pyramids)):
                self.write_mip(mip)
            counted: dict[str, Table] = {}
            for pyramid in self._pyramids:
                if pyramid.name in LABELS_LAYERS:
                    parts = (Counts.of(result.__getitem__) for result in self._mip_logs(pyramid, 0))
                    counted |= {f"{pyramid.name}-{name}": rows for name, rows in merge_counts(parts).arrays.items()}
            return counted

        return self._tables(COARSE, combine)

    def facts(self, counted: Tables) -> dict[str, Counts]:
        """Return all facts about the segments of each layer."""
        return {name: Counts.of(partial(_column, counted, name)) for name in self._labels}

    def pieces(self, counted: Tables) -> Tables | None:
        """Make meshes and skeletons in blocks, and sort their pieces; return the tables of them.

        None if the job does nothing after this step.
        """
        if self.job.is_whole or self.job.step == PIECES:
            with self._processes() as pool:
                for kind in self._kinds:
                    ids, voxels = (_column(counted, kind.layer.name, name) for name in ("ids", "voxels"))
                    shown = ids[voxels >= self.config.min_mesh_voxels]
                    self._run(self._piece_logs(kind), partial(kind.make_pieces, shown), pool)

        def combine(_: object) -> dict[str, Table]:
            made: dict[str, Table] = {}
            for kind in self._kinds:
                logs, ids = self._piece_logs(kind), _column(counted, kind.layer.name, "ids")
                logs.require_finished()
                sharding, tables = sort_pieces((each["rows"] for each in logs), ids, kind.encoded, kind.piece_folder)
                write_json(kind.folder / "info", kind.info(sharding))
                made |= {f"{kind.key}-{name}": table for name, table in tables.items()}
            return made

        return self._tables(PIECES, combine)

    def join(self, pieces: Tables) -> None:
        """Join the pieces of each segment, shard by shard."""
        with self._processes() as pool:
            for kind in self._kinds:
                self._run(self._joined_logs(kind), partial(kind.join_shard, pieces), pool)

    def lengths(self) -> Lengths:
        """Return the ids and lengths, nm, of all skeletons."""
        joined = [self._joined_logs(kind) for kind in self._kinds if kind.name == SKELETONS]
        results = [each for logs in joined for each in logs if each]
        ids, nm = ([each[name] for each in results] for name in ("ids", "nm"))
        return np.concatenate([np.empty(0, np.uint64), *ids]), np.concatenate([np.empty(0), *nm])

    def finish_metadata(self) -> None:
        """Add meshes, skeletons and properties to the metadata of the volumes, and write those of OME-Zarr."""
        for name, part in self.parts.items():
            path = self.folder / name / precomputed.INFO
            members = {kind.name: kind.name for kind in self._kinds if kind.layer.name == name}
            if name in LABELS_LAYERS:
                write_json(path, {**json.loads(path.read_text()), "segment_properties": FOLDER, **members})
            if self._has_ome_zarr(name):
                ome_zarr.write_image_group(self._group(name), part.encoding(self.config).downsample, part.scales)
        if self._labels and "ome-zarr" in self.config.formats:
            ome_zarr.write_labels_group(self.folder / OME_ZARR, self._labels)

    def clear(self) -> None:
        """Remove pieces and logs, but those with which the last of several jobs can be repeated."""
        for kind in self._kinds:
            shutil.rmtree(kind.piece_folder, ignore_errors=True)
        forget_blocks(self._state)

    @cached_property
    def _threads(self) -> int:
        return self.config.threads or threads_here()

    @cached_property
    def _pyramids(self) -> list[Pyramid]:
        found = []
        for name, part in self.parts.items():
            encoding, scales, read = part.encoding(self.config), part.scales, one_at_a_time(part.read)
            found.append(precomputed.pyramid(self.folder / name, encoding, scales, read))
            if self._has_ome_zarr(name):
                found.append(ome_zarr.pyramid(self._group(name), part.dtype, encoding.downsample, scales, read))
        return found

    @cached_property
    def _kinds(self) -> list[_Kind]:
        from ffn.viewing import meshes, skeletons  # their libraries take a second to load

        found = []
        for name in self._labels:
            mip, layer = min(self.config.mesh_mip, len(self.parts[name].scales) - 1), self.folder / name
            scale, swc = self.parts[name].scales[mip], layer / "swc" if "swc" in self.config.formats else None
            made: list[tuple[str, Any, Any]] = [(MESHES, meshes, partial(meshes.write_joined, scale))]
            if name == "segmentation":
                made.append((SKELETONS, skeletons, partial(skeletons.write_joined, swc)))
            for kind, module, join in made:
                make, blocks = partial(module.pieces_in, layer, mip, scale), module.blocks_of(scale.box)
                folder = self._jobs(PIECES) / f"{name}-{kind}"
                found.append(_Kind(layer, kind, blocks, folder, make, join, module.info, module.ENCODED))
        return found

    @property
    def _labels(self) -> list[str]:
        return [name for name in self.parts if name in LABELS_LAYERS]

    def _write_shard(self, pyramid: Pyramid, mip: int, shard: Box) -> Result:
        if mip:
            pyramid.downsample_shard(mip, shard)
            return {}
        voxels = pyramid.copy_shard(shard)
        if pyramid.name == "segmentation":
            truth, pom = self._readers
            points = seeds_near(self.planned, shard) if self.planned else None
            return count_segments(shard, voxels, truth, pom, points).arrays
        return count_segments(shard, voxels).arrays if pyramid.name in LABELS_LAYERS else {}

    @cached_property
    def _readers(self) -> list[Callable[[Box], np.ndarray] | None]:
        """Readers of the truth and of the probabilities where the segmentation is."""
        names = ("truth", "probability")
        return [one_at_a_time(self.parts[name].read_any) if name in self.parts else None for name in names]

    def _has_ome_zarr(self, name: str) -> bool:
        return "ome-zarr" in self.config.formats and (name in LABELS_LAYERS or name == "image")

    def _group(self, name: str) -> Path:
        image = self.folder / OME_ZARR
        return image if name == "image" else image / ome_zarr.LABELS / name

    @property
    def _state(self) -> str:
        return str(self.folder / STATE_FILE)

    def _jobs(self, step: str) -> Path:
        return jobs_folder(self._state, step)

    def _mip_logs(self, pyramid: Pyramid, mip: int) -> BlockLogs:
        return BlockLogs(self._jobs(f"mip{mip}") / pyramid.name, self.key, pyramid.shards(mip))

    def _piece_logs(self, kind: _Kind) -> BlockLogs:
        return BlockLogs(kind.piece_folder, self.key, kind.blocks)

    def _joined_logs(self, kind: _Kind) -> BlockLogs:
        shards = cut(Box.from_shape((num_shards(kind.sharding), 1, 1)), (1, 1, 1))
        return BlockLogs(self._jobs(LAST) / kind.key, self.key, shards)

    def _run(self, logs: BlockLogs, work: Work, pool: Executor | None) -> None:
        logs.run(work, self.job.number or 1, self.job.of or 1, (pool, self._threads) if pool else None)

    def _tables(self, step: str, combine: Callable[[object], dict[str, Table]]) -> Tables | None:
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
