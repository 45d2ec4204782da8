"""Flood filling: grow one object from each seed until the subvolume is full."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from ffn.config import ModelConfig, SegmentConfig
from ffn.geometry import ZYX, Box, add, subtract, zyx
from ffn.inference.canvas import REJECTED, Canvas, Thresholds
from ffn.inference.engine import Engine
from ffn.inference.movement import FaceMaxMovement

Report = Callable[[int, int], None]


@dataclass(frozen=True)
class Origin:
    """How an object came to be.

    Parameters
    ----------
    segment_id : int
        Id in the subvolume.
    seed_zyx : tuple of int
        Voxel of the subvolume where it started.
    num_fovs : int
        Network evaluations spent on it.
    overlaps : dict of int to int
        Voxels it claimed of objects that were there first, by their ids.
    """

    segment_id: int
    seed_zyx: ZYX
    num_fovs: int
    overlaps: dict[int, int]


@dataclass
class Filling:
    """Result of flood filling one subvolume.

    Parameters
    ----------
    segmentation : int32 ndarray of shape (Z, Y, X)
        Ids from 1; 0 where nothing was segmented.
    probability : uint8 ndarray of shape (Z, Y, X)
        POM of the object at its voxels, 1 … 255 for 0 … 1; 0 where nothing was segmented.
    origins : list of Origin
        One for each id, in order.
    counters : dict of str to int
        What happened to the seeds, and FOVs in all.
    """

    segmentation: np.ndarray
    probability: np.ndarray
    origins: list[Origin] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)


class FloodFill:
    """One subvolume's flood filling.

    Parameters
    ----------
    image : float32 ndarray of shape (Z, Y, X)
        Normalised image.
    model : ModelConfig
        FOV and deltas.
    config : SegmentConfig
        Thresholds and limits.
    engine : Engine
        The network.

    Notes
    -----
    Source: Januszewski et al. 2018, Methods; the order of the checks is google/ffn's.
    """

    def __init__(self, image: np.ndarray, model: ModelConfig, config: SegmentConfig, engine: Engine) -> None:
        self._config = config
        self._deltas = model.deltas_zyx
        self._engine = engine
        self._canvas = Canvas(image, model, Thresholds.of(config))
        self._probability = np.zeros(image.shape, np.uint8)
        self._origins: list[Origin] = []
        self._num_filled = 0
        names = ("fovs", "seeds", "outside", "taken", "too_close", "weak", "too_small", "segments")
        self._counters = dict.fromkeys(names, 0)

    def run(self, seeds: Iterable[ZYX], report: Report = lambda fovs, voxels: None) -> Filling:
        """Grow an object from each of `seeds` in turn.

        Parameters
        ----------
        seeds : iterable of tuple of int
            Positions in the subvolume.
        report : callable
            Told FOVs and voxels segmented so far after each evaluation.
        """
        for seed in seeds:
            self._counters["seeds"] += 1
            outcome = self._grow(zyx(seed), report)
            self._counters[outcome] += 1
        segmentation = np.maximum(self._canvas.segmentation, 0)
        return Filling(segmentation, self._probability, self._origins, self._counters)

    def _grow(self, seed: ZYX, report: Report) -> str:
        """Try one seed; return what became of it."""
        canvas = self._canvas
        if not canvas.fits(seed):
            return "outside"
        if canvas.segmentation[seed] > 0:
            return "taken"
        if self._near_segment(seed):
            canvas.segmentation[seed] = REJECTED
            return "too_close"
        num_fovs = self._flood(seed, report)
        if not canvas.is_strong(seed):
            canvas.segmentation[seed] = REJECTED
            return "weak"
        return self._claim(seed, num_fovs)

    def _near_segment(self, seed: ZYX) -> bool:
        distance = self._config.min_boundary_dist_zyx
        around = Box(subtract(seed, distance), add(add(seed, distance), (1, 1, 1)))
        around = around.intersect(Box.from_shape(self._canvas.shape))
        return bool((self._canvas.segmentation[around.slices()] > 0).any())

    def _flood(self, seed: ZYX, report: Report) -> int:
        """Move the FOV until the queue is empty or the seed voxel is lost; return the number of evaluations."""
        canvas = self._canvas
        canvas.start(seed)
        movement = FaceMaxMovement(seed, self._deltas, canvas.thresholds.move)
        num_fovs = 0
        while (position := movement.pop()) is not None:
            if not canvas.may_visit(position):
                continue
            if not canvas.is_strong(seed):
                break
            image, pom = canvas.read(position)
            update = self._engine.predict(image[None], pom[None])[0]
            movement.update(position, canvas.write(position, update))
            num_fovs += 1
            self._counters["fovs"] += 1
            report(self._counters["fovs"], self._num_filled)
        return num_fovs

    def _claim(self, seed: ZYX, num_fovs: int) -> str:
        """Turn the POM into a segment; nothing that is already there is overwritten."""
        canvas = self._canvas
        box, mask = canvas.object_mask()
        labels = canvas.segmentation[box.slices()]
        ids, counts = np.unique(labels[mask], return_counts=True)
        mask &= labels <= 0
        num_voxels = int(np.count_nonzero(mask))
        if num_voxels < self._config.min_segment_size:
            if canvas.segmentation[seed] == 0:
                canvas.segmentation[seed] = REJECTED
            return "too_small"
        segment_id = len(self._origins) + 1
        labels[mask] = segment_id
        pom = canvas.pom_logit[box.slices()][mask]
        self._probability[box.slices()][mask] = quantise(pom)
        overlaps = {int(i): int(n) for i, n in zip(ids, counts, strict=True) if i > 0}
        self._origins.append(Origin(segment_id, seed, num_fovs, overlaps))
        self._num_filled += num_voxels
        return "segments"


def quantise(pom_logit: np.ndarray) -> np.ndarray:
    """Return probabilities as uint8 1 … 255; 0 is left for voxels without one.

    Examples
    --------
    >>> quantise(np.array([-100.0, 0.0, 100.0])).tolist()
    [1, 128, 255]
    """
    from scipy.special import expit

    return (1 + np.rint(254 * expit(pom_logit))).astype(np.uint8)
