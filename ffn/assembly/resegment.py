"""Judge contacts by the network: grow both segments again in a small window and compare the results."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ffn.assembly.config import AgglomerateConfig, Agglomeration
from ffn.assembly.contacts import Contact, Scene
from ffn.assembly.merge_graph import Evidence, MergeEdge, header
from ffn.geometry import ZYX, Box, VoxelSize, add, relative_sides, subtract, zyx
from ffn.inference.canvas import MASKED, Canvas, Frame, is_free, reach_of
from ffn.inference.flood import ObjectGrower
from ffn.inference.inputs import AgglomerateInputs, Network
from ffn.inference.lanes import Lanes, open_lanes, run_jobs
from ffn.inference.movement import centres_across
from ffn.io import atomic
from ffn.io.open import read_table
from ffn.io.section_faults import JUMPS
from ffn.io.volume import voxel_size_of
from ffn.machine.limits import threads_here
from ffn.progress import track
from ffn.provenance import fingerprint, provenance

log = logging.getLogger(__name__)

MAX_TRIES = 3  # seeds of a side until one moves and recovers its own segment; our choice
NEARNESS = 0.25  # our choice: being one voxel deeper is worth being four voxels farther from the contact


@dataclass(frozen=True)
class Judge:
    """The network that judges the contacts of a scene, each in its window."""

    scene: Scene
    network: Network
    config: Agglomeration
    jumps: np.ndarray | None = None  # of the image, see `ffn.io.section_faults`
    _one_reads: threading.Lock = field(default_factory=threading.Lock)  # not every format is read by several threads

    def open_lanes(self, num_windows: int) -> Lanes:
        """Open canvases for windows, at least one, which then is not used; each has room for a FOV at least."""
        box, fov = self.scene.segmentation.box, self.network.model.config.fov_size_zyx
        largest = [self.frame(corner).canvas.shape for corner in (box.start, box.stop)]
        shape = zyx(map(max, zip(*largest, fov, strict=True)))
        return open_lanes(self.network, self.config, max(1, num_windows), shape, self.scene.image.dtype)

    def frame(self, position_zyx: ZYX) -> Frame:
        """Return the frame of the window around a position, which is moved into the volume."""
        image = self.scene.image.box
        whole = self.scene.segmentation.box.intersect(image)
        window = Box.around(position_zyx, self.config.window_radius_zyx).moved_into(whole)
        return Frame.of(window, image, self.network.model.config, self.config.mirror, whole)

    def read(self, frame: Frame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the grey levels, the segments and the masked voxels of what a frame shows."""
        scene, labels = self.scene, np.zeros(frame.seen.shape, self.scene.segmentation.dtype)
        with self._one_reads:
            labels[frame.box.slices(frame.seen.start)] = scene.segmentation.read(frame.box)
            return scene.image.read(frame.seen), labels, scene.masks.read_around(frame.seen)


def judge_all(judge: Judge, points: list[Contact], out_path: str, inputs: AgglomerateInputs, box: Box) -> None:
    """Write the edges of all decision points, in order.

    They are appended to ``<out>.partial``, from which a killed job resumes.
    """
    judge = replace(judge, jumps=read_table(inputs.image, JUMPS))
    partial, lanes = Path(f"{out_path}.partial"), judge.open_lanes(len(points))
    made_of = {**inputs.key(judge.network), "box": box, "engine": lanes.name, "canvases": lanes.size}
    head = header(fingerprint("agglomerate", judge.config, **made_of))
    about = {**inputs.about(judge.network, lanes.name), "segmentation": inputs.segmentation, "box": box, **inputs.known}
    lines = _judged(partial, head, points, judge, lanes)
    _write_lines(Path(out_path), header(provenance("agglomerate", judge.config, **about)), lines)
    partial.unlink(missing_ok=True)


def _judged(partial: Path, head: str, points: list[Contact], judge: Judge, lanes: Lanes) -> list[str]:
    """Judge the points that a killed job did not get to; return the lines of all edges.

    Each line is appended to `partial` as soon as it is known. Its first lines, `head`, tell options and inputs.
    """
    lines = _resumed(partial, head, points)
    with open(partial, "a") as file:
        rest = points[len(lines) :]
        for contact, evidence in track(resegmented(judge, rest, lanes), len(rest), "agglomerate", "point"):
            lines.append(MergeEdge.of(contact, evidence, evidence.score(judge.config)).row())
            file.write(lines[-1] + "\n")
            file.flush()
    return lines


def _resumed(partial: Path, head: str, expected: list[Contact]) -> list[str]:
    """Return the finished lines of a killed job with the same options and inputs; drop all else from its file."""
    partial.parent.mkdir(parents=True, exist_ok=True)
    text = partial.read_text(errors="replace") if partial.exists() else ""
    whole = text[len(head) :].rpartition("\n")[0] if text.startswith(head) else ""
    lines = whole.split("\n")[: len(expected)] if whole else []
    if lines:
        log.info("%s: resuming after %d decision points", partial, len(lines))
    _write_lines(partial, head, lines)
    return lines


