"""Bright places without a segment, which compete with the segments for the gaps, and what becomes of them."""

from __future__ import annotations

import functools
import itertools
import logging
import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from ffn.assembly.components import Forest, label_pieces, same_voxel
from ffn.assembly.config import FillConfig
from ffn.assembly.contacts import TRUNCATE, faces_in, smoothed
from ffn.contingency import RowSum, add_up
from ffn.errors import VolumeError
from ffn.geometry import Box, VoxelSize, divide_up, has_thick_sections, zyx
from ffn.io.block_log import Result
from ffn.io.masks import Inputs, Masks
from ffn.io.open import read_table
from ffn.io.scratch import ScratchRows, Table, Tables, folder_beside, sort_rows
from ffn.io.section_faults import JUMPS, cut_at, displaced_in
from ffn.io.volume import Volume, require_image_of, voxel_size_of

log = logging.getLogger(__name__)

# Our choices, on two boxes of FIB-25 and two of SNEMI3D (z < 32); docs/experiments.md has the scores on others.
SIGMA_NM = 10.0  # smoothing of the image in which membranes are dark
DEPTH_NM = 30.0  # least distance of a competitor from membranes and segments; with 20, parts of one body stay apart
MIN_VOXELS = 50  # of a competitor
# No membrane lies between two floods where this share of their faces is bright, or this area, which is a wide opening.
OPEN_SHARE, MIN_AREA, OPEN_AREA = 0.2, 2e3, 4e4  # nm²; below the least area of all faces, the share says nothing
RIVAL = 0.2  # of the bright area to one segment; what is as open to another belongs to neither, and is no competitor
CONTEXT = 2.0  # halo in units of the maximum distance; floods meet along membranes, which may come from farther away
MAX_ID = 2**63 - 1  # tables are signed
CELL_NM = 100.0  # side of the cells, by whose first voxels tiles recognise each other's competitors
SAMPLES, SAMPLE_SIDE = 4, 64  # along each axis, of the image, for the level of membranes
MARGIN_NM = DEPTH_NM + TRUNCATE * SIGMA_NM  # around a place, which decides whether a competitor is there


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


