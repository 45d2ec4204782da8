"""Judge contacts by the network: grow both segments again in a small window and compare the results."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from ffn.assembly.contacts import Contact
from ffn.assembly.evidence import Evidence, Grown, compare, share_of
from ffn.config import AgglomerateConfig
from ffn.geometry import ZYX, Box, VoxelSize, add, relative_sides, subtract, zyx
from ffn.inference.canvas import MASKED, Canvas, is_free, reach_of
from ffn.inference.choice import Network
from ffn.inference.executor import run_jobs
from ffn.inference.frame import Frame, mirrored_radius
from ffn.inference.grower import Limits, ObjectGrower
from ffn.inference.lanes import Lanes, open_lanes
from ffn.io.masks import Masks
from ffn.io.volume import Volume, voxel_size_of

NEARNESS = 0.25  # our choice: being one voxel deeper is worth being four voxels farther from the contact


@dataclass(frozen=True)
class Surroundings:
    """What the contacts of a call have in common."""

    image: Volume  # raw image and base segmentation, read one window at a time
    segmentation: Volume
    network: Network  # what is run on the image
    config: AgglomerateConfig  # thresholds, window size, limit of FOVs
    masks: Masks  # voxels that no object enters
    _one_reads: threading.Lock = field(default_factory=threading.Lock)  # not every format is read by several threads

    def open_lanes(self, num_windows: int) -> Lanes:
        """Open canvases for windows, at least one, which then is not used; each has room for a FOV at least."""
        box, fov = self.segmentation.box, self.network.model.config.fov_size_zyx
        largest = [self.frame(corner).canvas.shape for corner in (box.start, box.stop)]
        shape = zyx(map(max, zip(*largest, fov, strict=True)))
        return open_lanes(self.network, self.config, max(1, num_windows), shape, self.image.dtype)

    def frame(self, position_zyx: ZYX) -> Frame:
        """Return the frame of the window around a position, which is moved into the volume."""
        whole = self.segmentation.box.intersect(self.image.box)
        window = Box.around(position_zyx, self.config.window_radius_zyx).moved_into(whole)
        return Frame.of(window, self.image.box, mirrored_radius(self.network.model, self.config))

    def read(self, window: Box) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the grey levels, the segments and the masked voxels of a window."""
        with self._one_reads:
            return self.image.read(window), self.segmentation.read(window), self.masks.read(window)


class Side(NamedTuple):
    """One segment of a contact, in the window."""

    mask: np.ndarray  # the segment
    radius: float  # as in `Evidence`
    merit: np.ndarray  # how good a seed each voxel in the canvas's reach is; -inf outside the segment


class Resegmentation:
    """One contact: a job of `run_jobs` that grows one side after the other on its canvas.

    Notes
    -----
    Source: resegmentation in Januszewski et al. 2018, Methods. Both segments are cleared, all others are masked, and
    each side is grown again from its own seed near the decision point. Ours: the smaller side is grown first, and the
    other one only if that can still matter. A side that does not enter the other, but is entered by it, is grown once
    more from there: the part of it in which its first seed lay may be another one.
    """

    def __init__(self, around: Surroundings, contact: Contact) -> None:
        self.contact = contact
        self.evidence: Evidence | None = None
        self._around = around
        self._grower: ObjectGrower | None = None

    def read(self) -> None:
        """Read the window, and find out which voxels are good seeds."""
        frame = self._around.frame(self.contact.position_zyx)
        raw, labels, masked = self._around.read(frame.box)
        masks = [(labels == segment_id) & ~masked for segment_id in self.contact.pair]
        occupied = np.where((masked | (labels != 0)) & ~masks[0] & ~masks[1], MASKED, 0)
        self._shown = frame.mirrored(raw), frame.masked(occupied), frame.inside
        near = subtract(self.contact.position_zyx, frame.canvas.start)
        reach = reach_of(frame.canvas.shape, self._around.network.model.config)
        units = relative_sides(voxel_size_of(self._around.segmentation))
        self._sides = [measured_side(frame.mirrored(mask), near, reach, units, frame.inside) for mask in masks]

    def enter(self, lanes: Lanes, lane: int) -> None:
        """Begin on a canvas."""
        self._growers = self._both_sides(lanes.canvas(lane, *self._shown), self._sides)
        del self._shown, self._sides  # they go with the canvas

    def growing(self) -> ObjectGrower | None:
        """Return the object that grows next; None once there is evidence."""
        while self._grower is None or self._grower.next_position() is None:
            self._grower = next(self._growers, None)
            if self._grower is None:
                return None
        return self._grower

    def _both_sides(self, canvas: Canvas, sides: list[Side]) -> Iterator[ObjectGrower]:
        """Yield the objects to grow, each after the one before it has grown; then compare."""
        grown, config = [Grown(np.zeros(canvas.shape, bool))] * 2, self._around.config
        for which in sorted((0, 1), key=lambda n: np.count_nonzero(sides[n].mask)):
            grown[which] = yield from self._one_side(canvas, sides[which])
            if not grown[which].is_sound(sides[which].mask, config):
                break  # the score is 0, whatever the other side does
        else:
            for which in (0, 1):
                enters, is_entered = (share_of(grown[n].mask, sides[1 - n].mask) for n in (which, 1 - which))
                if enters < config.min_crossing <= is_entered:
                    grown[which] = yield from self._from_within(canvas, sides, grown, which)
        self.evidence = compare([side.mask for side in sides], grown, [side.radius for side in sides])

    def _from_within(
        self, canvas: Canvas, sides: list[Side], grown: list[Grown], which: int
    ) -> Generator[ObjectGrower, None, Grown]:
        """Grow a side from where the other one enters it; return the result if it enters the other one as far."""
        side, other, before = sides[which], sides[1 - which], grown[which]
        entered = grown[1 - which].mask[canvas.reach.slices()]
        seed = best_seed(np.where(entered, side.merit, -np.inf), canvas.reach)
        if seed is None:
            return before
        grower = self._grower_of(canvas, seed)
        yield grower
        new = _result(grower, before.num_tries + 1)
        enters_as_far = share_of(new.mask, other.mask) >= share_of(before.mask, other.mask)
        is_better = enters_as_far and new.is_sound(side.mask, self._around.config)
        return new if is_better else replace(before, num_tries=new.num_tries)

    def _grower_of(self, canvas: Canvas, seed_zyx: ZYX) -> ObjectGrower:
        return ObjectGrower(canvas, seed_zyx, canvas.deltas_zyx, Limits(max_fovs=self._around.config.max_fovs))

    def _one_side(self, canvas: Canvas, side: Side) -> Generator[ObjectGrower, None, Grown]:
        """Grow a side; one that does not leave its seed or recover its own segment is grown from other seeds."""
        best, config = Grown(np.zeros(canvas.shape, bool)), self._around.config
        for attempt in range(1, config.max_tries + 1):
            seed = best_seed(side.merit, canvas.reach)
            if seed is None:
                break
            grower = self._grower_of(canvas, seed)
            yield grower
            new = _result(grower, attempt)
            is_better = attempt == 1 or _worth(new, side) > _worth(best, side)
            best = new if is_better else replace(best, num_tries=attempt)
            tried = Box.around(seed, canvas.deltas_zyx).intersect(canvas.reach)
            side.merit[tried.slices(canvas.reach.start)] = -np.inf
            if best.num_fovs > 1 and share_of(best.mask, side.mask) >= config.min_recovered:
                break
        return best


