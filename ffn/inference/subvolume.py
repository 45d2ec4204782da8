"""The flood of one subvolume: its seeds, its checkpoint, and its file, which is verified when read."""

from __future__ import annotations

import json
import logging
import threading
import time
import zipfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ffn import edges
from ffn.config import SegmentConfig
from ffn.geometry import ZYX, Box, VoxelSize, cell_shape
from ffn.inference.canvas import MASKED, Frame
from ffn.inference.flood import (
    Arrays,
    Facts,
    FloodFill,
    ObjectGrower,
    Origin,
    findings,
    measured,
    origins_table,
    overlaps_table,
)
from ffn.inference.inputs import Network, SegmentInputs
from ffn.inference.lanes import Lanes
from ffn.inference.movement import centres_across
from ffn.io.atomic import atomic_path
from ffn.io.masks import open_masks, read_nearest
from ffn.io.open import open_truth, open_volume, read_table
from ffn.io.section_faults import JUMPS
from ffn.io.store import create_volumes
from ffn.io.store_names import MAIN
from ffn.io.volume import Placement, voxel_size_of
from ffn.machine.limits import threads_here
from ffn.model.tissue import is_padding
from ffn.provenance import provenance, revision

log = logging.getLogger(__name__)

DISTANCE_NM = 30.0  # between seeds; with google/ffn's 3 voxels of 10 nm
SECTION_DISTANCE_NM = 56.0  # in a section, where they also lie deep, with google/ffn's 7 and 2.5 voxels of 8 nm
SECTION_DEPTH_NM = 20.0
NOISE = 1e-4
NOISE_SEED = 42
_SEARCH = threading.Lock()

FINGERPRINT = "fingerprint"  # in a checkpoint


def find_seeds(
    image: np.ndarray,
    config: SegmentConfig,
    voxel_size_zyx_nm: VoxelSize,
    masked: np.ndarray | None,
    taken: np.ndarray | None = None,
) -> np.ndarray:
    """Find the seeds of a subvolume, in their order, see `peak_seeds`; of a second pass where nothing is `taken` yet.

    Subvolumes are searched one after the other, each on all threads, so that the first is done as soon as possible.
    """
    with _SEARCH:
        return in_order(peak_seeds(image, config, voxel_size_zyx_nm, masked, taken, threads_here()), config)


def peak_seeds(
    image: np.ndarray,
    config: SegmentConfig,
    voxel_size_zyx_nm: tuple[float, ...],
    masked: np.ndarray | None = None,
    taken: np.ndarray | None = None,
    threads: int = 1,
) -> np.ndarray:
    """Find seeds far from membranes, masks and segments; with the policy `peaks_2d`, in each section for itself.

    Parameters
    ----------
    image : float32 ndarray of shape (Z, Y, X), or (Y, X) for one section
        Normalised image.
    config : SegmentConfig
        Policy and least distance of two seeds. With ``mirror``, voxels near a face can be seeds, as FOVs reach them.
    voxel_size_zyx_nm : tuple of float
        One number per axis.
    masked, taken : bool ndarrays of the shape of `image`, optional
        Voxels that nothing may enter, and voxels of segments.
    threads : int
        Threads to use; the result does not depend on it.

    Returns
    -------
    int64 ndarray of shape (N, 3) or (N, 2)
        Seeds in ascending order. Fixed noise of 1e-4 breaks ties between equal distances.

    Notes
    -----
    Source: Januszewski et al. 2018, Methods, with the constants of google/ffn; without ``mirror``, its `PolicyPeaks`.
    """
    if config.seed_policy == "peaks_2d" and image.ndim == 3:
        nothing = [None] * len(image)
        planes = zip(image, nothing if masked is None else masked, nothing if taken is None else taken, strict=True)
        with ThreadPoolExecutor(threads) as pool:
            found = list(
                pool.map(lambda plane: peak_seeds(plane[0], config, voxel_size_zyx_nm[1:], *plane[1:]), planes)
            )
        heights = np.repeat(np.arange(len(found)), [len(peaks) for peaks in found])
        return np.column_stack([heights, np.concatenate(found)])
    blocked = masked
    if taken is not None and masked is not None:
        blocked, masked = masked | taken, masked if masked.any() else None
    walls = edges.edges(image, voxel_size_zyx_nm, masked=masked, threads=threads)
    if blocked is not None:
        walls |= blocked
    least = (SECTION_DISTANCE_NM, SECTION_DEPTH_NM) if config.seed_policy == "peaks_2d" else (DISTANCE_NM, 0.0)
    peaks = _peaks(walls, voxel_size_zyx_nm, (config.seed_distance_nm or least[0], least[1]), config.mirror, threads)
    return peaks if blocked is None else peaks[~blocked[tuple(peaks.T)]]


