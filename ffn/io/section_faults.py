"""Faults of sections: dark, bright and blurred ones, and those that are displaced against the section before."""

from __future__ import annotations

import csv
import functools
import itertools
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ffn.geometry import Box
from ffn.io.atomic import write_text

if TYPE_CHECKING:
    from ffn.io.volume import Volume

log = logging.getLogger(__name__)

JUMPS = "jumps"  # table in a store: int64 rows: section z; y, x where the jump starts and stops; shift (y, x)
TILE = 256  # side of a tile, pixels; our choice
SMALLEST = 64  # side of a tile that is still compared; our choice
BINNED = 2  # pixels that become one before tiles are compared, which takes a quarter of the time
BAND = (0.02, 0.1)  # standard deviations of the high-pass and the low-pass, cycles per binned pixel; our choice
FARTHEST = 0.4  # shift that is looked for, in parts of a tile's side
# A jump correlates better than no jump by CLEARER, and exceeds the noise of the correlation by STRONGER (standard
# deviations). Chosen on SNEMI3D, z < 32.
CLEARER, STRONGER = 1.5, 4.0
AROUND = 8  # sections before and after, to whose median a section is compared; our choice
DARKER = 1.0  # difference of means, in standard deviations in a section; SNEMI3D (z < 32) and FIB-25: 0.05 at most
# Ratio of sharpness; SNEMI3D (z < 32) and FIB-25: 0.83 at least; 0.37 to 0.46 after a Gaussian blur by 1 pixel.
BLURRED = 0.6
PADDED = 0.01  # share of a tile that has its lowest or highest level, from which on that is padding; our choice
LISTED = 10  # faults in the warning


class Fault(NamedTuple):
    """A section with a fault, as in the list beside an image."""

    z: int
    fault: str
    found: str


class SectionWatch:
    """Measures the sections of a layer of an image while they are read; see `faults_of`."""

    def __init__(self, image: Volume, box: Box, layer: Box, max_shift: float) -> None:
        self._image, self._box, self._layer, self._max_shift = image, box, layer, max_shift
        self._sums = np.zeros((layer.shape[0], 5))  # voxels, their sum, that of squares; pairs, sum of squared steps
        self._jumps: list[tuple[int, ...]] = []
        self._before: tuple[Box, list[np.ndarray]] | None = None  # the section that was seen last

    def see(self, slab: Box, voxels: np.ndarray) -> None:
        """Measure part of the layer; slabs with the same y and x come in ascending order of z."""
        tiles = list(_tiles(slab))
        for plane, section in zip(slab.blocks((1, *slab.shape[1:])), voxels, strict=True):
            self._sums[plane.start[0] - self._layer.start[0]] += _sums(section)
            before, spectra = self._spectra_before(plane, tiles), _spectra(section, plane, tiles)
            shifts = [displacement(*pair, self._max_shift) for pair in zip(spectra, before, strict=False)]
            jumps = [(tile, shift) for tile, shift in zip(tiles, shifts, strict=False) if shift]
            if 2 * len(jumps) > len(tiles):  # the others are hard to tell
                y, x = np.median([shift for _, shift in jumps], axis=0).astype(int).tolist()
                jumps = [(plane, (y, x))]
            self._jumps += [(plane.start[0], *where.start[1:], *where.stop[1:], *shift) for where, shift in jumps]
            self._before = plane, spectra

    def result(self) -> dict[str, np.ndarray]:
        """Return the measures, arrays by name."""
        return {"sums": self._sums, JUMPS: np.array(self._jumps, np.int64).reshape(-1, 7)}

    def _spectra_before(self, plane: Box, tiles: Sequence[Box]) -> list[np.ndarray]:
        """Return the spectra of the section before; it is read where it was not seen. None before the first."""
        before = plane.shift((-1, 0, 0))
        if self._before and self._before[0] == before:
            return self._before[1]
        return _spectra(self._image.read(before)[0], plane, tiles) if tiles and self._box.contains(before) else []


