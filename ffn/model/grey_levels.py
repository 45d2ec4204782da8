"""Histograms of grey levels: of a volume, and of the training volumes of a network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ffn.geometry import Box, divide_up

HISTOGRAM_DTYPES = (np.dtype(np.uint8), np.dtype(np.uint16))
MAX_BINS = 256  # of the histogram in a model, and of the curve of a match; exact for uint8
SAMPLE_BLOCK_ZYX = (64, 64, 64)
SAMPLED_PER_AXIS = 5  # our choice: mean and deviation of 125 blocks of FIB-25 are those of all within 0.5 grey levels
NUM_RANKS = 1000


@dataclass(frozen=True)
class Histogram:
    """How many voxels have which grey level."""

    levels: np.ndarray
    counts: np.ndarray

    @classmethod
    def of_counts(cls, counts: np.ndarray) -> Histogram:
        """Return the histogram of the counts from `count_levels`."""
        levels = np.flatnonzero(counts)
        return cls(levels.astype(np.float64), counts[levels].astype(np.int64))

    @classmethod
    def together(cls, parts: Sequence[Histogram]) -> Histogram:
        """Return the histogram of several volumes as one."""
        levels, places = np.unique(np.concatenate([part.levels for part in parts]), return_inverse=True)
        counts = np.bincount(places, np.concatenate([part.counts for part in parts]))
        return cls(levels, counts.astype(np.int64))

    @property
    def mean(self) -> float:
        """Mean grey level."""
        return float(np.average(self.levels, weights=self.counts))

    @property
    def stddev(self) -> float:
        """Standard deviation of the grey levels."""
        return float(np.average((self.levels - self.mean) ** 2, weights=self.counts)) ** 0.5

    @property
    def ranks(self) -> np.ndarray:
        """Share of voxels below each level, half of the level's own included: float64 (N,), ascending."""
        return (np.cumsum(self.counts) - self.counts / 2) / self.counts.sum()

    def at(self, ranks: np.ndarray) -> np.ndarray:
        """Return the grey levels at these ranks, linear between levels."""
        return np.interp(ranks, self.ranks, self.levels)

    def coarse(self) -> Histogram:
        """Return at most `MAX_BINS` bins of about as many voxels each, at their mean levels; uint8 stays as it is."""
        if len(self.levels) <= MAX_BINS:
            return self
        bins = np.unique((self.ranks * MAX_BINS).astype(int), return_inverse=True)[1]
        counts = np.bincount(bins, self.counts)
        return Histogram(np.bincount(bins, self.counts * self.levels) / counts, counts.astype(np.int64))

    def as_json(self) -> dict[str, list]:
        """Return plain data, which `from_json` reads."""
        return {"levels": self.levels.tolist(), "counts": self.counts.tolist()}

    @classmethod
    def from_json(cls, values: dict[str, list]) -> Histogram:
        """Return the histogram that `as_json` wrote."""
        return cls(np.array(values["levels"], np.float64), np.array(values["counts"], np.int64))


def distance(seen: Histogram, trained_on: Histogram) -> float:
    """Return the root mean square difference of grey levels of equal rank, in deviations of `trained_on`.

    Examples
    --------
    >>> flat, moved = (Histogram(np.arange(a, a + 100.0), np.full(100, 7)) for a in (0, 10))
    >>> round(distance(moved, flat) * flat.stddev, 6)
    10.0
    """
    ranks = (np.arange(NUM_RANKS) + 0.5) / NUM_RANKS
    return float(np.sqrt(np.mean((seen.at(ranks) - trained_on.at(ranks)) ** 2))) / trained_on.stddev


def count_levels(voxels: np.ndarray) -> np.ndarray:
    """Return how many voxels have each grey level of their type, int64 of shape (256,) or (65536,)."""
    return np.bincount(voxels.ravel(), minlength=2 ** (8 * voxels.dtype.itemsize))


def sample_blocks(box: Box) -> Iterator[Box]:
    """Yield the blocks that statistics of a volume come from: everywhere, but at most 125; of a small volume, all."""
    grid = divide_up(box.shape, SAMPLE_BLOCK_ZYX)
    taken = [set(np.linspace(0, n - 1, min(n, SAMPLED_PER_AXIS)).round().tolist()) for n in grid]
    for block in box.blocks(SAMPLE_BLOCK_ZYX):
        place = ((a - b) // size for a, b, size in zip(block.start, box.start, SAMPLE_BLOCK_ZYX, strict=True))
        if all(n in numbers for n, numbers in zip(place, taken, strict=True)):
            yield block
