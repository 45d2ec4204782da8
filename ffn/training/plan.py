"""The checked inputs of a training job: data, network, initial weights."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import ValidationError

from ffn.config import Mask, ModelConfig, Normalize, explain
from ffn.errors import ModelError, RecordError, VolumeError
from ffn.geometry import Box
from ffn.io import training_records
from ffn.io.masks import identities
from ffn.io.volume import is_same_source
from ffn.model.store import Model, load_model, weights_checksum
from ffn.options import option_name
from ffn.provenance import revision
from ffn.training.checkpoint import is_checkpoint, load_checkpoint
from ffn.training.config import TrainConfig
from ffn.training.data.examples import Example, ExampleMaker
from ffn.training.data.lanes import COLUMNS, LaneStream, RecordShards, generator
from ffn.training.data.volumes import TrainingVolume, block_statistics, mean_and_stddev
from ffn.training.initial import initial_weights
from ffn.training.parallel.node_array import NodeArray, node_array
from ffn.training.parallel.process_group import ProcessGroup


class ValidationSource(NamedTuple):
    """A validation box and the files of its volume."""

    image: str
    labels: str
    box: Box


@dataclass(frozen=True)
class TrainingData:
    """The files that training reads; mappings are by the names of volumes in the records."""

    records: str  # folder of TFRecord shards with ``index.json``
    volumes: Mapping[str, tuple[str, str]]  # image and labels to train on
    validation: Mapping[str, ValidationSource] = field(default_factory=dict)  # a name in `volumes` means the same files
    normalize: Mapping[str, Normalize] = field(default_factory=dict)  # see `ffn.config.ImageConfig`
    masks: Mapping[str, tuple[Mask, ...]] = field(default_factory=dict)  # voxels whose grey levels do not count

    @property
    def held_out(self) -> dict[str, list[Box]]:
        """Validation boxes by volume to train on: those of the same image or labels count, whatever their name."""
        return {
            name: [
                source.box
                for other, source in self.validation.items()
                if other == name or is_same_source(source.image, image) or is_same_source(source.labels, labels)
            ]
            for name, (image, labels) in self.volumes.items()
        }


class Training(NamedTuple):
    """A training that was asked for."""

    data: TrainingData
    model: ModelConfig  # architecture; with `init`, only the fields that were set explicitly count, see `choose_model`
    config: TrainConfig
    rng_seed: int  # of everything random
    init: str | None = None  # model folder or checkpoint to start from; by default, weights are new
    stage_to: str | None = None  # folder on the node, where records, volumes and masks are copied first, once per node


@dataclass(frozen=True)
class TrainingPlan:
    """A checked training job."""

    train: TrainConfig
    rng_seed: int
    initial: Model
    shards: RecordShards
    maker: ExampleMaker
    data_checksums: Mapping[str, Any]

    def workers(self, rank: int) -> range:
        """Return the virtual workers of a process, by their numbers among all."""
        return range(rank * self.train.virtual_workers, (rank + 1) * self.train.virtual_workers)

    def lanes(self, rank: int) -> range:
        """Return the lanes of a process: those of its virtual workers, one after the other."""
        workers = self.workers(rank)
        return range(workers.start * self.train.batch_size, workers.stop * self.train.batch_size)

    def example_source(self, lanes: range) -> Callable[[int, int], Example]:
        """Return a function from lane and position to an example. It is not thread-safe."""
        streams = {lane: LaneStream(self.shards, lane, self.train.num_lanes, self.rng_seed) for lane in lanes}
        return lambda lane, position: self.maker.make(
            streams[lane].record(position), generator(self.rng_seed, "example", lane, position)
        )

    def load_records(self, group: ProcessGroup) -> None:
        """Read and check all records, and keep them, once on each machine. All processes call this together."""
        shared = node_array(group, (self.shards.total, COLUMNS), np.int32)
        group.together(lambda: self._fill(shared))
        self.shards.keep(shared.array, self.maker.volume_names)

    def _fill(self, table: NodeArray) -> None:
        """Fill this process's share of a table of all records: that of every `num_shares`-th shard."""
        for index in range(table.share, len(self.shards.paths), table.num_shares):
            centers_zyx, names = self.shards.read(index)
            self.maker.check(self.shards.paths[index], centers_zyx, names)
            volumes = np.stack([names == name for name in self.maker.volume_names]).argmax(axis=0)
            table.array[self.shards.rows(index)] = np.column_stack((centers_zyx, volumes))

    def fingerprint(self) -> dict[str, Any]:
        """Return everything that the weights after a given number of steps depend on.

        How many processes share the workers out does not matter: see `pairwise_sum`. The batch size of a worker
        does, because the sums over its FOVs are TensorFlow's.
        """
        return {
            "model": self.initial.config.model_dump(mode="json"),
            "train": self.train.decisive(),
            "num_lanes": self.train.num_lanes,
            "rng_seed": self.rng_seed,
            "revision": revision("train"),
            "layout": 2,  # of checkpoints
            "initial_weights": weights_checksum(self.initial.weights),
            **self.data_checksums,
        }


