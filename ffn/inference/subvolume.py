"""The flood of one subvolume, from its image to its file, and its checkpoint: one file, verified when read."""

from __future__ import annotations

import json
import logging
import time
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ffn.config import SegmentConfig
from ffn.geometry import ZYX, Box, VoxelSize, cell_shape
from ffn.inference.canvas import MASKED, Frame
from ffn.inference.flood import FloodFill, Origin, origins_table, overlaps_table
from ffn.inference.grower import Arrays, ObjectGrower
from ffn.inference.inputs import Network, SegmentInputs
from ffn.inference.lanes import Lanes
from ffn.inference.movement import centres_across
from ffn.inference.sanity import Facts, findings, measured
from ffn.inference.seeds import find_seeds, in_order, points_inside
from ffn.io.atomic import atomic_path
from ffn.io.masks import open_masks, read_nearest
from ffn.io.open import open_truth, open_volume, read_table
from ffn.io.section_faults import JUMPS
from ffn.io.store import create_volumes
from ffn.io.store_names import MAIN
from ffn.io.volume import Placement, voxel_size_of
from ffn.model.tissue import is_padding
from ffn.provenance import provenance, revision

log = logging.getLogger(__name__)

FINGERPRINT = "fingerprint"  # in a checkpoint


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