def resegmented(
    around: Surroundings, contacts: Sequence[Contact], lanes: Lanes, threads: int
) -> Iterator[tuple[Contact, Evidence]]:
    """Grow both sides of many contacts, as many at once as there are canvases; yield the evidence in their order."""
    jobs = deque(Resegmentation(around, contact) for contact in contacts)
    for _ in run_jobs(list(jobs), lanes, threads):
        while jobs and (evidence := jobs[0].evidence) is not None:
            yield jobs.popleft().contact, evidence


def measured_side(mask: np.ndarray, near_zyx: ZYX, reach: Box, units_zyx: VoxelSize, within: Box | None = None) -> Side:
    """Measure a segment in its window. Good seeds lie deep inside it and near a point."""
    depth = _depth(mask, units_zyx)
    if within is not None:
        beyond = np.ones(mask.shape, bool)
        beyond[within.slices()] = False
        mask, depth = mask & ~beyond, np.where(beyond, 0, depth)
    radius = float(depth.max(initial=0))
    if reach.is_empty:
        return Side(mask, radius, np.empty((0, 0, 0)))
    z, y, x = (
        (np.arange(start, stop) - center) * unit
        for start, stop, center, unit in zip(reach.start, reach.stop, near_zyx, units_zyx, strict=True)
    )
    away = np.sqrt(z[:, None, None] ** 2 + y[:, None] ** 2 + x**2)
    inside = reach.slices()
    return Side(mask, radius, np.where(mask[inside], depth[inside] - NEARNESS * away, -np.inf))


def best_seed(merit: np.ndarray, reach: Box) -> ZYX | None:
    """Return the voxel with the highest merit, an array of ``reach.shape``; None if no voxel can be a seed."""
    if not merit.size or merit.max() == -np.inf:
        return None
    return add(zyx(np.unravel_index(int(merit.argmax()), merit.shape)), reach.start)


def _depth(mask: np.ndarray, units_zyx: VoxelSize) -> np.ndarray:
    """Distance of each voxel of a segment from its surface; the border of the window counts as surface."""
    from scipy import ndimage

    return ndimage.distance_transform_edt(np.pad(mask, 1), sampling=units_zyx)[1:-1, 1:-1, 1:-1]


def _worth(grown: Grown, side: Side) -> tuple[bool, float]:
    """Sort key of attempts."""
    return grown.num_fovs > 1, share_of(grown.mask, side.mask)


def _result(grower: ObjectGrower, attempt: int) -> Grown:
    """Return the grown object as a mask of the window; empty if the seed did not survive."""
    canvas = grower.canvas
    mask = np.zeros(canvas.shape, bool)
    if grower.is_strong:
        box, grown = canvas.object_mask()
        mask[box.slices()] = grown & is_free(canvas.segmentation[box.slices()])
    return Grown(mask, grower.num_fovs, attempt, canvas.num_deleted)
