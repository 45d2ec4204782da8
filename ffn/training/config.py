"""The options of training: type, range, unit, default, meaning."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt, field_validator, model_validator

from ffn.config import Axes, Fraction, ModelConfig, NonNegativeInt, Normalize, SameResult, Section
from ffn.errors import ConfigError

log = logging.getLogger(__name__)

# Options that change what is seen of an example; all are 0 by default.
DISTORTIONS = ("contrast_jitter", "brightness_jitter", "missing_slice_rate", "misaligned_slice_rate", "blur_rate")
PRESETS: dict[str, Mapping[str, Any]] = {
    # Dong et al. 2019: Adam, one FOV per worker, no schedule; the rate of one worker is read off Fig. 4, and beyond 16
    # workers it grows with the square root. Their code builds on google/ffn and leaves the rest as there: clipping, ε,
    # walks, augmentation, and tf_slim's initial weights. All other options have their defaults.
    "dong2019": {
        "initial": "glorot",
        "learning_rate": 1e-5,
        "scaling_rule": "sqrt",
        "clip_entries": 0.7,
        "adam_epsilon": 1e-8,
        "precision": "float32",
        "shuffle_moves": "all",
        "permutable_axes": ("y", "x"),
    }
}


NonNegativeFloat = Annotated[float, Field(ge=0)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]
Collective = Literal["horovod", "mpi"]
# The weights after a given number of steps depend on the product of the first two alone (see `pairwise_sum`), not on
# the others: `max_steps` ends a schedule at most, and a validation chooses among weights.
PROCESSES = {"num_workers", "virtual_workers"}
AFTER_TRAINING = {"max_steps", "validation_steps", "validation_examples", "use_best"}
MAX_MISALIGNMENT = 4  # largest shift of a section along y and x against the central one, voxels; our choice
SYNCHRONOUS: Mapping[str, Any] = {"gradients_per_update": "all", "max_staleness": 0}

# Defaults of a training that starts from trained weights. Adam's first step changes every weight by the whole rate,
# each in the direction of its gradient. At 0.001 that is 3 % of a typical weight, and together it makes the published
# weights answer the same everywhere within three steps; as much in random directions does nothing.
FINE_TUNING = {"learning_rate": 1e-5, "warmup_steps": 100}


class AffinitiesConfig(Section):
    """Affinities of neighbouring voxels, learnt from labels in minutes; `fill` assembles the segments by them."""

    for_workflow = frozenset({"enabled"})

    enabled: bool = Field(
        False, description="learn affinities from the training boxes, and let fill assemble the segments by them"
    )
    network: str | None = Field(
        None,
        description="affinities to start from, such as config/weights/fib-sem/affinities.h5; they stay as they are "
        "without labels, and in a configuration without max_steps",
    )
    max_steps: NonNegativeInt = Field(4000, description="training steps of four crops; 4,000 take 10 minutes of a core")


class TrainConfig(Section):
    """Data-parallel training, synchronous by default."""

    headings: ClassVar[Mapping[str, str]] = {
        "preset": "recipe, global batch and length",
        "optimizer": "optimizer and learning rate",
        "weight_decay": "details of the optimizer, and averaged weights",
        "engine": "engine, precision and compression",
        "fov_policy": "walks of the FOV, and loss",
        "permutable_axes": "augmentation",
        "validation_steps": "validation",
        "checkpoint_minutes": "checkpoints and logs",
        "collective": "processes and threads",
    }

    preset: Literal["dong2019"] | None = Field(
        None, description="published recipe for all options that are not given; dong2019: Dong et al. 2019; null: none"
    )
    num_workers: PositiveInt = Field(
        2, description="processes, besides the one that serves where updates take the first gradients"
    )
    virtual_workers: PositiveInt = Field(
        1, description="workers per process, computed one after the other, with the result of as many processes"
    )
    batch_size: PositiveInt = Field(1, description="FOVs per worker and step")
    gradients_per_update: Literal["all"] | PositiveInt = Field(
        "all",
        description="gradients that make an update, the first to arrive; all: as many as workers; fewer: late ones do "
        "not hold the others up, but results depend on timing",
    )
    max_staleness: NonNegativeInt | None = Field(
        0,
        description="updates that a gradient's weights may be behind the newest, else it is dropped; null: any number; "
        "gradients_per_update 1 with null is asynchronous",
    )
    max_steps: NonNegativeInt = Field(10_000, description="optimizer steps; 0 keeps the initial weights")
    initial: Literal["he", "glorot"] = Field(
        "he",
        description="distribution of the initial weights; he: normal, damped in deep networks; glorot: uniform, as in "
        "google/ffn's TensorFlow code",
    )

    optimizer: Literal["adam", "adamw", "muon", "momentum", "sgd"] = Field("adam", description="optimizer")
    learning_rate: PositiveFloat = Field(
        1e-3,
        description="peak rate, after the warm-up and before scaling_rule; "
        f"with init, {FINE_TUNING['learning_rate']:g} unless given",
    )
    scaling_rule: Literal["constant", "linear", "sqrt"] = Field(
        "constant", description="growth of the learning rate with the global batch, workers × batch_size"
    )
    warmup_steps: NonNegativeInt = Field(
        0,
        description=f"steps over which the rate rises linearly; with init, {FINE_TUNING['warmup_steps']} unless given",
    )
    schedule: Literal["constant", "cosine", "cyclic"] = Field(
        "constant",
        description="learning rate after the warm-up; cosine falls to 0 at max_steps, cyclic is a triangle wave of "
        "2000 steps between the peak and a tenth of it",
    )

    weight_decay: NonNegativeFloat = Field(0.0, description="weight decay of the optimizers adamw and muon")
    clip_entries: PositiveFloat | None = Field(
        None,
        description="magnitude to which larger entries of the gradient are clipped; google/ffn: 0.7; null: no clipping",
    )
    adam_epsilon: PositiveFloat = Field(
        1e-7, description="ε of the optimizers adam, adamw and muon, added to their divisor; google/ffn: 1e-8"
    )
    ema_decay: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="decay per step of a moving average of the weights, which the model is saved with; null: none"
    )
    # Engines differ by rounding, and resume from each other's checkpoints.
    engine: SameResult[Literal["auto", "tensorflow", "jax"]] = Field(
        "auto", description="library that computes the steps; auto: jax if only JAX sees a GPU, else tensorflow"
    )
    precision: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="precision of the convolutions; auto: float32 or bfloat16, the faster one on the machine where "
        "training starts; float16: for engine jax, where a GPU has no units for bfloat16",
    )
    compression: Literal["none", "bfloat16", "1-bit", "qsgd", "powersgd"] = Field(
        "none",
        description="compression of gradients between processes; 1-bit and powersgd add their error to the next "
        "gradient",
    )
    qsgd_levels: Annotated[int, Field(ge=1, le=127)] = Field(
        7, description="levels above 0 of compression qsgd; up to 7 take half a byte per entry, more take one byte"
    )

    fov_policy: Literal["fixed", "faces", "max_pred"] = Field(
        "fixed",
        description="moves of the FOV; fixed: from the centre to each of its 26 neighbours whose POM is high enough; "
        "faces: to the six nearest only; max_pred: as in inference, to voxels of the object",
    )
    fov_moves: PositiveInt = Field(
        1, description="largest distance of the FOV from the centre along each axis, deltas; above 1 for max_pred only"
    )
    shuffle_moves: Literal["distance", "all"] = Field(
        "distance",
        description="random order of the moves; distance: nearer ones first (but for faces), as google/ffn's JAX code; "
        "all: of all, as its TensorFlow code",
    )
    unlabelled_weight: Fraction = Field(
        1.0, description="loss weight of voxels without a label; 0 if they are unknown rather than background"
    )
    permutable_axes: Axes = Field(
        ("z", "y", "x"), description="axes that augmentation may exchange; a run's follow from the voxel size"
    )
    contrast_jitter: BelowOne = Field(0.0, description="largest relative change of an example's contrast")
    brightness_jitter: NonNegativeFloat = Field(
        0.0, description="largest change of an example's brightness, standard deviations of the image"
    )
    missing_slice_rate: Fraction = Field(
        0.0, description="share of z slices that are black (grey level 0), never the central one"
    )
    misaligned_slice_rate: Fraction = Field(
        0.0, description="share of z slices at which the rest of the example shifts, with its labels, by up to 4 voxels"
    )
    blur_rate: Fraction = Field(0.0, description="share of z slices that are blurred")

    validation_steps: NonNegativeInt = Field(500, description="steps between validations; 0: no validation")
    validation_examples: PositiveInt = Field(64, description="examples per validation, always the same")
    use_best: bool = Field(
        False,
        description="whether to save the weights of the best validation F1 instead of the last ones; with init and a "
        "validation, true unless given",
    )
    checkpoint_minutes: SameResult[PositiveFloat] = Field(
        10.0, description="time between checkpoints to resume from, min"
    )
    checkpoint_steps: SameResult[PositiveInt | None] = Field(
        None, description="steps between checkpoints that select can choose from, which are kept longest; null: none"
    )
    keep_checkpoints: SameResult[PositiveInt] = Field(3, description="checkpoints to keep, besides the best one")
    log_steps: SameResult[PositiveInt] = Field(50, description="steps between rows of metrics.csv")
    on_row: SameResult[str | None] = Field(
        None,
        description="command that is started once and reads each row of metrics.csv and validation.csv as a line of "
        "JSON, such as a script for an experiment tracker; null: none",
    )

    collective: SameResult[Collective] = Field(
        "horovod", description="library that connects the processes; mpi: mpi4py, where Horovod cannot be built"
    )
    exact_sums: SameResult[bool] = Field(
        True,
        description="whether gradients are added in an order that does not depend on the number of processes; false: "
        "by the library's allreduce, one exchange instead of two if there are more than two processes",
    )
    # as engines, numbers of stages differ by rounding
    pipeline_stages: SameResult[PositiveInt] = Field(
        1,
        description="devices of a process that share the network out, each with as many of its depth - 1 modules, for "
        "activations that one cannot hold; FOVs of a batch go through them one by one; engine jax",
    )
    # Threads change the order of sums at most, and a run may move to a machine with other cores.
    intra_op_threads: SameResult[NonNegativeInt] = Field(
        0, description="threads of a process per operation; 0: OMP_NUM_THREADS, else its share of the cores"
    )
    inter_op_threads: SameResult[PositiveInt] = Field(1, description="operations that a process runs in parallel")

    stall_seconds: SameResult[Annotated[int, Field(ge=5)]] = Field(
        120, description="time without progress of a process after which the job ends, s"
    )

    @model_validator(mode="before")
    @classmethod
    def _take_preset(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        name = values.get("preset")
        return {**PRESETS.get(name, {}), **values} if isinstance(name, str) else values

    def defaults(self) -> dict[str, Any]:
        """Return the options of the preset, where there is one, and the defaults of all others."""
        return {**super().defaults(), **(PRESETS[self.preset] if self.preset else {})}

    @field_validator("compression", mode="before")
    @classmethod
    def _replace_fp16(cls, value: Any) -> Any:
        """Take bfloat16 for fp16, which earlier versions had: most entries of a gradient are too small for float16."""
        if value == "fp16":
            log.warning("train.compression: fp16 is bfloat16 now, which keeps small entries of gradients")
            return "bfloat16"
        return value

    @model_validator(mode="after")
    def _options_are_used(self) -> TrainConfig:
        """Refuse options that the others leave without effect, or a mistake would go unseen."""
        has_default_levels = self.qsgd_levels == type(self).model_fields["qsgd_levels"].default
        adds_by_library = self.compression in ("none", "powersgd") and self.is_synchronous
        sums, synchronous = "compression none or powersgd", "gradients_per_update all and max_staleness 0"
        for name, is_possible, needed in (
            ("fov_moves", self.fov_moves == 1 or self.fov_policy == "max_pred", "fov_policy max_pred"),
            ("weight_decay", not self.weight_decay or self.optimizer in ("adamw", "muon"), "optimizer adamw or muon"),
            ("qsgd_levels", has_default_levels or self.compression == "qsgd", "compression qsgd"),
            ("precision", self.precision != "float16" or self.engine == "jax", "engine jax"),
            ("pipeline_stages", self.pipeline_stages == 1 or self.engine == "jax", "engine jax"),
            ("exact_sums", self.exact_sums or adds_by_library, f"{sums}, {synchronous}"),
            ("compression", self.compression == "none" or self.is_synchronous, synchronous),
            ("gradients_per_update", self.gradients <= self.total_workers, f"{self.gradients} workers or more"),
        ):
            if not is_possible:
                raise ValueError(f"{name}: found {getattr(self, name)}, which needs {needed}")
        return self

    @property
    def is_synchronous(self) -> bool:
        """Whether an update waits for one gradient of each worker, all from the newest weights."""
        return all(getattr(self, name) == value for name, value in SYNCHRONOUS.items())

    @property
    def patch_moves(self) -> int:
        """Deltas from the centre of an example to its outermost FOV, along each axis.

        The walk of ``max_pred`` needs room around what is scored: it reaches a voxel from any side, as inference does.
        """
        return self.fov_moves + (self.fov_policy == "max_pred")

    def decisive(self) -> dict[str, Any]:
        """Return the options that the weights after a given number of steps depend on; a checkpoint is of these."""
        free = self.same_result() | AFTER_TRAINING | PROCESSES | {"preset"}
        ends_the_schedule = {"max_steps"} if self.schedule == "cosine" else set()
        return self.model_dump(mode="json", exclude=free - ends_the_schedule)

    @property
    def kept_steps(self) -> list[int]:
        """Steps of the checkpoints that a finished training leaves, ascending."""
        interval = self.checkpoint_steps or self.max_steps + 1
        last = [self.max_steps] if self.max_steps % interval else []
        steps = range(interval, self.max_steps + 1, interval)[-self.keep_checkpoints :]
        return [*steps, *last][-self.keep_checkpoints :]

    @property
    def num_processes(self) -> int:
        """Processes of the job: one more than the workers where one serves."""
        return self.num_workers + (not self.is_synchronous)

    @property
    def total_workers(self) -> int:
        """Workers of all processes, including virtual ones."""
        return self.num_workers * self.virtual_workers

    @property
    def gradients(self) -> int:
        """Gradients of an update, at most."""
        return self.total_workers if self.gradients_per_update == "all" else self.gradients_per_update

    @property
    def global_batch(self) -> int:
        """FOVs of an update, at most."""
        return self.gradients * self.batch_size

    @property
    def num_lanes(self) -> int:
        """FOVs that all workers compute together."""
        return self.total_workers * self.batch_size


def require_equal_sides(axes: Sequence[str], sides_zyx: Sequence[float], of: str, ratio: float = 1.0) -> None:
    """Refuse to exchange axes along which FOVs, patches or voxels differ by more than a ratio."""
    sides = {axis: sides_zyx["zyx".index(axis)] for axis in axes}
    if sides and max(sides.values()) > ratio * min(sides.values()):
        found = " and ".join(f"{axis} {side:g}" for axis, side in sides.items())
        text = f"train.permutable_axes: {of} have sides of {found}, expected equal ones to exchange axes"
        raise ConfigError(f"{text}. Give only axes that are equal in all volumes, such as [y, x], or none: []")


def require_stages(config: TrainConfig, model: ModelConfig) -> None:
    """Refuse a pipeline whose stages cannot have equally many modules."""
    stages, modules = config.pipeline_stages, model.depth - 1
    if modules % stages or 1 < stages > modules:
        found = f"found {stages}, expected a divisor of {modules}, the modules at depth {model.depth}"
        raise ConfigError(f"train.pipeline_stages: {found}")


def fine_tuning_defaults(config: TrainConfig, is_validated: bool) -> dict[str, float | bool]:
    """Return the defaults that differ where training starts from trained weights; with a preset, none do."""
    if config.preset:
        return {}
    # the first validation scores the weights that training starts from, so the model is never worse on it than they
    return {**FINE_TUNING, "use_best": is_validated and config.validation_steps > 0}


def are_matched(methods: Mapping[str, Normalize], model: ModelConfig) -> bool:
    """Whether volumes come in the grey levels that the initial weights know."""
    matched, other = ([name for name in methods if methods[name] == method] for method in ("match", "training"))
    if matched and other and None in (model.image_mean, model.image_stddev):
        raise ConfigError(
            f"volumes.{other[0]}.normalize: found training, expected match as for {matched[0]}, or volume. If its grey "
            "levels are those of the initial weights, give model.image_mean and image_stddev as these have them"
        )
    return bool(matched)
