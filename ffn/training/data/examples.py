"""Training examples: the record at each position of each lane, and normalised and augmented patches around records.

A lane is one slot of the global batch. Every epoch permutes the shards of records, concatenates them, and cuts the
sequence into one equal range per lane. Each lane shuffles its range. Lanes do not wait for each other at the end of an
epoch, so shards of unequal length cannot stall any number of processes. A record is a pure function of random seed,
lane and position.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from ffn.config import MAX_VOXEL_SIZE_RATIO, ModelConfig
from ffn.errors import RecordError
from ffn.geometry import ZYX, Box, add, scale, subtract, zyx
from ffn.io.volume import is_ignored
from ffn.model.normalize import Normalisation
from ffn.training.config import MAX_MISALIGNMENT, TrainConfig, require_equal_sides
from ffn.training.data.volumes import TrainingVolume

OBJECT_LABEL = 0.95  # soft labels (Januszewski et al. 2018)
OTHER_LABEL = 0.05
IN_OBJECT, UNLABELLED, NOT_COUNTED = 1, 2, 4  # bits of the kind of a voxel
SOFT_LABELS = np.array([OTHER_LABEL, OBJECT_LABEL] * 4, np.float32)  # of each kind
BLUR_SIGMA = 2.0  # standard deviation of the blur of a section out of focus, voxels; our choice


# their order decides the streams
Purpose = Literal["weights", "shard order", "lane order", "example", "validation", "validation example"]


def generator(rng_seed: int, purpose: Purpose, *position: int) -> np.random.Generator:
    """Return the generator for one purpose and position. It depends on nothing but the arguments.

    The key is a spawn key of `numpy.random.SeedSequence`. A plain list of integers would not do: NumPy pads it with
    zeros, so ``[1, 2]`` and ``[1, 2, 0]`` would give the same stream.
    """
    key = (get_args(Purpose).index(purpose), *position)
    return np.random.default_rng(np.random.SeedSequence(rng_seed, spawn_key=key))


COLUMNS = 4  # of the table of records: centre, zyx, and number of the volume


class Record(NamedTuple):
    """The location of a training example, full-volume voxels."""

    center_zyx: ZYX
    volume: str


class RecordTable:
    """All records, one shard after the other; `rows`, int32 (N, `COLUMNS`), are there once they are read."""

    def __init__(self, paths: Sequence[Path], counts: Sequence[int], volumes: Sequence[str]) -> None:
        self.paths, self.volumes = list(paths), list(volumes)
        self.counts = np.asarray(counts, np.int64)
        self.starts = np.cumsum(self.counts) - self.counts
        self.rows = np.empty((0, COLUMNS), np.int32)

    @property
    def total(self) -> int:
        """Records in all shards."""
        return int(self.counts.sum())

    def require_lanes(self, num_lanes: int) -> None:
        """Check that each lane gets at least one record per epoch."""
        if self.total < num_lanes:
            expected = f"expected at least num_workers × virtual_workers × batch_size = {num_lanes}"
            found = f"{self.paths[0].parent}: found {self.total} records, {expected}"
            raise RecordError(f"{found}. Make more records or use fewer workers")


class LaneStream:
    """The endless sequence of records of one lane."""

    def __init__(self, records: RecordTable, lane: int, num_lanes: int, rng_seed: int) -> None:
        self.lane = lane
        self._records = records
        self._rng_seed = rng_seed
        self._start = lane * records.total // num_lanes
        self.num_records = (lane + 1) * records.total // num_lanes - self._start
        self._epoch: tuple[int, np.ndarray] | None = None

    def record(self, position: int) -> Record:
        """Return the record at `position`, which counts over all epochs from the start of training."""
        epoch, index = divmod(position, self.num_records)
        held = self._epoch
        if held is None or held[0] != epoch:
            self._epoch = held = (epoch, self._order(epoch))
        rows = held[1]  # not the attribute, which another thread may have replaced
        *center, volume = self._records.rows[rows[index]].tolist()
        return Record(zyx(center), self._records.volumes[volume])

    def _order(self, epoch: int) -> np.ndarray:
        """Return the rows of this lane's range in the order of this epoch."""
        shards = generator(self._rng_seed, "shard order", epoch).permutation(len(self._records.counts))
        stops = np.cumsum(self._records.counts[shards])
        places = np.arange(self._start, self._start + self.num_records)
        which = np.searchsorted(stops, places, side="right")
        rows = places - stops[which] + (self._records.starts + self._records.counts)[shards[which]]
        return rows[generator(self._rng_seed, "lane order", epoch, self.lane).permutation(self.num_records)]


