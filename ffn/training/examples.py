"""A training example: image and soft labels around a record, normalised and augmented."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ffn.config import MAX_VOXEL_SIZE_RATIO, ModelConfig
from ffn.errors import ConfigError, RecordError
from ffn.geometry import ZYX, Box, add, scale, subtract
from ffn.training.config import TrainConfig
from ffn.training.lanes import Record
from ffn.training.volumes import TrainingVolume

OBJECT_LABEL = 0.95  # soft labels (Januszewski et al. 2018)
OTHER_LABEL = 0.05

_AXES = "zyx"


@dataclass(frozen=True)
class Example:
    """One patch and the order in which its neighbours are visited.

    Parameters
    ----------
    image : float32 ndarray of shape (Z, Y, X)
        Normalised grey levels.
    labels : float32 ndarray of shape (Z, Y, X)
        0.95 in the object of the central voxel, 0.05 elsewhere.
    moves_zyx : tuple of (int, int, int)
        Steps from the centre, in order.
    """

    image: np.ndarray
    labels: np.ndarray
    moves_zyx: tuple[ZYX, ...]


class ExampleMaker:
    """Cuts examples out of the training volumes.

    Parameters
    ----------
    volumes : mapping of str to TrainingVolume
        By the name that the records use.
    model : ModelConfig
        FOV, deltas and normalisation (both values set).
    train : TrainConfig
        Augmentation.

    Raises
    ------
    ConfigError
        If augmentation would exchange axes of different patch or voxel size.
    """

    def __init__(self, volumes: Mapping[str, TrainingVolume], model: ModelConfig, train: TrainConfig) -> None:
        assert model.image_mean is not None and model.image_stddev is not None
        self._volumes = volumes
        self._mean, self._stddev = np.float32(model.image_mean), np.float32(model.image_stddev)
        self._patch_size_zyx = patch_size(model)
        self._moves_zyx = moves(model.deltas_zyx)
        self._permutable = axis_numbers(train.permutable_axes)
        self._reflectable = axis_numbers(train.reflectable_axes)
        self._check_permutable()

    def make(self, record: Record, rng: np.random.Generator) -> Example:
        """Return the example at `record`; `rng` decides augmentation and order of the moves.

        Raises
        ------
        RecordError
            If the patch leaves the volume.
        """
        volume, box = self._volumes[record.volume], self._patch_box(record)
        labels = volume.read_labels(box)
        center_label = labels[tuple(n // 2 for n in labels.shape)]
        # a patch centred on background has no object: everything in it is "other"
        mask = (labels == center_label) & (center_label > 0)
        image, mask = augment((volume.read_image(box), mask), self._permutable, self._reflectable, rng)
        order = rng.permutation(len(self._moves_zyx))
        return Example(
            image=np.divide(np.subtract(image, self._mean, dtype=np.float32), self._stddev),
            labels=np.where(mask, np.float32(OBJECT_LABEL), np.float32(OTHER_LABEL)),
            moves_zyx=tuple(self._moves_zyx[i] for i in order),
        )

    def _patch_box(self, record: Record) -> Box:
        half = (self._patch_size_zyx[0] // 2, self._patch_size_zyx[1] // 2, self._patch_size_zyx[2] // 2)
        box = Box.from_shape(self._patch_size_zyx, subtract(record.center_zyx, half))
        volume = self._volumes[record.volume]
        if not volume.box.contains(box):
            raise RecordError(
                f"{record.volume}: the patch {box} around record (z, y, x) = {record.center_zyx} leaves "
                f"the volume {volume.box}. Rerun ffn coordinates with a margin of at least {half}"
            )
        return box

    def _check_permutable(self) -> None:
        for a, b in itertools.pairwise(self._permutable):
            where = f"train.permutable_axes: {_AXES[a]} and {_AXES[b]} cannot be exchanged"
            sizes = self._patch_size_zyx[a], self._patch_size_zyx[b]
            if sizes[0] != sizes[1]:
                raise ConfigError(f"{where}, FOV + 2 deltas are {sizes[0]} and {sizes[1]} voxels there")
            for volume in self._volumes.values():
                voxel_size = volume.voxel_size_zyx_nm or (1.0, 1.0, 1.0)
                low, high = sorted((voxel_size[a], voxel_size[b]))
                if high > MAX_VOXEL_SIZE_RATIO * low:
                    raise ConfigError(f"{where}, voxels of {volume.name} are {low:g} and {high:g} nm there")


def patch_size(model: ModelConfig) -> ZYX:
    """Return the size of a training patch: the FOV and one step on every side, voxels."""
    return add(model.fov_size_zyx, scale(model.deltas_zyx, 2))


def moves(deltas_zyx: ZYX) -> list[ZYX]:
    """Return the steps to the six face neighbours; an axis with delta 0 has none.

    Examples
    --------
    >>> moves((0, 0, 8))
    [(0, 0, -8), (0, 0, 8)]
    """
    steps: list[ZYX] = [(deltas_zyx[0], 0, 0), (0, deltas_zyx[1], 0), (0, 0, deltas_zyx[2])]
    return [scale(step, sign) for step in steps if any(step) for sign in (-1, 1)]


def axis_numbers(axes: tuple[str, ...]) -> tuple[int, ...]:
    """Return array axes by name.

    Examples
    --------
    >>> axis_numbers(("x", "y"))
    (1, 2)
    """
    return tuple(sorted({_AXES.index(axis) for axis in axes}))


def augment(
    arrays: tuple[np.ndarray, ...],
    permutable: tuple[int, ...],
    reflectable: tuple[int, ...],
    rng: np.random.Generator,
) -> list[np.ndarray]:
    """Exchange and reverse axes at random, the same way in all `arrays`.

    Parameters
    ----------
    arrays : tuple of ndarray
        All of one shape.
    permutable, reflectable : tuple of int
        Axes that may be exchanged with each other, and axes that may be reversed.
    rng : Generator
        Source of the choice.

    Returns
    -------
    list of ndarray
        Views.
    """
    order = list(range(arrays[0].ndim))
    for axis, source in zip(permutable, rng.permutation(permutable), strict=True):
        order[axis] = int(source)
    reverse = rng.random(arrays[0].ndim) < 0.5
    flips = tuple(axis for axis in reflectable if reverse[axis])
    return [np.flip(array.transpose(order), flips) for array in arrays]
