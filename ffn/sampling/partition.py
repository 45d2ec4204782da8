"""Stage `partition`: sort labelled voxels by the fraction of their LOM that belongs to the same object."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from ffn.config import PART_ZYX
from ffn.contingency import RowSum, count_ids
from ffn.edges import compiled
from ffn.errors import VolumeError
from ffn.geometry import ZYX, Box, voxels_in, zyx
from ffn.io.block_log import Result
from ffn.io.blocks import WHOLE, Job, Writers, add_job_options, blocks_of, job_of, map_blocks, reduce_step
from ffn.io.open import identity, open_labels
from ffn.io.store import require_replaceable
from ffn.io.store_names import MAIN
from ffn.io.training_records import OUTSIDE_PARTITION
from ffn.io.volume import (
    Placement,
    Volume,
    is_ignored,
    require_inside,
    require_labels,
    require_other_file,
    voxel_size_of,
)
from ffn.machine.limits import usable_cores
from ffn.options import add_box_option, add_options, add_store_option, add_volume_option, from_arguments, whole_number
from ffn.provenance import fingerprint, provenance
from ffn.sampling.config import PartitionConfig

log = logging.getLogger(__name__)

SIZES = "sizes"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Sort labelled voxels by the fraction of their local object mask (LOM) that belongs to the same object.

    example:
      ffn partition --labels labels.zarr --lom-radius 24 24 24 --out partitions.zarr
    """
    add_volume_option(parser, "--labels", "ground truth")
    add_box_option(parser)
    add_store_option(parser, "--out", "uint8 partitions")
    text = "threads that count; 0 takes all cores of the job (default: 0)"
    parser.add_argument("--threads", type=whole_number, default=0, metavar="INT", help=text)
    add_job_options(parser, [SIZES])
    add_options(parser, PartitionConfig)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    config = from_arguments(PartitionConfig, arguments)
    partition(arguments.labels, arguments.out, config, arguments.box, arguments.threads, job_of(arguments))


def partition(
    labels_spec: str, out: str, config: PartitionConfig, box: Box | None = None, threads: int = 0, job: Job = WHOLE
) -> None:
    """Write the partition of every voxel as uint8.

    The step `SIZES` counts the voxels of each label, and makes a table of those that are large enough.

    Partitions 1, 2, … are of rising active fractions. 0 stands for background and labels smaller than
    ``config.min_label_um3``, 255 for ignored voxels and those without a whole LOM inside the box. Nothing outside the
    box is read, so held-out labels have no influence, and the sizes of labels are those inside. The result does not
    depend on the number of threads.
    """
    require_other_file(out, labels_spec)
    with open_labels(labels_spec) as labels:
        require_labels(labels)
        box = box or labels.box
        require_inside(labels, box)
        require_lom_fits(box, config.lom_radius_zyx, labels.name)
        threads = threads or usable_cores()
        dtypes = {MAIN: np.uint8}
        require_replaceable(out, {MAIN})
        voxel_size = voxel_size_of(labels)
        placement = Placement(box, voxel_size, provenance("partition", config, labels=labels_spec, box=box))
        key = fingerprint("partition", config, labels=identity(labels_spec), box=box)

        def combine(results: Iterable[Result]) -> dict[str, np.ndarray]:
            return {"large": large_labels(results, voxels_in(config.min_label_um3, voxel_size))}

        sizes = reduce_step(out, SIZES, blocks_of(placement, dtypes), partial(label_sizes, labels), combine, key, job)
        if sizes is None:
            return
        large, key = sizes.read("large"), {**key, "sizes": sizes.digest}

        def work(shard: Box, writers: Writers) -> None:
            for block in shard.blocks(PART_ZYX):
                writers[MAIN].write(block, _partition_block(labels, box, block, large, config, threads))

        map_blocks(out, dtypes, placement, work, key, job)


def classify(counts: np.ndarray, lom_radius_zyx: ZYX, thresholds: tuple[float, ...]) -> np.ndarray:
    """Convert counts of the same object to partitions.

    Examples
    --------
    >>> classify(np.array([0, 1, 2, 27]), (1, 1, 1), (2 / 27, 0.5))
    array([0, 1, 2, 3], dtype=uint8)
    """
    volume = int(np.prod([2 * r + 1 for r in lom_radius_zyx]))
    classes = np.searchsorted(thresholds, np.arange(volume + 1) / volume, side="right").astype(np.uint8) + np.uint8(1)
    classes[0] = 0
    return classes[counts]


def label_sizes(labels: Volume, shard: Box) -> Result:
    """Count the voxels of each label in a shard."""
    sizes = RowSum(2, np.uint64)
    for block in shard.blocks(PART_ZYX):
        ids, voxels = count_ids(_read_ids(labels, block))
        sizes.add(np.stack([ids, voxels.astype(np.uint64)], axis=1))  # NumPy would make floats of both types
    return {"sizes": sizes.rows()}


def large_labels(results: Iterable[Result], min_size: int) -> np.ndarray:
    """Find the labels with at least `min_size` voxels."""
    sizes = RowSum(2, np.uint64)
    for each in results:
        sizes.add(each["sizes"])
    ids, voxels = sizes.rows().T
    counts = (ids != 0) & ~is_ignored(ids)
    large = ids[counts & (voxels >= min_size)]
    log.info("%d of %d labels have at least %d voxels", len(large), np.count_nonzero(counts), min_size)
    if counts.any() and not len(large):
        log.warning("the largest has %d, so all voxels are background. Lower --min-label-um3", voxels[counts].max())
    return large