def points_inside(points: np.ndarray, box: Box) -> np.ndarray:
    """Select the points in `box`; log a warning if there is none."""
    inside = box.holds(points)
    if not inside.any():
        log.warning("0 of %d seed points lie in %s, so nothing will be segmented there", len(points), box)
    return points[inside] - np.array(box.start, np.int64)


def in_order(seeds: np.ndarray, config: SegmentConfig) -> np.ndarray:
    """Return seeds in the order of the options."""
    return seeds[::-1] if config.seed_order == "reversed" else seeds


def _peaks(
    walls: np.ndarray, voxel_size: tuple[float, ...], least_nm: tuple[float, float], at_faces: bool, threads: int
) -> np.ndarray:
    """Return the local maxima of the distance to `walls`, in ascending order; none if there are no walls.

    `least_nm` are their least distances from each other, and the distance to `walls` that they exceed.
    """
    if not walls.any():  # a blank image has no distance
        return np.empty((0, walls.ndim), np.int64)
    distance = edges.distance(walls, voxel_size, threads)
    noisy = np.random.RandomState(NOISE_SEED).rand(*walls.shape)
    noisy *= NOISE
    noisy += distance
    flat = 3 - walls.ndim  # axes of a section that are missing
    radius = np.array([max(1, round(least_nm[0] / side)) for side in voxel_size])
    reach = np.array([0] * flat + radius.tolist())
    steps = np.argwhere(np.ones(2 * reach + 1)) - reach
    steps = steps[np.argsort((steps**2).sum(axis=1))]  # nearly all voxels are lower than one next to them
    values = noisy.reshape((1,) * flat + walls.shape)
    marks = np.empty(values.shape, bool)
    edges.in_slabs(
        lambda slab: _mark_peaks(values, steps, marks, least_nm[1], slab.start, slab.stop), values.shape, threads
    )
    peaks = np.argwhere(marks)[:, flat:]
    margin = 0 * radius if at_faces else radius
    return peaks[((peaks >= margin) & (peaks < np.array(walls.shape) - margin)).all(axis=1)]


@edges.compiled
def _mark_peaks(values: np.ndarray, steps: np.ndarray, marks: np.ndarray, depth: float, start: int, stop: int) -> None:
    """Mark, in some planes, the voxels above `depth` from which no step leads to a higher one."""
    shape = values.shape
    for z in range(start, stop):
        for y in range(shape[1]):
            for x in range(shape[2]):
                value = values[z, y, x]
                is_peak = value > depth
                for number in range(len(steps) if is_peak else 0):
                    dz, dy, dx = steps[number]
                    a, b, c = z + dz, y + dy, x + dx
                    inside = 0 <= a < shape[0] and 0 <= b < shape[1] and 0 <= c < shape[2]
                    if inside and values[a, b, c] > value:
                        is_peak = False
                        break
                marks[z, y, x] = is_peak


@dataclass(frozen=True)
class Common:
    """Inputs and options that the subvolumes of a call share."""

    inputs: SegmentInputs
    network: Network
    config: SegmentConfig
    points: np.ndarray | None  # seed points
    key: Mapping[str, object]  # all that a result depends on besides options and box
    within: Box | None  # the box that they cover together; None: each is one for itself
    shape_zyx: ZYX  # of the largest canvas
    engine: str = ""


