"""The examples that training is validated on: drawn once from the seed, never augmented."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ffn.config import ModelConfig
from ffn.errors import ConfigError
from ffn.geometry import ZYX, Box, add, subtract, zyx
from ffn.training.config import TrainConfig
from ffn.training.data.examples import Example, ExampleMaker, patch_size
from ffn.training.data.lanes import Record
from ffn.training.data.randomness import generator
from ffn.training.data.volumes import BLOCK_ZYX, TrainingVolume
from ffn.training.parallel.process_group import ProcessGroup

WITHOUT_AUGMENTATION = {
    "permutable_axes": (),
    "reflectable_axes": (),
    "contrast_jitter": 0.0,
    "brightness_jitter": 0.0,
    "gamma_jitter": 0.0,
    "missing_slice_rate": 0.0,
    "misaligned_slice_rate": 0.0,
    "blur_rate": 0.0,
}


class ValidationPlace(NamedTuple):
    """Where validation examples come from.

    Parameters
    ----------
    volume : TrainingVolume
        Image and truth.
    box : Box
        Where the examples are centred, and all that is scored of them, full-volume voxels. A patch may reach beyond
        it, so that a slab thinner than a patch can be validated on.
    """

    volume: TrainingVolume
    box: Box


@dataclass(frozen=True)
class ValidationSet:
    """The validation examples of a job, the same on all processes.

    Parameters
    ----------
    records : tuple of Record
        Their centres.
    boxes : mapping of str to Box
        What is scored, by volume.
    maker : ExampleMaker
        Cuts them out.
    rng_seed : int
        Seed of the run.
    digest : bytes
        Of all that decides the scores beside network and options; scores of another digest cannot be compared.
    """

    records: tuple[Record, ...]
    boxes: Mapping[str, Box]
    maker: ExampleMaker
    rng_seed: int
    digest: bytes

    def example(self, number: int) -> Example:
        """Return an example, with loss weight 0 outside of its box; it is the same every time."""
        record = self.records[number]
        example = self.maker.make(record, generator(self.rng_seed, "validation example", number))
        patch = self.maker.patch_box(record)
        inside = patch.intersect(self.boxes[record.volume])
        if inside == patch:
            return example
        loss_weight = np.zeros_like(example.loss_weight)
        loss_weight[inside.slices(patch.start)] = example.loss_weight[inside.slices(patch.start)]
        return replace(example, loss_weight=loss_weight)


def make_validation_set(
    places: Mapping[str, ValidationPlace], model: ModelConfig, train: TrainConfig, rng_seed: int, group: ProcessGroup
) -> ValidationSet | None:
    """Choose the examples that training is validated on; all processes call this together.

    Parameters
    ----------
    places : mapping of str to ValidationPlace
        Where they come from, by name.
    model : ModelConfig
        FOV, deltas and normalisation (both values set).
    train : TrainConfig
        Number of examples, FOV policy and interval.
    rng_seed : int
        Seed of the run.
    group : ProcessGroup
        The processes of the job.

    Returns
    -------
    ValidationSet or None
        None if there is no place or training is never validated.

    Raises
    ------
    ConfigError
        If a box leaves its volume, or no patch of the volume is centred on an object in it; or if the best weights
        are wanted and there is no validation.
    """
    if not places or not train.validation_steps:
        if train.use_best:
            group.fail(
                ConfigError("train.use_best: true, but training is not validated, expected --validate and an interval")
            )
        return None
    records = group.broadcast(group.together(lambda: _records_of_rank_0(places, model, train, rng_seed, group.rank)))
    volumes = {name: place.volume for name, place in places.items()}
    maker = ExampleMaker(volumes, model, train.model_copy(update=WITHOUT_AUGMENTATION))
    checksums = {name: volume.checksum() for name, volume in volumes.items()}
    boxes = {name: place.box for name, place in places.items()}
    digest = hashlib.sha256(repr((records, boxes, checksums)).encode()).digest()
    return ValidationSet(records, boxes, maker, rng_seed, digest)


def draw_records(
    places: Mapping[str, ValidationPlace], patch_size_zyx: ZYX, count: int, rng_seed: int
) -> tuple[Record, ...]:
    """Draw voxels of objects in the boxes, all with the same chance; fewer if there are fewer.

    Parameters
    ----------
    places : mapping of str to ValidationPlace
        Boxes with at least one voxel whose patch lies in the volume.
    patch_size_zyx : tuple of int
        Voxels.
    count : int
        How many are wanted.
    rng_seed : int
        Seed of the run.

    Raises
    ------
    ConfigError
        If there is none.

    Notes
    -----
    Labels are read block by block, those of chosen voxels twice.
    """
    blocks = [
        (name, place.volume, block)
        for name, place in places.items()
        for block in _center_box(place, patch_size_zyx).blocks(BLOCK_ZYX)
    ]
    stops = np.cumsum([np.count_nonzero(volume.read_labels(block) > 0) for _, volume, block in blocks])
    if not stops[-1]:
        boxes = ", ".join(f"{name} {place.box}" for name, place in places.items())
        raise ConfigError(f"--validate: no patch of {patch_size_zyx} voxels in {boxes} is centred on an object")
    chosen = generator(rng_seed, "validation").choice(stops[-1], min(count, stops[-1]), replace=False)
    records: list[Record] = []
    for (name, volume, block), start, stop in zip(blocks, [0, *stops[:-1]], stops, strict=True):
        here = np.sort(chosen[(chosen >= start) & (chosen < stop)]) - start
        if len(here):
            voxels = np.argwhere(volume.read_labels(block) > 0)[here] + block.start
            records += [Record(zyx(voxel), name) for voxel in voxels]
    return tuple(records)


def _records_of_rank_0(
    places: Mapping[str, ValidationPlace], model: ModelConfig, train: TrainConfig, rng_seed: int, rank: int
) -> tuple[Record, ...]:
    """Check the boxes and draw from them; the other processes wait, all of them would read the same file."""
    if rank != 0:
        return ()
    size = patch_size(model, train)
    for name, place in places.items():
        _require_room(name, place, size)
    return draw_records(places, size, train.validation_examples, rng_seed)


def _center_box(place: ValidationPlace, patch_size_zyx: ZYX) -> Box:
    """Voxels of the box whose patch lies in the volume."""
    half = zyx(n // 2 for n in patch_size_zyx)
    rest = subtract(patch_size_zyx, half)
    whole = place.volume.box
    return place.box.intersect(Box(add(whole.start, half), add(subtract(whole.stop, rest), (1, 1, 1))))


def _require_room(name: str, place: ValidationPlace, patch_size_zyx: ZYX) -> None:
    where = f"--validate {name}: {place.box}"
    if not place.volume.box.contains(place.box):
        raise ConfigError(f"{where} leaves the labelled part of the image, {place.volume.box}")
    if _center_box(place, patch_size_zyx).is_empty:
        raise ConfigError(
            f"{where} has no voxel whose patch of {patch_size_zyx} lies in the labelled part of the image, "
            f"{place.volume.box}. Move it away from the border"
        )
