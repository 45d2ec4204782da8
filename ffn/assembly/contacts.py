"""Where two segments come closest to being one: contacts and their decision points."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ffn.geometry import ZYX, Box, zyx
from ffn.volume import Volume

SIGMA = 2.0  # smoothing of the image, voxels: an opening in a membrane is wider than its noise
TRUNCATE = 4.0


@dataclass(frozen=True)
class Contact:
    """Two segments that touch, or nearly do.

    Parameters
    ----------
    segment_a, segment_b : int
        Ids, the smaller one first.
    position_zyx : tuple of int
        Decision point: the brightest place between them, full-volume voxels. Membranes are dark, so if the two are
        one object, it goes on there.
    brightness : float
        Of the smoothed image at the decision point, grey levels.
    faces : int
        Size of the contact, in faces between voxels that are nearest to one and to the other.
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
    """Find the contacts of `pairs` in a block; its surroundings are read as far as they matter.

    Parameters
    ----------
    segmentation, image : Volume
        Labels and the grey levels they were made from.
    block : Box
        Faces whose lower voxel lies in it count, so every face belongs to one of disjoint blocks.
    pairs : uint64 ndarray of shape (N, 2)
        Which segments to look at, smaller id first, rows ascending.
    max_distance : float
        Between a segment and the middle of a gap, in units of the smallest voxel side.

    Returns
    -------
    list of Contact
        Ascending by pair.
    """
    size = segmentation.voxel_size_zyx_nm or (1.0, 1.0, 1.0)
    gap = [max_distance * min(size) / side for side in size]
    halo = zyx(np.ceil([max(steps, TRUNCATE * SIGMA) + 1 for steps in gap]))
    outer = block.grow(halo).intersect(segmentation.box)
    labels = spread(segmentation.read(outer), size, max_distance)
    faces = _faces(labels, _smooth(image.read(outer)), block, outer, pairs)
    return _strongest(faces, pairs)


def merge_contacts(contacts: Iterable[Contact]) -> list[Contact]:
    """Put the contacts of several blocks together: sizes add up, the brightest decision point counts.

    Examples
    --------
    >>> parts = [Contact(1, 2, (0, 0, 5), 90.0, 3), Contact(1, 2, (8, 0, 5), 120.0, 4)]
    >>> merge_contacts(parts)
    [Contact(segment_a=1, segment_b=2, position_zyx=(8, 0, 5), brightness=120.0, faces=7)]
    """
    merged: dict[tuple[int, int], Contact] = {}
    for contact in contacts:
        known = merged.get(contact.pair, contact)
        best = min(known, contact, key=lambda c: (-c.brightness, c.position_zyx))
        faces = contact.faces + (known.faces if contact.pair in merged else 0)
        merged[contact.pair] = Contact(*contact.pair, best.position_zyx, best.brightness, faces)
    return [merged[pair] for pair in sorted(merged)]


def spread(labels: np.ndarray, voxel_size_zyx_nm: tuple[float, float, float], max_distance: float) -> np.ndarray:
    """Give every background voxel within `max_distance` of a segment to the nearest one.

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
    sampling = tuple(side / min(voxel_size_zyx_nm) for side in voxel_size_zyx_nm)
    distance, (z, y, x) = ndimage.distance_transform_edt(labels == 0, sampling=sampling, return_indices=True)
    return np.where(distance <= max_distance, labels[z, y, x], 0)


def _smooth(image: np.ndarray) -> np.ndarray:
    from scipy import ndimage

    return ndimage.gaussian_filter(image.astype(np.float32), SIGMA, truncate=TRUNCATE)


@dataclass(frozen=True)
class _Faces:
    """Faces between two segments: row of their pair, lower voxel (full volume) and brightness of each."""

    row: np.ndarray
    position: np.ndarray
    brightness: np.ndarray


def _faces(labels: np.ndarray, smooth: np.ndarray, block: Box, outer: Box, pairs: np.ndarray) -> _Faces:
    """Collect the faces of `block` along all three axes."""
    inner = block.slices(outer.start)
    found = []
    for axis in range(3):
        lower = [slice(None)] * 3
        upper = [slice(None)] * 3
        lower[axis], upper[axis] = slice(0, -1), slice(1, None)
        a, b = labels[tuple(lower)][inner], labels[tuple(upper)][inner]
        where = np.nonzero((a != b) & (a != 0) & (b != 0))
        ids = np.sort(np.stack([a[where], b[where]], axis=1), axis=1)
        row = _rows(pairs, ids)
        brightness = np.minimum(smooth[tuple(lower)][inner][where], smooth[tuple(upper)][inner][where])
        position = np.stack(where, axis=1) + block.start
        found.append((row[row >= 0], position[row >= 0], brightness[row >= 0]))
    row, position, brightness = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return _Faces(row, position, brightness)


def _rows(pairs: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Return for each pair of `ids` its row in `pairs`, -1 where it is none of them."""
    stacked = np.concatenate([pairs, ids])
    _, number = np.unique(stacked, axis=0, return_inverse=True)
    number = number.ravel()
    row_of = np.full(number.max(initial=-1) + 1, -1, np.int64)
    row_of[number[: len(pairs)]] = np.arange(len(pairs))
    return row_of[number[len(pairs) :]]


def _strongest(faces: _Faces, pairs: np.ndarray) -> list[Contact]:
    """Return one contact for each pair that has faces; the first place in zyx order among equally bright ones."""
    z, y, x = faces.position.T
    order = np.lexsort((x, y, z, -faces.brightness, faces.row))
    rows, first, counts = np.unique(faces.row[order], return_index=True, return_counts=True)
    return [
        Contact(
            segment_a=int(pairs[row, 0]),
            segment_b=int(pairs[row, 1]),
            position_zyx=zyx(faces.position[order[k]]),
            brightness=float(faces.brightness[order[k]]),
            faces=int(count),
        )
        for row, k, count in zip(rows, first, counts, strict=True)
    ]
