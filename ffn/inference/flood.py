"""Flood filling: grow an object from every seed that is still free, and tell the signs that it has gone wrong."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ffn.config import SegmentConfig
from ffn.contingency import add_up, count_ids
from ffn.geometry import ZYX, Box, VoxelSize, cell_shape, voxels_in, zyx
from ffn.inference.canvas import MASKED, REJECTED, Canvas, Harvest, is_free
from ffn.inference.movement import FaceMaxMovement

Arrays = dict[str, np.ndarray]
SECOND_MIN_SEGMENT_UM3 = 0.0002  # in the second pass; our choice: objects in the gaps of the first are smaller
OUTCOMES = ("outside", "masked", "taken", "too_close", "weak", "too_small", "segments")  # each seed has exactly one
GROWING = "growing/"  # before names of a state
GIVEN = 0  # pass of segments that were there before
STARTED = ("weak", "too_small", "segments")  # outcomes of seeds from which an object has grown
SIGNS = ("stuck", "undecided_voxels", "object_voxels")  # see `findings`
COUNTERS = ("fovs", "seeds", *OUTCOMES, "limited", *SIGNS)
# Our choices. A neurite with a cross-section of 1 µm² fills most of a box of 1 µm and 15 % of one of 2.6 µm; on FIB-25,
# the largest segments of eight boxes of 1 µm hold 22 to 42 %, and two of them touch all six faces.
LARGEST_SHARE = 0.2  # of a subvolume
SMALL_BOX_SHARE = 0.6  # instead, where a thick neurite may hold more than that
THICK_UM2 = 1.0
MIN_SEEDS = 10  # with fewer, such as one given seed, one segment is expected
STUCK_SHARE = 0.8
UNDECIDED_SHARE = 0.5
MIN_VOXELS = 1000  # of the POM

CAUSE = (
    "Does the image have the contrast of the training data (model.image_mean, model.image_stddev), and its voxel size? "
    "Weights of another resolution or tissue do the same"
)


class ObjectGrower:
    """An object that grows from its seed until no position is left."""

    def __init__(self, canvas: Canvas, seed_zyx: ZYX, max_fovs: int | None = None) -> None:
        canvas.start(seed_zyx)
        self.canvas = canvas
        self.seed_zyx = seed_zyx
        self.limited = False  # whether `max_fovs` has stopped it
        self._movement = FaceMaxMovement(seed_zyx, canvas.deltas_zyx, inside=canvas.inside)
        self._max_fovs = max_fovs
        self._next: ZYX | None = None
        self._elsewhere: Callable[[], Sequence[ZYX]] | None = None  # fetches the queue from where `leap` left it

    @property
    def num_fovs(self) -> int:
        """Number of network evaluations so far."""
        return len(self._movement.evaluated)

    @property
    def evaluated(self) -> np.ndarray:
        """Positions evaluated so far, an int64 array of shape (N, 3)."""
        return np.array(self._movement.evaluated, np.int64).reshape(-1, 3)

    @property
    def is_strong(self) -> bool:
        """Whether the object still includes its seed."""
        return self.canvas.is_strong(self.seed_zyx)

    @property
    def num_left(self) -> int | None:
        """Number of network evaluations before the object is `limited`, None without a limit."""
        return None if self._max_fovs is None else self._max_fovs - self.num_fovs

    @property
    def queue(self) -> list[ZYX]:
        """Positions to go to, the next one first."""
        if self._elsewhere:
            return list(self._elsewhere())
        return [*([] if self._next is None else [self._next]), *self._movement.queue]

    def next_position(self) -> ZYX | None:
        """Return the next position to evaluate, None when the object has grown.

        A second call returns the same position, unless another object has taken the voxel since.
        """
        while self._next is None or not self.canvas.may_visit(self._next):
            self._next = self._movement.pop()
            if self._next is None:
                return None
        if not self.is_strong:
            return None
        self.limited = self._max_fovs is not None and self.num_fovs >= self._max_fovs
        return None if self.limited else self._next

    def put(self, answer: np.ndarray) -> None:
        """Write the network's answer at `next_position` to the canvas, and queue the moves from there."""
        assert self._next is not None
        position, self._next = self._next, None
        self._movement.follow(position, self.canvas.put(position, answer))

    def leap(self, evaluated: Iterable[ZYX], following: ZYX | None, queue: Callable[[], Sequence[ZYX]]) -> None:
        """Take over FOVs that were evaluated, written and followed elsewhere, where the queue stays."""
        self._movement.evaluated.extend(evaluated)
        self._movement.queue.clear()
        self._next, self._elsewhere = following, queue

    def state(self) -> Arrays:
        """Return everything needed to resume, as arrays."""
        box, pom_logit = self.canvas.visited_pom()
        return {
            "seed": np.array(self.seed_zyx),
            "visited": np.array([box.start, box.stop]),
            "pom_logit": pom_logit,
            "queue": np.array(self.queue, np.int64).reshape(-1, 3),
            "evaluated": self.evaluated,
        }

    @classmethod
    def resume(cls, canvas: Canvas, state: Arrays, max_fovs: int | None = None) -> ObjectGrower:
        """Restore the result of `state` on `canvas`."""
        grower = cls(canvas, zyx(state["seed"]), max_fovs)
        start, stop = state["visited"]
        canvas.resume(Box(zyx(start), zyx(stop)), state["pom_logit"])
        queue, evaluated = (map(zyx, state[name].tolist()) for name in ("queue", "evaluated"))
        grower._movement = FaceMaxMovement(grower.seed_zyx, canvas.deltas_zyx, queue, evaluated, canvas.inside)
        return grower