def _write_lines(path: Path, head: str, lines: list[str]) -> None:
    """Write a file of edges at once."""
    atomic.write_text(path, head + "".join(line + "\n" for line in lines))


class Side(NamedTuple):
    """One segment of a contact, in the window."""

    mask: np.ndarray  # the segment, in the canvas's reach: of the rest, FOVs only see their rims
    radius: float  # as in `Evidence`
    merit: np.ndarray  # how good a seed each voxel in the canvas's reach is; -inf outside the segment


@dataclass(frozen=True)
class Grown:
    """The object that one side of a contact has grown to."""

    mask: np.ndarray  # the object in the window, also of a seed that did not survive, as in google/ffn
    num_fovs: int = 0  # as in `Evidence`
    num_tries: int = 0
    num_deleted: int = 0  # as in `ffn.inference.canvas.Canvas`

    @property
    def deleted(self) -> float:
        """Voxels lost again, as a share of the object."""
        return self.num_deleted / max(1, int(np.count_nonzero(self.mask)), self.num_deleted)

    def is_sound(self, side: np.ndarray, config: AgglomerateConfig) -> bool:
        """Whether the object recovers the segment that it was grown from, and lost little; else there is no answer."""
        return share_of(self.mask, side) >= config.min_recovered and self.deleted <= config.max_deleted


class Resegmentation:
    """One contact: a job of `run_jobs` that grows one side after the other on its canvas.

    Notes
    -----
    Source: resegmentation in Januszewski et al. 2018, Methods. Both segments are cleared, all others are masked, and
    each side is grown again from its own seed near the decision point. Ours: the smaller side is grown first, and the
    other one only if that can still matter. A side that does not enter the other, but is entered by it, is grown once
    more from there: the part of it in which its first seed lay may be another one.
    """

    def __init__(self, judge: Judge, contact: Contact) -> None:
        self.contact = contact
        self.evidence: Evidence | None = None
        self._judge = judge
        self._grower: ObjectGrower | None = None

    def read(self) -> None:
        """Read the window, and find out which voxels are good seeds."""
        frame = self._judge.frame(self.contact.position_zyx)
        raw, labels, masked = self._judge.read(frame)
        masks = [(labels == segment_id) & ~masked for segment_id in self.contact.pair]
        occupied = np.where((masked | (labels != 0)) & ~masks[0] & ~masks[1], MASKED, 0)
        self._shown = frame.mirrored(raw), frame.masked(occupied), frame.inside
        near = subtract(self.contact.position_zyx, frame.canvas.start)
        reach = reach_of(frame.canvas.shape, self._judge.network.model.config)
        units = relative_sides(voxel_size_of(self._judge.scene.segmentation))
        self._sides = [measured_side(frame.mirrored(mask), near, reach, units, frame.inside) for mask in masks]
        self._refused = centres_across(self._judge.jumps, frame.canvas, self._judge.network.model.config.fov_radius_zyx)
        for box in (each.intersect(reach) for each in self._refused):
            for side in [] if box.is_empty else self._sides:
                side.merit[box.slices(reach.start)] = -np.inf

    def enter(self, lanes: Lanes, lane: int) -> None:
        """Begin on a canvas."""
        canvas = lanes.canvas(lane, *self._shown)
        canvas.refuse(self._refused)
        self._growers = self._both_sides(canvas, self._sides)
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
        grown, config = [Grown(np.zeros(canvas.shape, bool))] * 2, self._judge.config
        for which in sorted((0, 1), key=lambda n: np.count_nonzero(sides[n].mask)):
            grown[which] = yield from self._one_side(canvas, sides[which])
            if not grown[which].is_sound(sides[which].mask, config):
                break  # there is no answer in any case
        else:
            for which in (0, 1):
                enters, is_entered = (share_of(grown[n].mask, sides[1 - n].mask) for n in (which, 1 - which))
                if enters < config.min_crossing <= is_entered:
                    grown[which] = yield from self._from_within(canvas, sides, grown, which)
        self.evidence = compare(sides, grown, canvas.reach)

    def _from_within(
        self, canvas: Canvas, sides: list[Side], grown: list[Grown], which: int
    ) -> Generator[ObjectGrower, None, Grown]:
        """Grow a side from where the other one enters it; return the result if it enters the other one as far."""
        side, other, before = sides[which], sides[1 - which], grown[which]
        entered = grown[1 - which].mask[canvas.reach.slices()]
        seed = best_seed(np.where(entered, side.merit, -np.inf), canvas.reach)
        if seed is None:
            return before
        new = yield from self._from_seed(canvas, seed, before.num_tries + 1)
        enters_as_far = share_of(new.mask, other.mask) >= share_of(before.mask, other.mask)
        is_better = enters_as_far and new.is_sound(side.mask, self._judge.config)
        return new if is_better else replace(before, num_tries=new.num_tries)

    def _one_side(self, canvas: Canvas, side: Side) -> Generator[ObjectGrower, None, Grown]:
        """Grow a side; one that does not leave its seed or recover its own segment is grown from other seeds."""
        best = Grown(np.zeros(canvas.shape, bool))
        for attempt in range(1, MAX_TRIES + 1):
            seed = best_seed(side.merit, canvas.reach)
            if seed is None:
                break
            new = yield from self._from_seed(canvas, seed, attempt)
            is_better = attempt == 1 or _worth(new, side) > _worth(best, side)
            best = new if is_better else replace(best, num_tries=attempt)
            tried = Box.around(seed, canvas.deltas_zyx).intersect(canvas.reach)
            side.merit[tried.slices(canvas.reach.start)] = -np.inf
            if best.num_fovs > 1 and share_of(best.mask, side.mask) >= self._judge.config.min_recovered:
                break
        return best

    def _from_seed(self, canvas: Canvas, seed_zyx: ZYX, attempt: int) -> Generator[ObjectGrower, None, Grown]:
        """Grow an object; return it as a mask of the window."""
        grower = ObjectGrower(canvas, seed_zyx, self._judge.config.max_fovs)
        yield grower
        mask = np.zeros(canvas.shape, bool)
        box, grown = canvas.object_mask()
        mask[box.slices()] = grown & is_free(canvas.segmentation[box.slices()])
        return Grown(mask, grower.num_fovs, attempt, canvas.num_deleted)


