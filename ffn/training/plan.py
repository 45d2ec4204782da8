"""The inputs of a training job: what the command line names, and the checked data, network and initial weights."""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from pydantic import ValidationError

from ffn.config import ImageConfig, Mask, ModelConfig, Normalize
from ffn.errors import ConfigError, ModelError, RecordError, VolumeError, explain
from ffn.geometry import Box
from ffn.io import training_records
from ffn.io.masks import identities
from ffn.io.volume import is_same_source
from ffn.model.network import Weights, weight_shapes
from ffn.model.store import Model, load_model, weights_checksum
from ffn.options import option_name, parse_named, whole_number
from ffn.provenance import revision
from ffn.training.checkpoint import is_checkpoint, load_checkpoint
from ffn.training.config import TrainConfig, require_stages
from ffn.training.data.examples import COLUMNS, Example, ExampleMaker, LaneStream, RecordTable, generator
from ffn.training.data.volumes import TrainingVolume, block_statistics, mean_and_stddev
from ffn.training.parallel.process_group import ProcessGroup

T = TypeVar("T")


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


@dataclass(frozen=True)
class TrainingPlan:
    """A checked training job."""

    train: TrainConfig
    rng_seed: int
    initial: Model
    records: RecordTable
    maker: ExampleMaker
    data_checksums: Mapping[str, Any]

    def workers(self, rank: int) -> range:
        """Return the virtual workers of a process, by their numbers among all."""
        return range(rank * self.train.virtual_workers, (rank + 1) * self.train.virtual_workers)

    def lanes(self, rank: int) -> range:
        """Return the lanes of a process: those of its virtual workers, one after the other."""
        workers = self.workers(rank)
        return range(workers.start * self.train.batch_size, workers.stop * self.train.batch_size)

    def example_source(self, lanes: Iterable[int]) -> Callable[[int, int], Example]:
        """Return a function from lane and position to an example, which several threads may call."""
        streams = {lane: LaneStream(self.records, lane, self.train.num_lanes, self.rng_seed) for lane in lanes}
        return lambda lane, position: self.maker.make(
            streams[lane].record(position), generator(self.rng_seed, "example", lane, position)
        )

    def load_records(self, group: ProcessGroup) -> None:
        """Read and check all records, and keep them. All processes call this together."""
        self.records.rows = group.together(self._rows)

    def _rows(self) -> np.ndarray:
        """Return a table of all records."""
        records, rows = self.records, np.empty((self.records.total, COLUMNS), np.int32)
        for path, start in zip(records.paths, records.starts, strict=True):
            centers_zyx, names = training_records.read_shard(path)
            self.maker.check(path, centers_zyx, names)
            volumes = np.stack([names == name for name in records.volumes]).argmax(axis=0)
            rows[start : start + len(names)] = np.column_stack((centers_zyx, volumes))
        return rows

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
            "initial_weights": weights_checksum(self.initial.weights),
            **self.data_checksums,
        }

    def identity(self) -> str:
        """Return a digest of the `fingerprint` without the precision, which rank 0 may still have to choose."""
        whole = self.fingerprint()
        whole["train"].pop("precision")
        return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()


def make_training_plan(
    data: TrainingData, volumes: Mapping[str, TrainingVolume], initial: Model, config: TrainConfig, rng_seed: int
) -> TrainingPlan:
    """Check that records, volumes, network and options fit together."""
    require_stages(config, initial.config)
    folder, index = Path(data.records), training_records.load_index(data.records)
    unknown = sorted(set(index.volumes) - set(volumes))
    if unknown:
        found = f"{folder}: found records of volume '{unknown[0]}', expected only {sorted(volumes)}"
        raise RecordError(f"{found}. Add --volume {unknown[0]}=IMAGE,LABELS")
    shards = {folder / shard.file: shard.num_records for shard in index.shards}
    checksums = {
        "records": hashlib.sha256(index.model_dump_json(exclude={"provenance"}).encode()).hexdigest(),
        "volumes": {name: volume.checksum() for name, volume in volumes.items()},
        # those of volumes for validation alone decide scores, see `Validation.digest`
        "normalize": {name: str(method) for name, method in data.normalize.items() if name in volumes},
        "masks": {name: identities({}, masks) for name, masks in data.masks.items() if name in volumes},
    }
    plan = TrainingPlan(
        config,
        rng_seed,
        initial,
        RecordTable(list(shards), list(shards.values()), list(volumes)),
        ExampleMaker(volumes, initial.config, config, data.held_out),
        checksums,
    )
    plan.records.require_lanes(config.num_lanes)
    return plan


