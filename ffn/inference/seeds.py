"""Seeds: far from membranes, on a grid, or at points that the user gives."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from ffn import edges
from ffn.config import SegmentConfig
from ffn.geometry import ZYX, Box, VoxelSize
from ffn.inference.canvas import MASKED, is_free

log = logging.getLogger(__name__)

GRID_STEP_ZYX = (16, 16, 16)  # as the default of google/ffn
NOISE = 1e-4
NOISE_SEED = 42


def find_seeds(
    image: np.ndarray,
    config: SegmentConfig,
    voxel_size_zyx_nm: VoxelSize,
    box: Box,
    points: np.ndarray | None = None,
    masked: np.ndarray | None = None,
) -> np.ndarray:
    """Find the seeds of a subvolume by the policy and in the order of the configuration.

    Parameters
    ----------
    image : float32 ndarray of shape (Z, Y, X)
        Normalised image of the subvolume.
    config : SegmentConfig
        Its ``seed_*`` fields, and ``mirror``.
    voxel_size_zyx_nm : tuple of float
        Voxel size; distances are in units of the smallest side.
    box : Box
        Box of the subvolume, full-volume voxels.
    points : int64 ndarray of shape (N, 3), optional
        What `read_points` returned for ``seed_points``; for the policy `points`.
    masked : bool ndarray of shape (Z, Y, X), optional
        Voxels that nothing may enter. Peaks stay away from them as from membranes.

    Returns
    -------
    int64 ndarray of shape (N, 3)
        Seeds, zyx, relative to `box`, in the order in which they grow.
    """
    return _in_order(_find(image, config, voxel_size_zyx_nm, box, points, masked), config)


def _find(
    image: np.ndarray,
    config: SegmentConfig,
    voxel_size: VoxelSize,
    box: Box,
    points: np.ndarray | None,
    masked: np.ndarray | None,
) -> np.ndarray:
    match config.seed_policy:
        case "peaks":
            return peak_seeds(image, voxel_size, config.seed_min_distance, masked, config.mirror)
        case "peaks_2d":
            return slice_peak_seeds(image, voxel_size, config.seed_min_distance, masked, config.mirror)
        case "grid":
            return grid_seeds(box, GRID_STEP_ZYX)
        case "points":
            assert points is not None  # SegmentConfig checks it
            return points_inside(points, box)


def peak_seeds(
    image: np.ndarray,
    voxel_size_zyx_nm: tuple[float, ...],
    min_distance: int,
    masked: np.ndarray | None = None,
    at_faces: bool = False,
) -> np.ndarray:
    """Find seeds far from membranes; without `at_faces`, as the published `PolicyPeaks` does.

    Parameters
    ----------
    image : float32 ndarray of shape (Z, Y, X) or (Y, X)
        Normalised image.
    voxel_size_zyx_nm : tuple of float
        Voxel size, one number per axis; distances are in units of the smallest side.
    min_distance : int
        Distance between two seeds, voxels.
    masked : bool ndarray of the shape of `image`, optional
        As in `find_seeds`.
    at_faces : bool
        Whether voxels nearer than `min_distance` to a face can be seeds, as FOVs of a mirrored image reach them.

    Returns
    -------
    int64 ndarray of shape (N, 3) or (N, 2)
        Seeds in ascending order. Fixed noise of 1e-4 breaks ties between equal distances.

    Notes
    -----
    Source: Januszewski et al. 2018, Methods, with the constants of google/ffn.
    """
    walls = edges.edges(image, masked=masked)
    if masked is None:
        return _peaks(walls, voxel_size_zyx_nm, min_distance, at_faces)
    walls |= masked
    peaks = _peaks(walls, voxel_size_zyx_nm, min_distance, at_faces)
    return peaks[~masked[tuple(peaks.T)]]


def slice_peak_seeds(
    image: np.ndarray,
    voxel_size_zyx_nm: VoxelSize,
    min_distance: int,
    masked: np.ndarray | None = None,
    at_faces: bool = False,
) -> np.ndarray:
    """Find the seeds of every z slice separately, for sections too thick to compare voxels across them."""
    masks = [None] * len(image) if masked is None else masked
    planes = zip(image, masks, strict=True)
    return _stacked([peak_seeds(plane, voxel_size_zyx_nm[1:], min_distance, mask, at_faces) for plane, mask in planes])


def grid_seeds(box: Box, step_zyx: ZYX) -> np.ndarray:
    """Place seeds on a regular grid.

    Parameters
    ----------
    box : Box
        Box of the subvolume. The grid is that of the full volume, so overlapping subvolumes share its points.
    step_zyx : tuple of int
        Distance between two seeds, voxels; the first is half a step from the origin. Where a thin box has none on an
        axis, the middle is taken.

    Returns
    -------
    int64 ndarray of shape (N, 3)
        Seeds, zyx, relative to `box`, in ascending order.

    Examples
    --------
    >>> grid_seeds(Box((0, 0, 6), (4, 2, 12)), (3, 2, 4)).tolist()
    [[1, 1, 0], [1, 1, 4]]
    >>> grid_seeds(Box((0, 0, 0), (5, 2, 8)), (16, 2, 4)).tolist()
    [[2, 1, 2], [2, 1, 6]]
    """
    axes = [
        np.arange((step // 2 - start) % step, stop - start, step)
        for start, stop, step in zip(box.start, box.stop, step_zyx, strict=True)
    ]
    axes = [axis if len(axis) else np.array([n // 2]) for axis, n in zip(axes, box.shape, strict=True)]
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 3).astype(np.int64)


def points_inside(points: np.ndarray, box: Box) -> np.ndarray:
    """Select the points in `box`; log a warning if there is none."""
    inside = box.holds(points)
    if not inside.any():
        log.warning("0 of %d seed points lie in %s, so nothing will be segmented there", len(points), box)
    return points[inside] - np.array(box.start, np.int64)


def empty_space_seeds(
    image: np.ndarray, segmentation: np.ndarray, config: SegmentConfig, voxel_size_zyx_nm: VoxelSize
) -> np.ndarray:
    """Find the seeds of a second pass, in what the first left empty."""
    if config.seed_policy == "peaks_2d":
        planes = zip(image, segmentation, strict=True)
        seeds = _stacked([_free_peaks(*plane, config, voxel_size_zyx_nm[1:]) for plane in planes])
    else:
        seeds = _free_peaks(image, segmentation, config, voxel_size_zyx_nm)
    return _in_order(seeds, config)


def _free_peaks(
    image: np.ndarray, segmentation: np.ndarray, config: SegmentConfig, voxel_size: tuple[float, ...]
) -> np.ndarray:
    free = is_free(segmentation)
    masked = segmentation == MASKED
    walls = edges.edges(image, masked=masked if masked.any() else None)
    walls |= ~free
    peaks = _peaks(walls, voxel_size, config.seed_min_distance, config.mirror)
    return peaks[free[tuple(peaks.T)]]


def _in_order(seeds: np.ndarray, config: SegmentConfig) -> np.ndarray:
    return seeds[::-1] if config.seed_order == "reversed" else seeds


def _stacked(found: Sequence[np.ndarray]) -> np.ndarray:
    """Return the seeds of all slices, zyx, from those of each, yx."""
    heights = np.repeat(np.arange(len(found)), [len(peaks) for peaks in found])
    return np.column_stack([heights, np.concatenate(found)])


def _peaks(walls: np.ndarray, voxel_size: tuple[float, ...], min_distance: int, at_faces: bool) -> np.ndarray:
    """Return the local maxima of the distance to `walls`, in ascending order; none if there are no walls."""
    from skimage.feature import peak_local_max

    if not walls.any():  # a blank image has no distance
        return np.empty((0, walls.ndim), np.int64)
    noisy = np.random.RandomState(NOISE_SEED).rand(*walls.shape)
    noisy *= NOISE
    noisy += edges.distance(walls, voxel_size)
    peaks = peak_local_max(noisy, min_distance, threshold_abs=0, threshold_rel=0, exclude_border=not at_faces)
    return np.array(sorted(map(tuple, peaks.tolist())), dtype=np.int64).reshape(-1, walls.ndim)
