"""The classical method to compare with: watershed of the smoothed image, markers by membrane distance."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy import ndimage
from skimage.filters import threshold_otsu
from skimage.segmentation import watershed

from ffn.contingency import count_pairs
from ffn.evaluation.scores import score
from ffn.geometry import VoxelSize
from ffn.progress import track

SIGMAS = (1.0, 1.5)
LEVELS = (0.0, 0.3)
DISTANCES = (1.0, 2.0, 3.0)
MIN_MARKER_VOXELS = 50  # smaller ones are specks of noise; without this limit every score is worse
BYTES_PER_VOXEL = 90  # measured: image, truth, distance, markers and skimage's queue together

log = logging.getLogger(__name__)


class Settings(NamedTuple):
    """One setting of the sweep; lengths are in units of the smallest voxel side.

    Parameters
    ----------
    sigma : float
        Standard deviation of the Gaussian that smooths the image.
    level : float
        Brightness that separates cytoplasm from membrane: Otsu's threshold plus so many standard deviations.
    distance : float
        A marker is a connected set of voxels further than this from the membrane.
    """

    sigma: float
    level: float
    distance: float


SWEEP = tuple(Settings(*values) for values in itertools.product(SIGMAS, LEVELS, DISTANCES))


def best_watershed(
    image: np.ndarray, truth: np.ndarray, voxel_size_zyx_nm: VoxelSize
) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """Segment with every setting of the sweep, keep the best: the truth chooses, which favours the baseline.

    Parameters
    ----------
    image : ndarray of shape (Z, Y, X)
        Membranes dark, cytoplasm bright.
    truth : integer ndarray of shape (Z, Y, X)
        Labels with some voxel that is not 0.
    voxel_size_zyx_nm : tuple of float
        Size of a voxel.

    Returns
    -------
    segmentation : int32 ndarray of shape (Z, Y, X)
        The one with the lowest VOI under the convention ``all``.
    sweep : list of dict
        ``settings``, ``are`` and ``voi`` of every setting, best first.

    Notes
    -----
    Works on the whole box in memory, `BYTES_PER_VOXEL` each.
    """
    gibibytes = image.size * BYTES_PER_VOXEL / 2**30
    log.info("baseline: %d watersheds of %s voxels, %.1f GiB of memory", len(SWEEP), image.shape, gibibytes)
    best, sweep = np.zeros(image.shape, np.int32), list[dict[str, Any]]()
    for settings, labels in track(watersheds(image, voxel_size_zyx_nm), len(SWEEP), "baseline", "setting"):
        scores = score(count_pairs(truth, labels), "all")
        sweep.append({"settings": settings._asdict(), "are": scores["are"], "voi": scores["voi"]})
        if all(sweep[-1]["voi"] < earlier["voi"] for earlier in sweep[:-1]):
            best = labels
    return best, sorted(sweep, key=lambda entry: entry["voi"])


def watersheds(image: np.ndarray, voxel_size_zyx_nm: VoxelSize) -> Iterator[tuple[Settings, np.ndarray]]:
    """Yield the segmentation of every setting of `SWEEP`, in its order.

    Parameters
    ----------
    image, voxel_size_zyx_nm
        As for `best_watershed`.
    """
    sampling = np.asarray(voxel_size_zyx_nm) / min(voxel_size_zyx_nm)
    for sigma in SIGMAS:
        smooth = ndimage.gaussian_filter(image.astype(np.float32), sigma / sampling)
        for level in LEVELS:
            cytoplasm = smooth > threshold_otsu(smooth) + level * smooth.std()
            membrane_distance = ndimage.distance_transform_edt(cytoplasm, sampling).astype(np.float32)
            for distance in DISTANCES:
                yield (
                    Settings(sigma, level, distance),
                    watershed(-smooth, markers(membrane_distance, distance)),
                )


def markers(membrane_distance: np.ndarray, distance: float) -> np.ndarray:
    """Label the connected sets of voxels that are further than `distance` from the membrane.

    Parameters
    ----------
    membrane_distance : float32 ndarray of shape (Z, Y, X)
        Distance to the nearest membrane voxel.
    distance : float
        In the same unit.

    Returns
    -------
    int32 ndarray of shape (Z, Y, X)
        0 where there is no marker; sets of fewer than `MIN_MARKER_VOXELS` are dropped.
    """
    labels, _ = ndimage.label(membrane_distance > distance)
    is_small = np.bincount(labels.ravel()) < MIN_MARKER_VOXELS
    labels[is_small[labels]] = 0
    return labels
