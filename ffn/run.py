"""A run as one configuration: its volumes, the sections of all stages, and the relations between them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, field_validator, model_validator

from ffn.config import (
    BoxText,
    CoordinatesConfig,
    EvaluateConfig,
    ExportConfig,
    FillConfig,
    MembraneConfig,
    ModelConfig,
    PartitionConfig,
    ReconcileConfig,
    RecordsConfig,
    Section,
    SegmentConfig,
    SubvolumesConfig,
    TrainConfig,
    VoxelSize,
)
from ffn.errors import ConfigError, FfnError
from ffn.geometry import Box, tile
from ffn.model.store import load_architecture
from ffn.options import explain
from ffn.synthetic.config import SynthConfig
from ffn.volume import open_volume


class VolumeConfig(Section):
    """One volume: where it comes from and what it is used for."""

    synthetic: SynthConfig | None = Field(None, description="make this volume instead of reading one")
    image: str | None = Field(
        None, description="folder or glob of slices, multipage TIFF, FILE.h5:DATASET, zarr, N5, precomputed"
    )
    labels: str | None = Field(None, description="truth in any of these formats; null where there is none")
    voxel_size_zyx_nm: VoxelSize | None = Field(None, description="side of a voxel, nm; null where the image knows it")
    train_box: BoxText = Field("all", description="where training examples come from; needs labels")
    segment_box: BoxText = Field("all", description="what is segmented")
    evaluate_box: BoxText = Field("all", description="what is scored, where it has labels and was segmented")

    @model_validator(mode="after")
    def _one_source(self) -> VolumeConfig:
        if (self.synthetic is None) == (self.image is None):
            raise ValueError("needs either 'image' or 'synthetic', found " + ("both" if self.image else "none"))
        if self.synthetic is not None and (self.labels or self.voxel_size_zyx_nm):
            raise ValueError("'labels' and 'voxel_size_zyx_nm' come with 'synthetic', leave them out beside it")
        return self

    @property
    def has_labels(self) -> bool:
        """Whether there is a truth."""
        return self.synthetic is not None or self.labels is not None

    @property
    def is_trained_on(self) -> bool:
        """Whether training examples come from it."""
        return self.has_labels and self.train_box != "none"

    @property
    def is_segmented(self) -> bool:
        """Whether it is segmented."""
        return self.segment_box != "none"

    @property
    def is_evaluated(self) -> bool:
        """Whether its segmentation is scored."""
        return self.has_labels and self.is_segmented and self.evaluate_box != "none"


class RunConfig(Section):
    """Everything that decides a run's result."""

    run: str = Field("demo", pattern=r"^[A-Za-z0-9_.-]+$", description="name; results go to results/<run>")
    rng_seed: int = Field(1, ge=0, description="fixes everything that is random")
    volumes: dict[str, VolumeConfig] = Field(min_length=1, description="by name")
    init: str | None = Field(
        None, description="weights to start from: a model folder, or a published TF1 checkpoint's prefix"
    )
    membrane: MembraneConfig = MembraneConfig()
    partition: PartitionConfig = PartitionConfig()
    coordinates: CoordinatesConfig = CoordinatesConfig()
    records: RecordsConfig = RecordsConfig()
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()
    subvolumes: SubvolumesConfig = SubvolumesConfig()
    segment: SegmentConfig = SegmentConfig()
    reconcile: ReconcileConfig = ReconcileConfig()
    fill: FillConfig = FillConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    export: ExportConfig = ExportConfig()

    @model_validator(mode="before")
    @classmethod
    def _derive(cls, values: Any) -> Any:
        """LOM and margin follow from FOV and deltas where they are not given."""
        if not isinstance(values, dict):
            return values
        try:
            model = ModelConfig(**(values.get("model") or {}))
        except (ValidationError, TypeError):
            return values  # reported as an error of its own section
        context = [r + d for r, d in zip(model.fov_radius_zyx, model.deltas_zyx, strict=True)]
        derived = {"partition": {"lom_radius_zyx": context}, "coordinates": {"margin_zyx": context}}
        for section, defaults in derived.items():
            given = values.get(section) or {}
            if isinstance(given, dict):
                values = {**values, section: {**defaults, **given}}
        return values

    @field_validator("volumes")
    @classmethod
    def _names(cls, volumes: dict[str, VolumeConfig]) -> dict[str, VolumeConfig]:
        for name in volumes:
            if not name.replace("_", "").replace("-", "").isalnum():
                raise ValueError(f"{name!r} is no usable name, expected letters, digits, _ and -")
        return volumes

    @model_validator(mode="after")
    def _sizes_fit(self) -> RunConfig:
        model, subvolumes = self.model, self.subvolumes
        for i, axis in enumerate("zyx"):
            fov, context = model.fov_size_zyx[i], model.fov_radius_zyx[i] + model.deltas_zyx[i]
            margin, overlap, size = (
                self.coordinates.margin_zyx[i],
                subvolumes.overlap_zyx[i],
                subvolumes.size_zyx[i],
            )
            if margin < context:
                raise ValueError(
                    f"coordinates.margin_zyx: {margin} on axis {axis} is less than FOV radius + deltas ({context}), "
                    "so training patches would leave the volume"
                )
            if overlap < fov:
                raise ValueError(
                    f"subvolumes.overlap_zyx: {overlap} on axis {axis} is less than the FOV ({fov}), "
                    "so neighbours would not share voxels that both can reach"
                )
            if overlap >= size:
                raise ValueError(
                    f"subvolumes.overlap_zyx: {overlap} on axis {axis} is not less than subvolumes.size_zyx ({size})"
                )
        return self

    @model_validator(mode="after")
    def _axes_can_be_exchanged(self) -> RunConfig:
        sizes = dict(zip("zyx", zip(self.model.fov_size_zyx, self.model.deltas_zyx, strict=True), strict=True))
        first, *others = self.train.permutable_axes or ("z",)
        for axis in others:
            if sizes[axis] != sizes[first]:
                raise ValueError(
                    f"train.permutable_axes: {first} and {axis} differ in FOV or deltas "
                    f"({sizes[first]} and {sizes[axis]}), "
                    "only axes of equal size can be exchanged"
                )
        return self

    @model_validator(mode="after")
    def _training_is_possible(self) -> RunConfig:
        if self.train.max_steps == 0 and self.init is None:
            raise ValueError("train.max_steps: 0 keeps the initial weights, expected 'init' to name them")
        if self.train.max_steps > 0 and not any(v.is_trained_on for v in self.volumes.values()):
            raise ValueError(
                "volumes: none has labels and a train_box, training needs one. Set train.max_steps: 0 to skip it"
            )
        return self


