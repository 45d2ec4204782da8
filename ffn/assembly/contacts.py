"""Contacts between segments, the decision points where they may be one object, and the tables that tell.

``overlaps`` has rows of id, larger id, first voxel z, y, x of a cell (`ffn.geometry.cell_shape`), and voxels in that
cell that both objects claimed. ``components`` has rows of segment and object, for the components of every object that
has several.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ffn.assembly.config import AgglomerateConfig
from ffn.config import PART_ZYX, Mask
from ffn.contingency import RowLookup, add_up
from ffn.errors import VolumeError
from ffn.geometry import ZYX, Box, VoxelSize, cell_shape, scale, subtract, zyx
from ffn.io.masks import NO_MASKS, Masks, open_masks
from ffn.io.open import open_segmentation, open_volume, read_table
from ffn.io.volume import Volume, require_image_of, voxel_size_of
from ffn.progress import track

log = logging.getLogger(__name__)

SIGMA_NM = 20.0  # smoothing of the image; a real opening is wider than noise
TRUNCATE = 4.0  # radius of the Gaussian, standard deviations
MAX_GAP_NM = 80.0  # from a segment to the middle of a contact; our choice
POINT_CELLS = 2  # around a decision point, in which it is the brightest of its pair; our choice

ORIGINS = "origins"
OVERLAPS = "overlaps"
COMPONENTS = "components"


def read_rows(spec: str, name: str, num_columns: int) -> np.ndarray:
    """Return a table of a volume's file as int64; no rows if there is no such table."""
    rows = read_table(spec, name)
    return np.empty((0, num_columns), np.int64) if rows is None else rows.astype(np.int64)


def overlap_rows(claims: np.ndarray) -> np.ndarray:
    """Add up rows of ``overlaps`` by pair and cell, smaller id first, ascending; without background and equal ids."""
    a, b = claims[:, 0], claims[:, 1]
    rows = (a != b) & (a != 0) & (b != 0)
    return add_up(np.column_stack([np.minimum(a, b), np.maximum(a, b), claims[:, 2:]])[rows])


def read_overlaps(spec: str, near: Box) -> np.ndarray:
    """Read the rows of ``overlaps`` (int64, (N, 6)) whose cells begin in a box, ascending."""
    claims = read_table(spec, OVERLAPS, lambda rows: near.holds(rows[:, 2:5]))
    if claims is None:
        raise VolumeError(f"{spec}: has no table {OVERLAPS!r}, expected a file of ffn segment, reconcile or consensus")
    return overlap_rows(claims.astype(np.int64))


