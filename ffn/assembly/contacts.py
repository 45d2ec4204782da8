"""Contacts between segments, and the decision points where they may be one object."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from ffn.assembly.config import AgglomerateConfig
from ffn.assembly.tables import ALONE, Objects, read_overlaps
from ffn.config import PART_ZYX, Mask
from ffn.contingency import RowLookup
from ffn.geometry import ZYX, Box, VoxelSize, cell_shape, scale, subtract, zyx
from ffn.io.masks import NO_MASKS, Masks, open_masks
from ffn.io.open import open_segmentation, open_volume
from ffn.io.volume import Volume, require_image_of, voxel_size_of
from ffn.progress import track

log = logging.getLogger(__name__)

SIGMA_NM = 20.0  # smoothing of the image; a real opening is wider than noise
TRUNCATE = 4.0  # radius of the Gaussian, standard deviations
MAX_GAP_NM = 80.0  # from a segment to the middle of a contact; our choice
POINT_CELLS = 2  # around a decision point, in which it is the brightest of its pair; our choice


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
    """A place where two segments touch or nearly touch: their contact in one cell, or around a decision point."""

    segment_a: int  # ids, the smaller one first
    segment_b: int
    # decision point: the brightest place between them, full-volume voxels. Membranes are dark, so an object that was
    # split most likely continues there
    position_zyx: ZYX
    brightness: float  # smoothed image at the decision point, grey levels
    # size of the contact: faces between voxels nearest to one segment and voxels nearest to the other, in the cell, or,
    # of a decision point, in its cell and the cells around it
    faces: int
    overlap: int = 0  # of a decision point: voxels in the same cells that both segments claimed during flood filling

    @property
    def pair(self) -> tuple[int, int]:
        """Both ids."""
        return self.segment_a, self.segment_b


def candidates(scene: Scene, box: Box, config: AgglomerateConfig) -> list[Contact]:
    """Return the decision points in `box`, where two segments touch and overlap deeply enough, or were one object.

    All is counted by cells, so that the points do not depend on how the volume is cut into jobs.
    """
    volume, size, near = scene.segmentation, voxel_size_of(scene.segmentation), searched(scene.segmentation, box)
    claims = read_overlaps(volume.name, near)
    pairs = np.unique(claims[:, :2], axis=0).astype(np.uint64)
    blocks = list(near.intersect(volume.box).blocks(PART_ZYX))
    found = (contact for b in track(blocks, len(blocks), "contacts") for contact in find_contacts(scene, b, pairs))
    touching = with_overlaps(add_contacts(found, size), claims, size, scene.objects)
    deep = {
        pair: {place: c for place, c in cells.items() if is_one or _is_deep(c, config)}
        for pair, cells in touching.items()
        for is_one in [len(set(scene.objects.of_pair(pair))) == 1]
    }
    points = decision_points(deep, box, POINT_CELLS)
    counts = (len(pairs), len(touching), sum(map(bool, deep.values())), len(points))
    log.info("%d pairs overlap, %d touch, %d deeply enough: %d decision points", *counts)
    return points


def searched(segmentation: Volume, box: Box) -> Box:
    """Return the box that decides about the points in `box`, in whole cells, which may reach beyond the volume."""
    cell = cell_shape(voxel_size_of(segmentation))
    outer = _whole_cells(box, cell).grow(scale(cell, POINT_CELLS + 1)).intersect(segmentation.box)
    return _whole_cells(outer, cell)


def _whole_cells(box: Box, cell_zyx: ZYX) -> Box:
    """Return the smallest box of whole cells that contains `box`."""
    start, stop = (np.array(corner) for corner in (box.start, box.stop))
    return Box(zyx(start // cell_zyx * cell_zyx), zyx(-(-stop // cell_zyx) * cell_zyx))


def _is_deep(contact: Contact, config: AgglomerateConfig) -> bool:
    return contact.overlap >= max(config.min_overlap_voxels, config.min_overlap_depth * contact.faces)


def find_contacts(scene: Scene, block: Box, pairs: np.ndarray) -> list[Contact]:
    """Find the contacts in a block of segments that belong to given pairs of objects, or to one object.

    One of each pair and cell of the full volume; `add_contacts` combines them. The block is read with the halo that it
    needs. A face counts if its lower voxel lies in the block, so disjoint blocks share no face.
    """
    size = voxel_size_of(scene.segmentation)
    outer = block.grow(halo_of(size, max(MAX_GAP_NM, TRUNCATE * SIGMA_NM))).intersect(scene.segmentation.box)
    labels = scene.segmentation.read(outer)
    pairs = scene.objects.segments(pairs, np.unique(labels))
    if not len(pairs):
        return []
    smooth = smoothed(scene.image.read(outer), SIGMA_NM, size)
    near = spread(labels, size, MAX_GAP_NM)
    if scene.masks:
        near[scene.masks.read(outer)] = 0
    return _brightest(near, smooth, block, outer, pairs, cell_shape(size))


Contacts = dict[tuple[int, int], dict[ZYX, Contact]]  # by pair, then by number of the cell along each axis


def add_contacts(contacts: Iterable[Contact], voxel_size_zyx_nm: VoxelSize) -> Contacts:
    """Combine the contacts of disjoint blocks, in any order: one of each pair and cell."""
    cell = cell_shape(voxel_size_zyx_nm)
    found: Contacts = {}
    for contact in contacts:
        cells = found.setdefault(contact.pair, {})
        place = zyx(np.floor_divide(contact.position_zyx, cell))
        known = cells.get(place)
        if known is None:
            cells[place] = contact
        else:
            cells[place] = replace(min(known, contact, key=_rank), faces=known.faces + contact.faces)
    return found


def with_overlaps(
    contacts: Contacts, claims: np.ndarray, voxel_size_zyx_nm: VoxelSize, objects: Objects = ALONE
) -> Contacts:
    """Return contacts that know the faces and the overlap around them, in their cell and the 26 cells next to it."""
    cells = (claims[:, 2:5] // cell_shape(voxel_size_zyx_nm)).tolist()
    overlaps: dict[tuple[int, int], dict[ZYX, int]] = {}
    for (a, b), place, voxels in zip(claims[:, :2].tolist(), cells, claims[:, 5].tolist(), strict=True):
        overlaps.setdefault((a, b), {})[zyx(place)] = voxels
    total: Contacts = {}
    for pair, places in contacts.items():
        claimed = overlaps.get(objects.of_pair(pair), {})
        total[pair] = {
            place: replace(
                contact,
                faces=sum(places[near].faces for near in _around(place, 1) if near in places),
                overlap=sum(claimed.get(near, 0) for near in _around(place, 1)),
            )
            for place, contact in places.items()
        }
    return total


def decision_points(contacts: Contacts, box: Box, radius: int) -> list[Contact]:
    """Choose the places inside `box` that are brighter than all others of their pair within some cells.

    `contacts` are those that may be decision points, complete within `radius` cells of the box, so that jobs whose
    boxes tile the volume find every point once. By ascending pair, then by falling brightness.
    """
    chosen = []
    for _, places in sorted(contacts.items()):
        points = [
            contact
            for place, contact in places.items()
            if box.contains(Box.around(contact.position_zyx))
            and all(_rank(contact) <= _rank(places[near]) for near in _around(place, radius) if near in places)
        ]
        chosen += sorted(points, key=_rank)
    return chosen


def _around(place: ZYX, radius: int) -> Iterator[ZYX]:
    """Yield the cells within `radius` of one, and itself."""
    z, y, x = (range(n - radius, n + radius + 1) for n in place)
    return itertools.product(z, y, x)


def _rank(contact: Contact) -> tuple[float, ZYX]:
    """Sort key: brightest first, then zyx order."""
    return -contact.brightness, contact.position_zyx


def halo_of(voxel_size_zyx_nm: VoxelSize, reach_nm: float = MAX_GAP_NM) -> ZYX:
    """Return the voxels around a block that decide which segments touch in it."""
    return zyx(np.ceil([reach_nm / side + 1 for side in voxel_size_zyx_nm]))


def smoothed(image: np.ndarray, sigma_nm: float, voxel_size_zyx_nm: VoxelSize) -> np.ndarray:
    """Return the image (float32) smoothed by a Gaussian that has the same length on each axis."""
    from scipy import ndimage

    sigma = [sigma_nm / side for side in voxel_size_zyx_nm]
    return ndimage.gaussian_filter(image.astype(np.float32), sigma, truncate=TRUNCATE)


def spread(labels: np.ndarray, voxel_size_zyx_nm: VoxelSize, max_nm: float) -> np.ndarray:
    """Assign every background voxel within `max_nm` of a segment to the nearest segment."""
    from scipy import ndimage

    if not labels.any():
        return labels
    size = voxel_size_zyx_nm
    distance, (z, y, x) = ndimage.distance_transform_edt(labels == 0, sampling=size, return_indices=True)
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


def _brightest(
    near: np.ndarray, smooth: np.ndarray, block: Box, outer: Box, pairs: np.ndarray, cell_zyx: ZYX
) -> list[Contact]:
    """Return the brightest face of each pair and cell as a contact; ties go to the first in zyx order."""
    lookup, found = RowLookup(*pairs.T), []
    for ids, places, step in faces_in(near, block, outer):
        row = lookup.find(*ids.T)
        lower, upper = (tuple((places - outer.start + shift).T) for shift in (0, step))
        brightness = np.minimum(smooth[lower], smooth[upper])
        found.append((row[row >= 0], places[row >= 0], brightness[row >= 0]))
    row, places, brightness = (np.concatenate(parts) for parts in zip(*found, strict=True))
    _, group = np.unique(np.column_stack([row, places // np.array(cell_zyx)]), axis=0, return_inverse=True)
    z, y, x = places.T
    order = np.lexsort((x, y, z, -brightness, group.ravel()))
    _, first, counts = np.unique(group.ravel()[order], return_index=True, return_counts=True)
    best = order[first]
    columns = pairs[row[best]].tolist(), places[best].tolist(), brightness[best].tolist(), counts.tolist()
    return [Contact(a, b, zyx(place), value, count) for (a, b), place, value, count in zip(*columns, strict=True)]
