"""Grey levels of sections: how far they jump from one to the next, and images without such jumps."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from ffn.geometry import Box
from ffn.io.coarser import BySection
from ffn.io.volume import Volume

# Of the spread; FIB-25: 0.01 at most, SNEMI3D (z < 64): 0.30 with these samples, 0.33 to 0.43 with others.
JUMPS = 0.2
SAMPLED = 16  # pairs of neighbouring sections, at most; our choice
LEAST = 64 * 64  # voxels of a section, or it says too little about the levels; our choice
WINDOW = 512  # side of what is sampled of a section, in its middle, voxels; our choice
MOST_GAIN = 4.0  # of contrast; our choice, so that a blank section does not become noise


class Levels(NamedTuple):
    """Grey levels of an image's typical section, and the typical jump from one to the next, in parts of the spread."""

    median: float
    spread: float  # interquartile range
    jump: float


def levels_of(image: Volume, box: Box) -> Levels | None:
    """Return the grey levels of a sample of sections in a box, always the same one; None if all are blank or small."""
    (first, *_), (last, *_) = box.start, box.stop
    window = box.middle((box.shape[0], WINDOW, WINDOW)).intersect(box)
    found, jumps = [], []
    if window.shape[1] * window.shape[2] < LEAST:
        return None
    for z in np.unique(np.linspace(first, max(first, last - 2), SAMPLED).astype(int)).tolist():
        pair = image.read(Box((z, *window.start[1:]), (min(z + 2, last), *window.stop[1:])))
        quartiles = [each for section in pair if (each := _quartiles(section)) is not None]
        found += quartiles
        if len(quartiles) == 2:
            jumps.append(abs(quartiles[1][1] - quartiles[0][1]))
    if not found:
        return None
    lower, median, upper = np.median(found, axis=0).tolist()
    return Levels(median, upper - lower, float(np.median(jumps)) / (upper - lower) if jumps else 0.0)


def levelled(image: Volume, levels: Levels, box: Box) -> Volume:
    """Return a box of an image in which all sections have the same median and interquartile range.

    0, outside the tissue, stays.
    """
    return BySection(image, partial(_levelled, levels), box)


def _levelled(levels: Levels, section: np.ndarray) -> np.ndarray:
    quartiles = _quartiles(section)
    if quartiles is None:
        return section
    lower, median, upper = quartiles
    gain = np.clip(levels.spread / (upper - lower), 1 / MOST_GAIN, MOST_GAIN)
    most = np.iinfo(section.dtype).max
    table = np.clip(np.rint((np.arange(most + 1) - median) * gain + levels.median), 1, most)
    table[0] = 0
    return table.astype(section.dtype)[section]


def _quartiles(section: np.ndarray) -> tuple[float, float, float] | None:
    """Return the quartiles of what is not 0, None without contrast. Blood vessels and folds hardly move them."""
    tissue = section[section > 0]
    if not tissue.size:
        return None
    lower, median, upper = np.percentile(tissue, (25, 50, 75)).tolist()
    return (lower, median, upper) if upper > lower else None
