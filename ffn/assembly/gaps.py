"""Flooding the gaps of a segmentation, in memory."""

from __future__ import annotations

import numpy as np

from ffn.assembly.config import FillConfig
from ffn.geometry import VoxelSize

TRUNCATE = 4.0  # radius of the Gaussian, standard deviations


def fill_gaps(
    labels: np.ndarray,
    image: np.ndarray,
    voxel_size_zyx_nm: VoxelSize,
    config: FillConfig,
    masked: np.ndarray | None = None,
    competitors: np.ndarray | None = None,
) -> np.ndarray:
    """Fill the gaps of `labels` by a seeded watershed of the image.

    Parameters
    ----------
    labels : uint64 ndarray of shape (Z, Y, X)
        0 marks the gaps.
    image : ndarray of shape (Z, Y, X)
        Grey levels. Membranes are dark, and the floods of two segments meet on the darkest line between them.
    voxel_size_zyx_nm : tuple of float
        Sides of a voxel.
    config : FillConfig
        Maximum distance from a segment, smoothing.
    masked : bool ndarray of shape (Z, Y, X), optional
        Gaps that stay gaps.
    competitors : uint64 ndarray of shape (Z, Y, X), optional
        Ids of places in gaps that are flooded from as well, within the maximum distance from a segment; 0 elsewhere.

    Returns
    -------
    uint64 ndarray of shape (Z, Y, X)
        Segmented voxels keep their ids. Voxels beyond the maximum distance from every segment stay 0.
    """
    from scipy import ndimage
    from skimage.segmentation import watershed

    if not labels.any():
        return labels
    gaps = labels == 0
    flooded = _within(gaps, config.max_distance_nm, voxel_size_zyx_nm)
    if masked is not None:
        flooded &= ~masked
    if not (flooded & gaps).any():
        return labels
    if competitors is not None:
        labels = np.where(flooded & gaps, competitors, labels)
        gaps = labels == 0
    flooded &= ndimage.binary_dilation(gaps)  # the gaps and their rims; flooding whole segments only costs time
    height = smoothed(image, config.sigma_nm, voxel_size_zyx_nm)
    np.negative(height, out=height)
    ids, indices = np.unique(labels[flooded], return_inverse=True)  # ids[0] is 0; watershed markers have 32 bits
    markers = np.zeros(labels.shape, np.int32)
    markers[flooded] = indices
    return np.where(gaps, ids[watershed(height, markers, mask=flooded)], labels)


def _within(gaps: np.ndarray, distance_nm: float, voxel_size_zyx_nm: VoxelSize) -> np.ndarray:
    """Return which voxels (bool) are within a distance of a segment."""
    import edt

    squares = edt.edtsq(gaps, anisotropy=voxel_size_zyx_nm, order="C", parallel=1)
    return squares <= distance_nm**2 * (1 + 1e-5)  # float32 sums of squares differ by their order


def smoothed(image: np.ndarray, sigma_nm: float, voxel_size_zyx_nm: VoxelSize) -> np.ndarray:
    """Return the image (float32) smoothed by a Gaussian that has the same length on each axis."""
    from scipy import ndimage

    sigma = [sigma_nm / side for side in voxel_size_zyx_nm]
    return ndimage.gaussian_filter(image.astype(np.float32), sigma, truncate=TRUNCATE)
