"""Contacts between segments, and the decision points where they may be one object."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from ffn.contingency import RowLookup
from ffn.geometry import ZYX, Box, VoxelSize, relative_sides, zyx
from ffn.io.volume import Volume, voxel_size_of

SIGMA = 2.0  # smoothing of the image, in units of the smallest voxel side; a real opening is wider than noise
TRUNCATE = 4.0
CELL = 24  # voxels of the smallest side; each cell of a contact has at most one decision point, its brightest place


@dataclass(frozen=True)
class Contact:
    """A place where two segments touch or nearly touch.

    Parameters
    ----------
    segment_a, segment_b : int
        Ids, the smaller one first.
    position_zyx : tuple of int
        Decision point: the brightest place between them, full-volume voxels. Membranes are dark, so an object that
        was split most likely continues there.
    brightness : float
        Smoothed image at the decision point, grey levels.
    faces : int
        Size of the contact: faces between voxels nearest to one segment and voxels nearest to the other.
    """

    segment_a: int
    segment_b: int
    position_zyx: ZYX
    brightness: float
    faces: int

    @property
    def pair(self) -> tuple[int, int]:
        """Both ids."""
        return self.segment_a, self.segment_b


def find_contacts(
    segmentation: Volume, image: Volume, block: Box, pairs: np.ndarray, max_distance: float
) -> list[Contact]:
    """Find the contacts of `pairs` in a block. The block is read with the halo that it needs.

    Parameters
    ----------
    segmentation, image : Volume
        Labels, and the image they were made from.
    block : Box
        A face counts if its lower voxel lies in the block, so disjoint blocks share no face.
    pairs : uint64 ndarray of shape (N, 2)
        Segments to look at, smaller id first.
    max_distance : float
        Largest distance from a segment to the middle of a gap, in units of the smallest voxel side.

    Returns
    -------
    list of Contact
        One for each pair and cell of the full volume; `merge_contacts` combines them.
    """
    size = voxel_size_of(segmentation)
    reach = max(max_distance, TRUNCATE * SIGMA)
    halo = zyx(np.ceil([reach * steps + 1 for steps in _steps(size)]))
    outer = block.grow(halo).intersect(segmentation.box)
    labels = segmentation.read(outer)
    pairs = pairs[np.isin(pairs, np.unique(labels)).all(axis=1)]
    if not len(pairs):
        return []
    smooth = _smooth(image.read(outer), size)
    faces = _faces(spread(labels, size, max_distance), smooth, block, outer, pairs)
    return _strongest(faces, pairs, size)


def merge_contacts(contacts: Iterable[Contact], max_points: int, voxel_size_zyx_nm: VoxelSize) -> list[Contact]:
    """Choose the decision points of every pair. The result does not depend on how the volume was cut into blocks.

    Parameters
    ----------
    contacts : iterable of Contact
        Contacts of disjoint blocks, in any order.
    max_points : int
        Most decision points of one pair. The brightest are chosen; no two lie within `CELL` of each other on all axes.
    voxel_size_zyx_nm : tuple of float
        Sides of a voxel.

    Returns
    -------
    list of Contact
        By ascending pair, then by falling brightness; `faces` is the size of the pair's whole contact.
    """
    cell = _cell(voxel_size_zyx_nm)
    faces: dict[tuple[int, int], int] = {}
    brightest: dict[tuple[int, int], dict[ZYX, Contact]] = {}
    for contact in contacts:
        faces[contact.pair] = faces.get(contact.pair, 0) + contact.faces
        cells = brightest.setdefault(contact.pair, {})
        place = zyx(np.floor_divide(contact.position_zyx, cell))
        cells[place] = min(cells.get(place, contact), contact, key=_rank)
    chosen = ((pair, _separate(brightest[pair].values(), cell)[:max_points]) for pair in sorted(brightest))
    return [replace(contact, faces=faces[pair]) for pair, points in chosen for contact in points]


def _rank(contact: Contact) -> tuple[float, ZYX]:
    """Sort key: brightest first, then zyx order."""
    return -contact.brightness, contact.position_zyx


def _separate(contacts: Iterable[Contact], cell: ZYX) -> list[Contact]:
    """Drop contacts near a brighter one."""
    kept: list[Contact] = []
    for contact in sorted(contacts, key=_rank):
        away = (np.abs(np.subtract(contact.position_zyx, other.position_zyx)) >= cell for other in kept)
        if all(far.any() for far in away):
            kept.append(contact)
    return kept


def _steps(voxel_size_zyx_nm: VoxelSize) -> list[float]:
    """Voxels along each axis that span one smallest side."""
    return [min(voxel_size_zyx_nm) / side for side in voxel_size_zyx_nm]


def _cell(voxel_size_zyx_nm: VoxelSize) -> ZYX:
    return zyx(max(1, round(CELL * steps)) for steps in _steps(voxel_size_zyx_nm))


def spread(labels: np.ndarray, voxel_size_zyx_nm: VoxelSize, max_distance: float) -> np.ndarray:
    """Assign every background voxel within `max_distance` of a segment to the nearest segment.

    Parameters
    ----------
    labels : uint64 ndarray of shape (Z, Y, X)
        0 is background.
    voxel_size_zyx_nm : tuple of float
        Sides of a voxel.
    max_distance : float
        In units of the smallest side.

    Returns
    -------
    uint64 ndarray of shape (Z, Y, X)
    """
    from scipy import ndimage

    if not labels.any():
        return labels
    sides = relative_sides(voxel_size_zyx_nm)
    distance, (z, y, x) = ndimage.distance_transform_edt(labels == 0, sampling=sides, return_indices=True)
    return np.where(distance <= max_distance, labels[z, y, x], 0)


def _smooth(image: np.ndarray, voxel_size_zyx_nm: VoxelSize) -> np.ndarray:
    from scipy import ndimage

    sigma = [SIGMA * steps for steps in _steps(voxel_size_zyx_nm)]
    return ndimage.gaussian_filter(image.astype(np.float32), sigma, truncate=TRUNCATE)


@dataclass(frozen=True)
class _Faces:
    """Faces between segments: row of their pair, lower voxel (full volume) and brightness, one entry for each face."""

    row: np.ndarray
    position: np.ndarray
    brightness: np.ndarray


def _faces(labels: np.ndarray, smooth: np.ndarray, block: Box, outer: Box, pairs: np.ndarray) -> _Faces:
    """Collect the faces of `block` along all three axes."""
    inner = block.slices(outer.start)
    lookup = RowLookup(*pairs.T)
    found = []
    for axis in range(3):
        lower = [slice(None)] * 3
        upper = [slice(None)] * 3
        lower[axis], upper[axis] = slice(0, -1), slice(1, None)
        a, b = labels[tuple(lower)][inner], labels[tuple(upper)][inner]
        where = np.nonzero((a != b) & (a != 0) & (b != 0))
        row = lookup.find(np.minimum(a[where], b[where]), np.maximum(a[where], b[where]))
        brightness = np.minimum(smooth[tuple(lower)][inner][where], smooth[tuple(upper)][inner][where])
        position = np.stack(where, axis=1) + block.start
        found.append((row[row >= 0], position[row >= 0], brightness[row >= 0]))
    row, position, brightness = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return _Faces(row, position, brightness)


def _strongest(faces: _Faces, pairs: np.ndarray, voxel_size_zyx_nm: VoxelSize) -> list[Contact]:
    """Return the brightest face of each pair and cell as a contact; ties go to the first in zyx order."""
    cells = faces.position // np.array(_cell(voxel_size_zyx_nm))
    _, group = np.unique(np.column_stack([faces.row, cells]), axis=0, return_inverse=True)
    z, y, x = faces.position.T
    order = np.lexsort((x, y, z, -faces.brightness, group.ravel()))
    _, first, counts = np.unique(group.ravel()[order], return_index=True, return_counts=True)
    return [
        Contact(
            segment_a=int(pairs[faces.row[k], 0]),
            segment_b=int(pairs[faces.row[k], 1]),
            position_zyx=zyx(faces.position[k]),
            brightness=float(faces.brightness[k]),
            faces=int(count),
        )
        for k, count in zip(order[first], counts, strict=True)
    ]