def make_training_plan(
    data: TrainingData,
    volumes: Mapping[str, TrainingVolume],
    initial: Model,
    config: TrainConfig,
    rng_seed: int,
) -> TrainingPlan:
    """Check that records, volumes, network and options fit together."""
    folder, index = Path(data.records), training_records.load_index(data.records)
    unknown = sorted(set(index.volumes) - set(volumes))
    if unknown:
        raise RecordError(
            f"{folder}: found records of volume '{unknown[0]}', expected only {sorted(volumes)}. "
            f"Add --volume {unknown[0]}=IMAGE,LABELS"
        )
    counts = [shard.num_records for shard in index.shards]
    checksums = {
        "records": hashlib.sha256(index.model_dump_json(exclude={"provenance"}).encode()).hexdigest(),
        "volumes": {name: volume.checksum() for name, volume in volumes.items()},
    }
    # those of volumes for validation alone decide scores, see `make_validation_set`
    if methods := {name: str(method) for name, method in data.normalize.items() if name in volumes}:
        checksums["normalize"] = methods
    if masked := {name: identities({}, masks) for name, masks in data.masks.items() if name in volumes}:
        checksums["masks"] = masked
    plan = TrainingPlan(
        config,
        rng_seed,
        initial,
        RecordShards([folder / shard.file for shard in index.shards], counts, training_records.read_shard),
        ExampleMaker(volumes, initial.config, config, data.held_out),
        checksums,
    )
    plan.shards.require_lanes(config.num_lanes)
    return plan


def choose_model(wanted: ModelConfig, init_folder: str | None, rng_seed: int, remeasures: bool = True) -> Model:
    """Return the network that training starts from."""
    if init_folder is None:
        return Model(wanted, initial_weights(wanted, rng_seed), {})
    model = load_checkpoint(init_folder) if is_checkpoint(init_folder) else load_model(init_folder)
    given = {name: getattr(wanted, name) for name in wanted.model_fields_set}
    for name in ("depth", "features"):
        wanted_value, found = given.get(name), getattr(model.config, name)
        if wanted_value not in (None, found):
            raise ModelError(
                f"--{name}: found {wanted_value}, expected {found} as in the model {init_folder}. Omit the option"
            )
    forgotten = dict.fromkeys(("image_mean", "image_stddev")) if remeasures else {}
    try:
        config = ModelConfig(**{**model.config.model_dump(), **forgotten, **given})
    except ValidationError as error:
        raise ModelError(explain(error, lambda path: option_name(path[0]) if path else "options")) from None
    return replace(model, config=config)


def with_normalisation(model: Model, volumes: Mapping[str, TrainingVolume], group: ProcessGroup) -> Model:
    """Return `model` with missing image mean and standard deviation measured where both image and labels exist.

    All processes call this together. Each measures a share of the blocks.
    """
    config = model.config
    if config.image_mean is not None and config.image_stddev is not None:
        return model
    shares = group.gather([block_statistics(volume, group.rank, group.size) for volume in volumes.values()])
    statistics = [block for share in shares for blocks in share for block in blocks]
    if not any(count for count, *_ in statistics):
        found = f"{', '.join(volumes)}: every image voxel is masked"
        group.fail(VolumeError(f"{found}, expected some that count. Correct the masks"))
    mean, stddev = mean_and_stddev(statistics)
    if not stddev > 0:
        found = f"every image voxel is {mean:g}" if stddev == 0 else "some image voxels are not finite"
        group.fail(VolumeError(f"{', '.join(volumes)}: {found}, expected finite grey levels that vary"))
    measured = {
        "image_mean": mean if config.image_mean is None else config.image_mean,
        "image_stddev": stddev if config.image_stddev is None else config.image_stddev,
    }
    return replace(model, config=config.model_copy(update=measured))