class Objects:
    """Which segments are components of one object. Any other segment is an object of its own.

    Tables of pairs name objects, and become pairs of segments only where these are near each other: an object of n
    components has n² / 2 pairs of them.

    Examples
    --------
    >>> objects = Objects(np.array([[4, 4], [9, 4]]))
    >>> objects.of(np.array([3, 9])).tolist()
    [3, 4]
    >>> objects.segments(np.array([[3, 4], [4, 8]]), np.array([0, 3, 4, 9])).tolist()
    [[3, 4], [3, 9], [4, 9]]
    """

    def __init__(self, components: np.ndarray) -> None:
        self._rows = RowLookup(components[:, 0])
        self._objects = components[:, 1].astype(np.uint64)

    @classmethod
    def read(cls, spec: str) -> Objects:
        """Return the objects of a volume's segments."""
        return cls(read_rows(spec, COMPONENTS, 2))

    def of(self, ids: np.ndarray) -> np.ndarray:
        """Return the object (uint64) of each segment; `ids` has any shape."""
        found = ids.astype(np.uint64)
        rows = self._rows.find(found.ravel()).reshape(found.shape)
        found[rows >= 0] = self._objects[rows[rows >= 0]]
        return found

    def segments(self, pairs: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Return the pairs among segments that belong to given pairs of objects, or to one object.

        `pairs` are different objects, `ids` are segments. The result (uint64, (K, 2)) has the smaller segment first and
        is ascending.
        """
        objects = self.of(ids)
        by_object = ids.astype(np.uint64)[np.argsort(objects, kind="stable")]
        owners, start, count = np.unique(np.sort(objects), return_index=True, return_counts=True)
        several = owners[count > 1]
        found = np.concatenate([pairs.astype(np.uint64), np.stack([several, several], axis=1)])
        lookup = RowLookup(owners)
        for side in (0, 1):
            entry = lookup.find(found[:, side])
            found, entry = found[entry >= 0], entry[entry >= 0]
            which, places = ranges(start[entry], count[entry])
            found = found[which]
            found[:, side] = by_object[places]
        return np.unique(np.sort(found[found[:, 0] != found[:, 1]], axis=1), axis=0)


ALONE = Objects(np.empty((0, 2), np.int64))


def ranges(starts: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of the range, and the place in it, of every row in some ranges of rows.

    Examples
    --------
    >>> [column.tolist() for column in ranges(np.array([4, 9]), np.array([2, 1]))]
    [[0, 0, 1], [4, 5, 9]]
    """
    which = np.repeat(np.arange(len(counts)), counts)
    step = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
    return which, starts[which] + step


@dataclass(frozen=True)
class Scene:
    """Where contacts are looked for: an image, its segments, the objects that these belong to, and masks."""

    segmentation: Volume
    image: Volume
    objects: Objects = ALONE
    masks: Masks = NO_MASKS


@contextlib.contextmanager
def open_scene(
    segmentation_spec: str, image_spec: str, masks: tuple[Mask, ...] = (), objects: Objects = ALONE
) -> Iterator[Scene]:
    """Open a segmentation, its image and masks; the image has to cover the segmentation and have its voxels."""
    with (
        open_segmentation(segmentation_spec) as segmentation,
        open_volume(image_spec) as image,
        open_masks(masks, image.voxel_size_zyx_nm) as masked,
    ):
        require_image_of(segmentation, image)
        yield Scene(segmentation, image, objects, masked)


@dataclass(frozen=True)
class Contact:
    """A place where two segments touch or nearly touch, where they may be one object."""

    segment_a: int  # ids, the smaller one first
    segment_b: int
    # decision point: the brightest place between them, full-volume voxels. Membranes are dark, so an object that was
    # split most likely continues there
    position_zyx: ZYX
    brightness: float  # smoothed image at the decision point, grey levels
    # size of the contact: faces between voxels nearest to one segment and voxels nearest to the other, in the cell of
    # the decision point and the cells around it
    faces: int
    overlap: int = 0  # voxels in the same cells that both segments claimed during flood filling

    @property
    def pair(self) -> tuple[int, int]:
        """Both ids."""
        return self.segment_a, self.segment_b


class Cells(NamedTuple):
    """The contacts of pairs of segments, one of each pair and cell of the volume."""

    pairs: np.ndarray  # uint64 (N, 2), the smaller id first
    position_zyx: np.ndarray  # int64 (N, 3), the brightest place, full-volume voxels
    brightness: np.ndarray  # float (N,), of the smoothed image there
    faces: np.ndarray  # int64 (N,)


NO_CELLS = Cells(np.empty((0, 2), np.uint64), np.empty((0, 3), np.int64), np.empty(0), np.empty(0, np.int64))


def candidates(scene: Scene, box: Box, config: AgglomerateConfig) -> list[Contact]:
    """Return the decision points in `box`, where two segments touch and overlap deeply enough, or were one object.

    All is counted by cells, so that the points do not depend on how the volume is cut into jobs.
    """
    volume, size, near = scene.segmentation, voxel_size_of(scene.segmentation), searched(scene.segmentation, box)
    claims = read_overlaps(volume.name, near)
    pairs = np.unique(claims[:, :2], axis=0).astype(np.uint64)
    blocks = list(near.intersect(volume.box).blocks(PART_ZYX))
    found = combined((find_contacts(scene, b, pairs) for b in track(blocks, len(blocks), "contacts")), size)
    faces, overlap = around(found, claims, size, scene.objects)
    one, other = scene.objects.of(found.pairs).T
    is_deep = overlap >= np.maximum(config.min_overlap_voxels, config.min_overlap_depth * faces)
    deep = np.flatnonzero(is_deep | (one == other))
    rows = deep[decision_points(Cells(*(column[deep] for column in found)), box, size)]
    counts = (len(np.unique(each, axis=0)) for each in (found.pairs, found.pairs[deep]))
    log.info("%d pairs overlap, %d touch, %d deeply enough: %d decision points", len(pairs), *counts, len(rows))
    columns = (*found[:3], faces, overlap)
    each = zip(*(column[rows].tolist() for column in columns), strict=True)
    return [Contact(a, b, zyx(place), *values) for (a, b), place, *values in each]


def searched(segmentation: Volume, box: Box) -> Box:
    """Return the box that decides about the points in `box`, in whole cells, which may reach beyond the volume."""
    cell = cell_shape(voxel_size_of(segmentation))
    outer = _whole_cells(box, cell).grow(scale(cell, POINT_CELLS + 1)).intersect(segmentation.box)
    return _whole_cells(outer, cell)


def _whole_cells(box: Box, cell_zyx: ZYX) -> Box:
    """Return the smallest box of whole cells that contains `box`."""
    start, stop = (np.array(corner) for corner in (box.start, box.stop))
    return Box(zyx(start // cell_zyx * cell_zyx), zyx(-(-stop // cell_zyx) * cell_zyx))


def find_contacts(scene: Scene, block: Box, pairs: np.ndarray) -> Cells:
    """Find the contacts in a block of segments that belong to given pairs of objects, or to one object.

    The block is read with the halo that it needs. A face counts if its lower voxel lies in the block, so disjoint
    blocks share no face.
    """
    size = voxel_size_of(scene.segmentation)
    outer = block.grow(halo_of(size, max(MAX_GAP_NM, TRUNCATE * SIGMA_NM))).intersect(scene.segmentation.box)
    labels = scene.segmentation.read(outer)
    pairs = scene.objects.segments(pairs, np.unique(labels))
    if not len(pairs):
        return NO_CELLS
    smooth = smoothed(scene.image.read(outer), SIGMA_NM, size)
    near = spread(labels, size, MAX_GAP_NM)
    if scene.masks:
        near[scene.masks.read(outer)] = 0
    lookup, found = RowLookup(*pairs.T), []
    for ids, places, step in faces_in(near, block, outer):
        is_wanted = lookup.find(*ids.T) >= 0
        ids, places = ids[is_wanted], places[is_wanted]
        lower, upper = (tuple((places - outer.start + shift).T) for shift in (0, step))
        found.append(Cells(ids, places, np.minimum(smooth[lower], smooth[upper]), np.ones(len(ids), np.int64)))
    return combined(found, size)


def combined(parts: Iterable[Cells], voxel_size_zyx_nm: VoxelSize) -> Cells:
    """Combine the contacts of disjoint voxels, in any order; of equally bright places, the first in zyx order stays."""
    pairs, places, brightness, faces = map(np.concatenate, zip(*parts, strict=True))
    cells = places // np.array(cell_shape(voxel_size_zyx_nm))
    order = np.lexsort((*places.T[::-1], -brightness, *cells.T, *pairs.T[::-1]))
    keys = np.column_stack([pairs.astype(np.int64), cells])[order]
    first = np.flatnonzero(np.append(True, (keys[1:] != keys[:-1]).any(axis=1))[: len(keys)])
    best, faces = order[first], np.append(0, np.cumsum(faces[order]))
    return Cells(pairs[best], places[best], brightness[best], np.diff(faces[np.append(first, len(keys))]))


def around(
    cells: Cells, claims: np.ndarray, voxel_size_zyx_nm: VoxelSize, objects: Objects = ALONE
) -> tuple[np.ndarray, np.ndarray]:
    """Count the faces and the common claims of each contact in its cell and the 26 cells next to it.

    `claims` are rows of ``overlaps``, of `objects`.
    """
    cell = np.array(cell_shape(voxel_size_zyx_nm))
    places, of_claims = cells.position_zyx // cell, claims[:, 2:5] // cell
    faces, voxels = np.append(cells.faces, 0), np.append(claims[:, 5], 0)  # the last ones are those of row -1
    own, claimed = RowLookup(*cells.pairs.T, *places.T), RowLookup(*claims[:, :2].T, *of_claims.T)
    owners = np.sort(objects.of(cells.pairs), axis=1)
    return (
        np.sum([faces[rows] for rows in _near(own, cells.pairs, places, 1)], axis=0),
        np.sum([voxels[rows] for rows in _near(claimed, owners, places, 1)], axis=0),
    )


def decision_points(cells: Cells, box: Box, voxel_size_zyx_nm: VoxelSize, radius: int = POINT_CELLS) -> np.ndarray:
    """Choose the contacts inside `box` that are brighter than all others of their pair within some cells.

    `cells` are those that may be decision points, complete within `radius` cells of the box, so that jobs whose boxes
    tile the volume find every point once. The result has their rows, by ascending pair, then by falling brightness.
    """
    places = cells.position_zyx // np.array(cell_shape(voxel_size_zyx_nm))
    rank = np.empty(len(places), np.int64)
    rank[np.lexsort((*cells.position_zyx.T[::-1], -cells.brightness))] = np.arange(len(places))
    lookup, ranks, is_point = RowLookup(*cells.pairs.T, *places.T), np.append(rank, len(rank)), box.holds(cells[1])
    for rows in _near(lookup, cells.pairs, places, radius):
        is_point &= ranks[rows] >= rank
    points = np.flatnonzero(is_point)
    return points[np.lexsort((rank[points], *cells.pairs[points].T[::-1]))]


def _near(lookup: RowLookup, pairs: np.ndarray, cells: np.ndarray, radius: int) -> Iterator[np.ndarray]:
    """Yield the rows of pairs in the cells around theirs, and in their own, -1 for none."""
    for step in itertools.product(range(-radius, radius + 1), repeat=3):
        yield lookup.find(*pairs.T, *(cells + step).T)


def halo_of(voxel_size_zyx_nm: VoxelSize, reach_nm: float = MAX_GAP_NM) -> ZYX:
    """Return the voxels around a block that decide which segments touch in it."""
    return zyx(np.ceil([reach_nm / side + 1 for side in voxel_size_zyx_nm]))


def smoothed(image: np.ndarray, sigma_nm: float, voxel_size_zyx_nm: VoxelSize) -> np.ndarray:
    """Return the image (float32) smoothed by a Gaussian that has the same length on each axis."""
    from scipy import ndimage

    sigma = [sigma_nm / side for side in voxel_size_zyx_nm]
    return ndimage.gaussian_filter(image.astype(np.float32), sigma, truncate=TRUNCATE)


def spread(labels: np.ndarray, voxel_size_zyx_nm: VoxelSize, max_nm: float = MAX_GAP_NM) -> np.ndarray:
    """Assign every background voxel within `max_nm` of a segment to the nearest segment."""
    from scipy import ndimage

    if not labels.any():
        return labels
    distance, (z, y, x) = ndimage.distance_transform_edt(labels == 0, sampling=voxel_size_zyx_nm, return_indices=True)
    return np.where(distance <= max_nm, labels[z, y, x], 0)


def faces_in(labels: np.ndarray, block: Box, outer: Box) -> Iterator[tuple[np.ndarray, np.ndarray, ZYX]]:
    """Yield the faces between labels along each axis: both labels (N, 2), smaller first, lower voxels (N, 3), the step.

    `labels` are those of `outer`. A face counts if its lower voxel lies in the block, so disjoint blocks share no face.
    """
    for axis in range(3):
        step = zyx(int(axis == k) for k in range(3))
        lower = block.intersect(Box(outer.start, subtract(outer.stop, step)))
        a, b = labels[lower.slices(outer.start)], labels[lower.shift(step).slices(outer.start)]
        where = np.nonzero((a != b) & (a != 0) & (b != 0))
        yield np.sort(np.stack([a[where], b[where]], axis=1), axis=1), np.stack(where, axis=1) + lower.start, step
