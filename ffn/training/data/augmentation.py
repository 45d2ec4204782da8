"""Augmentation of training examples: orientation, grey levels, and defects of single sections as in real data.

All randomness comes from the generator that the caller passes. Options that are off draw nothing from it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ffn.geometry import Box, subtract
from ffn.training.config import MAX_MISALIGNMENT, TrainConfig

BLUR_SIGMA = 2.0  # standard deviation of the blur of a section out of focus, voxels; our choice


def permute_and_reflect(
    arrays: tuple[np.ndarray, ...],
    permutable: tuple[int, ...],
    reflects: bool,
    rng: np.random.Generator,
) -> list[np.ndarray]:
    """Exchange and reverse axes at random, in the same way for all `arrays`."""
    order = list(range(arrays[0].ndim))
    for axis, source in zip(permutable, rng.permutation(permutable), strict=True):
        order[axis] = int(source)
    reverse = rng.random(arrays[0].ndim) < 0.5
    flips = tuple(np.flatnonzero(reverse & reflects).tolist())
    return [np.flip(array.transpose(order), flips) for array in arrays]


def draw_shifts(num_slices: int, config: TrainConfig, rng: np.random.Generator) -> np.ndarray:
    """Draw the shifts along y and x of the slices of a misaligned patch against the central one, int64 (num_slices, 2).

    A real stack jumps between two sections and continues from there. So, seen from the centre, all slices beyond a jump
    share its shift until the next jump. Annotators label the stack as it is, with its jumps, so image and labels are
    shifted together.
    """
    shifts = np.zeros((num_slices, 2), np.int64)
    if config.misaligned_slice_rate == 0:
        return shifts
    jumps = rng.random(num_slices) < config.misaligned_slice_rate
    largest = MAX_MISALIGNMENT
    drawn = rng.integers(-largest, largest, (num_slices, 2), endpoint=True)
    center = num_slices // 2
    for step, stop in ((1, num_slices), (-1, -1)):
        for z in range(center + step, stop, step):
            shifts[z] = drawn[z] if jumps[z] else shifts[z - step]
    return shifts


def read_shifted(read: Callable[[Box], np.ndarray], inside: Box, box: Box, shifts: np.ndarray) -> np.ndarray:
    """Read a box whose slice z holds the voxels that lie ``shifts[z]`` further along y and x.

    `inside` is the box that can be read; beyond it, the outermost voxels are repeated.
    """
    reach = int(np.abs(shifts).max())
    if reach == 0:
        return read(box)
    wanted = box.grow((0, reach, reach))
    available = wanted.intersect(inside)
    before, after = subtract(available.start, wanted.start), subtract(wanted.stop, available.stop)
    voxels = np.pad(read(available), list(zip(before, after, strict=True)), mode="edge")
    _, rows, columns = box.shape
    corners = [(reach + y, reach + x) for y, x in shifts.tolist()]
    return np.stack([plane[y : y + rows, x : x + columns] for plane, (y, x) in zip(voxels, corners, strict=True)])


def distort(image: np.ndarray, black: np.float32, config: TrainConfig, rng: np.random.Generator) -> None:
    """Blur slices, change contrast, brightness and gamma, and blank slices to `black`, the normalised grey level 0.

    The central slice is never blank, because no seed lies where there is no image. Gamma maps the range between the
    darkest and the brightest voxel of the patch onto itself, so it needs no range of grey levels.
    """
    blurred = _choose_slices(len(image), config.blur_rate, rng)
    if len(blurred):
        from scipy.ndimage import gaussian_filter

        image[blurred] = gaussian_filter(image[blurred], (0, BLUR_SIGMA, BLUR_SIGMA))
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
