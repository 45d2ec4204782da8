"""Building blocks of the tissue: smooth noise and balls."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.ndimage import gaussian_filter


def smooth_noise(shape_zyx: Sequence[int], sigma_zyx: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Make Gaussian noise that varies over a given length.

    Parameters
    ----------
    shape_zyx : sequence of int
        Shape of the result.
    sigma_zyx : float ndarray of shape (3,)
        Standard deviation of the Gaussian that smooths white noise, voxels.
    rng : numpy.random.Generator
        Source of the noise.

    Returns
    -------
    float32 ndarray of shape (Z, Y, X)
        Mean 0, standard deviation 1.
    """
    noise = gaussian_filter(rng.standard_normal(shape_zyx, dtype=np.float32), sigma_zyx, mode="wrap")
    return (noise - noise.mean()) / noise.std()


def paint_balls(
    shape_zyx: Sequence[int], voxel_size_zyx_nm: Sequence[float], centres_nm: np.ndarray, radii_nm: np.ndarray
) -> np.ndarray:
    """Return how deep every voxel lies inside a union of balls.

    Parameters
    ----------
    shape_zyx : sequence of int
        Shape of the result.
    voxel_size_zyx_nm : sequence of float
        Voxel size, nm.
    centres_nm : float ndarray of shape (N, 3)
        Centres, zyx, from the outer corner of the first voxel; they may lie outside the volume.
    radii_nm : float ndarray of shape (N,)
        Radii.

    Returns
    -------
    float32 ndarray of shape (Z, Y, X)
        Distance of the voxel centre to the surface of the ball in which it is deepest, nm; 0 outside all balls.
    """
    depth_nm = np.zeros(shape_zyx, np.float32)
    size_nm = np.asarray(voxel_size_zyx_nm)
    starts = np.clip(np.floor((centres_nm - radii_nm[:, None]) / size_nm), 0, shape_zyx).astype(int)
    stops = np.clip(np.ceil((centres_nm + radii_nm[:, None]) / size_nm), 0, shape_zyx).astype(int)
    for start, stop, centre, radius in zip(starts, stops, centres_nm, radii_nm, strict=True):
        axes = [
            (np.arange(first, last) + 0.5) * size - middle
            for first, last, size, middle in zip(start, stop, size_nm, centre, strict=True)
        ]
        z, y, x = np.meshgrid(*axes, indexing="ij", sparse=True)
        box = depth_nm[tuple(map(slice, start, stop))]
        np.maximum(box, radius - np.sqrt(z * z + y * y + x * x), out=box, casting="same_kind")
    return depth_nm
