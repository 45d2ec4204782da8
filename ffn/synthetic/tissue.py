"""Grey levels of stained tissue: cytoplasm, organelles and membranes, before any microscope."""

from __future__ import annotations

import numpy as np
from scipy.ndimage import distance_transform_edt

from ffn.geometry import VoxelSize
from ffn.synthetic.config import SynthConfig
from ffn.synthetic.neurites import STEP_NM, Path
from ffn.synthetic.texture import paint_balls, smooth_noise

# Constants of this module were chosen by eye beside slices of the FIB-25 volume.
GRAIN_NM = 22.0
SHADING_NM = 400.0
# Organelles keep this distance from the border between neurites, and their rim is this soft.
ORGANELLE_GAP_NM = 18.0
ORGANELLE_RIM_NM = 10.0
# Radius of a mitochondrion, relative to its neurite; thinner ones than the minimum are not seen.
MITOCHONDRION_CALIBRE = (0.7, 1.05)
MIN_MITOCHONDRION_RADIUS_NM = 40.0
VESICLE_SPREAD_NM = 60.0
VESICLE_STAINING = 0.5
WEAK_SPOT_RIM_NM = 8.0


def stain(labels: np.ndarray, paths: list[Path], config: SynthConfig, rng: np.random.Generator) -> np.ndarray:
    """Paint the tissue.

    Parameters
    ----------
    labels : uint64 ndarray of shape (Z, Y, X)
        Neurite of every voxel, 1..N.
    paths : list of Path
        Centrelines, along which mitochondria lie.
    config : SynthConfig
        Densities, sizes and grey levels.
    rng : numpy.random.Generator
        Source of all randomness.

    Returns
    -------
    float32 ndarray of shape (Z, Y, X)
        Grey levels without blur or noise.
    """
    border_nm = border_distance_nm(labels, config.voxel_size_zyx_nm)
    grey = _cytoplasm(labels, config, rng)
    organelles = np.maximum(_mitochondria(paths, border_nm, config, rng), _vesicles(border_nm, config, rng))
    grey += organelles * (config.organelle_grey - grey)
    grey += config.grain_contrast * _noise(GRAIN_NM, config, rng)
    grey += _membranes(border_nm, config, rng) * (config.membrane_grey - grey)
    return grey


def border_distance_nm(labels: np.ndarray, voxel_size_zyx_nm: VoxelSize) -> np.ndarray:
    """Distance of every voxel to the nearest voxel that touches another label.

    Parameters
    ----------
    labels : integer ndarray of shape (Z, Y, X)
        Neurite of every voxel.
    voxel_size_zyx_nm : tuple of float
        Edge lengths of a voxel, nm.

    Returns
    -------
    float32 ndarray of shape (Z, Y, X)
        Between voxel centres, nm; 0 on both sides of a border.
    """
    inside = np.ones(labels.shape, bool)
    for axis in range(labels.ndim):
        ids, away = np.moveaxis(labels, axis, 0), np.moveaxis(inside, axis, 0)
        crossing = ids[1:] != ids[:-1]
        away[1:] &= ~crossing
        away[:-1] &= ~crossing
    return distance_transform_edt(inside, sampling=voxel_size_zyx_nm).astype(np.float32)


def _cytoplasm(labels: np.ndarray, config: SynthConfig, rng: np.random.Generator) -> np.ndarray:
    """Grey level of the neurites' inside: one mean per neurite, under a slow shading."""
    means = config.cytoplasm_grey + config.neurite_contrast * rng.standard_normal(int(labels.max()) + 1)
    return means.astype(np.float32)[labels] + config.shading_contrast * _noise(SHADING_NM, config, rng)


def _noise(length_nm: float, config: SynthConfig, rng: np.random.Generator) -> np.ndarray:
    return smooth_noise(config.shape_zyx, np.divide(length_nm, config.voxel_size_zyx_nm), rng)


def _membranes(border_nm: np.ndarray, config: SynthConfig, rng: np.random.Generator) -> np.ndarray:
    """Darkness of membranes in [0, 1], fading at weak spots."""
    # The border runs half a voxel beyond the centres at distance 0, which makes this edge one voxel soft.
    darkness = np.clip((config.membrane_nm / 2 - border_nm) / min(config.voxel_size_zyx_nm), 0, 1)
    return darkness * (1 - config.weak_spot_fading * _weak_spots(border_nm, config, rng))


