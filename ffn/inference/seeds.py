"""Where objects start: local maxima of the distance to the nearest membrane."""

from __future__ import annotations

import numpy as np

from ffn import edges

NOISE = 1e-4
NOISE_SEED = 42


def peak_seeds(image: np.ndarray, voxel_size_zyx_nm: tuple[float, float, float], min_distance: int) -> np.ndarray:
    """Find the seeds of an image, the published `PolicyPeaks`.

    Parameters
    ----------
    image : float32 ndarray of shape (Z, Y, X)
        Normalised image.
    voxel_size_zyx_nm : tuple of float
        Distances are measured in the smallest side, so anisotropic voxels count as they are.
    min_distance : int
        Between two seeds, voxels.

    Returns
    -------
    int ndarray of shape (N, 3)
        Seeds zyx in ascending order. Ties between equal distances are broken by fixed noise of 1e-4.

    Notes
    -----
    Source: Januszewski et al. 2018, Methods, with the constants of google/ffn.
    """
    from skimage.feature import peak_local_max

    membranes = edges.edges(image)
    if not membranes.any():  # a blank image: there is nothing to start from
        return np.empty((0, 3), np.int64)
    distance = edges.distance(membranes, voxel_size_zyx_nm)
    noisy = distance + np.random.RandomState(NOISE_SEED).rand(*distance.shape) * NOISE
    peaks = peak_local_max(noisy, min_distance=min_distance, threshold_abs=0, threshold_rel=0)
    return np.array(sorted(map(tuple, peaks.tolist())), dtype=np.int64).reshape(-1, 3)
