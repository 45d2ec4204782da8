"""Find membranes as image edges, and measure the distance to them; sampling and inference share this."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, cast

import numpy as np
from numba import njit
from scipy import ndimage

from ffn.geometry import BLUR_NM, ZYX, VoxelSize, has_thick_sections, zyx

TRUNCATE = 4.0
SLAB_VOXELS = 2**19  # that a thread works on at a time; our choice
SLAB_PLANES = 8  # at least; for the Sobel operator, a thread reads two more

F = TypeVar("F", bound=Callable[..., object])


def compiled(function: F) -> F:
    """Compile a function when it is first called; keep it for later processes, where a folder can be written."""
    try:
        return cast(F, njit(nogil=True, cache=True)(function))
    except RuntimeError:  # neither next to the module nor in the user's home, as in many containers
        return cast(F, njit(nogil=True)(function))


def edge_strength(image: np.ndarray, threads: int = 1, by_section: bool = False) -> np.ndarray:
    """Return the magnitude of the Sobel gradient (float32), in 3D or of each section for itself.

    Grey levels are of any real type, and mirrored at the borders (``d c b a | a b c d``). The result does not depend on
    the number of threads, here and in all functions below.
    """
    grey = image.astype(np.float32, copy=False)
    strength = np.empty_like(grey)

    def work(slab: slice) -> None:
        if by_section:
            for i in range(slab.start, slab.stop):
                strength[i] = ndimage.generic_gradient_magnitude(grey[i], ndimage.sobel, mode="reflect")
            return
        first = max(0, slab.start - 1)
        near = ndimage.generic_gradient_magnitude(grey[first : slab.stop + 1], ndimage.sobel, mode="reflect")
        strength[slab] = near[slab.start - first :][: slab.stop - slab.start]

    in_slabs(work, grey.shape, threads)
    return strength


def edges(
    image: np.ndarray,
    voxel_size_nm: Sequence[float],
    blur_nm: float = BLUR_NM,
    masked: np.ndarray | None = None,
    threads: int = 1,
) -> np.ndarray:
    """Mark the voxels whose gradient exceeds its Gaussian blur.

    Sections that are more than twice as thick as their pixels are looked at one by one: outlines move from one to the
    next, so a 3D gradient takes cytoplasm for membrane (39 % of it at 40×8×8 nm on a phantom, 28 % by section).

    Parameters
    ----------
    image : ndarray of shape (Z, Y, X) or (Y, X)
        Grey levels of any real type.
    voxel_size_nm : sequence of float
        Side of a voxel along each axis, nm.
    blur_nm : float
        Standard deviation of the blur, nm.
    masked : bool ndarray of shape (Z, Y, X), optional
        Voxels that do not count. They, and gradients across their border, would raise the threshold around them.
    threads : int
        Threads to use.

    Returns
    -------
    bool ndarray of shape (Z, Y, X)
        True on edges; the border of the image alone makes no edge, nor does that of a mask.

    Notes
    -----
    Source: Januszewski et al. 2018, Methods: Sobel edges, adaptive threshold with σ = 49/6 voxels.
    A voxel depends only on the voxels within `reach` of it.
    """
    by_section, sigma = has_thick_sections(voxel_size_nm), _sigma(voxel_size_nm, blur_nm)
    strength = edge_strength(image, threads, by_section)
    if masked is None:
        return strength > _blurred(strength, sigma, threads)
    known = ~ndimage.binary_dilation(masked, np.ones((1 if by_section else 3, 3, 3)[-masked.ndim :]))
    strength[~known] = 0
    weight = _blurred(known.astype(np.float32), sigma, threads)
    return strength > _blurred(strength, sigma, threads) / np.maximum(weight, np.finfo(np.float32).tiny)


def _blurred(values: np.ndarray, sigma: Sequence[float], threads: int) -> np.ndarray:
    """Blur along the first axis in slabs of the second, which hold whole lines, and then along all others."""
    result = np.empty_like(values)
    first, others = (sigma[0], *[0.0] * (values.ndim - 1)), (0.0, *sigma[1:])

    def blur(source: np.ndarray, out: np.ndarray, sigmas: tuple[float, ...]) -> None:
        ndimage.gaussian_filter(source, sigmas, output=out, mode="reflect", truncate=TRUNCATE)

    swapped = (values.shape[1], values.shape[0], *values.shape[2:])
    in_slabs(lambda slab: blur(values[:, slab], result[:, slab], first), swapped, threads)
    in_slabs(lambda slab: blur(result[slab], result[slab], others), values.shape, threads)
    return result


def _sigma(voxel_size_nm: Sequence[float], blur_nm: float) -> list[float]:
    """Return the blur's standard deviation along each axis, voxels: 0 across thick sections."""
    sigma = [blur_nm / side for side in voxel_size_nm]
    return [0.0, *sigma[1:]] if has_thick_sections(voxel_size_nm) else sigma


def reach(voxel_size_zyx_nm: VoxelSize, blur_nm: float = BLUR_NM) -> ZYX:
    """Return how far `edges` looks along each axis, voxels: the radius of the Gaussian plus one for the gradient.

    Examples
    --------
    >>> reach((10.0, 10.0, 10.0)), reach((40.0, 10.0, 10.0))
    ((34, 34, 34), (0, 34, 34))
    """
    return zyx(int(TRUNCATE * sigma + 0.5) + 1 if sigma else 0 for sigma in _sigma(voxel_size_zyx_nm, blur_nm))


def distance(edges: np.ndarray, voxel_size_zyx: tuple[float, ...], threads: int = 1) -> np.ndarray:
    """Return the Euclidean distance of every voxel to the nearest edge voxel (float32), in the unit of the voxel size.

    It is infinite if there is no edge at all.
    """
    import edt

    return edt.edt(~edges, anisotropy=voxel_size_zyx, order="C", parallel=threads)


def in_slabs(work: Callable[[slice], None], shape: tuple[int, ...], threads: int) -> None:
    """Call `work` with ranges that cover the first axis of an array, in several threads at the same time."""
    length = shape[0]
    planes = max(SLAB_PLANES, SLAB_VOXELS * length // max(1, math.prod(shape)))
    slabs = [slice(start, min(start + planes, length)) for start in range(0, length, planes)]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, slabs))