class SubvolumeFlood:
    """The flood of one box: `read`, `enter` a canvas, grow all that `growing` returns, `write`, `leave`."""

    def __init__(self, common: Common, box: Box, path: str) -> None:
        self.box = box
        self.path = path
        self._common = common
        self._seeds: np.ndarray | None = None
        self._saved: Arrays | None = None
        self._ids: np.ndarray | None = None  # of the given segments

    def read(self) -> None:
        """Read image, mask and checkpoint, and find the seeds; CPU-bound, uses no canvas."""
        common = self._common
        with open_volume(common.inputs.image) as volume:
            model, mirror = common.network.model.config, common.config.mirror
            frame = self._frame = Frame.of(self.box, volume.box, model, mirror, common.within)
            self._raw, self._voxel_size = volume.read(frame.seen), voxel_size_of(volume)
            declared = volume.voxel_size_zyx_nm
        self._in_seen = frame.box.slices(frame.seen.start)  # the box in what is seen
        self._refused = centres_across(read_table(common.inputs.image, JUMPS), frame.canvas, model.fov_radius_zyx)
        with open_masks(common.inputs.masks, declared) as masks:
            self._masked = masks.read_around(frame.seen) if masks else None
        if common.network.padding:
            padded = is_padding(self._raw, common.network.padding)
            self._masked = padded if self._masked is None else self._masked | padded
        self._given = _given(common.inputs.init_segmentation, frame.seen, declared)
        found = fingerprint(common.config, {**common.key, "box": self.box, "seen": frame.seen})
        self.checkpoint = CheckpointFile(f"{self.path}.checkpoint", found, common.config.checkpoint_seconds)
        self._saved = self.checkpoint.load()
        if self._saved is None and common.points is not None:
            self._seeds = in_order(points_inside(common.points, self.box), common.config)
        elif self._saved is None:
            self._seeds = self._found(None if self._masked is None else self._masked[self._in_seen])

    def _found(self, masked: np.ndarray | None, taken: np.ndarray | None = None) -> np.ndarray:
        """Find seeds in the box."""
        image = self._common.network.normalisation.apply(self._raw[self._in_seen])
        return find_seeds(image, self._common.config, self._voxel_size, masked, taken)

    def enter(self, lanes: Lanes, lane: int) -> None:
        """Begin on a canvas, or resume."""
        frame = self._frame
        segmentation = np.zeros(frame.seen.shape, np.int32)
        if self._given is not None:  # those around the box are only not entered
            segmentation[self._given != 0] = MASKED
            segmentation[self._in_seen] = 0
        if self._masked is not None:
            segmentation[self._masked] = MASKED
        canvas = lanes.canvas(lane, frame.mirrored(self._raw), frame.masked(segmentation), frame.inside)
        canvas.refuse(self._refused)
        self.flood = FloodFill(canvas, self._common.config, self._voxel_size, frame.canvas.start)
        if self._given is not None:  # a checkpoint replaces this with the same and more
            self._ids = self.flood.adopt(frame.padded(self._given[self._in_seen]))
        self._masked = self._given = None  # both are in the segmentation now
        if self._seeds is not None:
            self._begin(self._seeds)
        elif self._saved is not None:
            self.flood.resume(self._saved)
            self._saved = None  # it is as large as the flood

    def _begin(self, seeds: np.ndarray) -> None:
        self.flood.begin(seeds + self._frame.wanted.start)
        log.info("%s: pass %d: %d seeds in %s voxels", self.box, self.flood.pass_number, len(seeds), self.box.shape)

    def growing(self) -> ObjectGrower | None:
        """Return the object that grows next, None when all passes are over."""
        grower = self.flood.growing()
        if grower is None and self._common.config.second_pass and self.flood.pass_number == 1:
            found = self.flood.segmentation[self._frame.wanted.slices()]
            self._begin(self._found(found == MASKED, found > 0))
            grower = self.flood.growing()
        return grower

    def write(self) -> None:
        """Write the result."""
        flood, frame = self.flood, self._frame
        wanted = frame.wanted.slices()
        segmentation, probability = np.maximum(flood.segmentation[wanted], 0), flood.probability[wanted]
        log.info("%s: segmented %s", self.box, json.dumps(flood.counters))
        sanity = measured(segmentation, flood.origins, self._voxel_size)
        for finding in findings([Facts(self.box.stem, **sanity, counters=flood.counters)]):
            log.warning("%s", finding)
        common = self._common
        inputs = {**common.inputs.about(common.network, common.engine), "box": self.box, **common.inputs.known}
        if frame.seen != self.box:
            inputs["seen"] = frame.seen
        record = provenance("segment", common.config, **inputs)
        record |= {"counters": dict(flood.counters), "sanity": sanity}
        placement = Placement(self.box, self._voxel_size, record)
        dtypes: dict[str, np.dtype | type] = {MAIN: np.uint64, "probability": np.uint8}
        with create_volumes(self.path, dtypes, placement, self._tables(flood.origins), former=("given",)) as writers:
            writers[MAIN].write(self.box, segmentation.astype(np.uint64))
            writers["probability"].write(self.box, probability)

    def _tables(self, found: list[Origin]) -> dict[str, np.ndarray]:
        """Origins and overlaps; `given` are the ids, elsewhere, of the first segments."""
        origins = origins_table(found)
        origins[:, 1:4] += self._frame.canvas.start
        overlaps, cell = overlaps_table(found), cell_shape(self._voxel_size)
        in_box = (overlaps[:, 2:5] < self.box.stop) & (overlaps[:, 2:5] + cell > self.box.start)
        tables = {"origins": origins, "overlaps": overlaps[in_box.all(axis=1)]}
        if self._ids is not None:
            tables["given"] = np.column_stack([np.arange(1, len(self._ids) + 1), self._ids.astype(np.int64)])
        return tables

    def leave(self) -> None:
        """Give back the memory, once the result is written; all subvolumes of a call would not fit."""
        del self.flood, self._raw
        self._ids = self._seeds = None


