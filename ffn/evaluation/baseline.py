"""The baseline: a watershed of the smoothed image, with markers from the distance to membranes."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
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
MIN_MARKER_VOXELS = 50  # smaller markers are noise; without this limit every score is worse
BYTES_PER_VOXEL = 90  # measured: image, truth, distance, markers and scikit-image's queue

log = logging.getLogger(__name__)


class Settings(NamedTuple):
    """One setting of the sweep. Lengths are in units of the smallest voxel side.

    Parameters
    ----------
    sigma : float
        Standard deviation of the Gaussian that smooths the image.
    level : float
        Brightness that separates cytoplasm from membrane, in standard deviations above Otsu's threshold.
    distance : float
        Markers are connected sets of voxels farther than this from a membrane.
    """

    sigma: float
    level: float
    distance: float


SWEEP = tuple(Settings(*values) for values in itertools.product(SIGMAS, LEVELS, DISTANCES))


def best_watershed(
    image: np.ndarray,
    truth: np.ndarray,
    voxel_size_zyx_nm: VoxelSize,
    finished: Sequence[dict[str, Any]] = (),
    keep: Callable[[list[dict[str, Any]]], None] = lambda sweep: None,
) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """Segment with every setting of the sweep and keep the best. Choosing by the truth favours the baseline.

    Parameters
    ----------
    image : ndarray of shape (Z, Y, X)
        Dark membranes, bright cytoplasm.
    truth : integer ndarray of shape (Z, Y, X)
        Labels; at least one voxel is not 0.
    voxel_size_zyx_nm : tuple of float
        Sides of a voxel.
    finished : sequence of dict
        What `keep` took last, if a process before was killed: these settings are left out. If one of them is the best,
        its watershed is made again.
    keep : callable
        Takes the finished part of the sweep after each setting, in the order of `SWEEP`.

    Returns
    -------
    segmentation : int32 ndarray of shape (Z, Y, X)
        The segmentation with the lowest VOI under the convention ``all``.
    sweep : list of dict
        ``settings``, ``are`` and ``voi`` of every setting, best first.

    Notes
    -----
    Holds the whole box in memory, with `BYTES_PER_VOXEL` bytes per voxel.
    """
    gibibytes = image.size * BYTES_PER_VOXEL / 2**30
    log.info("baseline: %d watersheds of %s voxels, %.1f GiB of memory", len(SWEEP), image.shape, gibibytes)
    best: np.ndarray | None = None
    sweep, left = list(finished), SWEEP[len(finished) :]
    for settings, labels in track(watersheds(image, voxel_size_zyx_nm, left), len(left), "baseline", "setting"):
        scores = score(count_pairs(truth, labels), "all")
        sweep.append({"settings": settings._asdict(), "are": scores["are"], "voi": scores["voi"]})
        keep(sweep)
        if all(sweep[-1]["voi"] < earlier["voi"] for earlier in sweep[:-1]):
            best = labels
    sweep.sort(key=lambda entry: entry["voi"])
    if best is None:
        ((_, best),) = watersheds(image, voxel_size_zyx_nm, [Settings(**sweep[0]["settings"])])
    return best, sweep


def watersheds(
    image: np.ndarray, voxel_size_zyx_nm: VoxelSize, wanted: Sequence[Settings] = SWEEP
) -> Iterator[tuple[Settings, np.ndarray]]:
    """Yield the segmentation of every setting.

    Parameters
    ----------
    image, voxel_size_zyx_nm
        As in `best_watershed`.
    wanted : sequence of Settings
        In the order of `SWEEP`, so that what they share is computed once.
    """
    sampling = np.asarray(voxel_size_zyx_nm) / min(voxel_size_zyx_nm)
    for sigma, of_sigma in itertools.groupby(wanted, lambda settings: settings.sigma):
        smooth = ndimage.gaussian_filter(image.astype(np.float32), sigma / sampling)
        for level, of_level in itertools.groupby(of_sigma, lambda settings: settings.level):
            cytoplasm = smooth > threshold_otsu(smooth) + level * smooth.std()
            membrane_distance = ndimage.distance_transform_edt(cytoplasm, sampling).astype(np.float32)
            for settings in of_level:
                yield settings, watershed(-smooth, markers(membrane_distance, settings.distance))


def markers(membrane_distance: np.ndarray, distance: float) -> np.ndarray:
    """Label the connected sets of voxels farther than `distance` from a membrane.

    Parameters
    ----------
    membrane_distance : float32 ndarray of shape (Z, Y, X)
        Distance to the nearest membrane voxel.
    distance : float
        In the same unit.

    Returns
    -------
    int32 ndarray of shape (Z, Y, X)
        0 where there is no marker. Sets of fewer than `MIN_MARKER_VOXELS` voxels are dropped.
    """
    labels, _ = ndimage.label(membrane_distance > distance)
    is_small = np.bincount(labels.ravel()) < MIN_MARKER_VOXELS
    labels[is_small[labels]] = 0
    return labels