def _weak_spots(border_nm: np.ndarray, config: SynthConfig, rng: np.random.Generator) -> np.ndarray:
    """Share of fading in [0, 1]: 1 inside a weak spot, less towards its rim."""
    centres_nm = _random_places_nm(border_nm == 0, config.weak_spots_per_um3, config, rng)
    radii_nm = rng.uniform(*config.weak_spot_radius_nm, size=len(centres_nm))
    return np.clip(_balls(centres_nm, radii_nm, config) / WEAK_SPOT_RIM_NM, 0, 1)


def _mitochondria(
    paths: list[Path], border_nm: np.ndarray, config: SynthConfig, rng: np.random.Generator
) -> np.ndarray:
    """Staining in [0, 1] of mitochondria: stretches of thick neurites, clear of the membrane."""
    centres, radii = [np.empty((0, 3))], [np.empty(0)]
    sites = _mitochondrion_sites(paths, config)
    number = _draw_number(config.mitochondria_per_um3, config, rng) if sites else 0
    for path, middle in (sites[k] for k in rng.integers(max(1, len(sites)), size=number)):
        half = max(1, round(rng.uniform(*config.mitochondrion_length_nm) / STEP_NM / 2))
        stretch = slice(max(0, middle - half), middle + half)
        centres.append(path.points_nm[stretch])
        radii.append(path.radii_nm[stretch] * rng.uniform(*MITOCHONDRION_CALIBRE))
    return _staining(_balls(np.concatenate(centres), np.concatenate(radii), config), border_nm)


def _mitochondrion_sites(paths: list[Path], config: SynthConfig) -> list[tuple[Path, int]]:
    """Points inside the volume that are thick enough: the path and the position on it."""
    extent_nm = np.multiply(config.shape_zyx, config.voxel_size_zyx_nm)
    sites = []
    for path in paths:
        inside = np.all((path.points_nm >= 0) & (path.points_nm < extent_nm), axis=1)
        thick = path.radii_nm * MITOCHONDRION_CALIBRE[0] >= MIN_MITOCHONDRION_RADIUS_NM
        sites += [(path, int(position)) for position in np.flatnonzero(inside & thick)]
    return sites


def _vesicles(border_nm: np.ndarray, config: SynthConfig, rng: np.random.Generator) -> np.ndarray:
    """Staining in [0, 1] of clusters of vesicles."""
    roomy = border_nm > VESICLE_SPREAD_NM
    middles_nm = _random_places_nm(roomy, config.vesicle_clusters_per_um3, config, rng)
    spread_nm = rng.normal(scale=VESICLE_SPREAD_NM, size=(len(middles_nm), config.vesicles_per_cluster, 3))
    centres_nm = (middles_nm[:, None] + spread_nm).reshape(-1, 3)
    balls_nm = _balls(centres_nm, np.full(len(centres_nm), config.vesicle_radius_nm), config)
    return VESICLE_STAINING * _staining(balls_nm, border_nm)


def _staining(depth_nm: np.ndarray, border_nm: np.ndarray) -> np.ndarray:
    """Share in [0, 1] of an organelle's colour, from the depth inside it and the distance to the border."""
    return np.clip(np.minimum(depth_nm, border_nm - ORGANELLE_GAP_NM) / ORGANELLE_RIM_NM, 0, 1)


def _balls(centres_nm: np.ndarray, radii_nm: np.ndarray, config: SynthConfig) -> np.ndarray:
    return paint_balls(config.shape_zyx, config.voxel_size_zyx_nm, centres_nm, radii_nm)


def _random_places_nm(where: np.ndarray, per_um3: float, config: SynthConfig, rng: np.random.Generator) -> np.ndarray:
    """Centres of random voxels of `where`, so many per volume of the whole tissue; shape (N, 3)."""
    voxels = np.flatnonzero(where)
    number = _draw_number(per_um3, config, rng) if len(voxels) else 0
    chosen = voxels[rng.integers(max(1, len(voxels)), size=number)]
    return (np.column_stack(np.unravel_index(chosen, where.shape)) + 0.5) * config.voxel_size_zyx_nm


def _draw_number(per_um3: float, config: SynthConfig, rng: np.random.Generator) -> int:
    extent_um = np.multiply(config.shape_zyx, config.voxel_size_zyx_nm) / 1000
    return int(rng.poisson(per_um3 * np.prod(extent_um)))
