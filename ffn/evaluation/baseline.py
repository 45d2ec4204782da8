"""The baseline: a watershed of the smoothed image with markers from the distance to membranes, scored and saved."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy import ndimage

from ffn.assembly.components import label_pieces
from ffn.contingency import count_pairs
from ffn.errors import EvaluationError
from ffn.evaluation.scores import score
from ffn.evaluation.scoring import Comparison
from ffn.geometry import Box, VoxelSize, zyx
from ffn.io.store import create_volume
from ffn.io.volume import Placement, Volume, require_inside
from ffn.progress import track
from ffn.provenance import provenance

# The best settings of FIB-25 are at the lower ends of the lengths, those of SNEMI3D at the upper end of distances.
SIGMAS_NM = (6.0, 10.0, 15.0)
LEVELS = (0.0, 0.3)
DISTANCES_NM = (6.0, 10.0, 20.0, 30.0, 45.0, 60.0)
MIN_MARKER_NM3 = 50_000.0  # smaller markers are noise; without this limit every score is worse
BYTES_PER_VOXEL = 90  # measured: image, truth, distance, markers and scikit-image's queue

log = logging.getLogger(__name__)


class Settings(NamedTuple):
    """One setting of the sweep."""

    sigma_nm: float  # of the Gaussian that smooths the image
    level: float  # of cytoplasm: standard deviations of the grey level above Otsu's threshold
    distance_nm: float  # of markers from membranes


SWEEP = tuple(Settings(*values) for values in itertools.product(SIGMAS_NM, LEVELS, DISTANCES_NM))
FIRST = Settings(10.0, 0.0, 10.0)  # of labels that people go on with: rather too many pieces. Our choice


def best_watershed(
    image: np.ndarray, truth: np.ndarray, voxel_size_zyx_nm: VoxelSize
) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """Segment with every setting of the sweep and keep the best. Choosing by the truth favours the baseline.

    Holds the whole box in memory, with `BYTES_PER_VOXEL` bytes per voxel.
    """
    gibibytes = image.size * BYTES_PER_VOXEL / 2**30
    log.info("baseline: %d watersheds of %s voxels, %.1f GiB of memory", len(SWEEP), image.shape, gibibytes)
    best, sweep = np.zeros(0), list[dict[str, Any]]()
    for settings, labels in track(watersheds(image, voxel_size_zyx_nm), len(SWEEP), "baseline", "setting"):
        scores = score(count_pairs(truth, labels), "all")
        if all(scores["voi"] < earlier["voi"] for earlier in sweep):
            best = labels
        sweep.append({"settings": settings._asdict(), "are": scores["are"], "voi": scores["voi"]})
    return best, sorted(sweep, key=lambda entry: entry["voi"])


def watersheds(
    image: np.ndarray, voxel_size_zyx_nm: VoxelSize, sweep: Sequence[Settings] = SWEEP
) -> Iterator[tuple[Settings, np.ndarray]]:
    """Yield the segmentation of every setting. Neighbours in the order of `SWEEP` share intermediate results."""
    from skimage.filters import threshold_otsu  # the command line imports this module
    from skimage.segmentation import watershed

    for sigma_nm, of_sigma in itertools.groupby(sweep, lambda settings: settings.sigma_nm):
        smooth = ndimage.gaussian_filter(image.astype(np.float32), np.divide(sigma_nm, voxel_size_zyx_nm))
        for level, of_level in itertools.groupby(of_sigma, lambda settings: settings.level):
            cytoplasm = smooth > threshold_otsu(smooth) + level * smooth.std()
            distance_nm = ndimage.distance_transform_edt(cytoplasm, voxel_size_zyx_nm).astype(np.float32)
            for settings in of_level:
                yield settings, watershed(-smooth, markers(distance_nm > settings.distance_nm, voxel_size_zyx_nm))


def markers(inside: np.ndarray, voxel_size_zyx_nm: VoxelSize) -> np.ndarray:
    """Label the connected sets of voxels that lie far enough from membranes, without specks."""
    labels, _ = ndimage.label(inside)
    is_small = np.bincount(labels.ravel()) * math.prod(voxel_size_zyx_nm) < MIN_MARKER_NM3
    labels[is_small[labels]] = 0
    return labels


def score_watershed(
    comparison: Comparison, image: Volume, names: Sequence[str], max_voxels: int, out: str | None = None
) -> dict[str, Any]:
    """Segment the box of a comparison, or the middle of a large one, by the best watershed of a sweep, and score it.

    ``same_voxels`` has its scores, under the convention ``foreground``, on the voxels that each of the compared
    segmentations covers: one that leaves out difficult voxels scores well there. In a middle, it is the last one alone,
    and ``beside`` has its scores.
    """
    truth, box, size = comparison.truth, comparison.box, comparison.voxel_size_zyx_nm
    require_inside(image, box)
    middle = middle_of(box, max_voxels)
    bodies = truth.read(middle)
    if not bodies.any():
        found = f"{truth.name}: has no label in {middle}, the middle of {box}, so no watershed can be chosen"
        raise EvaluationError(f"{found}. Raise watershed_max_voxels, choose another box, or set watershed: false")
    labels, sweep = best_watershed(image.read(middle), label_pieces(bodies), size)
    if out:
        made_by = provenance("evaluate", None, image=image.name)
        with create_volume(out, np.uint64, Placement(middle, size, made_by)) as writer:
            writer.write(middle, labels.astype(np.uint64))
    result = {"method": "watershed", "settings": sweep[0]["settings"], "sweep": sweep, "box": str(middle)}
    others = dict(zip(names, comparison.reads, strict=True))
    if middle != box:
        log.info("baseline: covers only %s, so the segmentation is scored there too", middle)
        others = {names[-1]: comparison.reads[-1]}
        (result["beside"],) = replace(comparison, box=middle, reads=[*others.values()]).run()

    def read(block: Box) -> np.ndarray:
        return labels[block.slices(middle.start)]

    reads = [lambda part, other=other: np.where(other(part) != 0, read(part), 0) for other in others.values()]
    (scores,) = replace(comparison, box=middle, reads=[read]).run()
    foreground = replace(comparison, box=middle, reads=reads, whole_skeletons=None, conventions=("foreground",))
    return {**result, **scores, "same_voxels": dict(zip(others, foreground.run(), strict=True))}


def middle_of(box: Box, max_voxels: int) -> Box:
    """Return the middle of a box: the same proportions, `max_voxels` at most; of a thin stack, a section.

    Examples
    --------
    >>> str(middle_of(Box((0, 0, 0), (8, 16, 32)), 512)), middle_of(Box((0, 0, 0), (1, 50, 50)), 100).num_voxels
    ('2:6,4:12,8:24', 100)
    """
    if box.num_voxels <= max_voxels:
        return box
    factor = (max_voxels / box.num_voxels) ** (1 / 3)
    while math.prod(shape := zyx(max(1, int(n * factor + 1e-9)) for n in box.shape)) > max_voxels:
        factor *= 0.99
    return box.middle(shape)
