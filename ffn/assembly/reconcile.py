"""Join overlapping subvolumes into one volume with global ids, block by block."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ffn.assembly.overlap import PairCounts, matches
from ffn.assembly.unionfind import connected_roots
from ffn.config import ReconcileConfig
from ffn.errors import VolumeError
from ffn.geometry import Box, zyx
from ffn.progress import track
from ffn.provenance import provenance
from ffn.volume import Placement, create_volume, open_volume, require_labels

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Subvolume:
    """One segmented subvolume; its file is open only while it is read, because there may be thousands.

    Parameters
    ----------
    spec : str
        ``FILE.h5:DATASET``.
    box : Box
        Its place.
    ids : uint64 ndarray
        Ids it holds, ascending, without 0.
    """

    spec: str
    box: Box
    ids: np.ndarray

    def read(self, box: Box) -> np.ndarray:
        """Return the ids in `box`."""
        with open_volume(self.spec) as volume:
            return volume.read(box)

    def nodes(self, ids: np.ndarray) -> np.ndarray:
        """Return the positions of non-zero `ids` in `self.ids`."""
        return np.searchsorted(self.ids, ids.astype(np.uint64))


def reconcile(specs: Sequence[str], out_spec: str, config: ReconcileConfig) -> None:
    """Write the union of `specs` with ids that mean the same object everywhere.

    The result depends on the voxels only: not on the order of `specs`, nor on the ids inside a subvolume (global
    ids are given in the order in which objects first appear in the blocks of the volume).

    Parameters
    ----------
    specs : sequence of str
        Segmented subvolumes of one tiling (`ffn.geometry.tile`), with their places.
    out_spec : str
        ``FILE.h5:DATASET``, uint64. Voxels of an overlap come from the subvolume whose core they are in.
    config : ReconcileConfig
        What counts as a match, block size.

    Raises
    ------
    VolumeError
        If there is no subvolume, one is listed twice, or they do not tile a box.
    """
    voxel_size = _require_tiling(specs)
    subvolumes = sorted((_scan(spec) for spec in track(specs, len(specs), "ids", "subvolume")), key=lambda s: s.box)
    first_node = np.concatenate([[0], np.cumsum([len(s.ids) for s in subvolumes])]).astype(np.int64)
    joins = np.concatenate([np.empty((0, 2), np.int64), *_joins(subvolumes, first_node, config)])
    roots = connected_roots(int(first_node[-1]), joins)
    hull = _hull([s.box for s in subvolumes])
    record = provenance("reconcile", config, subvolumes=len(subvolumes), matches=len(joins))
    with create_volume(out_spec, np.uint64, Placement(hull, voxel_size, record)) as writer:
        numbers = np.zeros(len(roots), np.uint64)
        for block, voxels in _relabelled(subvolumes, first_node, roots, numbers, hull, config):
            writer.write(block, voxels)
    counts = (len(subvolumes), len(roots), len(joins), int(numbers.max(initial=0)))
    log.info("%d subvolumes with %d ids, %d matches: %d objects", *counts)


def core(box: Box, boxes: Sequence[Box]) -> Box:
    """Return the part of `box` that it contributes: up to the middle of its overlaps with its neighbours.

    Parameters
    ----------
    box : Box
        One subvolume of a tiling.
    boxes : sequence of Box
        All of them.

    Returns
    -------
    Box
        The cores of a tiling are disjoint and cover it.

    Examples
    --------
    >>> a, b = Box((0, 0, 0), (6, 4, 4)), Box((4, 0, 0), (10, 4, 4))
    >>> str(core(a, [a, b])), str(core(b, [a, b]))
    ('0:5,0:4,0:4', '5:10,0:4,0:4')
    """
    axes = [_core_range(box, boxes, axis) for axis in range(3)]
    return Box(zyx(start for start, _ in axes), zyx(stop for _, stop in axes))


def _core_range(box: Box, boxes: Sequence[Box], axis: int) -> tuple[int, int]:
    ranges = sorted({(b.start[axis], b.stop[axis]) for b in boxes})
    index = ranges.index((box.start[axis], box.stop[axis]))
    start, stop = ranges[index]
    if index > 0:
        start = (start + ranges[index - 1][1]) // 2
    if index + 1 < len(ranges):
        stop = (stop + ranges[index + 1][0]) // 2
    return start, stop


def _hull(boxes: Sequence[Box]) -> Box:
    return Box(zyx(np.min([b.start for b in boxes], axis=0)), zyx(np.max([b.stop for b in boxes], axis=0)))


def _require_tiling(specs: Sequence[str]) -> tuple[float, float, float]:
    """Check the places of all subvolumes; return their voxel size."""
    places: dict[Box, str] = {}
    for spec in specs:
        with open_volume(spec) as volume:
            require_labels(volume)
            if volume.box in places:
                raise VolumeError(f"{spec}: covers the same box {volume.box} as {places[volume.box]}, expected it once")
            places[volume.box] = spec
            voxel_size = volume.voxel_size_zyx_nm or (1.0, 1.0, 1.0)
    if not places:
        raise VolumeError("reconcile: found no subvolumes, at least one is needed. Did segment finish?")
    boxes = list(places)
    covered, hull = sum(core(box, boxes).num_voxels for box in boxes), _hull(boxes)
    if covered != hull.num_voxels:
        raise VolumeError(
            f"reconcile: the {len(boxes)} subvolumes cover {covered} of the {hull.num_voxels} voxels of {hull}, "
            "expected a tiling without holes. Is a subvolume missing, or from another tiling?"
        )
    return voxel_size


def _scan(spec: str, slab: int = 64) -> Subvolume:
    """Find the ids of a subvolume, slab by slab."""
    with open_volume(spec) as volume:
        box = volume.box
        ids = [np.unique(volume.read(part)) for part in box.blocks((slab, *box.shape[1:]))]
    return Subvolume(spec, box, np.setdiff1d(np.concatenate(ids), [0]).astype(np.uint64))


def _joins(subvolumes: Sequence[Subvolume], first_node: np.ndarray, config: ReconcileConfig) -> Iterator[np.ndarray]:
    """Yield edges between nodes, int64 (E, 2), for every pair of overlapping subvolumes."""
    numbers = range(len(subvolumes))
    overlaps = [(i, j, subvolumes[i].box.intersect(subvolumes[j].box)) for i, j in itertools.combinations(numbers, 2)]
    overlaps = [overlap for overlap in overlaps if not overlap[2].is_empty]
    for i, j, box in track(overlaps, len(overlaps), "match", "overlap"):
        counts = PairCounts()
        for block in box.blocks(config.block_size_zyx):
            counts.add(subvolumes[i].read(block), subvolumes[j].read(block))
        pairs, voxels = counts.table()
        chosen = pairs[matches(pairs, voxels, config)]
        ends = [first_node[k] + subvolumes[k].nodes(chosen[:, side]) for side, k in enumerate((i, j))]
        yield np.stack(ends, axis=1)


def _relabelled(
    subvolumes: Sequence[Subvolume],
    first_node: np.ndarray,
    roots: np.ndarray,
    numbers: np.ndarray,
    hull: Box,
    config: ReconcileConfig,
) -> Iterator[tuple[Box, np.ndarray]]:
    """Yield blocks of the result; `numbers` takes the global id of each root when it is first met."""
    boxes = [s.box for s in subvolumes]
    cores = [core(box, boxes) for box in boxes]
    blocks = list(hull.blocks(config.block_size_zyx))
    for block in track(blocks, len(blocks), "write"):
        nodes = np.full(block.shape, -1, np.int64)
        for subvolume, first, inner in zip(subvolumes, first_node[:-1], cores, strict=True):
            part = inner.intersect(block)
            if not part.is_empty:
                ids = subvolume.read(part)
                labelled = ids != 0
                nodes[part.slices(block.start)][labelled] = roots[first + subvolume.nodes(ids[labelled])]
        yield block, _number(nodes, numbers)


def _number(nodes: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Turn roots (-1 background) into global ids, giving new ones in order of first appearance."""
    found, first = np.unique(nodes, return_index=True)
    found = found[np.argsort(first)]
    new = found[found >= 0]
    new = new[numbers[new] == 0]
    numbers[new] = numbers.max(initial=0) + 1 + np.arange(len(new), dtype=np.uint64)
    return np.concatenate([numbers, np.zeros(1, np.uint64)])[nodes]