def _partition_block(
    labels: Volume, box: Box, block: Box, large: np.ndarray, config: PartitionConfig, threads: int
) -> np.ndarray:
    """Compute the partitions of one block of `box`."""
    out = np.full(block.shape, OUTSIDE_PARTITION, dtype=np.uint8)
    radius = config.lom_radius_zyx
    centres = block.intersect(box.grow(zyx(-r for r in radius)))
    if not centres.is_empty:
        seen = centres.grow(radius)
        ids = _read_ids(labels, seen)
        own = np.intersect1d(np.unique(ids[centres.slices(seen.start)]), large, assume_unique=True)
        partitions = classify(lom_counts(ids, radius, own, threads), radius, config.thresholds)
        partitions[is_ignored(ids[centres.slices(seen.start)])] = OUTSIDE_PARTITION
        out[centres.slices(block.start)] = partitions
    return out


def _read_ids(labels: Volume, box: Box) -> np.ndarray:
    return np.ascontiguousarray(labels.read(box)).astype(np.uint64, copy=False)


def lom_counts(labels: np.ndarray, lom_radius_zyx: ZYX, ids: np.ndarray, threads: int = 1) -> np.ndarray:
    """Count the voxels of the same object within `lom_radius_zyx` of every voxel that has a whole LOM (int32).

    `ids`, ascending, are the objects to count; voxels of all others get 0, as background does. The result does not
    depend on the number of threads.

    Notes
    -----
    Source: Januszewski et al. 2018, Methods (active fraction). The algorithm is ours, one pass for all labels:
    for a plane of centres, ``sums[object, x]`` is the number of voxels of an object in the (z, y) window around column
    x. Moving down by one row adds a row of columns and removes another; columns are read as runs of equal labels. The
    count of a voxel is the sum of its object's row of `sums` over the x window. Along a row, while the object stays the
    same, this takes one addition and one subtraction per voxel.
    """
    objects, depth = _index(labels, ids), 2 * lom_radius_zyx[0]
    counts = np.zeros([n - 2 * r for n, r in zip(labels.shape, lom_radius_zyx, strict=True)], dtype=np.int32)
    bounds = np.linspace(0, len(counts), min(threads, len(counts)) + 1).astype(int)

    def fill(start: int, stop: int) -> None:
        slab = objects[start : stop + depth]
        _count_slab(slab, _run_ends(slab), len(ids), lom_radius_zyx, counts[start:stop])

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(fill, bounds[:-1], bounds[1:]))
    return counts


def require_lom_fits(box: Box, lom_radius_zyx: ZYX, where: str) -> None:
    """Check that at least one voxel of `box` has a whole LOM."""
    needed = zyx(2 * r + 1 for r in lom_radius_zyx)
    if not box.has_room_for(needed):
        found = f"{where}: box {box} has {box.shape} voxels, a LOM of radius {lom_radius_zyx} needs {needed}"
        raise VolumeError(f"{found}. Use a larger box or a smaller --lom-radius")


@compiled
def _index(labels: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Replace each label by its index in `ids`, counted from 1, and labels not in `ids` by 0."""
    out = np.zeros(labels.shape, dtype=np.int32)
    if not len(ids):
        return out
    for z, y in np.ndindex(labels.shape[:2]):
        last_label, last_index = ids[0], 1
        for x in range(labels.shape[2]):
            label = labels[z, y, x]
            if label != last_label:  # objects are wide, so most voxels equal their neighbour
                found = np.searchsorted(ids, label)
                last_index = found + 1 if found < len(ids) and ids[found] == label else 0
                last_label = label
            out[z, y, x] = last_index
    return out


def _run_ends(objects: np.ndarray) -> np.ndarray:
    """Return for each voxel the next z at which its column holds another object."""
    ends = np.empty_like(objects)
    ends[-1] = len(objects)
    for z in range(len(objects) - 2, -1, -1):
        ends[z] = np.where(objects[z] == objects[z + 1], ends[z + 1], z + 1)
    return ends


@compiled
def _count_slab(
    objects: np.ndarray, ends: np.ndarray, num_objects: int, lom_radius_zyx: ZYX, counts: np.ndarray
) -> None:
    """Fill `counts` of the voxels of some sections with a whole LOM."""
    rz, ry, rx = lom_radius_zyx
    sums = np.empty((num_objects + 1, objects.shape[2]), dtype=np.int32)
    for z in range(len(counts)):
        sums[:] = 0
        for y in range(objects.shape[1]):
            _add_columns(sums, objects, ends, y, z, z + 2 * rz + 1, 1)
            centre = y - ry
            if centre >= ry:
                _count_row(sums, objects[z + rz, centre], rx, counts[z, centre - ry])
                _add_columns(sums, objects, ends, centre - ry, z, z + 2 * rz + 1, -1)


@compiled
def _add_columns(
    sums: np.ndarray, objects: np.ndarray, ends: np.ndarray, y: int, z_start: int, z_stop: int, sign: int
) -> None:
    """Add the runs of row `y` in the z window to `sums`, or subtract them where `sign` is -1."""
    for x in range(objects.shape[2]):
        z = z_start
        while z < z_stop:
            end = min(ends[z, y, x], z_stop)
            sums[objects[z, y, x], x] += sign * (end - z)
            z = end


@compiled
def _count_row(sums: np.ndarray, row: np.ndarray, rx: int, counts: np.ndarray) -> None:
    """Count along one row of centres with a sliding x window."""
    last, count = 0, 0
    for x in range(rx, len(row) - rx):
        own = row[x]
        if own == 0:
            count = 0
        elif own == last:
            count += sums[own, x + rx] - sums[own, x - rx - 1]
        else:
            count = sums[own, x - rx : x + rx + 1].sum()
        last = own
        counts[x - rx] = count
