"""Neurites that grow around each other until the tissue is full, how it is stained, and how a microscope images it.

A power diagram keeps growing neurites apart and divides the volume among them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.ndimage import distance_transform_edt, gaussian_filter, gaussian_filter1d
from scipy.spatial import cKDTree

from ffn.contingency import is_inner
from ffn.geometry import VoxelSize
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

# These constants were chosen by eye, next to slices of FIB-25. Contrasts are standard deviations.
CYTOPLASM_GREY = 152.0
NEURITE_CONTRAST = 12.0  # of the means of neurites
GRAIN_CONTRAST = 12.0  # inside neurites
GRAIN_NM = 22.0
SHADING_CONTRAST = 4.0  # slow change of brightness
SHADING_NM = 400.0
MEMBRANE_GREY = 78.0  # of its core
MEMBRANE_NM = 30.0  # thickness of the dark line between two neurites
WEAK_SPOTS_PER_UM3 = 100.0  # patches where a membrane fades
WEAK_SPOT_RADIUS_NM = (25.0, 38.0)
WEAK_SPOT_RIM_NM = 8.0
WEAK_SPOT_FADING = 0.9  # share of its contrast that a membrane lacks there
ORGANELLE_GREY = 88.0  # of mitochondria
ORGANELLE_GAP_NM = 18.0  # to the border between neurites
ORGANELLE_RIM_NM = 10.0  # width of the soft rim
MITOCHONDRIA_PER_UM3 = 12.0
MITOCHONDRION_LENGTH_NM = (150.0, 500.0)
MITOCHONDRION_CALIBRE = (0.7, 1.05)  # radius relative to the neurite
MIN_MITOCHONDRION_RADIUS_NM = 40.0
BLUR_NM = 7.0  # standard deviation of the point spread function
NOISE = 7.0  # standard deviation in cytoplasm, grey levels


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


def stain(labels: np.ndarray, paths: list[Path], config: SynthConfig, rng: np.random.Generator) -> np.ndarray:
    """Paint the grey levels of the tissue, without blur or noise."""
    border_nm = border_distance_nm(labels, config.voxel_size_zyx_nm)
    grey = _cytoplasm(labels, config, rng)
    grey += _mitochondria(paths, border_nm, config, rng) * (ORGANELLE_GREY - grey)
    grey += GRAIN_CONTRAST * _noise(GRAIN_NM, config, rng)
    grey += _membranes(border_nm, config, rng) * (MEMBRANE_GREY - grey)
    return grey


def photograph(tissue: np.ndarray, config: SynthConfig, rng: np.random.Generator) -> np.ndarray:
    """Image the tissue, with eight bits."""
    image = gaussian_filter(tissue, np.divide(BLUR_NM, config.voxel_size_zyx_nm), mode="nearest")
    # Shot noise: brighter voxels collect more electrons. In cytoplasm, the standard deviation is `NOISE`.
    spread = NOISE * np.sqrt(np.clip(image, 0, None) / CYTOPLASM_GREY)
    image += spread * rng.standard_normal(image.shape, dtype=np.float32)
    return np.clip(np.rint(image), 0, 255).astype(np.uint8)


def border_distance_nm(labels: np.ndarray, voxel_size_zyx_nm: VoxelSize) -> np.ndarray:
    """Return the distance of every voxel to the nearest voxel that touches another label, between voxel centres."""
    return distance_transform_edt(is_inner(labels), sampling=voxel_size_zyx_nm).astype(np.float32)


def _cytoplasm(labels: np.ndarray, config: SynthConfig, rng: np.random.Generator) -> np.ndarray:
    """Return the grey level inside neurites: one mean per neurite, with slow shading."""
    means = CYTOPLASM_GREY + NEURITE_CONTRAST * rng.standard_normal(int(labels.max()) + 1)
    return means.astype(np.float32)[labels] + SHADING_CONTRAST * _noise(SHADING_NM, config, rng)


def _noise(length_nm: float, config: SynthConfig, rng: np.random.Generator) -> np.ndarray:
    return smooth_noise(config.shape_zyx, np.divide(length_nm, config.voxel_size_zyx_nm), rng)


def _membranes(border_nm: np.ndarray, config: SynthConfig, rng: np.random.Generator) -> np.ndarray:
    """Return the darkness of membranes in [0, 1], fading at weak spots."""
    # The border is half a voxel from the centres at distance 0, which makes this edge one voxel wide.
    darkness = np.clip((MEMBRANE_NM / 2 - border_nm) / min(config.voxel_size_zyx_nm), 0, 1)
    return darkness * (1 - WEAK_SPOT_FADING * _weak_spots(border_nm, config, rng))


def _weak_spots(border_nm: np.ndarray, config: SynthConfig, rng: np.random.Generator) -> np.ndarray:
    """Return the fading in [0, 1]: 1 inside a weak spot, less towards its rim."""
    voxels = np.argwhere(border_nm == 0)
    number = _draw_number(WEAK_SPOTS_PER_UM3, config, rng) if len(voxels) else 0
    centres_nm = (voxels[rng.integers(max(1, len(voxels)), size=number)] + 0.5) * config.voxel_size_zyx_nm
    radii_nm = rng.uniform(*WEAK_SPOT_RADIUS_NM, size=len(centres_nm))
    return np.clip(paint_balls(config, centres_nm, radii_nm) / WEAK_SPOT_RIM_NM, 0, 1)


def _mitochondria(
    paths: list[Path], border_nm: np.ndarray, config: SynthConfig, rng: np.random.Generator
) -> np.ndarray:
    """Return the staining in [0, 1] of mitochondria: stretches of thick neurites, away from the membrane."""
    centres, radii = [np.empty((0, 3))], [np.empty(0)]
    sites = _mitochondrion_sites(paths, config)
    number = _draw_number(MITOCHONDRIA_PER_UM3, config, rng) if sites else 0
    for path, middle in (sites[k] for k in rng.integers(max(1, len(sites)), size=number)):
        half = max(1, round(rng.uniform(*MITOCHONDRION_LENGTH_NM) / STEP_NM / 2))
        stretch = slice(max(0, middle - half), middle + half)
        centres.append(path.points_nm[stretch])
        radii.append(path.radii_nm[stretch] * rng.uniform(*MITOCHONDRION_CALIBRE))
    depth_nm = paint_balls(config, np.concatenate(centres), np.concatenate(radii))
    return np.clip(np.minimum(depth_nm, border_nm - ORGANELLE_GAP_NM) / ORGANELLE_RIM_NM, 0, 1)


def _mitochondrion_sites(paths: list[Path], config: SynthConfig) -> list[tuple[Path, int]]:
    """Return the points inside the volume that are thick enough, as paths and positions on them."""
    extent_nm = np.multiply(config.shape_zyx, config.voxel_size_zyx_nm)
    sites = []
    for path in paths:
        inside = np.all((path.points_nm >= 0) & (path.points_nm < extent_nm), axis=1)
        thick = path.radii_nm * MITOCHONDRION_CALIBRE[0] >= MIN_MITOCHONDRION_RADIUS_NM
        sites += [(path, int(position)) for position in np.flatnonzero(inside & thick)]
    return sites


def _draw_number(per_um3: float, config: SynthConfig, rng: np.random.Generator) -> int:
    extent_um = np.multiply(config.shape_zyx, config.voxel_size_zyx_nm) / 1000
    return int(rng.poisson(per_um3 * np.prod(extent_um)))


def smooth_noise(shape_zyx: Sequence[int], sigma_zyx: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Make Gaussian noise of mean 0 and deviation 1 that varies over a length of `sigma_zyx` voxels."""
    noise = gaussian_filter(rng.standard_normal(shape_zyx, dtype=np.float32), sigma_zyx, mode="wrap")
    return (noise - noise.mean()) / noise.std()


def paint_balls(config: SynthConfig, centres_nm: np.ndarray, radii_nm: np.ndarray) -> np.ndarray:
    """Return how deep every voxel lies in the ball in which it is deepest, nm; 0 outside all balls."""
    shape_zyx, size_nm = config.shape_zyx, np.array(config.voxel_size_zyx_nm)
    depth_nm = np.zeros(shape_zyx, np.float32)
    starts = np.clip(np.floor((centres_nm - radii_nm[:, None]) / size_nm), 0, shape_zyx).astype(int)
    stops = np.clip(np.ceil((centres_nm + radii_nm[:, None]) / size_nm), 0, shape_zyx).astype(int)
    for start, stop, centre, radius in zip(starts, stops, centres_nm, radii_nm, strict=True):
        axes = [
            (np.arange(first, last) + 0.5) * size - middle
            for first, last, size, middle in zip(start, stop, size_nm, centre, strict=True)
        ]
        z, y, x = np.meshgrid(*axes, indexing="ij", sparse=True)
        box = depth_nm[tuple(map(slice, start, stop))]
        np.maximum(box, radius - np.sqrt(z * z + y * y + x * x), out=box, casting="same_kind")
    return depth_nm
