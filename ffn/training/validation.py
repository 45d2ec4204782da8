"""Validation during training: scores of the averaged weights on examples that are never trained on or augmented."""

from __future__ import annotations

import hashlib
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from ffn.config import ModelConfig
from ffn.errors import ConfigError
from ffn.geometry import ZYX, Box, add, subtract, zyx
from ffn.io.volume import is_ignored
from ffn.model.normalize import Normalisation
from ffn.sampling.config import PartitionConfig
from ffn.sampling.partition import classify, lom_counts
from ffn.training.config import DISTORTIONS, TrainConfig
from ffn.training.data.examples import NOT_COUNTED, Example, ExampleMaker, Record, generator, patch_size
from ffn.training.data.volumes import BLOCK_ZYX, TrainingVolume
from ffn.training.metrics import F1_OF_SIZES, SIZES, MetricsRow, classification_scores
from ffn.training.parallel.process_group import ProcessGroup
from ffn.training.step import Batch
from ffn.training.walk import NUM_COUNTS, Walk, stack_fovs

THRESHOLDS = PartitionConfig().thresholds
SIZES_FROM = (0.1, 0.4)  # of all but the first; our choice
MAX_BLOCKS = 64  # in which partitions are found, which takes 0.2 s for 10⁶ voxels


class ValidationBox(NamedTuple):
    """A validation box in an open volume."""

    volume: TrainingVolume
    box: Box


