"""The options of training: type, range, unit, default, meaning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from ffn.config import Axes, Fraction, ModelConfig, NonNegativeInt, Normalize, PathText, SameResult, Section
from ffn.errors import ConfigError
from ffn.training.presets import PRESETS

NonNegativeFloat = Annotated[float, Field(ge=0)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]
Collective = Literal["horovod", "mpi"]
PROCESSES = {"num_workers", "virtual_workers"}  # they share the workers out among processes; only their product decides
MOST_WITH_WALKS = 64  # processes that each write their own file into a checkpoint, by default; our choice

# Defaults of a training that starts from trained weights. Adam's first step changes every weight by the whole rate,
# each in the direction of its gradient. At 0.001 that is 3 % of a typical weight, and together it makes the published
# weights answer the same everywhere within three steps; as much in random directions does nothing.
FINE_TUNING = {"learning_rate": 1e-5, "warmup_steps": 100}

# Options that only some values of another option use. Elsewhere they keep their defaults, or a mistake would go unseen.
USED_WITH: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "weight_decay": ("optimizer", ("adamw", "muon", "lamb", "lars")),
    "momentum": ("optimizer", ("momentum", "lars")),
    "scaling_exponent": ("scaling_rule", ("power",)),
    "cycle_steps": ("schedule", ("cyclic",)),
    "cycle_low": ("schedule", ("cyclic", "ramp")),
    "qsgd_levels": ("compression", ("qsgd",)),
}


class TrainConfig(Section):
    """Synchronous data-parallel training."""

    headings: ClassVar[Mapping[str, str]] = {
        "preset": "recipe, global batch and length",
        "optimizer": "optimizer and learning rate",
        "momentum": "details of the optimizer, and averaged weights",
        "engine": "engine, precision and compression",
        "fov_policy": "walks of the FOV, and loss",
        "permutable_axes": "augmentation",
        "validation_steps": "validation",
        "checkpoint_minutes": "checkpoints and logs",
        "collective": "processes and threads",
        "stall_seconds": "stopping early",
    }

    preset: Literal["dong2019"] | None = Field(
        None,
        description="published recipe that the options not given are taken from; dong2019: the paper's; null: defaults",
    )
    num_workers: PositiveInt = Field(2, description="processes; the job stops if another number starts")
    virtual_workers: PositiveInt = Field(
        1, description="workers that each process computes, one after the other; trains as that many processes would"
    )
    batch_size: PositiveInt = Field(1, description="FOVs per worker and step")
    max_steps: NonNegativeInt = Field(10_000, description="optimizer steps; 0 keeps the initial weights")

    optimizer: Literal["adam", "adamw", "muon", "lamb", "lars", "momentum", "sgd"] = Field(
        "adam",
        description="optimizer; for lamb and lars, learning_rate is the relative change of the weights per step",
    )
    learning_rate: PositiveFloat = Field(
        1e-3,
        description="peak rate, after the warm-up and before scaling_rule; "
        f"with init, {FINE_TUNING['learning_rate']:g} unless given",
    )
    scaling_rule: Literal["constant", "linear", "sqrt", "power"] = Field(
        "constant", description="growth of the rate with the global batch, workers × batch_size"
    )
    scaling_exponent: Fraction = Field(0.5, description="exponent of the global batch, for scaling_rule power")
    warmup_steps: NonNegativeInt = Field(
        0,
        description=f"steps over which the rate rises linearly; with init, {FINE_TUNING['warmup_steps']} unless given",
    )
    schedule: Literal["constant", "cosine", "cyclic", "ramp"] = Field(
        "constant",
        description="rate after the warm-up; cosine falls to 0 at max_steps, cyclic is a triangle wave, ramp grows to "
        "the peak at max_steps by a constant factor, for a range test",
    )
    cycle_steps: PositiveInt = Field(2000, description="steps per cycle of the cyclic schedule")
    cycle_low: Fraction = Field(
        0.1, description="lowest rate of the schedules cyclic and ramp, as a share of the peak rate"
    )

    momentum: BelowOne = Field(0.9, description="momentum of the optimizers momentum and lars")
    weight_decay: NonNegativeFloat = Field(0.0, description="weight decay of the optimizers adamw, muon, lamb and lars")
    clip_norm: PositiveFloat | None = Field(
        None, description="norm to which longer gradients are clipped; null: no clipping"
    )
    clip_entries: PositiveFloat | None = Field(
        None,
        description="magnitude to which larger entries of the gradient are clipped, before clip_norm; google/ffn: 0.7; "
        "null: no clipping",
    )
    adam_epsilon: PositiveFloat = Field(
        1e-7, description="ε of the optimizers adam, adamw, muon and lamb, added to their divisor; google/ffn: 1e-8"
    )
    ema_decay: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="decay per step of a moving average of the weights, which the model then gets; null: none"
    )
    # Engines differ by rounding, and resume from each other's checkpoints.
    engine: SameResult[Literal["auto", "tensorflow", "jax"]] = Field(
        "auto", description="what computes the steps; auto: jax where it sees a GPU and TensorFlow does not"
    )
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="precision of the convolutions; auto takes the fastest where training starts, and keeps it",
    )
    compression: Literal["none", "fp16", "1-bit", "qsgd"] = Field(
        "none", description="compression of gradients between processes; 1-bit keeps its error for the next step"
    )
    qsgd_levels: Annotated[int, Field(ge=1, le=127)] = Field(
        7, description="levels above 0 of compression qsgd; up to 7 levels take half a byte per entry, more take one"
    )

    fov_policy: Literal["fixed", "fixed_window", "faces", "max_pred"] = Field(
        "fixed",
        description="moves of the FOV; fixed: from the centre to those of its 26 neighbours whose POM is high enough; "
        "fixed_window: the same, with the highest POM nearby; faces: to the six nearest only; max_pred: as in "
        "inference, to voxels of the object",
    )
    fov_moves: PositiveInt = Field(
        1, description="deltas that the FOV may move from the centre along each axis; above 1 for max_pred only"
    )
    shuffle_moves: bool = Field(
        True,
        description="whether neighbours of equal distance (faces: all) are visited in random order, nearer ones first",
    )
    unlabelled_weight: Fraction = Field(
        1.0, description="loss weight of voxels without a label; 0 if they are unknown rather than background"
    )
    tolerated_loss: NonNegativeFloat | None = Field(
        None,
        description="loss above the least possible one up to which a worker's FOVs are right already and get no "
        "backward pass; null: all get one",
    )
    easy_share: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None,
        description="least share of the examples of a kind that are trained on, if its recent errors are few; kinds "
        "are by the size of the object; null: all examples",
    )
    permutable_axes: Axes = Field(
        ("z", "y", "x"), description="axes that augmentation may exchange; leave out an anisotropic z"
    )
    reflectable_axes: Axes = Field(("z", "y", "x"), description="axes that augmentation may reverse")
    contrast_jitter: BelowOne = Field(0.0, description="largest relative change of an example's contrast")
    brightness_jitter: NonNegativeFloat = Field(
        0.0, description="largest change of an example's brightness, standard deviations of the image"
    )
    gamma_jitter: BelowOne = Field(0.0, description="largest relative change of an example's gamma from 1")
    missing_slice_rate: Fraction = Field(
        0.0, description="share of z slices that are black (grey level 0), never the central one"
    )
    misaligned_slice_rate: Fraction = Field(
        0.0, description="share of z slices at which the rest of the example shifts, image and labels alike"
    )
    max_misalignment: PositiveInt = Field(
        4, description="largest of these shifts along y and x, relative to the central slice, voxels"
    )
    blur_rate: Fraction = Field(0.0, description="share of z slices that are out of focus")
    blur_sigma: PositiveFloat = Field(2.0, description="standard deviation of their blur along y and x, voxels")

    validation_steps: NonNegativeInt = Field(
        500, description="steps between validations, if there is a validation box; 0: never"
    )
    validation_examples: PositiveInt = Field(64, description="examples per validation, always the same")
    use_best: bool = Field(
        False,
        description="whether the model gets the weights of the best validation F1 instead of the last weights; "
        "with init and a validation, true unless given",
    )
    checkpoint_minutes: SameResult[PositiveFloat] = Field(
        10.0, description="time between checkpoints to resume from, min"
    )
    checkpoint_steps: SameResult[PositiveInt | None] = Field(
        None, description="steps between checkpoints to choose from with select, kept before all others; null: none"
    )
    keep_checkpoints: SameResult[PositiveInt] = Field(3, description="checkpoints to keep, besides the best one")
    resume_walks: SameResult[bool | None] = Field(
        None,
        description="whether checkpoints hold unfinished walks, to resume to the bit; without, each begins its example "
        "again, and the errors of compression start from 0; fewer files are written; null: up to 64 processes",
    )
    log_steps: SameResult[PositiveInt] = Field(
        50, description="steps between rows of metrics.csv and TensorBoard scalars"
    )
    image_steps: SameResult[NonNegativeInt] = Field(
        1000, description="steps between TensorBoard images of one example; 0: none"
    )
    horovod_timeline: SameResult[PathText | None] = Field(
        None, description="file for Horovod's timeline, to open in chrome://tracing; null: none"
    )

    collective: SameResult[Collective] = Field(
        "horovod", description="library that joins the processes; mpi: mpi4py, where Horovod cannot be built"
    )
    # Threads change the order of sums at most, and a run may move to a machine with other cores.
    intra_op_threads: SameResult[NonNegativeInt] = Field(
        0, description="threads of a process per operation; 0: OMP_NUM_THREADS, else its share of the cores"
    )
    inter_op_threads: SameResult[PositiveInt] = Field(1, description="operations that a process runs in parallel")
    pin_threads: SameResult[bool] = Field(
        True, description="whether to give each process on a machine its own cores, unless the launcher already did"
    )
    stall_seconds: SameResult[Annotated[int, Field(ge=5)]] = Field(
        120, description="time after which a process that is stuck or gone ends the whole job, s"
    )
    walltime_minutes: SameResult[PositiveFloat | None] = Field(
        None,
        description="limit of the job from its start; an earlier FFN_JOB_END_TIME or Slurm limit counts; null: none",
    )
    walltime_margin_seconds: SameResult[NonNegativeFloat] = Field(
        120, description="time before the limit of the job at which training stops with a checkpoint, s"
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

    def departures(self) -> dict[str, tuple[Any, Any]]:
        """Return the options that differ from the preset: what they are, and what they are there."""
        preset = PRESETS[self.preset] if self.preset else {}
        return {name: (getattr(self, name), value) for name, value in preset.items() if getattr(self, name) != value}

    @model_validator(mode="after")
    def _moves_fit(self) -> TrainConfig:
        if self.fov_moves > 1 and self.fov_policy != "max_pred":
            raise ValueError(f"fov_moves: found {self.fov_moves}, expected 1 for fov_policy {self.fov_policy}")
        return self

    @model_validator(mode="after")
    def _small_gradients_count(self) -> TrainConfig:
        if self.optimizer == "muon" and self.tolerated_loss is not None:
            raise ValueError(
                f"tolerated_loss: found {self.tolerated_loss:g}, expected null for optimizer muon, whose steps are as "
                "long where the gradient is left out"
            )
        return self

    @model_validator(mode="after")
    def _options_are_used(self) -> TrainConfig:
        for name, (other, users) in USED_WITH.items():
            value, usual, found = getattr(self, name), type(self).model_fields[name].default, getattr(self, other)
            if value != usual and found not in users:
                *most, last = users
                choices = f"{', '.join(most)} or {last}" if most else last
                raise ValueError(
                    f"{name}: found {value:g}, expected {usual:g} for {other} {found}. Or choose the {other} {choices}"
                )
        return self

    @model_validator(mode="after")
    def _walltime_is_longer_than_its_margin(self) -> TrainConfig:
        if self.walltime_minutes is not None and 60 * self.walltime_minutes <= self.walltime_margin_seconds:
            raise ValueError(
                f"walltime_minutes: found {self.walltime_minutes:g}, expected more than walltime_margin_seconds "
                f"({self.walltime_margin_seconds:g} s), so each run would stop after one step. Raise it or lower the "
                "margin"
            )
        return self

    def without_unused(self) -> TrainConfig:
        """Return the same with the defaults of all options that it does not use."""
        unused = [name for name, (other, users) in USED_WITH.items() if getattr(self, other) not in users]
        return self.model_copy(update={name: type(self).model_fields[name].default for name in unused})

    @property
    def patch_moves(self) -> int:
        """Deltas from the centre of an example to its outermost FOV, along each axis.

        The walk of ``max_pred`` needs room around what is scored: it reaches a voxel from any side, as inference does.
        """
        return self.fov_moves + (self.fov_policy == "max_pred")

    @property
    def saves_walks(self) -> bool:
        """Whether checkpoints hold unfinished walks."""
        return self.num_workers <= MOST_WITH_WALKS if self.resume_walks is None else self.resume_walks

    @property
    def num_lanes(self) -> int:
        """FOVs in the global batch of all workers, including virtual ones."""
        return self.num_workers * self.virtual_workers * self.batch_size


def fine_tuning_defaults(config: TrainConfig, is_validated: bool) -> dict[str, float | bool]:
    """Return the defaults that differ where training starts from trained weights; with a preset, none do.

    Parameters
    ----------
    config : TrainConfig
        Options.
    is_validated : bool
        Whether there are examples to validate on. The first validation, before the first step, scores the weights that
        training starts from, so the model is never worse on it than they are.
    """
    if config.preset:
        return {}
    return {**FINE_TUNING, "use_best": is_validated and config.validation_steps > 0}


def are_matched(methods: Mapping[str, Normalize], model: ModelConfig) -> bool:
    """Whether volumes come in the grey levels that the initial weights know.

    Parameters
    ----------
    methods : mapping of str to Normalize
        How each volume that training reads is normalised, by its name.
    model : ModelConfig
        With mean and deviation, if somebody gave them.

    Raises
    ------
    ConfigError
        If only some do, and nobody gave mean and deviation: measured ones would not fit both.
    """
    matched, other = ([name for name in methods if methods[name] == method] for method in ("match", "training"))
    if matched and other and None in (model.image_mean, model.image_stddev):
        raise ConfigError(
            f"volumes.{other[0]}.normalize: found training, expected match as for {matched[0]}, or volume. If its grey "
            "levels are those of the initial weights, give model.image_mean and image_stddev as these have them"
        )
    return bool(matched)