def resegmented(judge: Judge, contacts: Sequence[Contact], lanes: Lanes) -> Iterator[tuple[Contact, Evidence]]:
    """Grow both sides of many contacts, as many at once as there are canvases; yield the evidence in their order."""
    jobs = deque(Resegmentation(judge, contact) for contact in contacts)
    for _ in run_jobs(list(jobs), lanes, threads_here()):
        while jobs and (evidence := jobs[0].evidence) is not None:
            yield jobs.popleft().contact, evidence


def measured_side(mask: np.ndarray, near_zyx: ZYX, reach: Box, units_zyx: VoxelSize, within: Box) -> Side:
    """Measure the part of a segment in a box of its window. Good seeds lie deep inside it and near a point.

    The border of the window counts as surface.
    """
    from scipy import ndimage

    where, reached = reach.slices(), np.zeros(mask.shape, bool)
    depth = ndimage.distance_transform_edt(np.pad(mask, 1), sampling=units_zyx)[1:-1, 1:-1, 1:-1]
    reached[where] = mask[where]
    radius = float(depth[within.slices()].max(initial=0))
    if reach.is_empty:
        return Side(reached, radius, np.empty((0, 0, 0)))
    away = [(n - at) * unit for n, at, unit in zip(np.ogrid[where], near_zyx, units_zyx, strict=True)]
    distance = np.sqrt(away[0] ** 2 + away[1] ** 2 + away[2] ** 2)
    return Side(reached, radius, np.where(mask[where], depth[where] - NEARNESS * distance, -np.inf))


def best_seed(merit: np.ndarray, reach: Box) -> ZYX | None:
    """Return the voxel with the highest merit, an array of ``reach.shape``; None if no voxel can be a seed."""
    if not merit.size or merit.max() == -np.inf:
        return None
    return add(zyx(np.unravel_index(int(merit.argmax()), merit.shape)), reach.start)


def _worth(grown: Grown, side: Side) -> tuple[bool, float]:
    """Sort key of attempts."""
    return grown.num_fovs > 1, share_of(grown.mask, side.mask)


def compare(sides: Sequence[Side], grown: Sequence[Grown], reach: Box) -> Evidence:
    """Compare the objects grown from both sides with the segments and with each other, where FOVs are centred."""
    where = reach.slices()
    (a, b), (grown_a, grown_b) = (side.mask[where] for side in sides), (one.mask[where] for one in grown)
    both, either = np.count_nonzero(grown_a & grown_b), np.count_nonzero(grown_a | grown_b)
    smaller = min(np.count_nonzero(grown_a), np.count_nonzero(grown_b))
    return Evidence(
        voxels_a=int(np.count_nonzero(a)),
        voxels_b=int(np.count_nonzero(b)),
        radius_a=sides[0].radius,
        radius_b=sides[1].radius,
        tries_a=grown[0].num_tries,
        tries_b=grown[1].num_tries,
        fovs_a=grown[0].num_fovs,
        fovs_b=grown[1].num_fovs,
        recovered_aa=share_of(grown_a, a),
        recovered_ab=share_of(grown_a, b),
        recovered_ba=share_of(grown_b, a),
        recovered_bb=share_of(grown_b, b),
        agreement=both / smaller if smaller else 0.0,
        iou=both / either if either else 0.0,
        deleted_a=grown[0].deleted,
        deleted_b=grown[1].deleted,
        lost=1 - share_of(grown_a | grown_b, a | b),
    )


def share_of(of: np.ndarray, whole: np.ndarray) -> float:
    """Return the share of `whole` that `of` covers; both are bool arrays of one shape."""
    total = np.count_nonzero(whole)
    return float(np.count_nonzero(of & whole) / total) if total else 0.0