@dataclass(frozen=True)
class Origin:
    """How a segment was grown."""

    segment_id: int  # id in this subvolume
    seed_zyx: ZYX  # seed voxel, relative to the subvolume
    num_fovs: int  # network evaluations that it took
    # number of its voxels that belong to earlier segments, by their id and the first voxel (z, y, x) of their cell
    overlaps: dict[tuple[int, ...], int]
    pass_number: int = 1  # 1, or 2 for the second pass; 0 for a segment that was given


class FloodFill:
    """The sequential flood of the published FFN: one object after the other, in the order of the seeds.

    Floods of several subvolumes can advance together: `growing` says which object of each is next. Earlier objects keep
    their voxels. The segmentation of the canvas (int32) is changed in place: ids from 1, 0 is free, `MASKED` is not to
    be entered. The probability (uint8) is the POM of each segment at its voxels, with 1 … 255 for 0 … 1. There is an
    origin for each id, in order. The counters are outcomes of seeds, FOVs, and signs of trouble: ``stuck`` objects took
    one FOV, and the voxels of the POMs of all objects, see `Harvest`. Overlaps are counted by cells of the full volume,
    in which the first voxel is `offset_zyx`.
    """

    def __init__(
        self,
        canvas: Canvas,
        config: SegmentConfig,
        voxel_size_zyx_nm: VoxelSize = (10.0, 10.0, 10.0),
        offset_zyx: ZYX = (0, 0, 0),
    ) -> None:
        self._canvas = canvas
        self._cell, self._offset = cell_shape(voxel_size_zyx_nm), offset_zyx
        self._distance = config.min_boundary_dist_zyx
        sizes = config.min_segment_um3, SECOND_MIN_SEGMENT_UM3
        self._min_voxels = [voxels_in(size, voxel_size_zyx_nm) for size in sizes]
        self._max_fovs = config.max_fovs
        self.segmentation = canvas.segmentation
        self.probability = np.zeros(self.segmentation.shape, np.uint8)
        self.origins: list[Origin] = []
        self.counters = dict.fromkeys(COUNTERS, 0)
        self.pass_number = 0  # before the first `begin`
        self.cursor = 0  # number of seeds that are decided
        self.seeds = np.empty((0, 3), np.int64)
        self._grower: ObjectGrower | None = None

    def adopt(self, labels: np.ndarray) -> np.ndarray:
        """Make segments of the given ones, before any object grows; masked voxels stay masked."""
        there = (labels != 0) & is_free(self.segmentation)
        ids, first, numbers = np.unique(labels[there], return_index=True, return_inverse=True)
        self.segmentation[there] = numbers + 1
        self.probability[there] = 255
        places = zip(*np.unravel_index(np.flatnonzero(there)[first], there.shape), strict=True)
        self.origins = [Origin(i, zyx(place), 0, {}, GIVEN) for i, place in enumerate(places, 1)]
        return ids

    def begin(self, seeds: np.ndarray) -> None:
        """Start the next pass with `seeds`, int (N, 3), in their order; all earlier seeds must be decided."""
        self.seeds = np.asarray(seeds, np.int64).reshape(-1, 3)
        self.pass_number += 1
        self.cursor = 0
        self.segmentation[self.segmentation == REJECTED] = 0  # seeds that became no segment are free again

    @property
    def settled_and_known(self) -> tuple[int, int]:
        """Numbers of seeds, of all passes so far: decided or in a segment, as large objects come first; and in all."""
        decided, later = self.counters["seeds"], self.seeds[self.cursor :]
        return decided + int(np.count_nonzero(self.segmentation[tuple(later.T)])), decided + len(later)

    def growing(self) -> ObjectGrower | None:
        """Decide seeds up to the first whose object has still to grow, and return it; None at the end of the pass."""
        while self.cursor < len(self.seeds):
            grower = self._grower or self._started()
            if grower is not None and grower.next_position() is not None:
                return grower
            if grower is not None and self.settle(grower, self._min_voxels[self.pass_number - 1]):
                self._canvas.claim()
            self._grower = None
            self.cursor += 1
        return None

    def _started(self) -> ObjectGrower | None:
        """Start the object of the next seed, or count why none may start there."""
        seed: ZYX = zyx(self.seeds[self.cursor].tolist())
        objection = self.objection(seed)
        if objection is not None:
            self.refuse(seed, objection)
            return None
        self._grower = ObjectGrower(self._canvas, seed, self._max_fovs)
        return self._grower

    def objection(self, seed: ZYX) -> str | None:
        """Return why no object may start at this seed now, as the name of a counter, or None if one may."""
        if not self._canvas.reach.contains(Box.around(seed)) or self._canvas.is_refused(seed):
            return "outside"
        found = self.segmentation[seed]
        if found == MASKED:
            return "masked"
        if found > 0:
            return "taken"
        around = Box.around(seed, self._distance).intersect(Box.from_shape(zyx(self.segmentation.shape)))
        return "too_close" if (self.segmentation[around.slices()] > 0).any() else None

    def refuse(self, seed: ZYX, objection: str) -> None:
        """Count a seed that may not start, by the name of its `objection`."""
        self.counters["seeds"] += 1
        self.counters[objection] += 1
        if objection == "too_close":
            self.segmentation[seed] = REJECTED

    def settle(self, grower: ObjectGrower, min_voxels: int) -> bool:
        """Turn an object that has grown into a segment if it is strong and large enough; return whether it is."""
        found = grower.canvas.harvest(min_voxels if grower.is_strong else None)
        outcome = self._claim(grower, found, min_voxels) if grower.is_strong else "weak"
        if outcome != "segments":
            self.segmentation[grower.seed_zyx] = REJECTED
        self.counters["seeds"] += 1
        self.counters[outcome] += 1
        self.counters["fovs"] += grower.num_fovs
        self.counters["limited"] += grower.limited
        self.counters["stuck"] += grower.num_fovs <= 1
        self.counters["undecided_voxels"] += found.undecided
        self.counters["object_voxels"] += found.in_object
        return outcome == "segments"

    def _claim(self, grower: ObjectGrower, found: Harvest, min_voxels: int) -> str:
        where, inside = found.box.slices(), found.probability > 0
        before = self.segmentation[where][inside]
        is_new, is_shared = is_free(before), before > 0
        if np.count_nonzero(is_new) < min_voxels:
            return "too_small"
        segment_id, mask = len(self.origins) + 1, np.zeros_like(inside)
        mask[inside] = is_new
        np.copyto(self.segmentation[where], segment_id, where=mask)
        np.copyto(self.probability[where], found.probability, where=mask)
        overlaps = self._by_cells(before[is_shared], np.flatnonzero(inside)[is_shared], found.box)
        self.origins.append(Origin(segment_id, grower.seed_zyx, grower.num_fovs, overlaps, self.pass_number))
        return "segments"

    def _by_cells(self, ids: np.ndarray, places: np.ndarray, box: Box) -> dict[tuple[int, ...], int]:
        """Count voxels, at indices in a box, by their ids and cells; runs of voxels first, which are far fewer."""
        sides = zip(box.start, box.stop, self._offset, self._cell, np.unravel_index(places, box.shape), strict=True)
        cells = [((np.arange(a, b) + offset) // cell * cell)[index] for a, b, offset, cell, index in sides]
        columns = [ids, *cells]
        first = np.flatnonzero(np.any([np.diff(column, prepend=-1) != 0 for column in columns], axis=0))
        runs = [*(column[first] for column in columns), np.diff(first, append=len(ids))]
        return {tuple(place): count for *place, count in add_up(np.column_stack(runs)).tolist()}

    def state(self) -> Arrays:
        """Return everything needed to resume; the arrays are views, to be saved at once."""
        arrays = {
            "claims/segmentation": self.segmentation,
            "claims/probability": self.probability,
            "claims/origins": origins_table(self.origins),
            "claims/overlaps": overlaps_table(self.origins),
            "claims/counters": np.array([self.counters[name] for name in COUNTERS]),
            "seeds": self.seeds,
            "place": np.array([self.pass_number, self.cursor]),
        }
        growing = self._grower.state() if self._grower else {}
        return arrays | {f"{GROWING}{name}": array for name, array in growing.items()}

    def resume(self, arrays: Arrays) -> None:
        """Restore the result of `state`; the flood must not have begun."""
        self.segmentation[...] = arrays["claims/segmentation"]
        self.probability[...] = arrays["claims/probability"]
        self.counters = dict(zip(COUNTERS, arrays["claims/counters"].tolist(), strict=True))
        self.origins = [Origin(i, (z, y, x), fovs, {}, n) for i, z, y, x, fovs, n in arrays["claims/origins"].tolist()]
        for segment_id, *place, count in arrays["claims/overlaps"].tolist():
            self.origins[segment_id - 1].overlaps[tuple(place)] = count
        self.seeds = arrays["seeds"]
        self.pass_number, self.cursor = arrays["place"].tolist()
        growing = {name.removeprefix(GROWING): each for name, each in arrays.items() if name.startswith(GROWING)}
        if growing:
            self._grower = ObjectGrower.resume(self._canvas, growing, self._max_fovs)


def origins_table(origins: list[Origin]) -> np.ndarray:
    """Return an int64 table of shape (N, 6): id, seed z, y, x, number of FOVs, pass."""
    return np.array([(o.segment_id, *o.seed_zyx, o.num_fovs, o.pass_number) for o in origins], np.int64).reshape(-1, 6)


def overlaps_table(origins: list[Origin]) -> np.ndarray:
    """Return an int64 table of shape (N, 6): id, earlier id, first voxel of a cell, number of voxels in both there."""
    rows = [(o.segment_id, *place, count) for o in origins for place, count in sorted(o.overlaps.items())]
    return np.array(rows, np.int64).reshape(-1, 6)


class Facts(NamedTuple):
    """Facts about the flood of a subvolume."""

    name: str  # of the subvolume
    largest_share: float  # share of the subvolume's voxels that its largest segment holds
    num_through: int  # segments that touch all six faces of the subvolume
    num_given: int  # segments that were there from the start
    side_um: float  # side of a cube as large as the subvolume, µm
    counters: Mapping[str, int]  # as in `FloodFill`

    @property
    def largest_allowed(self) -> float:
        """Share of the subvolume that one segment may hold."""
        return min(max(LARGEST_SHARE, THICK_UM2 / self.side_um**2), SMALL_BOX_SHARE)


def measured(segmentation: np.ndarray, origins: Sequence[Origin], voxel_size_zyx_nm: VoxelSize) -> dict[str, Any]:
    """Return the facts besides the counters, ready for JSON; given segments do not count."""
    num_given = sum(origin.pass_number == GIVEN for origin in origins)  # the first ids
    labels = np.where(segmentation > num_given, segmentation, 0)
    ids, voxels = count_ids(labels)
    faces = [labels.take(index, axis) for axis in range(3) for index in (0, -1)]
    through = set.intersection(*(set(np.unique(face[face > 0]).tolist()) for face in faces))
    return {
        "largest_share": int(voxels[ids > 0].max(initial=0)) / labels.size,
        "num_through": len(through),
        "num_given": num_given,
        "side_um": (labels.size * math.prod(voxel_size_zyx_nm)) ** (1 / 3) / 1000,
    }


def facts_of(name: str, record: Mapping[str, Any]) -> Facts | None:
    """Return the facts in the provenance of a subvolume; None if another version made it."""
    if record.get("sanity", {}).keys() != {"largest_share", "num_through", "num_given", "side_um"}:
        return None
    return Facts(name, **record["sanity"], counters=record["counters"])


def findings(facts: Sequence[Facts]) -> list[str]:
    """Return the signs of trouble in the subvolumes of one segmentation, one line for each kind."""
    found: defaultdict[str, list[tuple[float, str]]] = defaultdict(list)
    for one in facts:
        for sign, measure in _signs(one):
            found[sign].append((measure, one.name))
    lines = []
    for sign, shown in found.items():
        others = f" ({len(shown)} of {len(facts)} subvolumes looked at are like that)" if len(facts) > 1 else ""
        lines.append(f"{sign.format(*max(shown))}{others}. {CAUSE}")
    return lines


def _signs(one: Facts) -> Iterator[tuple[str, float]]:
    """Yield the signs that a subvolume shows, and how clearly."""
    counted, allowed = one.counters, one.largest_allowed
    if one.largest_share > allowed:
        yield "a segment holds {:.0%} of {}", one.largest_share
    if one.num_through and allowed == LARGEST_SHARE:  # branches do so in a small box
        yield "{} of the segments touch all six faces of {}", one.num_through
    if counted["segments"] == 1 and not one.num_given and counted["seeds"] >= MIN_SEEDS:
        yield "of {} seeds only one became a segment in {}", counted["seeds"]
    started = sum(counted[name] for name in STARTED)
    if started >= MIN_SEEDS and counted["stuck"] > STUCK_SHARE * started:
        yield "{:.0%} of the objects never left their seed in {}", counted["stuck"] / started
    undecided, visible = counted["undecided_voxels"], counted["undecided_voxels"] + counted["object_voxels"]
    if visible >= MIN_VOXELS and undecided > UNDECIDED_SHARE * visible:
        yield "{:.0%} of the POM above 0.2 is below 0.8, so objects have no clear border, in {}", undecided / visible
