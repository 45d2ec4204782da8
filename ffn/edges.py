"""Find membranes as image edges, and measure the distance to them; sampling and inference share this."""

from __future__ import annotations

import numpy as np
from scipy import ndimage

from ffn.geometry import ZYX, VoxelSize

SIGMA = 49 / 6
TRUNCATE = 4.0


def edge_strength(image: np.ndarray) -> np.ndarray:
    """Return the magnitude of the 3D Sobel gradient.

    Parameters
    ----------
    image : ndarray of shape (Z, Y, X)
        Grey levels of any real type, mirrored at the borders (``d c b a | a b c d``).

    Returns
    -------
    float32 ndarray of shape (Z, Y, X)
    """
    grey = image.astype(np.float32, copy=False)
    return ndimage.generic_gradient_magnitude(grey, ndimage.sobel, mode="reflect")


def edges(image: np.ndarray, sigma: float = SIGMA, masked: np.ndarray | None = None) -> np.ndarray:
    """Mark the voxels whose gradient exceeds its Gaussian blur.

    Parameters
    ----------
    image : ndarray of shape (Z, Y, X)
        Grey levels of any real type.
    sigma : float
        Standard deviation of the blur, voxels.
    masked : bool ndarray of shape (Z, Y, X), optional
        Voxels that do not count. They, and gradients across their border, would raise the threshold around them.

    Returns
    -------
    bool ndarray of shape (Z, Y, X)
        True on edges; the border of the image alone makes no edge, nor does that of a mask.

    Notes
    -----
    Source: Januszewski et al. 2018, Methods: Sobel edges, adaptive threshold with σ = 49/6 voxels.
    A voxel depends only on the voxels within `reach` of it.
    """
    strength = edge_strength(image)
    if masked is None:
        return strength > _blurred(strength, sigma)
    known = ~ndimage.binary_dilation(masked, np.ones((3,) * masked.ndim))
    strength[~known] = 0
    weight = _blurred(known.astype(np.float32), sigma)
    return strength > _blurred(strength, sigma) / np.maximum(weight, np.finfo(np.float32).tiny)


def _blurred(values: np.ndarray, sigma: float) -> np.ndarray:
    return ndimage.gaussian_filter(values, sigma, mode="reflect", truncate=TRUNCATE)


def reach(sigma: float = SIGMA) -> int:
    """Return how far `edges` looks along every axis, voxels: the radius of the Gaussian plus one for the gradient.

    Examples
    --------
    >>> reach()
    34
    """
    return int(TRUNCATE * sigma + 0.5) + 1


def distance(edges: np.ndarray, voxel_size_zyx: tuple[float, ...]) -> np.ndarray:
    """Return the Euclidean distance of every voxel to the nearest edge voxel.

    Parameters
    ----------
    edges : bool ndarray of shape (Z, Y, X) or (Y, X)
        True on edges.
    voxel_size_zyx : tuple of float
        Voxel size, in any unit.

    Returns
    -------
    float32 ndarray of shape (Z, Y, X)
        In units of the smallest side; infinite if there is no edge at all.
    """
    if not edges.any():
        return np.full(edges.shape, np.inf, dtype=np.float32)
    # scipy only finds the nearest edge voxels: to measure the distance, it would take 48 bytes per voxel instead of 12.
    nearest = ndimage.distance_transform_edt(
        ~edges.astype(bool, copy=False), sampling=voxel_size_zyx, return_distances=False, return_indices=True
    )
    for axis, size in enumerate(edges.shape):
        np.moveaxis(nearest[axis], axis, -1)[...] -= np.arange(size, dtype=np.int32)
    result = np.empty(edges.shape, np.float32)
    for i, plane in enumerate(result):
        squares = sum((steps[i] * side) ** 2 for steps, side in zip(nearest, voxel_size_zyx, strict=True))
        # Dividing last keeps equal distances equal: squares of whole nanometres add up without rounding.
        plane[...] = np.sqrt(squares) / min(voxel_size_zyx)
    return result


def steps_within(length: float, voxel_size_zyx: VoxelSize) -> ZYX:
    """Return how many voxels fit into `length` along each axis; `length` is in units of the smallest side.

    Examples
    --------
    >>> steps_within(8.0, (40.0, 10.0, 10.0))
    (2, 8, 8)
    """
    smallest = min(voxel_size_zyx)
    z, y, x = (int(length * smallest / side) for side in voxel_size_zyx)
    return z, y, x
