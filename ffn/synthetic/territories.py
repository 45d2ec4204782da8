"""Turn centrelines into labels: every voxel belongs to a neurite, and every label is one connected piece."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.ndimage import distance_transform_edt
from skimage.measure import label
from skimage.segmentation import relabel_sequential

from ffn.synthetic.config import SynthConfig
from ffn.synthetic.neurites import Path, power_diagram
from ffn.synthetic.texture import smooth_noise

# Standard deviation of the Gaussian that makes the undulation of membranes smooth.
UNDULATION_LENGTH_NM = 40.0


def fill_territories(paths: list[Path], config: SynthConfig, rng: np.random.Generator) -> np.ndarray:
    """Assign every voxel to the neurite with the nearest tube, with undulating borders.

    Parameters
    ----------
    paths : list of Path
        Centrelines and calibres of all neurites.
    config : SynthConfig
        Shape, voxel size, amplitude of the undulation, and size of the smallest piece to keep.
    rng : numpy.random.Generator
        Source of the undulation.

    Returns
    -------
    uint64 ndarray of shape (Z, Y, X)
        Ids 1 to N without gaps and without background; every id is one 26-connected component.
    """
    neurite_ids = np.concatenate([np.full(len(path.points_nm), path.neurite_id) for path in paths])
    diagram = power_diagram(paths)
    # Section by section, because the search needs a hundred bytes per voxel.
    territories = [neurite_ids[diagram.owner(places)] for places in _displaced_sections_nm(config, rng)]
    return connected_pieces(np.reshape(territories, config.shape_zyx), config.min_neurite_voxels)


def _displaced_sections_nm(config: SynthConfig, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield the displaced voxel centres of each section, of shape (voxels, 3)."""
    sigma = np.divide(UNDULATION_LENGTH_NM, config.voxel_size_zyx_nm)
    shifts_nm = [config.undulation_nm * smooth_noise(config.shape_zyx, sigma, rng) for _ in range(3)]
    _, height, width = config.shape_zyx
    y, x = np.meshgrid(np.arange(height) + 0.5, np.arange(width) + 0.5, indexing="ij")
    for section, shift_nm in enumerate(zip(*shifts_nm, strict=True)):
        centres = np.stack([np.full_like(y, section + 0.5), y, x], axis=-1) * config.voxel_size_zyx_nm
        yield (centres + np.stack(shift_nm, axis=-1)).reshape(-1, 3)


def connected_pieces(territories: np.ndarray, min_voxels: int) -> np.ndarray:
    """Give every connected piece its own id, and merge small pieces into their neighbours.

    A neurite that leaves the volume and comes back becomes two labels, as it would for an annotator.

    Parameters
    ----------
    territories : int ndarray of shape (Z, Y, X)
        Positive ids, each in one or more pieces.
    min_voxels : int
        Smaller pieces become part of the nearest piece that is kept.

    Returns
    -------
    uint64 ndarray of shape (Z, Y, X)
        Ids 1 to N without gaps or background; every id is one 26-connected component.
    """
    pieces = label(territories, connectivity=3)
    small = np.bincount(pieces.ravel()) < min_voxels
    while (missing := small[pieces]).any() and not missing.all():
        nearest = distance_transform_edt(missing, return_distances=False, return_indices=True)
        pieces = label(pieces[tuple(nearest)], connectivity=3)
        small = np.bincount(pieces.ravel()) < min_voxels
    return relabel_sequential(pieces)[0].astype(np.uint64)