@dataclass(frozen=True)
class Example:
    """One patch, in small types, and the order in which the FOV visits the neighbours of its centre."""

    grey: np.ndarray  # (Z, Y, X), uint8, indices of `levels`; without these float32, normalised grey levels
    levels: np.ndarray | None  # (256,), float32, normalised
    kinds: np.ndarray  # (Z, Y, X), uint8: in the object of the central voxel (bit IN_OBJECT), UNLABELLED, NOT_COUNTED
    unlabelled_weight: float  # in the loss; that of voxels that do not count is 0, of all others 1
    moves_zyx: tuple[ZYX, ...]  # from the centre, in order

    def image(self, where: Any = ...) -> np.ndarray:
        """Return the normalised grey levels of a part, float32."""
        return self.grey[where] if self.levels is None else self.levels.take(self.grey[where])

    def labels(self, where: Any = ...) -> np.ndarray:
        """Return the soft labels of a part, float32: 0.95 in the object of the central voxel, 0.05 elsewhere."""
        return SOFT_LABELS.take(self.kinds[where])

    def loss_weight(self, where: Any = ...) -> np.ndarray:
        """Return the loss weight of the voxels of a part, float32."""
        return loss_weights(self.unlabelled_weight).take(self.kinds[where])

    def is_object(self, position_zyx: ZYX) -> bool:
        """Whether a voxel is in the object of the central one."""
        return bool(self.kinds[position_zyx] & IN_OBJECT)