def choose_model(
    wanted: ModelConfig,
    init_folder: str | None,
    rng_seed: int,
    remeasures: bool = True,
    initial: Literal["he", "glorot"] = "he",
) -> Model:
    """Return the network that training starts from."""
    if init_folder is None:
        return Model(wanted, initial_weights(wanted, rng_seed, initial), {})
    model = load_checkpoint(init_folder) if is_checkpoint(init_folder) else load_model(init_folder)
    require_network(wanted, model.config, init_folder)
    given = {name: getattr(wanted, name) for name in wanted.model_fields_set}
    forgotten = dict.fromkeys(("image_mean", "image_stddev")) if remeasures else {}
    try:
        config = ModelConfig(**{**model.config.model_dump(), **forgotten, **given})
    except ValidationError as error:
        raise ModelError(explain(error, lambda path: option_name(path[0]) if path else "options")) from None
    return replace(model, config=config)


def require_network(wanted: ModelConfig, own: ModelConfig, init: str) -> None:
    """Refuse a network of another size than that of the initial weights, if it was asked for."""
    for name in ("depth", "features"):
        asked, found = getattr(wanted, name), getattr(own, name)
        if name in wanted.model_fields_set and asked != found:
            raise ConfigError(f"model.{name}: found {asked}, expected {found} as in {init}. Leave the option out")


def with_normalisation(model: Model, volumes: Mapping[str, TrainingVolume], group: ProcessGroup) -> Model:
    """Return `model` with missing image mean and standard deviation measured where both image and labels exist.

    All processes call this together. Each measures a share of the blocks.
    """
    config = model.config
    if config.image_mean is not None and config.image_stddev is not None:
        return model
    shares = group.gather([block_statistics(volume, group.rank, group.size) for volume in volumes.values()])
    mean, stddev = mean_and_stddev([block for share in shares for blocks in share for block in blocks])
    if not stddev > 0:
        group.fail(
            VolumeError(
                f"{', '.join(volumes)}: the grey levels have mean {mean:g} and standard deviation {stddev:g}, expected "
                "finite ones that vary, in voxels that are not masked"
            )
        )
    measured = {"image_mean": mean, "image_stddev": stddev}
    missing = {name: value for name, value in measured.items() if getattr(config, name) is None}
    return replace(model, config=config.model_copy(update=missing))