def load_run(values: dict[str, Any]) -> RunConfig:
    """Check a configuration without looking at files.

    Raises
    ------
    ConfigError
        One line: key, value, expectation.
    """
    try:
        return RunConfig(**values)
    except ValidationError as error:
        raise ConfigError(explain(error, lambda path: ".".join(path) or "config")) from None


@dataclass(frozen=True)
class Place:
    """Where a volume's image and truth lie, and the boxes of the configuration with 'all' resolved.

    Parameters
    ----------
    image : Box
        The whole image.
    labels : Box or None
        The whole truth.
    """

    image: Box
    labels: Box | None
    config: VolumeConfig

    @property
    def train_box(self) -> Box:
        """Where training examples come from: the labelled part of the image unless the configuration says less."""
        assert self.labels is not None
        return self._resolve(self.config.train_box, self.image.intersect(self.labels))

    @property
    def segment_box(self) -> Box:
        """What is segmented."""
        return self._resolve(self.config.segment_box, self.image)

    @property
    def evaluate_box(self) -> Box:
        """What is scored: the labelled part of what is segmented unless the configuration says less."""
        assert self.labels is not None
        return self._resolve(self.config.evaluate_box, self.segment_box.intersect(self.labels))

    @staticmethod
    def _resolve(text: str, everything: Box) -> Box:
        return everything if text == "all" else Box.parse(text)


def check_sources(config: RunConfig) -> dict[str, Place]:
    """Open every source and check that boxes and FOV fit in.

    Returns
    -------
    dict of str to Place
        By name of the volume.

    Raises
    ------
    ConfigError
        Naming the key, its value and what is wrong with it.
    """
    _check_init(config)
    places = {}
    for name, volume in config.volumes.items():
        places[name] = _place(name, volume)
        _check_boxes(name, places[name], config.model)
    return places


def subvolume_boxes(config: RunConfig, place: Place) -> dict[str, Box]:
    """Return the jobs of flood filling by their names, such as ``z000000-y000000-x000128``."""
    boxes = tile(place.segment_box, config.subvolumes.size_zyx, config.subvolumes.overlap_zyx)
    return {box.stem: box for box in boxes}


def _check_init(config: RunConfig) -> None:
    """Refuse weights of another FOV: sampling and tiling follow the configured one."""
    if config.init is None or Path(config.init + ".index").is_file():
        return
    if not Path(config.init).is_dir():
        raise ConfigError(f"init: {config.init!r} is neither a model folder nor a checkpoint's prefix. Check the path")
    model = load_architecture(config.init)
    for key in ("fov_size_zyx", "deltas_zyx"):
        if getattr(model, key) != getattr(config.model, key):
            raise ConfigError(
                f"model.{key}: {getattr(config.model, key)} is not that of init {config.init} "
                f"({getattr(model, key)}), both must be equal"
            )


def _place(name: str, volume: VolumeConfig) -> Place:
    if volume.synthetic is not None:
        box = Box.from_shape(volume.synthetic.shape_zyx)
        return Place(box, box, volume)
    image = _source_box(f"volumes.{name}.image", volume.image)
    labels = _source_box(f"volumes.{name}.labels", volume.labels) if volume.labels else None
    return Place(image, labels, volume)


def _source_box(key: str, source: str | None) -> Box:
    try:
        with open_volume(str(source)) as opened:
            return opened.box
    except FfnError as error:
        raise ConfigError(f"{key}: {error}") from None


def _check_boxes(name: str, place: Place, model: ModelConfig) -> None:
    used = {
        "train_box": place.config.is_trained_on,
        "segment_box": place.config.is_segmented,
        "evaluate_box": place.config.is_evaluated,
    }
    for key in (key for key, wanted in used.items() if wanted):
        box = getattr(place, key)
        if box.is_empty or not place.image.contains(box):
            raise ConfigError(
                f"volumes.{name}.{key}: {box} is empty or leaves the image {place.image}, expected a box inside"
            )
        if key != "evaluate_box" and any(n < fov for n, fov in zip(box.shape, model.fov_size_zyx, strict=True)):
            raise ConfigError(
                f"model.fov_size_zyx: {model.fov_size_zyx} is larger than volumes.{name}.{key} with shape {box.shape}, "
                "expected a FOV that fits in"
            )