def fingerprint(config: SegmentConfig, inputs: Mapping[str, object]) -> dict[str, str]:
    """Return all that the result depends on, by name."""
    named = {**config.result_options(), **inputs, "revision": revision("segment")}
    return {name: str(value) for name, value in named.items()}


def _given(spec: str | None, box: Box, voxel_size_zyx_nm: VoxelSize | None) -> np.ndarray | None:
    """Return the ids of the given segments, 0 elsewhere and beyond their volume."""
    if spec is None:
        return None
    with open_truth(spec) as labels:
        return read_nearest(labels, box, voxel_size_zyx_nm, outside=0)


class CheckpointFile:
    """A file, written at intervals while a job runs."""

    def __init__(self, path: str | Path, fingerprint: Mapping[str, str], seconds: float) -> None:
        self.path = Path(path)
        self._fingerprint = dict(fingerprint)
        self._seconds = seconds
        self._last = time.monotonic()

    def load(self) -> Arrays | None:
        """Return the saved arrays; return None and log the reason if they cannot be used."""
        if not self.path.exists():
            return None
        try:
            with open(self.path, "rb") as file, np.load(file) as saved:  # which compares the content with its checksums
                arrays = dict(saved)
            other = json.loads(str(arrays.pop(FINGERPRINT)))
        except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile) as error:
            log.warning("starting over, because the checkpoint %s is damaged: %s", self.path, error)
            return None
        mine = self._fingerprint
        for name in sorted(mine.keys() | other.keys()):
            if mine.get(name) != other.get(name):
                reason = f"{name} is {mine.get(name)}, was {other.get(name)}"
                log.info("starting over, because %s is from another job: %s", self.path, reason)
                return None
        log.info("resuming from %s", self.path)
        return arrays

    def save_when_due(self, state: Callable[[], Arrays], now: bool = False) -> None:
        """Save ``state()`` if the interval has passed, or `now`."""
        if now or time.monotonic() - self._last >= self._seconds:
            self.save(state())

    def save(self, arrays: Arrays) -> None:
        """Write `arrays`, replacing the file atomically."""
        with atomic_path(self.path) as temporary, open(temporary, "wb") as file:
            np.savez(file, **arrays, **{FINGERPRINT: np.array(json.dumps(self._fingerprint))})  # type: ignore[arg-type]
        self._last = time.monotonic()

    def remove(self) -> None:
        """Remove the file when the job is done."""
        self.path.unlink(missing_ok=True)