def add_data_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options for the data of training and validation."""
    parser.add_argument("--records", required=True, metavar="FOLDER", help="records folder, as 'ffn records' writes it")
    files = "image and labels, each NAME.zarr or FILE.h5:DATASET, of the volume NAME in the records; repeatable"
    parser.add_argument("--volume", required=True, action="append", metavar="NAME=IMAGE,LABELS", help=files)
    for option, metavar, text in (
        (
            "--normalize",
            "NAME=METHOD",
            "grey levels of the volume NAME: training, volume, match or MEAN,STDDEV (default: training)",
        ),
        ("--masks", "NAME=MASK", "voxels of NAME whose grey levels do not count, such as a=soma.zarr#invert"),
        ("--validate", "NAME=IMAGE,LABELS,Z0:Z1,Y0:Y1,X0:X1", "validation box in a volume, never trained on"),
    ):
        parser.add_argument(option, default=[], action="append", metavar=metavar, help=f"{text}; repeatable")
    parser.add_argument(
        "--rng-seed", type=whole_number, default=1, metavar="INT", help="seed of everything random (default: 1)"
    )


def training_data(arguments: argparse.Namespace, validate: list[str] | None = None) -> TrainingData:
    """Return the files that the options name; without validation, options may name volumes that are not read."""
    volumes = parse_volumes(arguments.volume)
    validation = parse_validation(validate or [], volumes)
    methods, masks = parse_normalize(arguments.normalize), parse_masks(arguments.masks)
    for option, named in (("--normalize", methods), ("--masks", masks)):
        known = named if validate is None else {**volumes, **validation}
        if unknown := [name for name in named if name not in known]:
            raise ConfigError(f"{option}: found volume {unknown[0]!r}, expected one of {', '.join(known)}")
    return TrainingData(arguments.records, volumes, validation, methods, masks)


def parse_volumes(items: list[str]) -> dict[str, tuple[str, str]]:
    """Return image and labels by volume name, from ``NAME=IMAGE,LABELS``."""
    return _by_name("--volume", items, "IMAGE,LABELS", lambda image, labels: (image, labels))


def parse_validation(
    items: list[str], volumes: dict[str, tuple[str, str]], option: str = "--validate"
) -> dict[str, ValidationSource]:
    """Return the validation boxes by volume name, from ``NAME=IMAGE,LABELS,BOX``."""

    def source(image: str, labels: str, box: str) -> ValidationSource:
        return ValidationSource(image, labels, Box.parse(box))

    sources = _by_name(option, items, "IMAGE,LABELS,BOX", source)
    for name, (image, labels, _) in sources.items():
        if volumes.get(name, (image, labels)) != (image, labels):
            expected = ",".join(volumes[name])
            raise ConfigError(f"{option} {name}: found {image},{labels}, expected {expected} as for --volume")
    return sources


def parse_normalize(items: list[str]) -> dict[str, Normalize]:
    """Return how volumes are normalised by their names, from ``NAME=METHOD``."""
    return _by_name("--normalize", items, "METHOD", lambda method: ImageConfig(normalize=method).normalize)


def parse_masks(items: list[str]) -> dict[str, tuple[Mask, ...]]:
    """Return the masks of volumes by their names, from ``NAME=MASK``; a volume may have several."""
    masks: dict[str, tuple[Mask, ...]] = {}
    for item in items:
        for name, mask in _by_name("--masks", [item], "MASK", Mask.model_validate).items():
            masks[name] = (*masks.get(name, ()), mask)
    return masks


def _by_name(option: str, items: list[str], form: str, convert: Callable[..., T]) -> dict[str, T]:
    """Convert the parts of ``NAME=PART,PART`` items, by name; the last part may contain commas."""
    found = {}
    for name, rest in parse_named(option, items).items():
        parts = rest.split(",", form.count(","))
        if len(parts) <= form.count(",") or not all(parts):
            raise ConfigError(f"{option}: found {name}={rest}, expected NAME={form}")
        try:
            found[name] = convert(*parts)
        except ValidationError as error:
            raise ConfigError(explain(error, lambda _: f"{option} {name}")) from None  # noqa: B023
        except ConfigError as error:
            raise ConfigError(f"{option} {name}: {error}") from None
    return found


# With He's scale every residual module doubles the variance, so at depth 12 the first POM update would have a standard
# deviation of 22 logits. Up to this many modules, undamped networks trained well in our runs.
UNDAMPED_MODULES = 4


def initial_weights(config: ModelConfig, rng_seed: int, initial: Literal["he", "glorot"] = "he") -> Weights:
    """Draw the initial weights; biases are 0.

    ``he``: kernels are normal after He et al. 2015. In networks of more than four residual modules, the last kernel of
    each module is scaled down. On the phantom, these reach the same loss as ``glorot`` in half the FOVs. ``glorot``:
    kernels are uniform after Glorot and Bengio 2010, as tf_slim draws those of google/ffn and Dong et al. 2019.
    """
    rng = generator(rng_seed, "weights")
    draw = _glorot_uniform if initial == "glorot" else _he_normal
    weights = {
        name: np.zeros(shape, np.float32) if len(shape) == 1 else draw(shape, rng)
        for name, shape in weight_shapes(config).items()
    }
    if initial == "glorot":
        return weights
    damping = np.float32(np.sqrt(max(1.0, (config.depth - 1) / UNDAMPED_MODULES)))
    for module in range(1, config.depth):
        weights[f"conv{module}_b/weights"] /= damping
    return weights


def _glorot_uniform(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    fan_in, fan_out = np.prod(shape[:-1]), np.prod(shape[:-2]) * shape[-1]
    limit = np.sqrt(6 / (fan_in + fan_out))
    return rng.uniform(-limit, limit, shape).astype(np.float32)


def _he_normal(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    return rng.normal(0, np.sqrt(2 / np.prod(shape[:-1])), shape).astype(np.float32)
