"""Connected pieces of the segments in one block, and how those of neighbouring blocks find each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ffn.geometry import ZYX, Box, zyx

NO_PART = np.empty((0, 2), np.int64)


def label_pieces(labels: np.ndarray) -> np.ndarray:
    """Return the connected pieces of a block, numbered from 1 in the order of their first voxels; faces connect."""
    from skimage.measure import label

    ids, compact = np.unique(labels, return_inverse=True)
    compact = compact.reshape(labels.shape) + int(ids[0] > 0)  # 0 is background, also where there is none
    return label(compact, background=0, connectivity=1)


def pieces_of_block(
    block: Box, volume: Box, part_zyx: ZYX, read: Callable[[Box], np.ndarray], seeds: np.ndarray
) -> dict[str, np.ndarray]:
    """Find the pieces of a block, part by part."""
    objects, voxels, first = ([np.empty(0, np.int64)] for _ in range(3))
    links, at_seeds, total = [NO_PART], [NO_PART], 0
    for part in block.blocks(part_zyx):
        outer = Box(part.start, zyx(n + 1 for n in part.stop)).intersect(volume)
        around = read(outer)
        labels = around[part.slices(outer.start)]
        labelled = label_pieces(labels)
        pieces, where, counts = np.unique(labelled, return_index=True, return_counts=True)
        where, counts = where[pieces > 0], counts[pieces > 0]
        objects.append(labels.ravel()[where].astype(np.int64))
        voxels.append(counts)
        first.append(_flat(np.stack(np.unravel_index(where, labels.shape), axis=1), part, volume))
        numbers = labelled.astype(np.int64) + (total - 1)  # below the first piece of the part: background
        links += [pairs[pairs[:, 0] >= total] for pairs in _links(part, volume, around, numbers)]
        inside = seeds[part.holds(seeds[:, 1:])]
        piece = numbers[tuple((inside[:, 1:] - part.start).T)]
        at_seeds.append(np.stack([inside[:, 0], piece], axis=1)[piece >= total])
        total += len(where)
    return {
        "objects": np.concatenate(objects),
        "voxels": np.concatenate(voxels),
        "first": np.concatenate(first),
        "links": np.concatenate(links),
        "seeds": np.concatenate(at_seeds),
    }


def _links(part: Box, volume: Box, around: np.ndarray, numbers: np.ndarray) -> Iterator[np.ndarray]:
    """Yield ``links`` of the first face of a part, and of that of the part behind it, along each axis."""
    for axis in range(3):
        for is_behind, plane in ((False, 0), (True, part.shape[axis])):
            if not volume.start[axis] < part.start[axis] + plane < volume.stop[axis]:
                continue
            face, before = (
                tuple(slice(at, at + 1) if k == axis else slice(n) for k, n in enumerate(part.shape))
                for at in (plane, plane - 1)
            )
            contacts = label_pieces(around[face])
            goes_on = contacts > 0
            if is_behind:
                goes_on &= around[face] == around[before]
            _, where = np.unique(contacts, return_index=True)
            places = np.stack(np.unravel_index(where, contacts.shape), axis=1)
            places[:, axis] += plane
            voxels = _flat(places, part, volume)
            if contacts.min(initial=1) > 0:
                voxels = np.append(0, voxels)  # there is no background
            piece = numbers[before if is_behind else face][goes_on]
            yield np.unique(np.stack([piece, voxels[contacts[goes_on]]], axis=1), axis=0)


def _flat(places: np.ndarray, part: Box, volume: Box) -> np.ndarray:
    """Return the flat index (int64) in the volume of voxels (N, 3) of a part."""
    return np.ravel_multi_index(tuple((places + np.subtract(part.start, volume.start)).T), volume.shape).astype(
        np.int64
    )
