"""Stage `partition`: sort labelled voxels by the fraction of their LOM that belongs to the same object."""

from __future__ import annotations

import argparse
import logging
import os

import numpy as np

from ffn.config import PartitionConfig
from ffn.contingency import count_ids
from ffn.geometry import ZYX, Box, zyx
from ffn.io.create import create_volume
from ffn.io.open import open_volume
from ffn.io.training_records import OUTSIDE_PARTITION
from ffn.io.volume import (
    IGNORED,
    Placement,
    Volume,
    is_ignored,
    require_inside,
    require_labels,
    require_other_file,
    voxel_size_of,
)
from ffn.options import add_box_option, add_options, from_arguments, whole_number
from ffn.progress import track
from ffn.provenance import provenance
from ffn.sampling.lom import lom_counts, require_lom_fits

log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Sort labelled voxels by the fraction of their local object mask (LOM) that belongs to the same object."""
    parser.add_argument("--labels", required=True, metavar="VOLUME", help="ground truth, NAME.zarr or FILE.h5:DATASET")
    add_box_option(parser)
    parser.add_argument("--out", required=True, metavar="VOLUME", help="uint8 partitions, NAME.zarr or FILE.h5:DATASET")
    text = "threads that count; 0 takes all cores of the job (default: 0)"
    parser.add_argument("--threads", type=whole_number, default=0, metavar="INT", help=text)
    add_options(parser, PartitionConfig)
    parser.set_defaults(function=_run)


def _run(arguments: argparse.Namespace) -> None:
    config = from_arguments(PartitionConfig, arguments)
    partition(arguments.labels, arguments.out, config, arguments.box, arguments.threads)


def partition(
    labels_spec: str, out_spec: str, config: PartitionConfig, box: Box | None = None, threads: int = 0
) -> None:
    """Write the partition of every voxel.

    Parameters
    ----------
    labels_spec : str
        Integer labels, 0 is background.
    out_spec : str
        ``NAME.zarr`` or ``file.h5:dataset`` of uint8: 1, 2, … for rising active fractions, 0 for background and
        labels smaller than ``config.min_size``, 255 for ignored voxels and those without a whole LOM inside the box.
    config : PartitionConfig
        LOM, thresholds, smallest object.
    box : Box, optional
        Part to read and write; default: all. Nothing outside is read, so held-out labels have no influence, and the
        sizes of labels are those inside.
    threads : int
        0 takes all cores of the job; the result does not depend on it.

    Raises
    ------
    VolumeError
        If the labels cannot be read or are not integers, or the box reaches outside them or is smaller than one LOM.
    """
    require_other_file(out_spec, labels_spec)
    with open_volume(labels_spec) as labels:
        require_labels(labels)
        box = box or labels.box
        require_inside(labels, box)
        require_lom_fits(box, config.lom_radius_zyx, labels.name)
        threads = threads or len(os.sched_getaffinity(0))
        blocks = list(box.blocks(config.block_size_zyx))
        voxel_size = voxel_size_of(labels)
        placement = Placement(box, voxel_size, provenance("partition", config, labels=labels_spec, box=box))
        with create_volume(out_spec, np.uint8, placement) as out:
            large = large_labels(labels, blocks, config.min_size)
            for block in track(blocks, len(blocks), "partition"):
                out.write(block, _partition_block(labels, box, block, large, config, threads))


def classify(counts: np.ndarray, lom_radius_zyx: ZYX, thresholds: tuple[float, ...]) -> np.ndarray:
    """Convert counts of the same object to partitions.

    Parameters
    ----------
    counts : int ndarray
        Voxels of the same object in the LOM; 0 for background.
    lom_radius_zyx : tuple of int
        Half-size of the LOM, voxels.
    thresholds : tuple of float
        Ascending active fractions.

    Returns
    -------
    uint8 ndarray
        0 where the count is 0, else 1 + the number of thresholds that the fraction reaches, so partition i + 1 holds
        fractions from the i-th threshold up to, but not including, the next.

    Examples
    --------
    >>> classify(np.array([0, 1, 2, 27]), (1, 1, 1), (2 / 27, 0.5))
    array([0, 1, 2, 3], dtype=uint8)
    """
    volume = int(np.prod([2 * r + 1 for r in lom_radius_zyx]))
    fractions = np.arange(volume + 1) / volume
    classes = np.searchsorted(thresholds, fractions, side="right").astype(np.uint8) + np.uint8(1)
    classes[0] = 0
    return classes[counts]


def large_labels(labels: Volume, blocks: list[Box], min_size: int) -> np.ndarray:
    """Find the labels with at least `min_size` voxels.

    Parameters
    ----------
    labels : Volume
        Integer labels, 0 is background.
    blocks : list of Box
        Disjoint blocks to count in, read one at a time.
    min_size : int
        Smallest number of voxels.

    Returns
    -------
    uint64 ndarray of shape (N,)
        Ascending, without 0.
    """
    sizes: dict[int, int] = {}
    for block in track(blocks, len(blocks), "label sizes"):
        ids, counts = count_ids(_read_ids(labels, block))
        for label, count in zip(ids.tolist(), counts.tolist(), strict=True):
            sizes[label] = sizes.get(label, 0) + count
    for label in (0, int(IGNORED)):
        sizes.pop(label, None)
    large = np.array(sorted(label for label, size in sizes.items() if size >= min_size), dtype=np.uint64)
    log.info("%s: %d of %d labels have at least %d voxels", labels.name, len(large), len(sizes), min_size)
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
        counts = lom_counts(ids, radius, own, threads)
        partitions = classify(counts, radius, config.thresholds)
        partitions[is_ignored(ids[centres.slices(seen.start)])] = OUTSIDE_PARTITION
        out[centres.slices(block.start)] = partitions
    return out


def _read_ids(labels: Volume, box: Box) -> np.ndarray:
    return np.ascontiguousarray(labels.read(box)).astype(np.uint64, copy=False)
