"""Seeds: far from membranes, or at points that the user gives."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ffn import edges
from ffn.config import SegmentConfig
from ffn.geometry import Box, VoxelSize
from ffn.machine.limits import threads_here

log = logging.getLogger(__name__)

DISTANCE_NM = 30.0  # between seeds; with google/ffn's 3 voxels of 10 nm
SECTION_DISTANCE_NM = 56.0  # in a section, where they also lie deep, with google/ffn's 7 and 2.5 voxels of 8 nm
SECTION_DEPTH_NM = 20.0
NOISE = 1e-4
NOISE_SEED = 42
_SEARCH = threading.Lock()


def find_seeds(
    image: np.ndarray,
    config: SegmentConfig,
    voxel_size_zyx_nm: VoxelSize,
    masked: np.ndarray | None,
    taken: np.ndarray | None = None,
) -> np.ndarray:
    """Find the seeds of a subvolume, in their order, see `peak_seeds`; of a second pass where nothing is `taken` yet.

    Subvolumes are searched one after the other, each on all threads, so that the first is done as soon as possible.
    """
    with _SEARCH:
        return in_order(peak_seeds(image, config, voxel_size_zyx_nm, masked, taken, threads_here()), config)


def peak_seeds(
    image: np.ndarray,
    config: SegmentConfig,
    voxel_size_zyx_nm: tuple[float, ...],
    masked: np.ndarray | None = None,
    taken: np.ndarray | None = None,
    threads: int = 1,
) -> np.ndarray:
    """Find seeds far from membranes, masks and segments; with the policy `peaks_2d`, in each section for itself.

    Parameters
    ----------
    image : float32 ndarray of shape (Z, Y, X), or (Y, X) for one section
        Normalised image.
    config : SegmentConfig
        Policy and least distance of two seeds. With ``mirror``, voxels near a face can be seeds, as FOVs reach them.
    voxel_size_zyx_nm : tuple of float
        One number per axis.
    masked, taken : bool ndarrays of the shape of `image`, optional
        Voxels that nothing may enter, and voxels of segments.
    threads : int
        Threads to use; the result does not depend on it.

    Returns
    -------
    int64 ndarray of shape (N, 3) or (N, 2)
        Seeds in ascending order. Fixed noise of 1e-4 breaks ties between equal distances.

    Notes
    -----
    Source: Januszewski et al. 2018, Methods, with the constants of google/ffn; without ``mirror``, its `PolicyPeaks`.
    """
    if config.seed_policy == "peaks_2d" and image.ndim == 3:
        nothing = [None] * len(image)
        planes = zip(image, nothing if masked is None else masked, nothing if taken is None else taken, strict=True)
        with ThreadPoolExecutor(threads) as pool:
            found = list(
                pool.map(lambda plane: peak_seeds(plane[0], config, voxel_size_zyx_nm[1:], *plane[1:]), planes)
            )
        heights = np.repeat(np.arange(len(found)), [len(peaks) for peaks in found])
        return np.column_stack([heights, np.concatenate(found)])
    blocked = masked
    if taken is not None and masked is not None:
        blocked, masked = masked | taken, masked if masked.any() else None
    walls = edges.edges(image, voxel_size_zyx_nm, masked=masked, threads=threads)
    if blocked is not None:
        walls |= blocked
    least = (SECTION_DISTANCE_NM, SECTION_DEPTH_NM) if config.seed_policy == "peaks_2d" else (DISTANCE_NM, 0.0)
    peaks = _peaks(walls, voxel_size_zyx_nm, (config.seed_distance_nm or least[0], least[1]), config.mirror, threads)
    return peaks if blocked is None else peaks[~blocked[tuple(peaks.T)]]


def points_inside(points: np.ndarray, box: Box) -> np.ndarray:
    """Select the points in `box`; log a warning if there is none."""
    inside = box.holds(points)
    if not inside.any():
        log.warning("0 of %d seed points lie in %s, so nothing will be segmented there", len(points), box)
    return points[inside] - np.array(box.start, np.int64)


def in_order(seeds: np.ndarray, config: SegmentConfig) -> np.ndarray:
    """Return seeds in the order of the options."""
    return seeds[::-1] if config.seed_order == "reversed" else seeds


def _peaks(
    walls: np.ndarray, voxel_size: tuple[float, ...], least_nm: tuple[float, float], at_faces: bool, threads: int
) -> np.ndarray:
    """Return the local maxima of the distance to `walls`, in ascending order; none if there are no walls.

    `least_nm` are their least distances from each other, and the distance to `walls` that they exceed.
    """
    if not walls.any():  # a blank image has no distance
        return np.empty((0, walls.ndim), np.int64)
    distance = edges.distance(walls, voxel_size, threads)
    noisy = np.random.RandomState(NOISE_SEED).rand(*walls.shape)
    noisy *= NOISE
    noisy += distance
    flat = 3 - walls.ndim  # axes of a section that are missing
    radius = np.array([max(1, round(least_nm[0] / side)) for side in voxel_size])
    reach = np.array([0] * flat + radius.tolist())
    steps = np.argwhere(np.ones(2 * reach + 1)) - reach
    steps = steps[np.argsort((steps**2).sum(axis=1))]  # nearly all voxels are lower than one next to them
    values = noisy.reshape((1,) * flat + walls.shape)
    marks = np.empty(values.shape, bool)
    edges.in_slabs(
        lambda slab: _mark_peaks(values, steps, marks, least_nm[1], slab.start, slab.stop), values.shape, threads
    )
    peaks = np.argwhere(marks)[:, flat:]
    margin = 0 * radius if at_faces else radius
    return peaks[((peaks >= margin) & (peaks < np.array(walls.shape) - margin)).all(axis=1)]


@edges.compiled
def _mark_peaks(values: np.ndarray, steps: np.ndarray, marks: np.ndarray, depth: float, start: int, stop: int) -> None:
    """Mark, in some planes, the voxels above `depth` from which no step leads to a higher one."""
    shape = values.shape
    for z in range(start, stop):
        for y in range(shape[1]):
            for x in range(shape[2]):
                value = values[z, y, x]
                is_peak = value > depth
                for number in range(len(steps) if is_peak else 0):
                    dz, dy, dx = steps[number]
                    a, b, c = z + dz, y + dy, x + dx
                    inside = 0 <= a < shape[0] and 0 <= b < shape[1] and 0 <= c < shape[2]
                    if inside and values[a, b, c] > value:
                        is_peak = False
                        break
                marks[z, y, x] = is_peak
