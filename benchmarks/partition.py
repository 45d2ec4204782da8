"""Time `ffn partition` against the usual way, a summed-volume table of the whole array for each label.

Measures the labelled FIB-25 slab if ../shared has it, else random cells of the same size. There are three cases:
objects of at least 10,000 voxels, all objects, and all objects cut into ten times as many. Wall time includes reading
and writing the files. CPU time is the sum over all cores, which is fairer on a busy machine.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np

from ffn.config import PartitionConfig
from ffn.geometry import ZYX, Box, zyx
from ffn.io.create import create_volume
from ffn.io.open import open_volume
from ffn.io.volume import Placement
from ffn.sampling.partition import classify, partition

T = TypeVar("T")
FIB25 = Path(__file__).parents[2] / "shared/data/fib25/labels_z000-170.h5"
SHAPE = (170, 250, 250)


def main() -> None:
    """Run the comparison and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labels", metavar="FILE.h5:DATASET", help="labels to measure")
    parser.add_argument("--lom-radius", type=int, default=24, help="voxels along every axis (default: 24)")
    parser.add_argument("--threads", type=int, default=0, help="0 takes all cores (default: 0)")
    parser.add_argument("--usual", default=100, type=int, help="most labels to time the usual way (default: 100)")
    arguments = parser.parse_args()
    labels = load(arguments.labels)
    radius = zyx([arguments.lom_radius] * 3)
    cases = [("large objects", labels, 10_000), ("all objects", labels, 0), ("cut up", cut(labels, 10), 0)]
    print(f"{'':14} {'labels':>7} {'ffn partition: wall, CPU':>26} {'usual way: wall, CPU':>26}   equal")
    for name, voxels, min_size in cases:
        config = PartitionConfig(lom_radius_zyx=radius, min_size=min_size)
        print(f"{name:14} {compare(voxels, config, arguments.threads, arguments.usual)}", flush=True)


def load(spec: str | None) -> np.ndarray:
    """Read the labels to measure, or make random ones."""
    spec = spec or (f"{FIB25}:stack" if FIB25.exists() else None)
    if spec is None:
        return random_cells()
    with open_volume(spec) as volume:
        return volume.read().astype(np.uint64)


def random_cells(num_objects: int = 120, rng_seed: int = 0) -> np.ndarray:
    """Make Voronoi cells of random points: compact objects that fill the volume."""
    from scipy.spatial import KDTree

    centers = np.random.default_rng(rng_seed).random((num_objects, 3)) * SHAPE
    nearest = KDTree(centers).query(np.argwhere(np.ones(SHAPE, dtype=bool)), workers=-1)[1]
    return (nearest + 1).astype(np.uint64).reshape(SHAPE)


def cut(labels: np.ndarray, factor: int) -> np.ndarray:
    """Cut labels along the faces of cubes, as large as still gives `factor` times as many labels."""
    objects, number = np.unique(labels, return_inverse=True)
    for edge in range(64, 1, -4):
        z, y, x = (index // edge for index in np.ogrid[tuple(map(slice, labels.shape))])
        cube = (z * 256 + y) * 256 + x
        pieces = np.where(labels == 0, 0, number.reshape(labels.shape) * 256**3 + cube).astype(np.uint64)
        if np.unique(pieces).size > factor * objects.size:
            break
    return pieces


def compare(labels: np.ndarray, config: PartitionConfig, threads: int, most_usual: int) -> str:
    """Return one row of the table."""
    ids, sizes = np.unique(labels[labels > 0], return_counts=True)
    ids = ids[sizes >= config.min_size]
    found, ours = run_stage(labels, config, threads)
    if len(ids) > most_usual:
        return f"{len(ids):7} {ours:>26} {'-':>26}"
    expected, usual = timed(lambda: one_pass_per_label(labels, ids, config))
    return f"{len(ids):7} {ours:>26} {usual:>26}   {np.array_equal(found, expected)}"


def run_stage(labels: np.ndarray, config: PartitionConfig, threads: int) -> tuple[np.ndarray, str]:
    """Run the stage from file to file; return the part with whole neighbourhoods, and the time."""
    with tempfile.TemporaryDirectory() as folder:
        source, out = f"{folder}/labels.h5:labels", f"{folder}/partitions.h5:partitions"
        with create_volume(source, np.uint64, Placement(Box.from_shape(zyx(labels.shape)))) as writer:
            writer.write(writer.box, labels)
        small = Box.from_shape(zyx(2 * r + 2 for r in config.lom_radius_zyx))
        partition(source, out, config, small, threads)  # compiles, unless an earlier run has
        seconds = timed(lambda: partition(source, out, config, threads=threads))[1]
        with open_volume(out) as volume:
            return volume.read()[inner(config.lom_radius_zyx)], seconds


def one_pass_per_label(labels: np.ndarray, ids: np.ndarray, config: PartitionConfig) -> np.ndarray:
    """Sum each label's mask over the array, and take differences at the corners of the boxes."""
    radius = config.lom_radius_zyx
    counts = np.zeros(labels[inner(radius)].shape, dtype=np.int32)
    for label in ids:
        mask = labels == label
        sums = np.pad(mask.astype(np.int32), ((1, 0), (1, 0), (1, 0)))
        for axis in range(3):
            np.cumsum(sums, axis=axis, out=sums)
        for axis, r in enumerate(radius):
            sums = np.moveaxis(sums, axis, 0)
            sums = np.moveaxis(sums[2 * r + 1 :] - sums[: -2 * r - 1], 0, axis)
        own = mask[inner(radius)]
        counts[own] = sums[own]
    return classify(counts, radius, config.thresholds)


def inner(radius_zyx: ZYX) -> tuple[slice, ...]:
    """Return the slices of the voxels that have a whole neighbourhood."""
    return tuple(slice(r, -r) for r in radius_zyx)


def timed(work: Callable[[], T]) -> tuple[T, str]:
    """Return a result, and its wall and CPU time as text."""
    wall, cpu = time.perf_counter(), sum(os.times()[:2])
    result = work()
    return result, f"{time.perf_counter() - wall:.2f} s, {sum(os.times()[:2]) - cpu:.2f} s"


if __name__ == "__main__":
    main()