class MembraneLevels:
    """Grey levels between membranes and what is brighter (Otsu), from samples of a box that do not depend on tiles.

    Sections that are more than twice as thick as their pixels have a level each: their brightness differs.
    """

    def __init__(self, image: Volume, box: Box, masks: Masks) -> None:
        self._image, self._box, self._masks, self._size = image, box, masks, voxel_size_of(image)
        self._in = functools.cache(self._level)

    def read(self, box: Box) -> np.ndarray:
        """Return the levels of a box: float32 of shape (Z, 1, 1) or (1, 1, 1)."""
        layers = [self._box]
        if has_thick_sections(self._size):
            sections = range(box.start[0], box.stop[0])
            layers = [Box((z, *self._box.start[1:]), (z + 1, *self._box.stop[1:])) for z in sections]
        return np.array([self._in(layer) for layer in layers], np.float32)[:, None, None]

    def _level(self, layer: Box) -> float:
        from skimage.filters import threshold_otsu

        parts, side = [np.zeros(0, np.float32)], zyx(min(SAMPLE_SIDE, n) for n in layer.shape)
        numbers = [min(SAMPLES, -(-n // s)) for n, s in zip(layer.shape, side, strict=True)]
        ends = [(a, b - n) for a, b, n in zip(layer.start, layer.stop, side, strict=True)]
        for start in itertools.product(*(np.linspace(*e, n).astype(int) for e, n in zip(ends, numbers, strict=True))):
            box = Box.from_shape(side, zyx(start))
            values = smoothed(self._image.read(box), SIGMA_NM, self._size)
            parts.append(values[~self._masks.read(box)] if self._masks else values.ravel())
        values = np.concatenate(parts)
        return float(threshold_otsu(values)) if len(values) else 0.0


def find_competitors(
    labels: np.ndarray, image: np.ndarray, levels: np.ndarray, voxel_size_zyx_nm: VoxelSize, masked: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Find the connected sets of voxels that are farther than `DEPTH_NM` from membranes and segments.

    They are numbered (int32) from 1 in the order of their first voxels, 0 elsewhere. The second array tells where there
    is no membrane (bool).
    """
    import edt

    bright = smoothed(image, SIGMA_NM, voxel_size_zyx_nm) > levels
    free = bright & (labels == 0)
    if masked is not None:
        free &= ~masked
    pieces = label_pieces(edt.edtsq(free, anisotropy=voxel_size_zyx_nm, order="C", parallel=1) > DEPTH_NM**2)
    kept = np.bincount(pieces.ravel()) >= MIN_VOXELS
    kept[0] = False
    return np.where(kept, np.cumsum(kept), 0).astype(np.int32)[pieces], bright


def names(numbers: np.ndarray, outer: Box, volume: Box, voxel_size_zyx_nm: VoxelSize) -> np.ndarray:
    """Return voxels that name the competitors of `outer` also in the boxes of other tiles.

    Rows (int64) of flat index in the volume and number, one for each connected piece in a cell of the volume.
    """
    cell = zyx(max(1, round(CELL_NM / side)) for side in voxel_size_zyx_nm)
    places = [
        (np.arange(a, b) - first) // n
        for a, b, first, n in zip(outer.start, outer.stop, volume.start, cell, strict=True)
    ]
    cells = np.ravel_multi_index(np.ix_(*places), divide_up(volume.shape, cell))
    _, where = np.unique(label_pieces(np.where(numbers > 0, cells + 1, 0)), return_index=True)
    found = np.stack(np.unravel_index(where, numbers.shape))
    voxels = np.ravel_multi_index(tuple(found + np.subtract(outer.start, volume.start)[:, None]), volume.shape)
    rows = np.column_stack([voxels, numbers.ravel()[where]]).astype(np.int64)
    return rows[rows[:, 1] > 0]


def shared_faces(
    filled: np.ndarray, bright: np.ndarray, block: Box, outer: Box, voxel_size_zyx_nm: VoxelSize
) -> np.ndarray:
    """Measure the faces of competitors in a block: rows (int64) of two ids, whether no membrane is there, nm².

    `filled` (int64) are the labels of `outer`, where competitors are negative.
    """
    rows = [np.empty((0, 4), np.int64)]
    for ids, places, step in faces_in(filled, block, outer):
        competes = ids[:, 0] < 0
        lower = tuple((places[competes] - outer.start).T)
        is_bright = bright[lower] & bright[tuple(n + d for n, d in zip(lower, step, strict=True))]
        area = round(math.prod(side for side, d in zip(voxel_size_zyx_nm, step, strict=True) if not d))
        rows.append(np.column_stack([ids[competes], is_bright, np.full(len(is_bright), area)]))
    return add_up(np.concatenate(rows))


def settle(results: Iterable[Result], out: str) -> dict[str, Table]:
    """Choose the ids of all competitors from the results of all tiles: ``ids`` (int64), and the ``first`` of each tile.

    One that no membrane separates from a segment joins it; if that is true of several segments, it is left out (0).
    Those that no membrane separates join each other, but never two segments. The others get ids after the largest.
    """
    folder = folder_beside(out)
    named, faces, first, largest = ScratchRows((2,), np.int64, folder), RowSum(4), [0], 0
    for each in results:
        start = first[-1]
        named.append(each["names"] + (0, start - 1))
        faces.add(each["faces"] - np.where(each["faces"] < 0, start, 0))
        largest = max(largest, each["largest"])
        first.append(start + each["number"])
    forest = Forest(first[-1])
    forest.join(sort_rows(named, same_voxel, folder)[:])
    ids = _owners(forest.roots(), faces.rows())
    _, numbers = np.unique(-ids[ids < 0], return_inverse=True)  # by the first competitor of each group
    ids[ids < 0] = largest + 1 + numbers
    log.info("%d bright places without a segment in all tiles: %d new segments", len(ids), numbers.max(initial=-1) + 1)
    return {"ids": ids, "first": np.array(first)}


def _owners(roots: np.ndarray, faces: np.ndarray) -> np.ndarray:
    """Return the segment that each competitor joins, 0 if it is left out, else -1 - the first of its group (int64)."""
    pairs = faces[:, :2].copy()
    pairs[pairs < 0] = -1 - roots[-1 - pairs[pairs < 0]]
    pairs, row = np.unique(np.sort(pairs, axis=1), axis=0, return_inverse=True)
    area = np.bincount(row.ravel(), faces[:, 3], len(pairs))
    bright = np.bincount(row.ravel(), faces[:, 3] * faces[:, 2], len(pairs))
    is_open = ((bright >= OPEN_SHARE * area) & (area >= MIN_AREA)) | (bright >= OPEN_AREA)
    order = np.argsort(-bright, kind="stable")
    order = order[is_open[order]]
    pairs, bright = pairs[order], bright[order]  # the widest opening first
    segments = np.flatnonzero(pairs[:, 1] > 0)
    _, widest, group = np.unique(pairs[segments, 0], return_index=True, return_inverse=True)
    is_rival = bright[segments] >= RIVAL * bright[segments][widest][group]
    is_rival[widest] = False
    unclear = pairs[segments[is_rival], 0]
    owners: dict[int, int] = {}

    def owner(number: int) -> int:
        while number in owners:
            owners[number] = owners.get(owners[number], owners[number])  # halves the way of the next one
            number = owners[number]
        return number

    for pair in pairs[~np.isin(pairs, unclear).any(axis=1)].tolist():
        one, other = sorted(map(owner, pair))
        if one < 0 and one != other:
            owners[one] = other
    found = np.array([owner(number) for number in (-1 - roots).tolist()], np.int64)
    return np.where(np.isin(found, unclear), 0, found)


def with_halo(tile: Box, config: FillConfig, voxel_size_zyx_nm: VoxelSize) -> Box:
    """Return the box to read for a tile; it may reach beyond the volume."""
    reach_nm = CONTEXT * config.max_distance_nm + max(TRUNCATE * config.sigma_nm, MARGIN_NM)
    return tile.grow(zyx(np.ceil([reach_nm / side for side in voxel_size_zyx_nm])))


class Scene(NamedTuple):
    """What is filled, and how."""

    segmentation: Volume
    image: Volume
    masks: Masks
    levels: MembraneLevels
    config: FillConfig
    jumps: np.ndarray | None  # of the image, see `ffn.io.section_faults.JUMPS`
    out: str

    @classmethod
    def open(cls, inputs: Inputs, config: FillConfig, image_spec: str, out: str) -> Scene:
        """Open the inputs of a call of ``ffn fill``."""
        segmentation, image = inputs.segmentation("segmentation"), inputs.volume("image")
        masks = inputs.masks(image)
        require_image_of(segmentation, image)
        if config.max_distance_nm < min(size := voxel_size_of(segmentation)):
            log.warning(
                "%s: max_distance_nm, %g nm, is less than the smallest side of a voxel (%g nm), so nothing is filled",
                *(out, config.max_distance_nm, min(size)),
            )
        levels = MembraneLevels(image, segmentation.box, masks)
        return cls(segmentation, image, masks, levels, config, read_table(image_spec, JUMPS), out)

    def parts(self, tile: Box) -> list[Box]:
        """Cut a tile at the sections that are displaced in it or beside it; each part is filled alone."""
        return cut_at(self._jumps(tile), tile)

    def compete(self, tile: Box) -> Result:
        """Fill a tile, or a part, with all competitors in and around it; return what `settle` needs."""
        view = self._around(tile)
        number, largest = int(view.competitors.max(initial=0)), int(view.labels.max(initial=0))
        if largest > MAX_ID:
            raise VolumeError(f"{self.segmentation.name}: has id {largest}, expected ids from 0 to {MAX_ID}")
        faces, size = np.empty((0, 4), np.int64), voxel_size_of(self.segmentation)
        if number:
            filled = self._fill(view, largest + np.arange(1, number + 1)).astype(np.int64)
            filled = np.where(filled > largest, largest - filled, filled)
            faces = shared_faces(filled, view.bright, tile, view.box, size)
        named = names(view.competitors, view.box, self.segmentation.box, size)
        return {"names": named, "faces": faces, "number": number, "largest": largest}

    def settle(self, results: Iterable[Result]) -> dict[str, Table]:
        """Choose the ids of all competitors."""
        return settle(results, self.out)

    def filled(self, box: Box, tile: Box, settled: Tables, number: int) -> np.ndarray:
        """Fill a tile, or a part, with this number; return the ids (uint64) of a box in it."""
        view, (start, stop) = self._around(tile), settled.read("first", number, number + 2).tolist()
        return self._fill(view, settled.read("ids", start, stop))[box.slices(view.box.start)]

    def _around(self, tile: Box) -> View:
        size = voxel_size_of(self.segmentation)
        jumps, box = self._jumps(tile), with_halo(tile, self.config, size).intersect(self.segmentation.box)
        first = max([box.start[0], *(z for z in jumps if z <= tile.start[0])])
        last = min([box.stop[0], *(z for z in jumps if z >= tile.stop[0])])
        box = Box((first, *box.start[1:]), (last, *box.stop[1:]))
        labels, image = self.segmentation.read(box), self.image.read(box)
        masked = self.masks.read(box) if self.masks else None
        return View(box, labels, image, masked, *find_competitors(labels, image, self.levels.read(box), size, masked))

    def _jumps(self, tile: Box) -> list[int]:
        """Return the sections that are displaced at the y and x of a tile or its halo, in order."""
        return displaced_in(self.jumps, with_halo(tile, self.config, voxel_size_of(self.segmentation)))

    def _fill(self, view: View, ids: np.ndarray) -> np.ndarray:
        competitors = np.append(0, ids).astype(np.uint64)[view.competitors]
        size = voxel_size_of(self.segmentation)
        return fill_gaps(view.labels, view.image, size, self.config, view.masked, competitors)


class View(NamedTuple):
    """A tile and its surroundings."""

    box: Box
    labels: np.ndarray
    image: np.ndarray
    masked: np.ndarray | None
    competitors: np.ndarray
    bright: np.ndarray
