"""The band along body borders that the CREMI challenge excludes from its scores."""

from __future__ import annotations

import math

import numpy as np
from scipy.ndimage import distance_transform_edt

from ffn.geometry import Box, VoxelSize
from ffn.io.volume import Volume


def near_border(labels: np.ndarray, border_nm: float, voxel_size_zyx_nm: VoxelSize) -> np.ndarray:
    """Mark the voxels close to another label in the same xy section.

    Parameters
    ----------
    labels : integer ndarray of shape (Z, Y, X)
        Ground truth. Background, 0, counts as a label.
    border_nm : float
        Half-width of the band, nm.
    voxel_size_zyx_nm : tuple of float
        Only y and x matter.

    Returns
    -------
    bool ndarray of shape (Z, Y, X)
        True within `border_nm` of a voxel that differs from one of its 4 neighbours; such voxels are at distance 0.
    """
    near = np.zeros(labels.shape, dtype=bool)
    for z, section in enumerate(labels):
        interior = _interior(section)
        if not interior.all():
            near[z] = distance_transform_edt(interior, voxel_size_zyx_nm[1:]) <= border_nm
    return near


def read_without_border(
    truth: Volume, box: Box, border_nm: float, voxel_size_zyx_nm: VoxelSize, known: Box | None = None
) -> np.ndarray:
    """Read the ground truth with the border band set to 0. The result does not depend on how a volume is cut.

    Parameters
    ----------
    truth : Volume
        Integer labels.
    box : Box
        What to read. A halo in y and x is read too, within what is known.
    border_nm, voxel_size_zyx_nm
        As in `near_border`.
    known : Box, optional
        What can be read of the volume; default all.
    """
    _, y, x = voxel_size_zyx_nm
    margin = (0, math.ceil(border_nm / y) + 1, math.ceil(border_nm / x) + 1)
    wide = box.grow(margin).intersect(known or truth.box)
    labels = truth.read(wide)
    labels[near_border(labels, border_nm, voxel_size_zyx_nm)] = 0
    return labels[box.slices(wide.start)]


def _interior(section: np.ndarray) -> np.ndarray:
    """Whether a voxel has the same label as all its neighbours (4 at most) in the section."""
    inner = np.ones(section.shape, dtype=bool)
    for axis in (0, 1):
        same = np.diff(section.astype(np.int64), axis=axis) == 0
        before, after = [(0, 0), (0, 0)], [(0, 0), (0, 0)]
        before[axis], after[axis] = (1, 0), (0, 1)
        inner &= np.pad(same, before, constant_values=True) & np.pad(same, after, constant_values=True)
    return inner