class ExampleMaker:
    """Cuts examples out of the training volumes."""

    def __init__(
        self,
        volumes: Mapping[str, TrainingVolume],
        model: ModelConfig,
        train: TrainConfig,
        held_out: Mapping[str, Sequence[Box]] | None = None,
        reflects: bool = True,
    ) -> None:
        self._volumes = volumes
        self._held_out = held_out or {}
        shift = MAX_MISALIGNMENT if train.misaligned_slice_rate else 0
        self._shift_zyx = (0, shift, shift)
        usual = Normalisation.of_model(model)
        self._normalisations = {name: volume.normalisation or usual for name, volume in volumes.items()}
        self._train = train
        self._patch_size_zyx = patch_size(model, train)
        self._margin_zyx = zyx(n // 2 for n in self._patch_size_zyx)
        # contrast and brightness change a grey level alike wherever it is
        keeps_levels = not (train.blur_rate or train.missing_slice_rate)
        self._has_levels = keeps_levels and all(volume.image_dtype == np.uint8 for volume in volumes.values())
        self._moves_zyx = moves(model.deltas_zyx, train.fov_policy)
        self._permutable = sorted({"zyx".index(axis) for axis in train.permutable_axes})
        self._reflects = reflects
        axes = train.permutable_axes
        require_equal_sides(axes, self._patch_size_zyx, "patches")
        for name, volume in volumes.items():
            size = volume.voxel_size_zyx_nm or (1.0, 1.0, 1.0)
            require_equal_sides(axes, size, f"voxels of {name}", MAX_VOXEL_SIZE_RATIO)

    def make(self, record: Record, rng: np.random.Generator) -> Example:
        """Return the example at `record`, which `check` has passed; `rng` decides augmentation and order of moves."""
        volume, box = self._volumes[record.volume], self.patch_box(record)
        shifts = draw_shifts(box.shape[0], self._train, rng)
        normalise = self._normalisations[record.volume].apply
        grey, levels = read_shifted(volume.read_image, volume.box, box, shifts), None
        if self._has_levels:
            levels = normalise(np.arange(256, dtype=np.uint8))
        else:
            grey = normalise(grey)
        distorted = grey if levels is None else levels
        distort(distorted, normalise(np.zeros(1, np.uint8))[0], self._train, rng)
        kinds = kinds_of(read_shifted(volume.read_labels, volume.box, box, shifts))
        grey, kinds = permute_and_reflect((grey, kinds), self._permutable, self._reflects, rng)
        grey, kinds = np.ascontiguousarray(grey), np.ascontiguousarray(kinds)
        return Example(grey, levels, kinds, self._train.unlabelled_weight, self._order_moves(rng))

    def _order_moves(self, rng: np.random.Generator) -> tuple[ZYX, ...]:
        """Return the moves in the random order of one example."""
        moves_zyx = [self._moves_zyx[i] for i in rng.permutation(len(self._moves_zyx))]
        if self._train.shuffle_moves == "all" or self._train.fov_policy == "faces":
            return tuple(moves_zyx)
        return tuple(sorted(moves_zyx, key=distance))  # sorting keeps the order of equals

    def patch_box(self, record: Record) -> Box:
        """Return the box of the example at `record`, full-volume voxels."""
        return Box.from_shape(self._patch_size_zyx, subtract(record.center_zyx, self._margin_zyx))

    def check(self, path: str | Path, centers_zyx: np.ndarray, names: np.ndarray) -> None:
        """Check that `make` can make an example of every record."""
        for name, volume in self._volumes.items():
            (rows,) = np.nonzero(names == name)
            start_zyx = centers_zyx[rows] - self._margin_zyx
            stop_zyx = start_zyx + self._patch_size_zyx
            outside = (start_zyx < volume.box.start) | (stop_zyx > volume.box.stop)
            advice = f"Rerun ffn coordinates with a margin of {self._margin_zyx} or more"
            problems = [(outside.any(axis=1), f"leaves the volume {volume.box}. {advice}")]
            for box in self._held_out.get(name, ()):
                near = box.grow(self._shift_zyx)
                shown = (start_zyx < near.stop) & (stop_zyx > near.start)
                advice = "Make the records from a box that excludes it"
                problems.append((shown.all(axis=1), f"overlaps the validation box {box}. {advice}"))
            for bad, problem in problems:
                if bad.any():
                    row = int(rows[bad.argmax()])
                    center = zyx(centers_zyx[row])
                    raise RecordError(
                        f"{path}: record {row + 1} of {len(names)} has center (z, y, x) = {center} in volume {name}, "
                        f"whose patch {self.patch_box(Record(center, name))} {problem}"
                    )


def patch_size(model: ModelConfig, train: TrainConfig) -> ZYX:
    """Return the size of a training patch in voxels: the FOV plus its moves on every side."""
    return add(model.fov_size_zyx, scale(model.deltas_zyx, 2 * train.patch_moves))


def kinds_of(labels: np.ndarray) -> np.ndarray:
    """Return the kinds of voxels, see `Example`, for the object at the central voxel."""
    center_label = labels[tuple(n // 2 for n in labels.shape)]
    kinds = (labels <= 0).view(np.uint8) * np.uint8(UNLABELLED)
    if center_label > 0:
        kinds |= (labels == center_label).view(np.uint8)
    kinds |= is_ignored(labels).view(np.uint8) * np.uint8(NOT_COUNTED)
    return kinds


def loss_weights(unlabelled_weight: float) -> np.ndarray:
    """Return the loss weight of each kind of voxel, float32 (8,)."""
    return np.array([1, 1, unlabelled_weight, unlabelled_weight, 0, 0, 0, 0], np.float32)


def moves(deltas_zyx: ZYX, policy: str = "fixed") -> list[ZYX]:
    """Return the moves to the six face neighbours for the policy ``faces``, else to all neighbours.

    Axes of delta 0 have none.

    Examples
    --------
    >>> moves((0, 2, 8), "faces")
    [(0, -2, 0), (0, 2, 0), (0, 0, -8), (0, 0, 8)]
    >>> len(moves((2, 4, 8)))
    26
    """
    if policy == "faces":
        dz, dy, dx = deltas_zyx
        steps: list[ZYX] = [(dz, 0, 0), (0, dy, 0), (0, 0, dx)]
        return [scale(step, sign) for step in steps if any(step) for sign in (-1, 1)]
    return [zyx(move) for move in itertools.product(*(sorted({-d, 0, d}) for d in deltas_zyx)) if any(move)]


def distance(move_zyx: ZYX) -> int:
    """Return the length of a move along the axes, voxels."""
    return sum(map(abs, move_zyx))


def permute_and_reflect(
    arrays: tuple[np.ndarray, ...], permutable: Sequence[int], reflects: bool, rng: np.random.Generator
) -> list[np.ndarray]:
    """Exchange and reverse axes at random, in the same way for all `arrays`."""
    order = list(range(arrays[0].ndim))
    for axis, source in zip(permutable, rng.permutation(permutable), strict=True):
        order[axis] = int(source)
    flips = tuple(np.flatnonzero((rng.random(arrays[0].ndim) < 0.5) & reflects).tolist())
    return [np.flip(array.transpose(order), flips) for array in arrays]


def draw_shifts(num_slices: int, config: TrainConfig, rng: np.random.Generator) -> np.ndarray:
    """Draw the shifts along y and x of the slices of a misaligned patch against the central one, int64 (num_slices, 2).

    A real stack jumps between two sections and continues from there. So, seen from the centre, all slices beyond a jump
    share its shift until the next jump. Annotators label the stack as it is, with its jumps, so image and labels are
    shifted together.
    """
    shifts = np.zeros((num_slices, 2), np.int64)
    if config.misaligned_slice_rate == 0:
        return shifts
    jumps = rng.random(num_slices) < config.misaligned_slice_rate
    largest = MAX_MISALIGNMENT
    drawn = rng.integers(-largest, largest, (num_slices, 2), endpoint=True)
    center = num_slices // 2
    for step, stop in ((1, num_slices), (-1, -1)):
        for z in range(center + step, stop, step):
            shifts[z] = drawn[z] if jumps[z] else shifts[z - step]
    return shifts


def read_shifted(read: Callable[[Box], np.ndarray], inside: Box, box: Box, shifts: np.ndarray) -> np.ndarray:
    """Read a box whose slice z holds the voxels that lie ``shifts[z]`` further along y and x.

    `inside` is the box that can be read; beyond it, the outermost voxels are repeated.
    """
    reach = int(np.abs(shifts).max())
    if reach == 0:
        return read(box)
    wanted = box.grow((0, reach, reach))
    available = wanted.intersect(inside)
    before, after = subtract(available.start, wanted.start), subtract(wanted.stop, available.stop)
    voxels = np.pad(read(available), list(zip(before, after, strict=True)), mode="edge")
    _, rows, columns = box.shape
    corners = [(reach + y, reach + x) for y, x in shifts.tolist()]
    return np.stack([plane[y : y + rows, x : x + columns] for plane, (y, x) in zip(voxels, corners, strict=True)])


def distort(image: np.ndarray, black: np.float32, config: TrainConfig, rng: np.random.Generator) -> None:
    """Blur slices, change contrast and brightness, and blank slices to `black`, the normalised grey level 0.

    The central slice is never blank, because no seed lies where there is no image.
    """
    if config.blur_rate:
        from scipy.ndimage import gaussian_filter

        blurred = rng.random(len(image)) < config.blur_rate
        image[blurred] = gaussian_filter(image[blurred], (0, BLUR_SIGMA, BLUR_SIGMA))
    if config.contrast_jitter:
        image *= 1 + _symmetric(config.contrast_jitter, rng)
    if config.brightness_jitter:
        image += _symmetric(config.brightness_jitter, rng)
    if config.missing_slice_rate:
        blank = rng.random(len(image)) < config.missing_slice_rate
        blank[len(image) // 2] = False
        image[blank] = black


def _symmetric(largest: float, rng: np.random.Generator) -> np.float32:
    return np.float32(rng.uniform(-largest, largest))
