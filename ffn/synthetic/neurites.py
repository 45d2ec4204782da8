"""Grow the centrelines of branching neurites around each other until the tissue is full.

A power diagram keeps growing neurites apart and divides the volume among them.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from scipy.ndimage import gaussian_filter1d
from scipy.spatial import cKDTree

from ffn.synthetic.config import SynthConfig

STEP_NM = 20.0
NUM_STARTS = 256  # from which the one with the most room is taken; more of them pack the tissue tighter
NUM_HEADINGS = 12  # as many, for each step
TORTUOSITY = 0.25  # how much a neurite may turn per step
MAX_SQUEEZE = 0.4  # share of its radius by which a growing tip may overlap a neighbour; beyond that, it ends
MIN_NEURITE_NM = 500.0  # shorter neurites are left out
BRANCH_SPACING_NM = 700.0  # mean distance between two branch points
BRANCH_CALIBRE = (0.55, 0.9)  # relative to the parent
VARICOSITY = 0.25  # relative variation of the calibre along a neurite
VARICOSITY_STEPS = 5.0  # over which it varies


class PowerDiagram:
    """Division of space among balls: a point belongs to the ball with the least d² - r².

    With the radius as a fourth coordinate, this is a nearest-neighbour search.
    Source: Aurenhammer 1987, "Power diagrams: properties, algorithms and applications".

    Examples
    --------
    The point halfway between the centres of a large and a small ball belongs to the large one.

    >>> diagram = PowerDiagram(np.array([[0.0, 0, 0], [0, 0, 10]]), np.array([4.0, 1.0]))
    >>> diagram.owner(np.array([[0.0, 0, 5]])).tolist()
    [0]
    """

    def __init__(self, points_nm: np.ndarray, radii_nm: np.ndarray) -> None:
        self._points_nm = points_nm
        self._radii_nm = radii_nm
        lift = np.sqrt(radii_nm.max(initial=0.0) ** 2 - radii_nm**2)
        self._tree = cKDTree(np.column_stack([points_nm, lift]))

    def owner(self, places_nm: np.ndarray) -> np.ndarray:
        """Return the index of the ball to which each point belongs."""
        lifted = np.column_stack([places_nm, np.zeros(len(places_nm))])
        return np.asarray(self._tree.query(lifted)[1], dtype=np.int64)

    def clearance_nm(self, places_nm: np.ndarray) -> np.ndarray:
        """Return the distance of each point to the surface of the ball to which it belongs."""
        if len(self._points_nm) == 0:
            return np.full(len(places_nm), np.inf)
        owner = self.owner(places_nm)
        return np.linalg.norm(places_nm - self._points_nm[owner], axis=1) - self._radii_nm[owner]


@dataclass(frozen=True)
class Path:
    """One unbranched stretch of a neurite: its centreline, zyx, with a point and a radius for each step."""

    neurite_id: int
    points_nm: np.ndarray
    radii_nm: np.ndarray


def power_diagram(paths: list[Path]) -> PowerDiagram:
    """Return the power diagram of all points of `paths`, in their order."""
    points = np.concatenate([np.empty((0, 3)), *(path.points_nm for path in paths)])
    return PowerDiagram(points, np.concatenate([np.empty(0), *(path.radii_nm for path in paths)]))


def grow_neurites(config: SynthConfig, rng: np.random.Generator) -> list[Path]:
    """Grow neurites one after the other into the free space, until not even the thinnest fits.

    They extend a little beyond the volume, so that its faces look like its inside. Neurites that found no room to grow
    are left out; their neighbours get the space.
    """
    thinnest_nm, thickest_nm = config.neurite_radius_nm
    low = np.full(3, -thickest_nm)
    high = np.multiply(config.shape_zyx, config.voxel_size_zyx_nm) + thickest_nm
    paths: list[Path] = []
    for neurite_id in itertools.count(1):
        diagram = power_diagram(paths)
        starts = rng.uniform(low, high, size=(NUM_STARTS, 3))
        room_nm = diagram.clearance_nm(starts)
        best = int(np.argmax(room_nm))
        if room_nm[best] < thinnest_nm:
            break
        chosen_nm = float(np.exp(rng.uniform(*np.log(config.neurite_radius_nm))))
        radius_nm = min(chosen_nm, float(room_nm[best]))
        grower = _Grower(diagram, low, high, config, rng)
        paths += [Path(neurite_id, *stretch) for stretch in grower.neurite(starts[best], radius_nm)]
    return _without_stubs(paths)


def _without_stubs(paths: list[Path]) -> list[Path]:
    """Leave out neurites whose total length is too short, unless all are."""
    steps = np.bincount([path.neurite_id for path in paths], [len(path.points_nm) for path in paths])
    return [path for path in paths if STEP_NM * steps[path.neurite_id] >= MIN_NEURITE_NM] or paths


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


@dataclass(frozen=True)
class _Grower:
    """Grow one neurite among the existing ones."""

    diagram: PowerDiagram
    low: np.ndarray
    high: np.ndarray
    config: SynthConfig
    rng: np.random.Generator

    def neurite(self, start: np.ndarray, radius_nm: float) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return points and radii of the trunk through `start` and of all its branches."""
        heading = _unit(self.rng.normal(size=3))
        backward = self._trace(start, -heading, radius_nm)
        trunk = np.concatenate([backward[:0:-1], self._trace(start, heading, radius_nm)])
        branches = self._branches(trunk, radius_nm)
        return [(points, self._calibre(len(points), mean_nm)) for points, mean_nm in [(trunk, radius_nm), *branches]]

    def _branches(self, trunk: np.ndarray, radius_nm: float) -> list[tuple[np.ndarray, float]]:
        """Return points and mean radii of the branches; they do not branch again, or one tree would fill the volume."""
        budding = self.rng.random(len(trunk)) < STEP_NM / BRANCH_SPACING_NM
        branches = []
        for point in trunk[budding]:
            branch_nm = radius_nm * self.rng.uniform(*BRANCH_CALIBRE)
            if branch_nm >= self.config.neurite_radius_nm[0]:
                branches.append((self._trace(point, _unit(self.rng.normal(size=3)), branch_nm), branch_nm))
        return branches

    def _trace(self, point: np.ndarray, heading: np.ndarray, radius_nm: float) -> np.ndarray:
        """Return the centreline from `point` to where it leaves the tissue or finds no room."""
        points = [point]
        while np.all((self.low <= point) & (point <= self.high)):
            turns = TORTUOSITY * self.rng.normal(size=(NUM_HEADINGS, 3))
            headings = _unit(heading + turns)
            # Looking one radius ahead makes the tip turn before it touches a neighbour.
            room_nm = self.diagram.clearance_nm(point + (STEP_NM + radius_nm) * headings)
            # Headings with enough room all count as 0, so the first of them is taken, which is a random one.
            best = int(np.argmax(np.minimum(room_nm, 0.0)))
            heading = headings[best]
            point = point + STEP_NM * heading
            if self.diagram.clearance_nm(point[None])[0] < (1 - MAX_SQUEEZE) * radius_nm:
                break
            points.append(point)
        return np.array(points)

    def _calibre(self, num_points: int, radius_nm: float) -> np.ndarray:
        """Return radii that vary smoothly around `radius_nm` within the configured range."""
        # The filter divides the standard deviation of white noise by sqrt(2 sigma sqrt(pi)).
        spread = VARICOSITY * np.sqrt(2 * VARICOSITY_STEPS * np.sqrt(np.pi))
        noise = gaussian_filter1d(spread * self.rng.normal(size=num_points), VARICOSITY_STEPS, mode="nearest")
        return np.clip(radius_nm * np.exp(noise), *self.config.neurite_radius_nm)
