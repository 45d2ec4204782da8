"""The work of an export on blocks: voxels of all mips, facts about segments, surfaces and skeletons.

A step that several jobs share takes a `Job`. Each step needs those before it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ffn.geometry import Box
from ffn.io.atomic import atomic_path, write_json
from ffn.io.block_log import BlockLogs, Result, Work
from ffn.io.blocks import WHOLE, Job
from ffn.io.coarser import Downsample, Scale
from ffn.viewing import ome_zarr, precomputed
from ffn.viewing.blockwise import BlockList, processes, threads
from ffn.viewing.config import ExportConfig
from ffn.viewing.inputs import Mosaic
from ffn.viewing.mips import Count, Pyramid
from ffn.viewing.pieces import ONLY, Pieces
from ffn.viewing.properties import FOLDER, Lengths
from ffn.viewing.segments import Counts, SegmentCounter, merge_counts, sorted_points
from ffn.viewing.volumes import LABELS_LAYERS, Inside, Part

WORK = ".work"  # folder in an export with the records of finished blocks, and with pieces until all are joined
OME_ZARR = "ome.zarr"  # folder of the image, with the labels in it
PIECES = "pieces"  # in it
PLACES = "places.npy"  # in it: of the files of probabilities
SEEDS = "seeds.npy"  # in it: of all segments
COARSE = "coarse"  # in it: that all mips are complete
ALONE = nullcontext(None)  # in this thread
MESHES, SKELETONS = "mesh", "skeletons"  # folders in that of a layer, and kinds of pieces


class _Kind(NamedTuple):
    """Pieces of one kind of one layer."""

    part: Part
    name: str
    mip: int
    pieces: Pieces

    @property
    def scale(self) -> Scale:
        return self.part.scales[self.mip]


def read_gathered(folder: Path, name: str) -> np.ndarray | None:
    """Return a table that the first job gathered, on the disk; None if there is none."""
    path = folder / WORK / name
    return np.load(path, mmap_mode="r") if path.exists() else None


def _gather(folder: Path, name: str, table: np.ndarray) -> None:
    if len(table):
        with atomic_path(folder / WORK / name) as temporary:
            np.save(temporary, table)


class ExportWork:
    """The work on the blocks of an export.

    Parameters
    ----------
    folder : Path
        To fill.
    parts : mapping of str to Part
        By the name of the layer.
    config : ExportConfig
        Formats, mips of meshes and skeletons, smallest segment.
    key : dict
        What the export depends on.
    threads : int
        Number of blocks at once.
    """

    def __init__(
        self, folder: Path, parts: Mapping[str, Part], config: ExportConfig, key: Mapping[str, Any], threads: int
    ) -> None:
        self._folder, self._parts, self._config, self._threads = folder, parts, config, threads
        self._key = key
        self._labels = [part for name, part in parts.items() if name in LABELS_LAYERS]
        self._pyramids = list(self._all_pyramids())

    @property
    def num_mips(self) -> int:
        """Mips of the volume that has most."""
        return max(len(pyramid.scales) for pyramid in self._pyramids)

    def create(self, seeds_zyx: np.ndarray | None) -> None:
        """Write the metadata of all volumes, and what jobs would have to gather from many files."""
        probability = self._parts.get("probability")
        if probability and isinstance(probability.volume, Mosaic):
            _gather(self._folder, PLACES, probability.volume.places)
        if seeds_zyx is not None:
            _gather(self._folder, SEEDS, sorted_points(seeds_zyx))
        for name, part in self._parts.items():
            precomputed.create(self._folder / name, part.encoding(self._config), part.scales)
            if self._has_ome_zarr(name):
                ome_zarr.create(self._group(name), part.dtype, part.scales)

    def write_mip(self, mip: int, job: Job = WHOLE) -> None:
        """Write a mip of all volumes; with mip 0, count segments, and look up those at the seeds."""
        if mip:
            for finer in self._shards(mip - 1):
                self._logs(finer).require_finished()
        self._run(self._shards(mip), job, threads(self._threads))

    def complete_mips(self) -> None:
        """Write what no job has written of further mips."""
        for mip in range(1, self.num_mips):
            self._run(self._shards(mip), WHOLE, threads(self._threads))

    def count(self) -> None:
        """Add up what was counted in the shards, and choose the segments that get a mesh."""
        for pyramid in self._pyramids:
            counted = self._results(pyramid.shards(0))
            if pyramid.name in LABELS_LAYERS:
                self._once(f"{pyramid.name}/counts", partial(_sum, counted))
                self._once(f"{pyramid.name}/shown", partial(self._shown, pyramid.name))
        self._once(COARSE, _nothing)

    def make_pieces(self, job: Job = WHOLE) -> None:
        """Make surfaces and skeletons of the segments in blocks."""
        lists = [self._piece_list(kind) for kind in self._kinds()]
        self._run(lists, job, processes(self._threads))

    def sort_pieces(self) -> None:
        """Sort the pieces by the shards that they belong to."""
        for kind in self._kinds():
            made = self._results(self._piece_list(kind))
            ids = self.counts(kind.part.name).segments.ids
            self._run([kind.pieces.sorted_by_shard(_index(kind), made, ids)])

    def join_pieces(self, job: Job = WHOLE) -> None:
        """Join the pieces of each segment."""
        self._run([self._joined_list(kind) for kind in self._kinds()], job, processes(self._threads))

    def counts(self, name: str) -> Counts:
        """Return the facts about the segments of a layer."""
        return Counts.of(self._once_result(f"{name}/counts"))

    def finish(self) -> Lengths:
        """Write the metadata of meshes, skeletons and OME-Zarr; return the lengths of the skeletons.

        Raises
        ------
        VolumeError
            If a block is not finished.
        """
        from ffn.viewing.meshes import mesh_info
        from ffn.viewing.skeletons import skeleton_info

        self._once_result(COARSE)  # without labels, nothing else needs it
        lengths = [Lengths()]
        infos: dict[str, dict[str, str]] = {}
        for kind in self._kinds():
            folder, sharding = self._folder / kind.part.name / kind.name, self._once_result(_index(kind))["sharding"]
            for each in self._results(self._joined_list(kind)):
                if "ids" in each:
                    lengths.append(Lengths(each["ids"], each["lengths_nm"]))
            write_json(folder / "info", mesh_info(sharding) if kind.name == MESHES else skeleton_info(sharding))
            infos.setdefault(kind.part.name, {"segment_properties": FOLDER})[kind.name] = kind.name
        for name, members in infos.items():
            path = self._folder / name / precomputed.INFO
            write_json(path, {**json.loads(path.read_text()), **members})
        if "ome-zarr" in self._config.formats:
            self._write_ome_zarr_groups()
        return Lengths(*map(np.concatenate, zip(*lengths, strict=True)))

    def clear(self, job: Job) -> None:
        """Remove what is not needed any more. What lets the last of several jobs be repeated stays."""
        shutil.rmtree(self._folder / WORK / ("" if job.is_whole else PIECES), ignore_errors=True)

    def _all_pyramids(self) -> Iterator[Pyramid]:
        for name, part in self._parts.items():
            path = self._folder / name
            yield precomputed.pyramid(path, part.encoding(self._config), part.scales, part.read)
            if self._has_ome_zarr(name):
                yield ome_zarr.pyramid(self._group(name), part.dtype, _method(name), part.scales, part.read)

    def _has_ome_zarr(self, name: str) -> bool:
        return "ome-zarr" in self._config.formats and (name in LABELS_LAYERS or name == "image")

    def _group(self, name: str) -> Path:
        image = self._folder / OME_ZARR
        return image if name == "image" else image / ome_zarr.LABELS / name

    def _shards(self, mip: int) -> list[BlockList]:
        """Return the shards of a mip of all volumes that have it."""
        pyramids = [pyramid for pyramid in self._pyramids if mip < len(pyramid.scales)]
        if mip:
            return [each.shards(mip) for each in pyramids]
        return [pyramid.shards(mip, self._count(pyramid.name)) for pyramid in pyramids]

    def _run(
        self, lists: Sequence[BlockList], job: Job = WHOLE, pool: AbstractContextManager[Executor | None] = ALONE
    ) -> None:
        """Do a job's part of lists of blocks."""
        with pool as workers:
            for each in lists:
                self._logs(each).run(each.work, job.number or 1, job.of or 1, workers, self._threads)

    def _logs(self, each: BlockList) -> BlockLogs:
        return BlockLogs(self._folder / WORK / each.name, self._key, each.blocks)

    def _results(self, each: BlockList) -> Sequence[Result]:
        logs = self._logs(each)
        logs.require_finished()
        return logs

    def _count(self, name: str) -> Count | None:
        if name not in LABELS_LAYERS:
            return None
        if name != "segmentation":
            counter = SegmentCounter()
        else:
            truth, pom = (Inside(self._parts[o]).read if o in self._parts else None for o in ("truth", "probability"))
            counter = SegmentCounter(truth, read_gathered(self._folder, SEEDS), pom)
        return lambda shard, labels: counter.count(shard, labels).arrays

    def _shown(self, name: str, _: Box) -> Result:
        """Return the segments that get a mesh."""
        segments = self.counts(name).segments
        return {"ids": segments.ids[segments.voxels >= self._config.min_mesh_voxels]}

    def _kinds(self) -> Iterator[_Kind]:
        """Yield what is made in pieces."""
        from ffn.viewing import meshes, skeletons

        for part in self._labels:
            wanted = {MESHES: (self._config.mesh_mip, meshes.blocks_of)}
            if part.name == "segmentation" and self._config.skeleton_mip is not None:
                wanted[SKELETONS] = (self._config.skeleton_mip, skeletons.blocks_of)
            for name, (mip, blocks_of) in wanted.items():
                mip = min(mip, len(part.scales) - 1)
                folder = self._folder / WORK / PIECES / part.name / name
                yield _Kind(part, name, mip, Pieces(folder, blocks_of(part.scales[mip].box)))

    def _piece_list(self, kind: _Kind) -> BlockList:
        from ffn.viewing.meshes import surfaces_in
        from ffn.viewing.skeletons import skeletons_in

        name = kind.part.name
        make = surfaces_in if kind.name == MESHES else skeletons_in
        shown = self._once_result(f"{name}/shown")["ids"]
        made = partial(make, self._folder / name, kind.mip, kind.scale, shown)
        return kind.pieces.made_by(f"{name}/{kind.name}-pieces", made)

    def _joined_list(self, kind: _Kind) -> BlockList:
        from ffn.viewing.meshes import write_meshes
        from ffn.viewing.skeletons import write_skeletons

        folder, index = self._folder / kind.part.name, self._once_result(_index(kind))
        swc = folder / "swc" if "swc" in self._config.formats else None
        write = partial(write_meshes, kind.scale) if kind.name == MESHES else partial(write_skeletons, swc)
        join = partial(write, index["sharding"])
        return kind.pieces.joined_by(f"{kind.part.name}/{kind.name}", folder / kind.name, index, join)

    def _once(self, name: str, work: Work) -> None:
        """Do something that is not of a single block."""
        self._run([BlockList(name, [ONLY], work)])

    def _once_result(self, name: str) -> Result:
        return self._results(BlockList(name, [ONLY], _nothing))[0]

    def _write_ome_zarr_groups(self) -> None:
        for name, part in self._parts.items():
            if self._has_ome_zarr(name):
                ome_zarr.write_image_group(self._group(name), _method(name), part.scales)
        if self._labels:
            ome_zarr.write_labels_group(self._folder / OME_ZARR, [part.name for part in self._labels])


def _method(name: str) -> Downsample:
    return "mode" if name in LABELS_LAYERS else "mean"


def _index(kind: _Kind) -> str:
    return f"{kind.part.name}/{kind.name}-index"


def _sum(counted: Sequence[Result], _: Box) -> Result:
    return merge_counts(map(Counts.of, counted)).arrays


def _nothing(_: Box) -> Result:
    return {}
