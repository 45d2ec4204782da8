"""The configuration of a run: its volumes, the sections of all stages, and the relations between them."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt, ValidationError, WrapValidator, model_validator

from ffn.assembly import config as assembly
from ffn.config import (
    BoxText,
    ImageConfig,
    ModelConfig,
    PathText,
    SameResult,
    Section,
    SegmentConfig,
    SubvolumesConfig,
    flooding_model,
)
from ffn.errors import ConfigError, explain_all
from ffn.evaluation import config as evaluation
from ffn.geometry import ZYX, add, scale
from ffn.io.config import SourceConfig
from ffn.io.open import readable_formats
from ffn.sampling import config as sampling
from ffn.studies import config as studies
from ffn.synthetic.config import SynthConfig
from ffn.training import config as training
from ffn.viewing import config as viewing
from ffn.workflow.config_files import instead_of

MAX_NAME = 100  # letters; file systems take 255, and names of jobs and temporary files are longer; our choice
# A part of file names and of NAME=FILE in options.
VolumeName = Annotated[str, Field(max_length=MAX_NAME, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_-]*$")]
CUT = "auto"  # the validation box that fine-tuning cuts from the training box
NEEDED = "auto"  # the part of a remote image that the other boxes need
WINDOW_MOVES = 3  # from a contact, in agglomeration; our choice: 90 FOVs per contact on FIB-25 decide well


BoxTextOrAuto = Annotated[BoxText, WrapValidator(lambda text, check: text if text == "auto" else check(text))]


class VolumeConfig(ImageConfig, SourceConfig):
    """One volume: its source, its normalisation and its use."""

    synthetic: SynthConfig | None = Field(None, description="make this volume instead of reading one")
    image: PathText | None = Field(None, description=readable_formats())
    labels: PathText | None = Field(None, description="truth in any of these formats; null where there is none")
    labels_offset_zyx: tuple[int, int, int] | None = Field(
        None,
        description="place of the labels' first voxel in the full volume, voxels of the labels; null takes the "
        "source's",
    )
    skeletons: PathText | None = Field(
        None, description="skeletons of the truth for the run length: SWC file or folder (nm); null computes them"
    )
    image_box: BoxTextOrAuto = Field(
        NEEDED,
        description="part of image and labels to read; auto: of an image that is not on this machine, the part that "
        "the other boxes need, else all",
    )
    train_box: BoxText = Field("all", description="where training examples come from; needs labels")
    train_weight: PositiveFloat = Field(
        1.0,
        description="how often a voxel of this volume is the centre of a training example, relative to other volumes",
    )
    validate_box: BoxTextOrAuto = Field(
        CUT,
        description="validation data of training, apart from train_box; auto: with init the end of train_box, "
        "if no volume has a validate_box, else none",
    )
    segment_box: BoxText = Field("all", description="box to segment")
    corrections: PathText | None = Field(
        None,
        description="file of corrections made in Neuroglancer (ffn view RUN --corrections FILE.csv), for cut and merge",
    )
    evaluate_box: BoxText = Field("all", description="box to score, within its labelled and segmented part")

    @model_validator(mode="after")
    def _one_source(self) -> VolumeConfig:
        if (self.synthetic is None) == (self.image is None):
            raise ConfigError("needs either 'image' or 'synthetic', found " + ("both" if self.image else "none"))
        keys = ("labels", "labels_offset_zyx", "image_box", *SourceConfig.model_fields)
        given = [name for name in keys if getattr(self, name) != type(self).model_fields[name].default]
        if self.synthetic is not None and given:
            raise ConfigError(f"'synthetic' brings its own {' and '.join(map(repr, given))}, leave them out")
        return self

    @model_validator(mode="after")
    def _validates_with_labels(self) -> VolumeConfig:
        if self.validate_box not in ("none", CUT) and not self.has_labels:
            raise ConfigError(f"validate_box: {self.validate_box} needs labels. Give some, or leave the box out")
        return self

    @property
    def has_labels(self) -> bool:
        """Whether the volume has a ground truth."""
        return self.synthetic is not None or self.labels is not None

    @property
    def is_trained_on(self) -> bool:
        """Whether training examples come from it."""
        return self.has_labels and self.train_box != "none"

    @property
    def is_validated_on(self) -> bool:
        """Whether training is validated on a box that is given."""
        return self.has_labels and self.validate_box not in ("none", CUT)

    @property
    def may_be_cut(self) -> bool:
        """Whether a part of its training box may become a validation box."""
        return self.is_trained_on and self.validate_box == CUT

    @property
    def is_segmented(self) -> bool:
        """Whether it is segmented."""
        return self.segment_box != "none"

    @property
    def is_evaluated(self) -> bool:
        """Whether its segmentation is scored."""
        return self.has_labels and self.is_segmented and self.evaluate_box != "none"


class WorkflowConfig(Section):
    """How the work is cut into jobs."""

    max_jobs_per_stage: SameResult[PositiveInt] = Field(
        1000,
        description="jobs of a stage for a volume at most, unless max_hours_per_job needs more; where there are more "
        "blocks or subvolumes, each walks a list of them",
    )
    max_hours_per_job: SameResult[PositiveInt] = Field(
        12,
        description="a list is so short that its job asks for no more hours, on one core, or with the network on eight "
        "or a GPU; a single block or subvolume may",
    )


class RunConfig(Section):
    """Everything that decides a run's result."""

    run: str = Field(
        "demo",
        max_length=MAX_NAME,
        pattern=r"^[A-Za-z0-9_-][A-Za-z0-9_.-]*$",
        description="name; results go to results/<run>",
    )
    rng_seed: int = Field(1, ge=0, description="fixes everything that is random")
    volumes: dict[VolumeName, VolumeConfig] = Field(min_length=1, description="by name")
    init: PathText | None = Field(
        None,
        description="weights to start from: a model folder, one of our checkpoints (model/checkpoints/step-…), or the "
        "prefix of a published TF1 checkpoint",
    )
    membrane: sampling.MembraneConfig = sampling.MembraneConfig()
    partition: sampling.PartitionConfig = sampling.PartitionConfig()
    coordinates: sampling.CoordinatesConfig = sampling.CoordinatesConfig()
    records: sampling.RecordsConfig = sampling.RecordsConfig()
    model: ModelConfig = ModelConfig()
    subvolumes: SubvolumesConfig = SubvolumesConfig()
    segment: SegmentConfig = SegmentConfig()
    reconcile: assembly.ReconcileConfig = assembly.ReconcileConfig()
    consensus: assembly.ConsensusConfig = assembly.ConsensusConfig()
    agglomerate: assembly.AgglomerateConfig = assembly.AgglomerateConfig()
    merge: assembly.MergeConfig = assembly.MergeConfig()
    affinities: training.AffinitiesConfig = training.AffinitiesConfig()
    fill: assembly.FillConfig = assembly.FillConfig()
    train: training.TrainConfig = training.TrainConfig()
    sweep: evaluation.SweepConfig = evaluation.SweepConfig()
    skeletonize: evaluation.SkeletonizeConfig = evaluation.SkeletonizeConfig()
    evaluate: evaluation.EvaluateConfig = evaluation.EvaluateConfig()
    select: evaluation.SelectConfig = evaluation.SelectConfig()
    export: viewing.ExportConfig = viewing.ExportConfig()
    study: studies.StudyConfig = studies.StudyConfig()
    workflow: WorkflowConfig = WorkflowConfig()

    @model_validator(mode="before")
    @classmethod
    def _derive(cls, values: Any) -> Any:
        """Derive values that are not given. A section without a line in it, which YAML takes for null, has none.

        Sizes follow from FOV and deltas, agglomeration's flood filling from `segment`, the defaults of `train` from
        `init`. Published recipes train on background, too.
        """
        if not isinstance(values, dict):
            return values
        values = {name: value for name, value in values.items() if value is not None or name in ("run", "rng_seed")}
        try:
            model = ModelConfig(**(values.get("model") or {}))
            train = training.TrainConfig(**(values.get("train") or {}))
            volumes = [VolumeConfig(**(volume or {})) for volume in (values.get("volumes") or {}).values()]
            selects = evaluation.SelectConfig(**(values.get("select") or {})).checkpoints > 0
        except (ValidationError, TypeError, AttributeError):
            return values  # the error is reported with that section
        window = [r + WINDOW_MOVES * d for r, d in zip(model.fov_radius_zyx, model.deltas_zyx, strict=True)]
        derived: dict[str, dict[str, Any]] = {
            "partition": {"lom_radius_zyx": model.context_zyx},
            "coordinates": {"margin_zyx": training_reach(model, train), "include_background": train.preset is not None},
            "agglomerate": {"window_radius_zyx": window},
        }
        if values.get("init") is not None and train.max_steps > 0:
            validated = any(v.is_validated_on or v.may_be_cut for v in volumes)
            derived["train"] = training.fine_tuning_defaults(train, validated and not selects)
        for section, defaults in derived.items():
            given = values.get(section) or {}
            if isinstance(given, dict):
                values = {**values, section: {**defaults, **given}}
        return values

    @model_validator(mode="after")
    def _sizes_fit(self) -> RunConfig:
        sizes = zip(self.coordinates.margin_zyx, training_reach(self.model, self.train), strict=True)
        for axis, (margin, reach) in zip("zyx", sizes, strict=True):
            if self.train.max_steps and margin < reach:
                found = f"coordinates.margin_zyx: {margin} on axis {axis}, but a training patch reaches {reach} voxels"
                raise ConfigError(f"{found}: FOV radius + deltas × moves + misalignment. Raise the margin")
        tiles = self.subvolumes
        sizes_of_tiles = zip("zyx", tiles.overlap_zyx, self.model.fov_size_zyx, tiles.size_zyx, strict=True)
        for axis, overlap, fov, size in sizes_of_tiles:
            if not fov <= overlap < size:
                found = f"subvolumes.overlap_zyx: {overlap} on axis {axis}, expected at least the FOV ({fov})"
                raise ConfigError(f"{found} and less than subvolumes.size_zyx ({size})")
        return self

    @model_validator(mode="after")
    def _network_fits(self) -> RunConfig:
        """Check the deltas of flood filling, the window of agglomeration and the axes that training exchanges."""
        flooding_model(self.model, self.segment)
        radius = self.agglomerate.window_radius_zyx
        assembly.require_window(radius, self.flooding_model, "agglomerate.window_radius_zyx")
        if self.train.max_steps:
            training.require_stages(self.train, self.model)
            training.require_equal_sides(self.train.permutable_axes, self.model.fov_size_zyx, "FOVs")
            training.require_equal_sides(self.train.permutable_axes, self.model.deltas_zyx, "moves of the FOV")
        return self

    @model_validator(mode="after")
    def _learning_is_possible(self) -> RunConfig:
        has_labels = any(volume.is_trained_on for volume in self.volumes.values())
        if self.affinities.enabled and not (self.affinities.network or (has_labels and self.affinities.max_steps)):
            found = "affinities.enabled: true, but max_steps is 0, or no volume has labels with a train_box"
            raise ConfigError(f"{found}. Name an affinities.network")
        if self.train.max_steps == 0:
            if self.init is None:
                raise ConfigError("train.max_steps: 0 keeps the initial weights, expected 'init' to name them")
            return self
        if not has_labels:
            raise ConfigError("volumes: none has labels and a train_box to train on. Set train.max_steps: 0 to skip it")
        validates = self.is_validated
        read = {name: v for name, v in self.volumes.items() if v.is_trained_on or (validates and v.is_validated_on)}
        training.are_matched({name: volume.normalize for name, volume in read.items()}, self.model)
        return self

    @model_validator(mode="after")
    def _choice_is_possible(self) -> RunConfig:
        """Check that the best weights of a training can be known, and that the checkpoints to choose from are kept."""
        has_box = any(volume.is_validated_on or self.is_cut(volume) for volume in self.volumes.values())
        if self.train.use_best and not (self.is_validated and has_box):
            needed = "a validate_box of a volume, validation_steps and max_steps above 0"
            raise ConfigError(f"train.use_best: true, but training is not validated, expected {needed}")
        wanted, kept = self.select.checkpoints, len(self.train.kept_steps)
        if wanted > kept:
            found = f"select.checkpoints: {wanted}, but training leaves {kept}"
            raise ConfigError(f"{found}. See max_steps, checkpoint_steps and keep_checkpoints of train")
        is_open = self.select.volume is None and len(self.volumes) > 1
        if wanted and (is_open or self.select.volume not in (None, *self.volumes)):
            raise ConfigError(f"select.volume: {self.select.volume!r}, expected one of {list(self.volumes)}")
        return self

    @property
    def is_filled(self) -> bool:
        """Whether unsegmented voxels are given to segments."""
        return self.fill.max_distance_nm > 0 or self.affinities.enabled

    @property
    def flooding_model(self) -> ModelConfig:
        """The network with the deltas of flood filling."""
        return flooding_model(self.model, self.segment)

    @property
    def agglomeration(self) -> assembly.Agglomeration:
        """The options of agglomeration, with those of flood filling."""
        return assembly.Agglomeration.of(self.agglomerate, self.segment)

    def as_written(self) -> dict[str, Any]:
        """Return the configuration as plain data for a YAML file, starting with the keys that name the run."""
        values = self.model_dump(mode="json")
        if self.init is not None:  # what is left out of `model` comes with the weights
            values["model"] = self.model.model_dump(mode="json", exclude_unset=True)
        return {name: values[name] for name in ("run", "rng_seed", "init", "volumes")} | values

    @property
    def is_validated(self) -> bool:
        """Whether training is validated, provided that a volume has a validation box."""
        return self.train.max_steps > 0 and self.train.validation_steps > 0

    def is_cut(self, volume: VolumeConfig) -> bool:
        """Whether a part of the training box of `volume` becomes a validation box."""
        fine_tuned = self.init is not None and self.is_validated
        return fine_tuned and volume.may_be_cut and not any(v.is_validated_on for v in self.volumes.values())

    @property
    def selectable_steps(self) -> list[int]:
        """Steps of the checkpoints that `select` chooses from; empty if the last one is used.

        Step 0 are the weights of `init`, so that training never makes the choice worse than they are.
        """
        if not self.select.checkpoints:
            return []
        return ([] if self.init is None else [0]) + self.train.kept_steps[-self.select.checkpoints :]

    @property
    def select_volume(self) -> str:
        """Name of the volume of the validation box."""
        return self.select.volume or next(iter(self.volumes))


def training_reach(model: ModelConfig, train: training.TrainConfig) -> ZYX:
    """Return how far from its centre a training example reads, voxels: its patch, shifted slices included.

    Examples
    --------
    >>> model = ModelConfig(fov_size_zyx=(9, 11, 13), deltas_zyx=(2, 3, 3))
    >>> [training_reach(model, training.TrainConfig(misaligned_slice_rate=rate)) for rate in (0, 0.1)]
    [(6, 8, 9), (6, 12, 13)]
    """
    patch = add(model.fov_radius_zyx, scale(model.deltas_zyx, train.patch_moves))
    shift = training.MAX_MISALIGNMENT if train.misaligned_slice_rate else 0
    return add(patch, (0, shift, shift))


def load_run(values: dict[str, Any], extra: Literal["forbid", "ignore"] = "forbid") -> RunConfig:
    """Check a configuration without opening any files; `extra` is what to do with options that there are not."""
    try:
        return RunConfig.model_validate(values, extra=extra)
    except ValidationError as error:
        instead = partial(instead_of, run=RunConfig, volume=VolumeConfig)
        raise ConfigError(explain_all(error, lambda path: ".".join(path) or "config", instead)) from None
