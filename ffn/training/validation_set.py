"""The validation examples: drawn once from the random seed, never augmented."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ffn.config import ModelConfig
from ffn.errors import ConfigError
from ffn.geometry import ZYX, Box, add, subtract, zyx
from ffn.io.volume import is_ignored
from ffn.model.normalize import Normalisation
from ffn.training.config import TrainConfig
from ffn.training.data.examples import Example, ExampleMaker, patch_size
from ffn.training.data.lanes import Record
from ffn.training.data.randomness import generator
from ffn.training.data.volumes import BLOCK_ZYX, TrainingVolume
from ffn.training.parallel.process_group import ProcessGroup

WITHOUT_AUGMENTATION = {
    "permutable_axes": (),
    "contrast_jitter": 0.0,
    "brightness_jitter": 0.0,
    "gamma_jitter": 0.0,
    "missing_slice_rate": 0.0,
    "misaligned_slice_rate": 0.0,
    "blur_rate": 0.0,
}


class ValidationBox(NamedTuple):
    """A validation box in an open volume.

    Parameters
    ----------
    volume : TrainingVolume
        Image and ground truth.
    box : Box
        Examples are centred and scored in this box, full-volume voxels. Their patches may reach beyond it, so that a
        slab thinner than a patch can serve for validation.
    """

    volume: TrainingVolume
    box: Box


@dataclass(frozen=True)
class ValidationSet:
    """The validation examples of a job, the same on all processes.

    Parameters
    ----------
    records : tuple of Record
        Centres of the examples.
    boxes : mapping of str to Box
        Validation boxes by volume name. Only voxels inside are scored.
    maker : ExampleMaker
        Cuts the examples out of the volumes.
    rng_seed : int
        Seed of the run.
    digest : bytes
        Digest of everything that decides the scores besides network and options. Only scores of the same digest can be
        compared.
    """

    records: tuple[Record, ...]
    boxes: Mapping[str, Box]
    maker: ExampleMaker
    rng_seed: int
    digest: bytes

    def example(self, number: int) -> Example:
        """Return example `number`, with loss weight 0 outside its validation box. It is the same every time."""
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
    boxes: Mapping[str, ValidationBox], model: ModelConfig, train: TrainConfig, rng_seed: int, group: ProcessGroup
) -> ValidationSet | None:
    """Choose the validation examples. All processes call this together.

    Parameters
    ----------
    boxes : mapping of str to ValidationBox
        Validation boxes by volume name.
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
        None without validation boxes, or if training is never validated.

    Raises
    ------
    ConfigError
        If a box leaves its volume, if no patch of the volume is centred on an object in the boxes, or if the model
        should get the best weights and there is no validation.
    """
    if not boxes or not train.validation_steps:
        if train.use_best:
            group.fail(
                ConfigError(
                    "train.use_best: found true without a validation, expected --validate and train.validation_steps "
                    "above 0"
                )
            )
        return None
    size, count = patch_size(model, train), train.validation_examples
    # only rank 0 draws: all processes would read the same file
    drawn = group.together(lambda: draw_records(boxes, size, count, rng_seed) if group.rank == 0 else ())
    records = tuple(Record(*record) for record in group.broadcast(drawn))
    volumes = {name: volume for name, (volume, _) in boxes.items()}
    maker = ExampleMaker(volumes, model, train.model_copy(update=WITHOUT_AUGMENTATION), reflects=False)
    checksums = {name: volume.checksum() for name, volume in volumes.items()}
    scored, usual = {name: box for name, (_, box) in boxes.items()}, Normalisation.of_model(model)
    decisive: tuple[object, ...] = (records, scored, checksums)
    normalised = {name: volume.normalisation or usual for name, volume in volumes.items()}
    if others := {name: str(method) for name, method in normalised.items() if method != usual}:
        decisive = (*decisive, others)
    digest = hashlib.sha256(repr(decisive).encode()).digest()
    return ValidationSet(records, scored, maker, rng_seed, digest)


def draw_records(
    boxes: Mapping[str, ValidationBox], patch_size_zyx: ZYX, count: int, rng_seed: int
) -> tuple[Record, ...]:
    """Draw object voxels in the boxes, all with the same probability, as centres of examples.

    Parameters
    ----------
    boxes : mapping of str to ValidationBox
        Where to draw.
    patch_size_zyx : tuple of int
        Size of a patch, voxels.
    count : int
        Number of records. There may be fewer object voxels.
    rng_seed : int
        Seed of the run.

    Raises
    ------
    ConfigError
        If a box leaves its volume, or holds no voxel whose patch lies there, or if no such voxel is of an object.

    Notes
    -----
    Labels are read block by block, and twice in blocks that hold chosen voxels.
    """
    for name, box in boxes.items():
        _require_room(name, box, patch_size_zyx)
    blocks = [
        (name, box.volume, block)
        for name, box in boxes.items()
        for block in _center_box(box, patch_size_zyx).blocks(BLOCK_ZYX)
    ]
    stops = np.cumsum([np.count_nonzero(_is_object(volume, block)) for _, volume, block in blocks])
    if not stops[-1]:
        found = ", ".join(f"{name} {box}" for name, (_, box) in boxes.items())
        raise ConfigError(
            f"--validate: no patch of {patch_size_zyx} voxels in {found} is centred on an object. Choose a box with "
            "labelled objects"
        )
    chosen = generator(rng_seed, "validation").choice(stops[-1], min(count, stops[-1]), replace=False)
    records: list[Record] = []
    for (name, volume, block), start, stop in zip(blocks, [0, *stops[:-1]], stops, strict=True):
        here = np.sort(chosen[(chosen >= start) & (chosen < stop)]) - start
        if len(here):
            voxels = np.argwhere(_is_object(volume, block))[here] + block.start
            records += [Record(zyx(voxel), name) for voxel in voxels]
    return tuple(records)


def _is_object(volume: TrainingVolume, box: Box) -> np.ndarray:
    """Return which voxels have a label that counts."""
    labels = volume.read_labels(box)
    return (labels > 0) & ~is_ignored(labels)


def _center_box(box: ValidationBox, patch_size_zyx: ZYX) -> Box:
    """Voxels of the box whose patch lies in the volume."""
    half = zyx(n // 2 for n in patch_size_zyx)
    rest = subtract(patch_size_zyx, half)
    whole = box.volume.box
    return box.box.intersect(Box(add(whole.start, half), add(subtract(whole.stop, rest), (1, 1, 1))))


def _require_room(name: str, box: ValidationBox, patch_size_zyx: ZYX) -> None:
    where, labelled = f"--validate {name}: {box.box}", box.volume.box
    if not labelled.contains(box.box):
        raise ConfigError(f"{where} leaves the labelled part of the image, {labelled}. Choose a box inside")
    if _center_box(box, patch_size_zyx).is_empty:
        raise ConfigError(
            f"{where} has no voxel whose patch of {patch_size_zyx} lies in the labelled part of the image, "
            f"{labelled}. Move it away from the border"
        )
