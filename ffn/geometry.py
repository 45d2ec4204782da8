"""Boxes, tilings and zyx arithmetic. Nothing else computes overlaps or halos."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np

from ffn.errors import ConfigError

ZYX = tuple[int, int, int]
VoxelSize = tuple[float, float, float]  # sides of a voxel, zyx, nm

BLUR_NM = 49 / 6 * 10  # of membranes' gradient; the 49/6 voxels of Januszewski et al. 2018, on voxels of 10 nm
CELL_NM = 240.0  # side of a cell; our choice: a neurite's width on FIB-25, below the radius of a FOV

USUAL_NM = (1, 2000)  # sides of voxels, in coarse mips, too; our choice
_BOX_PATTERN = re.compile(r"\s*(-?\d+):(-?\d+)\s*,\s*(-?\d+):(-?\d+)\s*,\s*(-?\d+):(-?\d+)\s*")


@dataclass(frozen=True, order=True)
class Box:
    """Half-open box of voxels in full-volume coordinates.

    Examples
    --------
    >>> Box((0, 0, 0), (4, 5, 6)).shape
    (4, 5, 6)
    """

    start: ZYX  # first voxel inside
    stop: ZYX  # first voxel outside

    @classmethod
    def from_shape(cls, shape_zyx: ZYX, offset_zyx: ZYX = (0, 0, 0)) -> Box:
        """Return the box of `shape_zyx` voxels that starts at `offset_zyx`."""
        return cls(zyx(offset_zyx), add(offset_zyx, shape_zyx))

    @classmethod
    def around(cls, centre_zyx: ZYX, radius_zyx: ZYX = (0, 0, 0)) -> Box:
        """Return the box of the voxels within `radius_zyx` of a voxel.

        Examples
        --------
        >>> str(Box.around((4, 5, 6), (0, 1, 2)))
        '4:5,4:7,4:9'
        """
        return cls(subtract(centre_zyx, radius_zyx), add(add(centre_zyx, radius_zyx), (1, 1, 1)))

    @classmethod
    def hull(cls, boxes: Iterable[Box]) -> Box:
        """Return the smallest box that contains all `boxes`; there must be at least one."""
        starts, stops = zip(*((box.start, box.stop) for box in boxes), strict=True)
        z0, y0, x0 = map(min, zip(*starts, strict=True))
        z1, y1, x1 = map(max, zip(*stops, strict=True))
        return cls((z0, y0, x0), (z1, y1, x1))

    @classmethod
    def parse(cls, text: str) -> Box:
        """Read ``z0:z1,y0:y1,x0:x1``.

        Examples
        --------
        >>> Box.parse("0:4,0:5,2:6").start
        (0, 0, 2)
        """
        match = _BOX_PATTERN.fullmatch(text)
        if match is None:
            raise ConfigError(f"box: {text!r} is not a box, expected z0:z1,y0:y1,x0:x1 in voxels")
        z0, z1, y0, y1, x0, x1 = map(int, match.groups())
        box = cls((z0, y0, x0), (z1, y1, x1))
        if box.is_empty:
            raise ConfigError(f"box: {text!r} is empty, every stop must be larger than its start")
        return box

    def __str__(self) -> str:
        """Return the form that `parse` reads."""
        return ",".join(f"{a}:{b}" for a, b in zip(self.start, self.stop, strict=True))

    @property
    def shape(self) -> ZYX:
        """Extent in voxels, zyx."""
        return subtract(self.stop, self.start)

    @property
    def num_voxels(self) -> int:
        """Number of voxels inside; 0 for an empty box."""
        z, y, x = (max(0, n) for n in self.shape)
        return z * y * x

    @property
    def is_empty(self) -> bool:
        """Whether no voxel is inside."""
        return any(n <= 0 for n in self.shape)

    @property
    def stem(self) -> str:
        """Zero-padded name of the start corner, such as ``z000000-y000064-x000128``."""
        return "-".join(f"{axis}{value:06d}" for axis, value in zip("zyx", self.start, strict=True))

    def contains(self, other: Box) -> bool:
        """Whether `other` lies inside this box."""
        return self.intersect(other) == other

    def holds(self, points_zyx: np.ndarray) -> np.ndarray:
        """Return which voxels, the rows of an array of shape (N, 3), are inside."""
        return np.all((points_zyx >= self.start) & (points_zyx < self.stop), axis=1)

    def has_room_for(self, size_zyx: ZYX) -> bool:
        """Whether the box is at least so large on every axis."""
        return all(n >= least for n, least in zip(self.shape, size_zyx, strict=True))

    def intersect(self, other: Box) -> Box:
        """Return the common box, possibly empty."""
        return Box(zyx(map(max, self.start, other.start)), zyx(map(min, self.stop, other.stop)))

    def grow(self, margin_zyx: ZYX) -> Box:
        """Return the box grown by `margin_zyx` voxels on every side; a negative margin shrinks it."""
        return Box(subtract(self.start, margin_zyx), add(self.stop, margin_zyx))

    def shift(self, by_zyx: ZYX) -> Box:
        """Return the box moved by `by_zyx` voxels."""
        return Box(add(self.start, by_zyx), add(self.stop, by_zyx))

    def middle(self, shape_zyx: ZYX) -> Box:
        """Return the box of `shape_zyx` voxels in the middle of this one.

        Examples
        --------
        >>> str(Box((0, 0, 0), (8, 9, 10)).middle((4, 4, 20)))
        '2:6,2:6,-5:15'
        """
        z, y, x = ((n - wanted) // 2 for n, wanted in zip(self.shape, shape_zyx, strict=True))
        return Box.from_shape(shape_zyx, add(self.start, (z, y, x)))

    def mirrored(self, position_zyx: ZYX) -> ZYX:
        """Return the voxel inside that a position beyond a face shows, if all beyond the faces is a mirror image.

        Examples
        --------
        >>> box = Box((0, 0, 7), (4, 9, 8))
        >>> box.mirrored((-1, 10, 9)), box.mirrored((5, 8, 7))
        ((1, 6, 7), (1, 8, 7))
        """
        sides = zip(position_zyx, self.start, self.stop, strict=True)
        return zyx(first + _mirrored(n - first, stop - first - 1) for n, first, stop in sides)

    def moved_into(self, other: Box) -> Box:
        """Return the box shifted into `other` by the shortest way, and cropped where it is larger.

        Examples
        --------
        >>> str(Box((-3, 7, 0), (1, 11, 99)).moved_into(Box((0, 0, 0), (10, 10, 10))))
        '0:4,6:10,0:10'
        """
        inside = self.shift(zyx(min(0, b - a) for a, b in zip(self.stop, other.stop, strict=True)))
        return inside.shift(zyx(max(0, b - a) for a, b in zip(inside.start, other.start, strict=True))).intersect(other)

    def slices(self, origin_zyx: ZYX = (0, 0, 0)) -> tuple[slice, slice, slice]:
        """Return slices into an array whose first voxel is at `origin_zyx`."""
        assert all(a <= b for a, b in zip(self.start, self.stop, strict=True)), self  # negative indices would wrap
        local = self.shift(scale(origin_zyx, -1))
        z, y, x = (slice(a, b) for a, b in zip(local.start, local.stop, strict=True))
        return z, y, x

    def blocks(self, block_shape_zyx: ZYX) -> Iterator[Box]:
        """Iterate over the disjoint blocks that cover the box, in zyx order; see `cut`."""
        return iter(cut(self, block_shape_zyx))


def _mirrored(n: int, last: int) -> int:
    """Return the index from 0 to `last` that `n` shows: on from 0 and back from `last`, again and again."""
    there_and_back = n % (2 * last or 1)
    return min(there_and_back, 2 * last - there_and_back)


@dataclass(frozen=True)
class Grid(Sequence[Box]):
    """Boxes in zyx order, of which none is made before it is asked for, however many there are.

    Examples
    --------
    >>> grid = Grid(([(0, 4)], [(0, 5), (3, 8)], [(0, 6)]))
    >>> len(grid), str(grid[1]), [str(box) for box in grid[:1]]
    (2, '0:4,3:8,0:6', ['0:4,0:5,0:6'])
    >>> grid.num_voxels, str(grid.named("z000000-y000003-x000000"))
    (240, '0:4,3:8,0:6')
    """

    ranges_zyx: Sequence[Sequence[tuple[int, int]]]  # start and stop along each axis; every combination is a box

    def __len__(self) -> int:
        """Return the number of boxes."""
        return math.prod(map(len, self.ranges_zyx))

    @property
    def num_voxels(self) -> int:
        """Voxels of all boxes; those that several share count several times."""
        return math.prod(sum(stop - start for start, stop in along) for along in self.ranges_zyx)

    def named(self, stem: str) -> Box:
        """Return the box of that `Box.stem`; a `KeyError` if there is none."""
        start = zyx(re.findall(r"[zyx](-?\d+)", stem))
        return Box(start, zyx(dict(along)[n] for along, n in zip(self.ranges_zyx, start, strict=True)))

    def __iter__(self) -> Iterator[Box]:
        """Iterate over the boxes, faster than by their numbers."""
        for z, y, x in itertools.product(*self.ranges_zyx):
            yield Box((z[0], y[0], x[0]), (z[1], y[1], x[1]))

    @overload
    def __getitem__(self, index: int) -> Box: ...
    @overload
    def __getitem__(self, index: slice) -> list[Box]: ...
    def __getitem__(self, index: int | slice) -> Box | list[Box]:
        """Return one box, or a list of some."""
        if isinstance(index, slice):
            return [self[number] for number in range(len(self))[index]]
        places = np.unravel_index(range(len(self))[index], [*map(len, self.ranges_zyx)])
        z, y, x = (along[int(place)] for along, place in zip(self.ranges_zyx, places, strict=True))
        return Box((z[0], y[0], x[0]), (z[1], y[1], x[1]))


def zyx(values: object) -> ZYX:
    """Return three plain ints from any iterable of three integers."""
    z, y, x = (int(v) for v in values)  # type: ignore[attr-defined]
    return z, y, x


def add(a: ZYX, b: ZYX) -> ZYX:
    """Return the elementwise sum."""
    return a[0] + b[0], a[1] + b[1], a[2] + b[2]


def subtract(a: ZYX, b: ZYX) -> ZYX:
    """Return the elementwise difference."""
    return a[0] - b[0], a[1] - b[1], a[2] - b[2]


def scale(a: ZYX, factor: int) -> ZYX:
    """Return `a` times `factor`."""
    return a[0] * factor, a[1] * factor, a[2] * factor


def divide_up(a: ZYX, by: ZYX) -> ZYX:
    """Return the elementwise quotient, rounded up."""
    return -(-a[0] // by[0]), -(-a[1] // by[1]), -(-a[2] // by[2])


def piece_shape(least_zyx: ZYX, shape_zyx: ZYX, most: int) -> ZYX:
    """Return the shape of the pieces to cut something into: about cubes of up to `most` voxels.

    Examples
    --------
    >>> piece_shape((1, 1, 1), (9, 100, 100), 1000), piece_shape((1, 100, 100), (9, 100, 100), 1000)
    ((8, 8, 8), (1, 100, 100))
    """
    piece = [min(n, length) for n, length in zip(least_zyx, shape_zyx, strict=True)]
    while 2 * math.prod(piece) <= most and piece != list(shape_zyx):
        axis = min((axis for axis in range(3) if piece[axis] < shape_zyx[axis]), key=lambda axis: piece[axis])
        piece[axis] = min(2 * piece[axis], shape_zyx[axis])
    return zyx(piece)


def relative_sides(voxel_size_zyx: VoxelSize) -> VoxelSize:
    """Return the sides of a voxel in units of the smallest."""
    smallest = min(voxel_size_zyx)
    z, y, x = (side / smallest for side in voxel_size_zyx)
    return z, y, x


def has_thick_sections(voxel_size_zyx: Sequence[float]) -> bool:
    """Whether sections are more than twice as thick as their pixels, so that neighbours show different outlines."""
    return len(voxel_size_zyx) == 3 and voxel_size_zyx[0] > 2 * max(voxel_size_zyx[1:])


def voxels_in(volume_um3: float, voxel_size_zyx_nm: VoxelSize) -> int:
    """Return the number of voxels, at least one, that fill `volume_um3`.

    Examples
    --------
    >>> voxels_in(0.001, (10.0, 10.0, 10.0)), voxels_in(0.001, (30.0, 12.0, 12.0))
    (1000, 231)
    """
    return max(1, round(volume_um3 * 1e9 / math.prod(voxel_size_zyx_nm)))


def doubt_about_size(voxel_size_zyx_nm: VoxelSize) -> str:
    """Return why voxels of electron microscopy hardly have this size, in words; empty if they may.

    Examples
    --------
    >>> doubt_about_size((50, 4, 4)), doubt_about_size((4, 4, 50))[:16], doubt_about_size((50_000, 4, 4))[-20:]
    ('', '4 × 4 × 50 nm, i', 'Is the unit another?')
    """
    z, *sides = voxel_size_zyx_nm
    found = f"{' × '.join(f'{side:g}' for side in voxel_size_zyx_nm)} nm, in the order z, y, x"
    if not USUAL_NM[0] <= min(voxel_size_zyx_nm) <= max(voxel_size_zyx_nm) <= USUAL_NM[1]:
        return f"{found}: voxels have sides of {USUAL_NM[0]} to {USUAL_NM[1]} nm. Is the unit another?"
    if max(sides) > 2 * min(z, *sides):
        return f"{found}: pixels are larger than sections are thick, or not square. Is the order another?"
    return ""


def extent_um(shape_zyx: ZYX, voxel_size_zyx_nm: Sequence[float]) -> str:
    """Return the physical size of a volume, in words.

    Examples
    --------
    >>> extent_um((100, 1024, 1024), (30, 6, 6))
    '3 × 6.14 × 6.14 µm (z, y, x)'
    """
    sides = zip(shape_zyx, voxel_size_zyx_nm, strict=True)
    return f"{' × '.join(f'{n * side / 1000:.3g}' for n, side in sides)} µm (z, y, x)"


def steps_within(length_nm: float, voxel_size_zyx_nm: VoxelSize) -> ZYX:
    """Return how many voxels fit into a length along each axis.

    Examples
    --------
    >>> steps_within(80.0, (40.0, 10.0, 10.0))
    (2, 8, 8)
    """
    return zyx(int(length_nm / side) for side in voxel_size_zyx_nm)


def cell_shape(voxel_size_zyx_nm: VoxelSize) -> ZYX:
    """Return the shape of a cell: a cube of `CELL_NM`, as nearly as whole voxels allow.

    Cells tile the full volume from voxel 0 on. So counts by cells do not depend on how the volume was cut.

    Examples
    --------
    >>> cell_shape((40.0, 10.0, 10.0))
    (6, 24, 24)
    """
    return zyx(max(1, round(CELL_NM / side)) for side in voxel_size_zyx_nm)


def cut(box: Box, size_zyx: ZYX) -> Grid:
    """Return the disjoint blocks that cover `box`; the last one of an axis may be smaller."""
    axes = zip(box.start, box.stop, size_zyx, strict=True)
    return Grid([[(start, min(start + n, b)) for start in range(a, b, n)] for a, b, n in axes])


def tile(box: Box, size_zyx: ZYX, overlap_zyx: ZYX) -> Grid:
    """Cover `box` with overlapping subvolumes of equal size, in zyx order of their starts.

    The last tile of an axis is moved back into the box. Its overlap grows, but no tile is a sliver. An axis of the box
    that is shorter than a subvolume gets a single tile of its length.

    Raises
    ------
    ConfigError
        If an overlap is not smaller than the size.

    Examples
    --------
    >>> [str(b) for b in tile(Box((0, 0, 0), (10, 4, 4)), (6, 4, 4), (2, 0, 0))]
    ['0:6,0:4,0:4', '4:10,0:4,0:4']
    """
    ranges = []
    for a, b, n, overlap in zip(box.start, box.stop, size_zyx, overlap_zyx, strict=True):
        if overlap >= n:
            raise ConfigError(f"overlap: {overlap_zyx} must be smaller than the subvolume {size_zyx} on every axis")
        last = max(a, b - n)
        ranges.append([(start, min(start + n, b)) for start in (*range(a, last, n - overlap), last)])
    return Grid(ranges)