def faults_of(results: Sequence[Any], first: int) -> list[Fault]:
    """Return the faults of sections from `first` on, by the results of all layers in order."""
    sums = np.concatenate([each["sums"] for each in results])
    means = sums[:, 1] / sums[:, 0]
    variances = sums[:, 2] / sums[:, 0] - means**2
    sharpness = sums[:, 4] / np.maximum(sums[:, 3] * variances, 1e-9)
    away = (means - _typical(means)) / max(float(np.sqrt(np.median(variances))), 1e-9)
    sharper = sharpness / np.maximum(_typical(sharpness), 1e-9)
    found = [
        Fault(int(z) + first, "dark" if away[z] < 0 else "bright", f"mean {means[z]:.0f}, typical {typical:.0f}")
        for z, typical in enumerate(_typical(means))
        if abs(away[z]) > DARKER
    ]
    blurred = np.flatnonzero((sharper < BLURRED) & (variances > 0)).tolist()
    found += [Fault(z + first, "blurred", f"{sharper[z]:.0%} of the typical sharpness") for z in blurred]
    jumps = np.concatenate([each[JUMPS] for each in results])
    for z in np.unique(jumps[:, 0]).tolist():
        rows = jumps[jumps[:, 0] == z]
        y, x = np.median(rows[:, 5:], axis=0).tolist()
        area = int((rows[:, 3:5] - rows[:, 1:3]).prod(axis=1).sum())
        share = f"{area / sums[z - first, 0]:.0%} of it by {y:.0f}, {x:.0f} pixels (y, x) against {z - 1}"
        found.append(Fault(z, "displaced", share))
    return sorted(found)


def jumps_of(results: Sequence[Any]) -> np.ndarray | None:
    """Return the table `JUMPS`, by the results of all layers in order; None if there are no jumps."""
    found = [jumps for each in results if len(jumps := each.get(JUMPS, ()))]
    return np.concatenate(found) if found else None


def displaced_in(jumps: np.ndarray | None, box: Box) -> list[int]:
    """Return the sections, ascending, that are displaced somewhere at the y and x of a box, by the table `JUMPS`."""
    if jumps is None:
        return []
    is_near = (jumps[:, 1:3] < box.stop[1:]) & (jumps[:, 3:5] > box.start[1:])
    return np.unique(jumps[is_near.all(axis=1), 0]).tolist()


def cut_at(sections: Sequence[int], box: Box) -> list[Box]:
    """Cut a box before sections in ascending order.

    Examples
    --------
    >>> [str(part) for part in cut_at([3, 7], Box((4, 0, 0), (9, 8, 8)))]
    ['4:7,0:8,0:8', '7:9,0:8,0:8']
    """
    cuts = [box.start[0], *(z for z in sections if box.start[0] < z < box.stop[0]), box.stop[0]]
    return [Box((a, *box.start[1:]), (b, *box.stop[1:])) for a, b in itertools.pairwise(cuts)]


def write_faults(store: str, faults: Sequence[Fault]) -> None:
    """Name the sections in a warning of one line, and write the list beside a store on this machine."""
    path = list_of(store)
    if faults:
        named = ", ".join(f"{fault.z} {fault.fault}" for fault in faults[:LISTED])
        more = ", …" if faults[LISTED:] else ""
        log.warning("%s: %d faults of sections, listed in %s: %s%s", store, len(faults), path, named, more)
    if "://" in store:
        return
    path.unlink(missing_ok=True)
    if faults:
        rows = [",".join(Fault._fields), *(f'{z},{fault},"{found}"' for z, fault, found in faults)]
        write_text(path, "\n".join(rows) + "\n")


def read_faults(store: str) -> list[dict[str, str]]:
    """Return the rows of the list beside a store, none if there is no list."""
    path = list_of(store)
    return list(csv.DictReader(path.read_text().splitlines())) if path.is_file() else []


def list_of(store: str) -> Path:
    """Return the path of the list beside a store.

    Examples
    --------
    >>> str(list_of("volumes/cube/raw.zarr"))
    'volumes/cube/raw.sections.csv'
    """
    return Path(store).with_suffix(".sections.csv")


