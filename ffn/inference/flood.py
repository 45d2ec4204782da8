"""Flood filling: grow an object from every seed that is still free."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

import numpy as np

from ffn.config import ModelConfig, SegmentConfig
from ffn.geometry import ZYX, zyx
from ffn.inference.canvas import MASKED, Canvas, Thresholds, is_free
from ffn.inference.claims import Cells, Claims, Filling
from ffn.inference.engine import Engine
from ffn.inference.grower import Arrays, FovBatch, Limits, ObjectGrower
from ffn.inference.objects import GrownObject

# Our choices, tested on objects of FIB-25. They change how much work is discarded, never the result.
LOOK_AHEAD = 4096  # undecided seeds considered for growing ahead of their turn
FINISHED_PER_LANE = 16  # objects that wait for their turn; they also take at most one byte per voxel of the subvolume
ROUNDS_PER_CHECK = 16  # network calls between checks for objects that have run into each other


class FloodFill:
    """The sequential flood of the published FFN, growing several objects at once.

    Objects enter the segmentation strictly in the order of their seeds, under the rules of `Claims`. With a batch size
    of 1, they are also grown one after the other. With larger batches, idle lanes grow objects ahead of their turn, in
    the segmentation as it is then. If an older object takes voxels that such an object needs (`Claims.is_valid`), it is
    discarded and grown again. The result is therefore that of one lane, up to the rounding of the engine.

    Parameters
    ----------
    image : float32 ndarray of shape (Z, Y, X)
        Normalised image.
    model : ModelConfig
        FOV and deltas.
    config : SegmentConfig
        Thresholds, distances, sizes and limits.
    engine : Engine
        Network, built for batches of ``config.batch_size``.
    masked : bool ndarray of shape (Z, Y, X), optional
        Voxels that are not segmented, not seeded and not entered by the centre of the FOV.
    cells : Cells, optional
        Where voxels that two objects share are counted.

    Attributes
    ----------
    image : float32 ndarray of shape (Z, Y, X)
        As given.
    claims : Claims
        Segmentation so far, with origins and counters.
    pass_number : int
        Current pass; 0 before the first `begin`.
    seeds : int64 ndarray of shape (N, 3)
        Seeds of this pass.
    cursor : int
        Number of seeds that are decided.
    num_evaluated : int
        FOVs that this process has evaluated.
    """

    def __init__(
        self,
        image: np.ndarray,
        model: ModelConfig,
        config: SegmentConfig,
        engine: Engine,
        masked: np.ndarray | None = None,
        cells: Cells | None = None,
    ) -> None:
        segmentation = np.zeros(image.shape, np.int32)
        if masked is not None:
            segmentation[masked] = MASKED
        self.image = image
        self._sizes = (config.min_segment_size, config.second_min_segment_size)
        self._deltas = model.deltas_zyx
        self._limits = Limits.of(config)
        self._batch = FovBatch(engine, model.fov_size_zyx, config.batch_size)
        thresholds = Thresholds.of(config)
        self._idle = [Canvas(image, model, thresholds, segmentation) for _ in range(config.batch_size)]
        self.claims = Claims(config, self._idle[0].reach, segmentation, cells)
        self.pass_number = self.cursor = self.num_evaluated = 0
        self.seeds = np.empty((0, 3), np.int64)
        self._rounds = 0
        self._nothing_to_try = False
        self._growing: dict[int, ObjectGrower] = {}  # by number of the seed
        self._finished: dict[int, GrownObject] = {}
        self._held: dict[int, int] = {}  # by number of the seed: the older seed to settle first

    def begin(self, seeds: np.ndarray) -> None:
        """Start the next pass with `seeds`, int (N, 3), in their order; all earlier seeds must be decided."""
        self.seeds = np.asarray(seeds, np.int64).reshape(-1, 3)
        self.pass_number += 1
        self.cursor = 0
        self._held.clear()
        self.claims.forget_rejections()

    def run(self, after_round: Callable[[], None] = lambda: None) -> None:
        """Decide all seeds of this pass; call `after_round` whenever the state can be saved."""
        while self.cursor < len(self.seeds):
            self._settle()
            self._start()
            self._advance()
            after_round()

    def filling(self) -> Filling:
        """Return the result so far."""
        return self.claims.filling()

    @property
    def _min_voxels(self) -> int:
        return self._sizes[self.pass_number - 1]

    def _seed(self, number: int) -> ZYX:
        return zyx(self.seeds[number].tolist())

    def _settle(self) -> None:
        """Decide seeds in order, up to the first whose object has still to grow."""
        while self.cursor < len(self.seeds) and self.cursor not in self._growing:
            seed, grown = self._seed(self.cursor), self._finished.pop(self.cursor, None)
            objection = self.claims.objection(seed)
            if objection is not None:
                self.claims.refuse(seed, objection)
            elif grown is None:
                return
            elif self.claims.settle(grown, self._min_voxels, self.pass_number):
                self._discard_invalid()
            self._nothing_to_try = False
            self.cursor += 1

    def _start(self) -> None:
        """Give idle lanes the oldest undecided seed, then promising seeds ahead of their turn."""
        if self._idle and self.cursor < len(self.seeds) and self.cursor not in self._growing:
            self._grow(self.cursor)
        if self._idle and not self._nothing_to_try and self._may_hold_more():
            for number in islice(self._promising(), len(self._idle)):
                self._grow(number)
            self._nothing_to_try = bool(self._idle)

    def _grow(self, number: int) -> None:
        self._growing[number] = ObjectGrower(self._idle.pop(), self._seed(number), self._deltas, self._limits)

    def _advance(self) -> None:
        """Evaluate one FOV of each growing object; move finished objects to the waiting ones."""
        num_fovs = self._batch.advance(self._growing.values())
        self.num_evaluated += num_fovs
        self._rounds += 1
        if self._rounds % ROUNDS_PER_CHECK == 0:
            self._discard_colliding()
            self._nothing_to_try = False
        for number, grower in list(self._growing.items()):
            if grower.next_position() is None:
                self._finished[number] = GrownObject.harvest(grower, self._min_voxels)
                self._release(number)

    def _release(self, number: int) -> None:
        self._idle.append(self._growing.pop(number).canvas)
        self._nothing_to_try = False

    def _discard(self, number: int) -> None:
        """Drop an object that was grown ahead of its turn."""
        attempt = self._growing.get(number) or self._finished[number]
        self.claims.counters["discarded_fovs"] += attempt.num_fovs
        if number in self._growing:
            self._release(number)
        else:
            del self._finished[number]

    def _attempts(self) -> list[tuple[int, ObjectGrower | GrownObject]]:
        """Objects not settled yet, with the numbers of their seeds."""
        return [*self._growing.items(), *self._finished.items()]

    def _discard_invalid(self) -> None:
        """Discard the objects that would have grown differently next to the newest segment."""
        for number, attempt in self._attempts():
            if not self.claims.is_valid(attempt.seed_zyx, attempt.evaluated):
                self._discard(number)

    def _discard_colliding(self) -> None:
        """Discard objects on the voxels of an older one: they will most likely be invalid once that is settled."""
        for number in sorted(self._growing)[1:]:
            evaluated = self._growing[number].evaluated
            older = (n for n, attempt in self._attempts() if n < number and attempt.covers(evaluated).any())
            blocking = max(older, default=None)
            if blocking is not None:
                self._held[number] = blocking
                self._discard(number)

    def _may_hold_more(self) -> bool:
        voxels = sum(grown.probability.size for grown in self._finished.values())
        return len(self._finished) < FINISHED_PER_LANE * self._batch.size and voxels < self.claims.segmentation.size

    def _promising(self) -> Iterator[int]:
        """Yield seeds that may start now and lie in none of the objects not settled yet."""
        self._held = {number: older for number, older in self._held.items() if older >= self.cursor}
        points = self.seeds[self.cursor : self.cursor + LOOK_AHEAD]
        inside = ((points >= self.claims.reach.start) & (points < self.claims.reach.stop)).all(axis=1)
        numbers, points = self.cursor + np.flatnonzero(inside), points[inside]
        z, y, x = points.T
        promising = is_free(self.claims.segmentation[z, y, x])
        for _, attempt in self._attempts():
            promising &= ~attempt.covers(points)
        for number in numbers[promising].tolist():
            known = number in self._growing or number in self._finished or number in self._held
            if not known and self.claims.objection(self._seed(number)) is None:
                yield number

    def state(self) -> Arrays:
        """Return everything needed to resume after this round; the arrays are views, to be saved at once."""
        arrays = _prefixed("claims", self.claims.state())
        arrays["seeds"] = self.seeds
        arrays["place"] = np.array([self.pass_number, self.cursor, self._rounds, self._nothing_to_try])
        arrays["held"] = np.array(list(self._held.items()), np.int64).reshape(-1, 2)
        for order, (number, grower) in enumerate(self._growing.items()):
            arrays |= _prefixed(f"growing/{order:04d}/{number}", grower.state())
        for number, grown in self._finished.items():
            arrays |= _prefixed(f"finished/0/{number}", grown.state())
        return arrays

    def resume(self, arrays: Arrays) -> None:
        """Restore what `state` returned; the flood must not have begun."""
        self.seeds = arrays["seeds"]
        self.claims.resume(_below("claims", arrays))
        self.pass_number, self.cursor, self._rounds, nothing_to_try = arrays["place"].tolist()
        self._nothing_to_try = bool(nothing_to_try)
        self._held = dict(arrays["held"].tolist())
        for path in _folders("growing", arrays):
            state = _below(path, arrays)
            grower = ObjectGrower.resume(self._idle.pop(), state, self._deltas, self._limits)
            self._growing[int(path.rsplit("/", 1)[1])] = grower
        for path in _folders("finished", arrays):
            self._finished[int(path.rsplit("/", 1)[1])] = GrownObject.resume(_below(path, arrays))


def _prefixed(path: str, arrays: Arrays) -> Arrays:
    return {f"{path}/{name}": array for name, array in arrays.items()}


def _below(path: str, arrays: Arrays) -> Arrays:
    return {name.removeprefix(f"{path}/"): array for name, array in arrays.items() if name.startswith(f"{path}/")}


def _folders(kind: str, arrays: Arrays) -> list[str]:
    """Paths of the objects below `kind`, in order."""
    return sorted({"/".join(name.split("/")[:3]) for name in arrays if name.startswith(f"{kind}/")})
