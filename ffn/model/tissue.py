"""What a network was trained on, and what an image shows: voxel size, CLAHE, membranes, padding, grey levels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ffn.config import Mask
from ffn.errors import VolumeError
from ffn.geometry import Box, VoxelSize, divide_up
from ffn.io.masks import Masks, open_masks
from ffn.io.open import open_volume
from ffn.io.volume import Volume, voxel_size_of
from ffn.progress import track

HISTOGRAM_DTYPES = (np.dtype(np.uint8), np.dtype(np.uint16))
MAX_BINS = 256  # of the histogram in a model, and of the curve of a match; exact for uint8
SAMPLE_BLOCK_ZYX = (64, 64, 64)
SAMPLED_PER_AXIS = 5  # our choice: mean and deviation of 125 blocks of FIB-25 are those of all within 0.5 grey levels
NUM_RANKS = 1000
# Padding: squares of a section that have exactly one grey level, as tissue never has; all three are our choice.
TILE = 16
LEAST_SHARE = 0.002  # of the voxels; one section in 500
LEAST_LEVELS = 16  # besides padding; fewer are a drawing
# The phase that membranes surround falls into more pieces than that of the membranes. Their counts differ by 0.46 of
# their sum on FIB-25, 0.52 on SNEMI3D at 6 and 12 nm, 0.8 on the phantom; the least difference is our choice.
SECTIONS, SIDE = 8, 512
BLUR_NM, PIECE_NM2 = 15.0, 2500.0
LEAST_BLUR, LEAST_PIECE = 1.0, 25  # voxels, against noise where voxels are coarse
LEAST_DIFFERENCE, DEVIATIONS = 0.15, 3.0
SAME_SIZE = 1.1  # ratio of voxel sizes that count as the same; our choice

Padding = dict[int, tuple[int, Box]]  # by grey level: voxels in flat squares, and a box that holds them


@dataclass(frozen=True)
class Tissue:
    """Voxel sizes of training volumes, and whether their membranes are ``dark`` or ``bright``, None if unclear.

    `clahe_tile` is that of `ffn ingest` if all of them were equalised with it, else None.
    """

    voxel_sizes_zyx_nm: tuple[VoxelSize, ...] = ()
    membranes: str | None = None
    clahe_tile: int | None = None

    def as_json(self) -> dict[str, Any]:
        """Return plain data, which `from_json` reads."""
        sizes = [list(map(float, size)) for size in self.voxel_sizes_zyx_nm]
        equalised = {"clahe_tile": self.clahe_tile} if self.clahe_tile else {}
        return {"voxel_sizes_zyx_nm": sizes, "membranes": self.membranes, **equalised}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Tissue:
        """Return what `as_json` wrote."""
        sizes = tuple((z, y, x) for z, y, x in values["voxel_sizes_zyx_nm"])
        return cls(sizes, values["membranes"], values.get("clahe_tile"))

    def other_size(self, size: VoxelSize | None) -> str | None:
        """Return a warning if a volume has voxels that the network was not trained on."""
        if size is None or not self.voxel_sizes_zyx_nm or any(_is_same(size, own) for own in self.voxel_sizes_zyx_nm):
            return None
        known = " and ".join(map(_text, self.voxel_sizes_zyx_nm))
        return (
            f"the network was trained at {known} nm, the volume is {_text(size)} nm. Take a mip of about that size, or "
            "fine-tune"
        )

    def other_membranes(self, seen: str | None) -> str | None:
        """Return a warning if membranes are on the other side of the grey levels."""
        if None in (seen, self.membranes) or seen == self.membranes:
            return None
        return f"membranes are {seen} here, and {self.membranes} in the training data. Invert the image's grey levels"


def _is_same(size: VoxelSize, other: VoxelSize) -> bool:
    return all(max(a / b, b / a) <= SAME_SIZE for a, b in zip(size, other, strict=True))


def _text(size: VoxelSize) -> str:
    return " × ".join(f"{side:g}" for side in size)


def add_flat(found: Padding, voxels: np.ndarray, masked: np.ndarray, box: Box) -> None:
    """Add the squares of `box` that have one grey level, and no masked voxel, to those `found` in other boxes."""
    z, y, x = voxels.shape[0], voxels.shape[1] // TILE, voxels.shape[2] // TILE
    ends = np.iinfo(voxels.dtype)
    low, high = (
        np.where(masked, end, voxels)[:, : y * TILE, : x * TILE].reshape(z, y, TILE, x, TILE)
        for end in (ends.min, ends.max)
    )
    lowest = low.min((2, 4))
    flat = lowest == high.max((2, 4))
    for level in np.unique(lowest[flat]).tolist():
        at = np.argwhere(flat & (lowest == level)) * (1, TILE, TILE)
        first, last = at.min(axis=0) + box.start, at.max(axis=0) + box.start + (1, TILE, TILE)
        number, place = found.get(level, (0, Box(tuple(first.tolist()), tuple(last.tolist()))))
        start, stop = np.minimum(place.start, first).tolist(), np.maximum(place.stop, last).tolist()
        found[level] = number + len(at) * TILE**2, Box(tuple(start), tuple(stop))


def padding_of(found: Padding, counts: np.ndarray) -> Padding:
    """Return the grey levels that are padding, by all flat squares and the number of voxels of each level."""
    levels = {level: flat for level, flat in found.items() if flat[0] >= LEAST_SHARE * counts.sum()}
    return levels if np.count_nonzero(np.delete(counts, list(levels))) >= LEAST_LEVELS else {}


def is_padding(voxels: np.ndarray, levels: Iterable[int]) -> np.ndarray:
    """Return which voxels have a level of padding and lie in a square of 3 × 3 of it, bool of the same shape."""
    from scipy import ndimage  # `ffn info` needs no SciPy

    padded = np.zeros(voxels.shape, bool)
    for level in levels:
        if (same := voxels == level).any():
            # beyond the faces of the box, the padding may go on
            padded |= ndimage.binary_dilation(
                ndimage.binary_erosion(same, np.ones((1, 3, 3)), border_value=1), np.ones((1, 3, 3)), mask=same
            )
    return padded


def membranes_of(
    read: Callable[[Box], np.ndarray], box: Box, size_zyx_nm: VoxelSize, padding: Iterable[int] = ()
) -> str | None:
    """Return whether membranes are ``dark`` or ``bright`` in the middle of some sections of a box, None if unclear."""
    (z0, *_), (z1, *_) = box.start, box.stop
    margin = [max(0, n - SIDE) // 2 for n in box.shape]
    bright = dark = 0
    for z in np.unique(np.linspace(z0, z1 - 1, min(SECTIONS, z1 - z0)).astype(int)).tolist():
        (_, y0, x0), (_, y1, x1) = box.start, box.stop
        part = Box((z, y0 + margin[1], x0 + margin[2]), (z + 1, y1 - margin[1], x1 - margin[2]))
        section = read(part)[0]
        known = ~is_padding(section[None], padding)[0]
        more = _pieces(section.astype(np.float32), known, size_zyx_nm[1:])
        bright, dark = bright + more[0], dark + more[1]
    total, difference = bright + dark, bright - dark
    if abs(difference) <= max(LEAST_DIFFERENCE * total, DEVIATIONS * total**0.5):
        return None
    return "dark" if difference > 0 else "bright"


def _pieces(section: np.ndarray, known: np.ndarray, size_yx_nm: tuple[float, ...]) -> tuple[int, int]:
    """Count the connected pieces of a section above and below its median."""
    from scipy import ndimage  # `ffn info` needs no SciPy

    sigma = [max(BLUR_NM / side, LEAST_BLUR) for side in size_yx_nm]
    grey = ndimage.gaussian_filter(section, sigma)
    if not known.all():
        known = ndimage.binary_erosion(known, iterations=round(2 * max(sigma)), border_value=1)
    if not known.any():
        return 0, 0
    middle, least = np.median(grey[known]), max(PIECE_NM2 / math.prod(size_yx_nm), LEAST_PIECE)
    bright, dark = (
        int((np.bincount(ndimage.label(phase & known)[0].ravel())[1:] > least).sum())
        for phase in (grey > middle, grey < middle)
    )
    return bright, dark


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


@dataclass(frozen=True)
class Survey:
    """Grey levels of a sample of an image without padding, the padding by its level, and the side of membranes."""

    histogram: Histogram
    padding: Padding
    membranes: str | None

    def of_several_levels(self, spec: str) -> Histogram:
        """Return the histogram, and refuse that of a blank image."""
        if len(self.histogram.levels) < 2:
            found = f"{spec}: has {len(self.histogram.levels)} grey levels in a sample outside of its masks"
            raise VolumeError(f"{found}, expected several. Is it the right image, and do the masks leave some of it?")
        return self.histogram

    def complaints(self, spec: str, trained_on: Tissue | None) -> list[str]:
        """Return warnings of membranes on the other side than in the training data, and of padding."""
        other = trained_on.other_membranes(self.membranes) if trained_on else None
        total = self.histogram.counts.sum() + sum(number for number, _ in self.padding.values())
        lines = [
            f"{number / total:.1%} of the voxels are padding: grey level {level} fills regions, such as in {box}. "
            f"'ffn segment' leaves it out, other stages with masks: [{{path: {spec}, range: [{level}, {level}]}}]"
            for level, (number, box) in self.padding.items()
        ]
        return [*filter(None, [other]), *lines]


def survey_of(spec: str, masks: Sequence[Mask] = (), box: Box | None = None) -> Survey:
    """Return what a sample of an image, or of a box of it, shows."""
    with open_volume(spec) as image:
        if image.dtype not in HISTOGRAM_DTYPES:
            raise VolumeError(f"{spec}: has type {image.dtype}, expected uint8 or uint16 for a histogram. Ingest it")
        with open_masks(masks, image.voxel_size_zyx_nm) as opened:
            counts, padding = _counts(image, opened, box or image.box)
        membranes = membranes_of(image.read, box or image.box, voxel_size_of(image), padding)
    return Survey(Histogram.of_counts(counts), padding, membranes)


def _counts(image: Volume, masks: Masks, box: Box) -> tuple[np.ndarray, Padding]:
    """Return how many voxels of a sample have each grey level, without padding, and the padding."""
    blocks, flat = list(sample_blocks(box)), Padding()
    counts = np.zeros(np.iinfo(image.dtype).max + 1, np.int64)
    for block in track(blocks, len(blocks), "normalize"):
        try:
            masks.require(block)
        except VolumeError:
            continue  # a mask need not cover the whole volume
        voxels, masked = image.read(block), masks.read(block)
        counts += count_levels(voxels[~masked])
        add_flat(flat, voxels, masked, block)
    padding = {
        level: (int(counts[level]), place) for level, (_, place) in padding_of(flat, counts).items()
    }  # with what lies in no whole square
    counts[list(padding)] = 0
    return counts, padding