def displacement(spectrum: np.ndarray, before: np.ndarray, max_shift: float) -> tuple[int, int] | None:
    """Return by how many pixels (y, x) a tile is displaced if that is clearly more than `max_shift`, else None.

    Notes
    -----
    Phase correlation (Kuglin and Hines 1975), with half of the whitening and in a band of frequencies, so that neither
    noise nor brightness counts.
    """
    shape = spectrum.shape[0], 2 * (spectrum.shape[1] - 1)
    cross = spectrum * before.conj()
    strength = np.abs(cross)
    if not strength.max() > 0:
        return None
    band, distance = _band(shape)
    correlation = np.fft.irfft2(cross / np.sqrt(strength + 1e-6 * strength.max()) * band, shape)
    is_far = (distance > max_shift / BINNED) & (distance <= FARTHEST * min(shape))
    far = np.where(is_far, correlation, -np.inf)
    place = np.unravel_index(int(far.argmax()), shape)
    near = correlation[distance <= max_shift / BINNED].max()
    if far[place] <= max(CLEARER * near, STRONGER * correlation.std()):
        return None
    y, x = ((int(n) + side // 2) % side - side // 2 for n, side in zip(place, shape, strict=True))
    return BINNED * y, BINNED * x


@functools.lru_cache(maxsize=16)
def _band(shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the weights of frequencies, and how far each shift is, in binned pixels."""
    squares = np.fft.fftfreq(shape[0])[:, None] ** 2 + np.fft.rfftfreq(shape[1])[None] ** 2
    low, high = (np.exp(-squares / (2 * limit**2)) for limit in BAND)
    y, x = (np.minimum(np.arange(side), side - np.arange(side)) for side in shape)
    return high * (1 - low), np.hypot(y[:, None], x[None])


def _tiles(slab: Box) -> Iterator[Box]:
    """Cut a slab along y and x into tiles of about the same size, if they are not too small."""
    (_, *start), (_, *stop) = slab.start, slab.stop
    sides = zip(start, stop, strict=True)
    cuts = (np.linspace(a, b, max(1, (b - a) // TILE) + 1).astype(int).tolist() for a, b in sides)
    for (y, y_end), (x, x_end) in itertools.product(*map(itertools.pairwise, cuts)):
        if min(y_end - y, x_end - x) >= SMALLEST:
            yield Box((slab.start[0], y, x), (slab.stop[0], y_end, x_end))


def _spectra(section: np.ndarray, plane: Box, tiles: Sequence[Box]) -> list[np.ndarray]:
    """Return the spectrum of each tile of a section, with pixels binned."""
    found = []
    for tile in tiles:
        part = section[tile.slices(plane.start)[1:]]
        height, width = (n // (2 * BINNED) * 2 for n in part.shape)
        part = part[: height * BINNED, : width * BINNED].reshape(height, BINNED, width, BINNED)
        part = part.mean(axis=(1, 3), dtype=np.float32)
        window = np.hanning(height + 2)[1:-1, None] * np.hanning(width + 2)[None, 1:-1]
        found.append(np.fft.rfft2(_without_padding(part) * window))
    return found


def _without_padding(part: np.ndarray) -> np.ndarray:
    """Return pixels less their mean, with 0 where a tile is padded: the edges of padding may move, not the tissue."""
    for level in (part.min(), part.max()):
        is_padding = part == level
        if PADDED < (share := is_padding.mean()) < 1:
            return np.where(is_padding, 0, part - (part.mean() - share * level) / (1 - share))
    return part - part.mean()


def _sums(section: np.ndarray) -> tuple[float, ...]:
    """Return the sums that mean, variance and sharpness of a section are made of."""
    values = section.astype(np.float32)
    steps = np.diff(values, axis=1)
    total, squared, stepped = (np.sum(each, dtype=np.float64) for each in (values, values**2, steps**2))
    return values.size, total, squared, steps.size, stepped


def _typical(values: np.ndarray) -> np.ndarray:
    """Return the median of each value and its neighbours."""
    return np.array([np.median(values[max(0, z - AROUND) : z + AROUND + 1]) for z in range(len(values))])
