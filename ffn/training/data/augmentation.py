"""Changes of training examples that real data know too: orientation, brightness, and defects of single sections.

Everything is a function of the generator that is handed in, which is used only for what is switched on.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ffn.geometry import Box
from ffn.training.config import TrainConfig


def permute_and_reflect(
    arrays: tuple[np.ndarray, ...],
    permutable: tuple[int, ...],
    reflectable: tuple[int, ...],
    rng: np.random.Generator,
) -> list[np.ndarray]:
    """Exchange and reverse axes at random, the same way in all `arrays`.

    Parameters
    ----------
    arrays : tuple of ndarray
        All of one shape.
    permutable, reflectable : tuple of int
        Axes that may be exchanged with each other, and axes that may be reversed.
    rng : Generator
        Source of the choice.

    Returns
    -------
    list of ndarray
        Views.
    """
    order = list(range(arrays[0].ndim))
    for axis, source in zip(permutable, rng.permutation(permutable), strict=True):
        order[axis] = int(source)
    reverse = rng.random(arrays[0].ndim) < 0.5
    flips = tuple(axis for axis in reflectable if reverse[axis])
    return [np.flip(array.transpose(order), flips) for array in arrays]


def draw_shifts(num_slices: int, config: TrainConfig, rng: np.random.Generator) -> np.ndarray:
    """Decide where the slices of a patch lie that was misaligned.

    Parameters
    ----------
    num_slices : int
        Slices along z.
    config : TrainConfig
        Rate and largest shift.
    rng : Generator
        Source of the choice.

    Returns
    -------
    int64 ndarray of shape (num_slices, 2)
        Shift of each slice along y and x against the central one, which stays where it is.

    Notes
    -----
    A stack jumps between two sections and goes on from there, so all slices beyond a jump, as seen from the
    centre, are shifted alike until the next one. Truth is painted on the stack as it is, with its jumps:
    image and labels are shifted together.
    """
    shifts = np.zeros((num_slices, 2), np.int64)
    if config.misaligned_slice_rate == 0:
        return shifts
    jumps = rng.random(num_slices) < config.misaligned_slice_rate
    largest = config.max_misalignment
    places = rng.integers(-largest, largest, (num_slices, 2), endpoint=True)
    center = num_slices // 2
    for step, stop in ((1, num_slices), (-1, -1)):
        for z in range(center + step, stop, step):
            shifts[z] = places[z] if jumps[z] else shifts[z - step]
    return shifts


def read_shifted(read: Callable[[Box], np.ndarray], inside: Box, box: Box, shifts: np.ndarray) -> np.ndarray:
    """Read a box whose slices are shifted.

    Parameters
    ----------
    read : callable
        Returns the voxels of a box.
    inside : Box
        What can be read; beyond it the outermost voxels are repeated.
    box : Box
        What to read, inside of it.
    shifts : int ndarray of shape (Z, 2)
        From `draw_shifts`.

    Returns
    -------
    ndarray of shape ``box.shape``
        Slice z holds what lies ``shifts[z]`` further along y and x.
    """
    reach = int(np.abs(shifts).max())
    if reach == 0:
        return read(box)
    wanted = box.grow((0, reach, reach))
    there = wanted.intersect(inside)
    missing = zip(there.start, wanted.start, wanted.stop, there.stop, strict=True)
    voxels = np.pad(read(there), [(a - b, c - d) for a, b, c, d in missing], mode="edge")
    _, rows, columns = box.shape
    places = [(reach + y, reach + x) for y, x in shifts.tolist()]
    return np.stack([plane[y : y + rows, x : x + columns] for plane, (y, x) in zip(voxels, places, strict=True)])


def distort(image: np.ndarray, black: np.float32, config: TrainConfig, rng: np.random.Generator) -> None:
    """Blur slices, change contrast, brightness and gamma, and blank slices, in place.

    Parameters
    ----------
    image : float32 ndarray of shape (Z, Y, X)
        Normalised grey levels.
    black : float32
        Grey level 0, normalised: aligned stacks are black where they have no image.
    config : TrainConfig
        Rates and ranges.
    rng : Generator
        Source of the choice.

    Notes
    -----
    The central slice is never blank: nobody starts an object where there is no image. Gamma acts between the
    darkest and the brightest voxel of the patch, which stay what they are, so it needs no range of grey levels.
    """
    blurred = _choose_slices(len(image), config.blur_rate, rng)
    if len(blurred):
        from scipy.ndimage import gaussian_filter

        image[blurred] = gaussian_filter(image[blurred], (0, config.blur_sigma, config.blur_sigma))
    if config.gamma_jitter:
        _apply_gamma(image, 1 + _symmetric(config.gamma_jitter, rng))
    if config.contrast_jitter:
        image *= 1 + _symmetric(config.contrast_jitter, rng)
    if config.brightness_jitter:
        image += _symmetric(config.brightness_jitter, rng)
    blank = _choose_slices(len(image), config.missing_slice_rate, rng)
    image[blank[blank != len(image) // 2]] = black


def _choose_slices(num_slices: int, rate: float, rng: np.random.Generator) -> np.ndarray:
    if rate == 0:
        return np.zeros(0, np.int64)
    return np.flatnonzero(rng.random(num_slices) < rate)


def _symmetric(largest: float, rng: np.random.Generator) -> np.float32:
    return np.float32(rng.uniform(-largest, largest))


def _apply_gamma(image: np.ndarray, gamma: np.float32) -> None:
    darkest, brightest = image.min(), image.max()
    if darkest == brightest:
        return
    image -= darkest
    image /= brightest - darkest
    np.power(image, gamma, out=image)
    image *= brightest - darkest
    image += darkest