Forward = Callable[[Batch], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Validation:
    """One process's part in the validations: all processes validate together, each on a share of the same examples."""

    examples: Sequence[Example]  # of this process: every `group.size`-th
    sizes: Sequence[int]  # row in `SIZES` of the object of each example of all processes
    digest: bytes  # of the examples: scores of others cannot be compared
    model: ModelConfig
    train: TrainConfig
    group: ProcessGroup

    def run(self, forward: Forward, step: int) -> MetricsRow:
        """Walk over all examples."""
        start = time.monotonic()
        results = np.empty((len(self.sizes), 3 + NUM_COUNTS))
        for rank, share in enumerate(self.group.gather(self._walk_share(forward))):
            results[rank :: self.group.size] = share
        # in the order of the examples, whichever process had which
        (loss_sum, weight_sum, num_fovs), counts = np.split(results.sum(axis=0), [3])
        of_sizes = [results[np.equal(self.sizes, size), 3:].sum(axis=0) for size in range(len(SIZES))]
        f1 = [classification_scores(one)["f1"] for one in of_sizes]
        return {
            "step": step,
            "examples": len(results),
            "fovs": int(num_fovs),
            "loss": float(loss_sum / weight_sum),
            **classification_scores(counts),
            "f1": float(np.mean([one for one in f1 if one >= 0] or math.nan)),
            **dict(zip(F1_OF_SIZES, f1, strict=True)),
            "validation_seconds": time.monotonic() - start,
        }

    def _walk_share(self, forward: Forward) -> np.ndarray:
        """Return loss sum, weight sum, FOVs and counts of each example of this process, shape (N, 7)."""
        results = np.zeros((len(self.examples), 3 + NUM_COUNTS))
        waiting = deque(range(len(self.examples)))
        walks: dict[int, Walk] = {}
        # all processes advance together, FOV by FOV, so that the watchdog notices and names one that hangs
        while any(self.group.gather(bool(waiting or walks))):
            while waiting and len(walks) < self.train.batch_size:
                index = waiting.popleft()
                walks[index] = Walk(self.examples[index], self.model, self.train)
            if walks:
                self._make_move(forward, walks, results)
        return results

    def _make_move(self, forward: Forward, walks: dict[int, Walk], results: np.ndarray) -> None:
        """Run the network on the FOVs of all walks; note the results of walks that end, and remove them."""
        batch = stack_fovs(list(walks.values()))
        weights = batch.loss_weight.mean(axis=(1, 2, 3))
        for (index, walk), pom_logit, loss, weight in zip(list(walks.items()), *forward(batch), weights, strict=True):
            results[index, :3] += loss, weight, 1
            walk.write(pom_logit)
            if not walk.advance():
                results[index, 3:] = walk.score()
                del walks[index]


def make_validation(
    boxes: Mapping[str, ValidationBox], model: ModelConfig, train: TrainConfig, rng_seed: int, group: ProcessGroup
) -> Validation | None:
    """Choose the validation examples. All processes call this together."""
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
    radius = zyx(min(r + d, n // 2) for r, d, n in zip(model.fov_radius_zyx, model.deltas_zyx, size, strict=True))
    # only rank 0 draws: all processes would read the same file
    drawn = group.together(lambda: draw_records(boxes, size, radius, count, rng_seed) if group.rank == 0 else ())
    drawn = group.broadcast(drawn)
    records = [(Record(zyx(center), volume), size) for (center, volume), size in drawn]
    volumes = {name: volume for name, (volume, _) in boxes.items()}
    plain = train.model_copy(update={**dict.fromkeys(DISTORTIONS, 0.0), "permutable_axes": ()})
    maker = ExampleMaker(volumes, model, plain, reflects=False)

    def example(number: int) -> Example:
        record, _ = records[number]
        return _example(maker, record, boxes[record.volume].box, generator(rng_seed, "validation example", number))

    examples = group.together(lambda: [example(n) for n in range(group.rank, len(records), group.size)])
    usual = Normalisation.of_model(model)
    known = {name: (box, volume.checksum(), volume.normalisation or usual) for name, (volume, box) in boxes.items()}
    digest = hashlib.sha256(repr((records, known)).encode()).digest()
    return Validation(examples, [size for _, size in records], digest, model, train, group)


def _example(maker: ExampleMaker, record: Record, box: Box, rng: np.random.Generator) -> Example:
    """Return the example at a record, with loss weight 0 outside its validation box."""
    example, patch = maker.make(record, rng), maker.patch_box(record)
    inside = patch.intersect(box).slices(patch.start)
    kinds = example.kinds | np.uint8(NOT_COUNTED)
    kinds[inside] = example.kinds[inside]
    return replace(example, kinds=kinds)


def draw_records(
    boxes: Mapping[str, ValidationBox], patch_size_zyx: ZYX, lom_radius_zyx: ZYX, count: int, rng_seed: int
) -> tuple[tuple[Record, int], ...]:
    """Draw object voxels in the boxes as centres of examples, each with its size, a row in `SIZES`.

    All partitions are drawn equally often, as in training, so that thin neurites count as much as thick ones. Labels
    are read block by block; of many blocks, `MAX_BLOCKS` are drawn.
    """
    for name, box in boxes.items():
        _require_room(name, box, patch_size_zyx)
    blocks = [
        (name, box.volume, block)
        for name, box in boxes.items()
        for block in _center_box(box, patch_size_zyx).blocks(BLOCK_ZYX)
    ]
    rng = generator(rng_seed, "validation")
    if len(blocks) > MAX_BLOCKS:
        blocks = [blocks[i] for i in np.sort(rng.choice(len(blocks), MAX_BLOCKS, replace=False))]
    # every voxel gets a random key, and the voxels with the least keys of each partition are taken
    found: dict[int, list[tuple[float, Record]]] = {}
    for name, volume, block in blocks:
        partitions = _partitions(volume, block, lom_radius_zyx)
        keys = rng.random(partitions.shape, np.float32)
        for partition in np.unique(partitions[partitions > 0]).tolist():
            voxels = np.argwhere(partitions == partition)
            of_voxels = keys[tuple(voxels.T)]
            records = [
                (float(of_voxels[i]), Record(zyx(voxels[i] + block.start), name))
                for i in np.argsort(of_voxels, kind="stable")[:count]
            ]
            found[partition] = sorted([*found.get(partition, []), *records], key=itemgetter(0))[:count]
    if not found:
        where = ", ".join(f"{name} {box}" for name, (_, box) in boxes.items())
        missing = f"no patch of {patch_size_zyx} voxels in {where} is centred on an object"
        raise ConfigError(f"--validate: {missing}. Choose a box with labelled objects")
    shares = np.array_split(np.arange(count), len(found))
    return tuple(
        (record, _size_of(partition))
        for (partition, records), share in zip(sorted(found.items()), shares, strict=True)
        for _, record in records[: len(share)]
    )


def _size_of(partition: int) -> int:
    """Return the row in `SIZES` of the objects of a partition."""
    return int(np.searchsorted(SIZES_FROM, THRESHOLDS[partition - 2] if partition > 1 else 0.0, side="right"))


def _partitions(volume: TrainingVolume, block: Box, lom_radius_zyx: ZYX) -> np.ndarray:
    """Return the partition of each voxel as `ffn partition` does; 0 where no object is."""
    wide = block.grow(lom_radius_zyx)
    labels = np.ascontiguousarray(volume.read_labels(wide)).astype(np.uint64)
    inside = labels[block.slices(wide.start)]
    objects = np.unique(inside[(inside > 0) & ~is_ignored(inside)])
    return classify(lom_counts(labels, lom_radius_zyx, objects), lom_radius_zyx, THRESHOLDS)


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
        found = f"{where} has no voxel whose patch of {patch_size_zyx} lies in the labelled part of the image"
        raise ConfigError(f"{found}, {labelled}. Move it away from the border")
