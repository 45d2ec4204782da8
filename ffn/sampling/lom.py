"""Count the voxels of the same object in the local object mask (LOM) around every voxel.

This takes one pass for any number of labels. For a plane of centres, ``sums[object, x]`` is the number of voxels
of an object in the (z, y) window around column x. Moving down by one row adds a row of columns and removes another;
columns are read as runs of equal labels. The count of a voxel is the sum of its object's row of `sums` over the x
window. Along a row, while the object stays the same, this takes one addition and one subtraction per voxel.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ffn.edges import compiled
from ffn.errors import VolumeError
from ffn.geometry import ZYX, Box, zyx


def lom_counts(labels: np.ndarray, lom_radius_zyx: ZYX, ids: np.ndarray, threads: int = 1) -> np.ndarray:
    """Count the voxels of the same object within `lom_radius_zyx` of every voxel.

    Parameters
    ----------
    labels : uint64 ndarray of shape (Z, Y, X)
        Segment ids.
    lom_radius_zyx : tuple of int
        Half-size of the LOM, voxels.
    ids : uint64 ndarray of shape (N,)
        Objects to count, ascending; voxels of all others get 0, as background does.
    threads : int
        Threads to use; the result does not depend on it.

    Returns
    -------
    int32 ndarray of shape (Z - 2rz, Y - 2ry, X - 2rx)
        Counts of the voxels with a whole LOM.

    Raises
    ------
    VolumeError
        If `labels` is smaller than one LOM.

    Notes
    -----
    Source: Januszewski et al. 2018, Methods (active fraction); the algorithm is ours.
    """
    require_lom_fits(Box.from_shape(zyx(labels.shape)), lom_radius_zyx, "labels")
    objects = _index(labels, ids)
    ends = _run_ends(objects)
    counts = np.zeros([n - 2 * r for n, r in zip(labels.shape, lom_radius_zyx, strict=True)], dtype=np.int32)
    bounds = np.linspace(0, len(counts), min(threads, len(counts)) + 1).astype(int)

    def fill(start: int, stop: int) -> None:
        _count_slab(objects, ends, len(ids), lom_radius_zyx, start, stop, counts)

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
    objects: np.ndarray,
    ends: np.ndarray,
    num_objects: int,
    lom_radius_zyx: ZYX,
    z_start: int,
    z_stop: int,
    counts: np.ndarray,
) -> None:
    """Fill ``counts[z_start:z_stop]``."""
    rz, ry, rx = lom_radius_zyx
    sums = np.empty((num_objects + 1, objects.shape[2]), dtype=np.int32)
    for z in range(z_start, z_stop):
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
