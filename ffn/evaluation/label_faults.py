"""Faults of labels that people painted, as places to look at."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from scipy import ndimage

from ffn.assembly.components import label_pieces
from ffn.contingency import count_pairs, largest_parts
from ffn.geometry import ZYX, Box, zyx
from ffn.io.volume import is_ignored

RIM = 2  # voxels; what lies in there alone is no centre of an example. Our choice


class Fault(NamedTuple):
    """A place to correct."""

    kind: str
    label: int
    voxels: int
    place_zyx: ZYX  # a voxel of it

    def __str__(self) -> str:
        """Return a line for people."""
        return f"id {self.label}: {self.kind}, {self.voxels} voxels, at {','.join(map(str, self.place_zyx))}"


def faults(labels: np.ndarray, box: Box) -> list[Fault]:
    """Return the faults of labels in a box, the largest of each kind first; 40 bytes of memory per voxel."""
    bodies = np.where(is_ignored(labels), 0, labels)
    found = [*_pieces(bodies), *_gaps(bodies), *_rim(bodies), *_holes(labels)]
    moved = [each._replace(place_zyx=zyx(np.add(each.place_zyx, box.start))) for each in found]
    return sorted(moved, key=lambda each: (each.kind, -each.voxels))


def _pieces(bodies: np.ndarray) -> Iterator[Fault]:
    """Yield the pieces of each id but the largest."""
    pieces = label_pieces(bodies)
    table = count_pairs(bodies, pieces).foreground()
    largest = largest_parts(table.a, table.b, table.voxels)
    for row in np.setdiff1d(np.arange(len(table.a)), largest).tolist():
        place = np.unravel_index((pieces == table.b[row]).argmax(), bodies.shape)
        yield Fault("a piece apart from the rest", int(table.a[row]), int(table.voxels[row]), zyx(place))


def _gaps(bodies: np.ndarray) -> Iterator[Fault]:
    """Yield sections in which an id is missing that the sections before and after have."""
    present = [set(np.unique(section).tolist()) - {0} for section in bodies]
    for z in range(1, len(present) - 1):
        for label in sorted((present[z - 1] & present[z + 1]) - present[z]):
            before = np.argwhere(bodies[z - 1] == label)
            yield Fault("missing in a section", label, len(before), (z, *before[0].tolist()))


def _rim(bodies: np.ndarray) -> Iterator[Fault]:
    """Yield ids that lie within `RIM` voxels of the faces alone."""
    inner = bodies[tuple(slice(RIM, max(RIM, n - RIM)) for n in bodies.shape)]
    for label in np.setdiff1d(bodies, [*np.unique(inner), 0]).tolist():
        places = np.argwhere(bodies == label)
        yield Fault("only at the rim", label, len(places), zyx(places[0]))


def _holes(labels: np.ndarray) -> Iterator[Fault]:
    """Yield unlabelled voxels that one id encloses."""
    holes = label_pieces(labels == 0)
    for number, slices in enumerate(ndimage.find_objects(holes), 1):
        if any(part.start == 0 or part.stop == n for part, n in zip(slices, labels.shape, strict=True)):
            continue
        around = tuple(slice(part.start - 1, part.stop + 1) for part in slices)
        is_hole = holes[around] == number
        enclosing = np.unique(labels[around][ndimage.binary_dilation(is_hole) & ~is_hole])
        if len(enclosing) == 1:
            place = np.argwhere(is_hole)[0] + [part.start for part in around]
            yield Fault("a hole", int(enclosing[0]), int(is_hole.sum()), zyx(place))
