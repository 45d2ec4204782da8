"""The options of the stages: type, range, unit, default, meaning; the only place that knows defaults.

The command line derives its options from these models, the workflow its flags, so a new parameter is one line. Here
are those of network and flood filling; others are in `config.py` of their packages.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from ffn.errors import ConfigError, explain
from ffn.geometry import ZYX, Box, add

MAX_VOXEL_SIZE_RATIO = 1.25  # our choice: beyond it, exchanging axes in training makes tissue that does not exist

PART_ZYX = (128, 128, 128)  # voxels that stages read and compare at a time; our choice, which bounds memory

OF_WINDOWS = re.compile(r"[A-Za-z]:\\|\\\\")
VARIABLE = re.compile(r"\$\w+|\$\{\w+\}")
WHOLE_NUMBER = re.compile(r"\d+(\.\d+)?[eE]\+?\d+")  # 1e5, which YAML takes for text
LOOKS_LIKE_OPTION = re.compile(r"@|-(?!\.?\d)")  # negative numbers are values
# The type of an option that does not change a stage's result: `threads: SameResult[int] = Field(…)`.
T = TypeVar("T")
S = TypeVar("S", bound="Section")
NO_RESULT = {"result": False}
SameResult = Annotated[T, Field(json_schema_extra=NO_RESULT)]


class Value(BaseModel):
    """Base of values with several parts: immutable, unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)


class Section(Value):
    """Base of all sections: the options of a stage or of a volume.

    Attributes
    ----------
    headings : mapping of str to str
        Headings that divide a long section, by the first field below each.
    for_workflow : frozenset of str
        Options that only the workflow reads; the stage's command does not have them.
    """

    headings: ClassVar[Mapping[str, str]] = {}
    for_workflow: ClassVar[frozenset[str]] = frozenset()

    @field_validator("*", mode="before")
    @classmethod
    def _number_wherever_the_option_is_one(cls, value: Any, info: ValidationInfo) -> Any:
        number = _as_number(value)  # first, because the type's name takes a hundred times as long
        return value if number == value or "str" in repr(cls.model_fields[str(info.field_name)].annotation) else number

    @classmethod
    def same_result(cls) -> set[str]:
        """Names of the options declared as `SameResult`: a change of them repeats nothing."""
        return {name for name, info in cls.model_fields.items() if info.json_schema_extra == NO_RESULT}

    def defaults(self) -> dict[str, Any]:
        """Return the values of the options if none was given."""
        return {name: info.get_default(call_default_factory=True) for name, info in type(self).model_fields.items()}

    def part(self, model: type[S]) -> S:
        """Return the options that another section shares with this one."""
        return model(**{name: getattr(self, name) for name in model.model_fields})

    def result_options(self) -> dict[str, object]:
        """Return the options that the result depends on, ready for JSON."""
        return self.model_dump(mode="json", exclude=self.same_result())


def _as_number(value: Any) -> Any:
    if isinstance(value, list):
        return [_as_number(each) for each in value]
    is_number = isinstance(value, str) and WHOLE_NUMBER.fullmatch(value)
    return int(float(value)) if is_number and float(value).is_integer() else value


def _checked_box(text: object) -> object:
    """Refuse a malformed box; keep 'all', 'none' and boxes as text (they go on a command line again)."""
    return text if text is None or text in ("all", "none") else str(Box.parse(str(text)))


def _checked_path(text: str) -> str:
    """Refuse what Snakemake or a command would misread; a path that begins with - or @ is one in this folder."""
    if len(text.splitlines()) != 1 or "\0" in text:
        raise ValueError(f"{text!r} is not one line of text, expected a path. Rename the file")
    if OF_WINDOWS.match(text):
        raise ValueError(f"{text!r} is a path of Windows. Write it as this machine sees it, such as /mnt/c/data/raw.h5")
    if "://" not in text and (variable := VARIABLE.search(text)) and not os.path.lexists(text.split(":")[0]):
        raise ValueError(f"{text!r} has {variable[0]}, and variables are not expanded here. Write the path itself")
    if marks := "".join(sorted(set("{}<>") & set(text))):
        raise ValueError(f"{text!r} has {marks}, which Snakemake takes for names of its own. Rename the file")
    return f"./{text}" if LOOKS_LIKE_OPTION.match(text) else os.path.expanduser(text)


PositiveZYX = tuple[PositiveInt, PositiveInt, PositiveInt]
NonNegativeInt = Annotated[int, Field(ge=0)]
NonNegativeZYX = tuple[NonNegativeInt, NonNegativeInt, NonNegativeInt]
PositiveVoxelSize = tuple[PositiveFloat, PositiveFloat, PositiveFloat]
Fraction = Annotated[float, Field(ge=0, le=1)]
Probability = Annotated[float, Field(gt=0, lt=1)]
BoxText = Annotated[str, BeforeValidator(_checked_box)]
PathText = Annotated[str, AfterValidator(_checked_path)]  # of a file, folder or URL that a user names
Axes = tuple[Literal["z", "y", "x"], ...]
Normalize = Literal["training", "volume", "match"]


class ModelConfig(Section):
    """The network: `depth` residual modules (the input module counts as one) of 3×3×3 convolutions."""

    depth: Annotated[int, Field(ge=1, le=64)] = Field(9, description="input module + residual modules")
    features: PositiveInt = Field(32, description="feature maps of every convolution")
    fov_size_zyx: PositiveZYX = Field(
        (33, 33, 33), description="field of view, odd, voxels; a run's follows from the voxel size, or init brings it"
    )
    deltas_zyx: NonNegativeZYX = Field(
        (8, 8, 8), description="FOV step, less than half the FOV, voxels; a run's is a quarter of it"
    )
    image_mean: float | None = Field(
        None, description="subtracted from the image; null measures it on the labelled part of the training volumes"
    )
    image_stddev: PositiveFloat | None = Field(None, description="divides the image; null measures it")

    @model_validator(mode="after")
    def _fov_fits(self) -> ModelConfig:
        for axis, fov, delta in zip("zyx", self.fov_size_zyx, self.deltas_zyx, strict=True):
            if fov % 2 == 0:
                raise ValueError(f"fov_size_zyx: {fov} on axis {axis} is even, expected an odd size")
            if 2 * delta >= fov:
                found = f"deltas_zyx: {delta} on axis {axis} is not less than half the FOV ({fov})"
                raise ValueError(f"{found}, so the next FOV centre would leave it")
        if not any(self.deltas_zyx):
            raise ValueError(f"deltas_zyx: {self.deltas_zyx} never moves, expected a positive step on some axis")
        return self

    @property
    def fov_radius_zyx(self) -> ZYX:
        """Voxels on each side of the centre."""
        z, y, x = self.fov_size_zyx
        return z // 2, y // 2, x // 2

    @property
    def context_zyx(self) -> ZYX:
        """Voxels around a box that FOVs see which are centred in it or one move beyond it."""
        return add(self.fov_radius_zyx, self.deltas_zyx)


MASK_TERM = re.compile(r"(?P<path>.*)#(?:(?P<invert>invert)|(?P<key>values|range|box)=(?P<value>[^#]*))", re.DOTALL)


class Mask(Value):
    """Voxels of a volume that are left out: where another volume is not 0 or has these values, or a box.

    As text, ``tissue.h5:labels#values=3,4#invert``.
    """

    path: PathText | None = Field(None, description="volume of any resolution, and of any format that images have")
    values: tuple[int, ...] = Field((), description="masked values of that volume; none: all but 0")
    range: tuple[float, float] | None = Field(None, description="lowest and highest masked value")
    box: BoxText | None = Field(None, description="z0:z1,y0:y1,x0:x1: only voxels in there; alone it masks them all")
    invert: bool = Field(False, description="mask all other voxels instead")

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, given: Any) -> Any:
        """Read the terms of the text form, from the last one; other # belong to the path."""
        if not isinstance(given, str):
            return given
        values: dict[str, Any] = {}
        while match := MASK_TERM.fullmatch(given):
            given, key = match["path"], match["key"] or "invert"
            separator = {"values": ",", "range": ":"}.get(key)
            value = match["value"] or ""
            values[key] = True if key == "invert" else value.split(separator) if separator else value
        return values | ({"path": given} if given else {})

    @model_validator(mode="after")
    def _masks_something(self) -> Mask:
        if self.box in ("all", "none"):
            raise ValueError(f"box: {self.box} must have the form z0:z1,y0:y1,x0:x1")
        if self.path is None and (self.box is None or self.values or self.range):
            raise ValueError("path: is missing, a mask needs the path of a volume or a box")
        if self.range and self.range[0] > self.range[1]:
            raise ValueError(f"range: found {self.range}, expected the lower value first")
        if self.values and self.range:
            raise ValueError(f"values and range: found both, {self.values} and {self.range}, expected one of them")
        return self

    def __str__(self) -> str:
        """Return the text form, as commands take it."""
        terms = {"values": ",".join(map(str, self.values)), "box": self.box}
        terms["range"] = ":".join(map(repr, self.range)) if self.range else None
        text = "".join(f"#{key}={value}" for key, value in terms.items() if value)
        return f"{self.path or ''}{text}{'#invert' if self.invert else ''}"


class ImageConfig(Section):
    """Masks and intensity normalisation of a volume."""

    masks: tuple[Mask, ...] = Field(
        (),
        description="voxels that are left out of everything; a list of {path, values, range, box, invert}: where a "
        "volume of any resolution is not 0, has one of the values or is in the range, in the box",
    )

    init_segmentation: PathText | None = Field(
        None,
        description="labels of any resolution (somata, vessels, a coarser run) that are segments from the start: they "
        "keep their voxels, and flood filling does not enter them",
    )
    normalize: Normalize = Field(
        "training",
        description="grey levels that the network sees: by mean and deviation of the model's training volumes or of "
        "this volume; match takes the training volumes' whole histogram",
    )


class SubvolumesConfig(Section):
    """How a box is divided into subvolumes, one job of flood filling each."""

    size_zyx: PositiveZYX = Field((256, 256, 256), description="size of one subvolume, voxels")
    overlap_zyx: NonNegativeZYX = Field(
        (48, 48, 48), description="shared by neighbouring subvolumes, at least the FOV, voxels"
    )


# Deltas as shares of what is largest (3/4 of the FOV's radius) or of the model's own. FIB-25, FOV 33, before
# agglomeration: deltas 12 instead of 8 take 2.5 times fewer FOVs, foreground VOI 1.245 instead of 1.156.
FAST_SHARE, BEST_SHARE = 0.75, 0.75


class FloodConfig(Section):
    """Growth of one object, and the engine that runs the network."""

    init_activation: Probability = Field(0.95, description="POM at the seed voxel")
    pad_value: Probability = Field(0.05, description="POM of voxels never visited")
    move_threshold: Probability = Field(0.9, description="POM that a face must reach for the FOV to move there")
    segment_threshold: Probability = Field(0.6, description="POM that makes a voxel part of the object")
    disco_seed_threshold: float = Field(
        0.0,
        le=1,
        description="share of active FOV voxels above which background cannot come back; negative: never frozen",
    )
    effort: Literal["fast", "normal", "best"] = Field(
        "normal",
        description="FOV step: fast takes 3/4 of the FOV's radius, normal the model's deltas, best 3/4 of these",
    )
    deltas_zyx: NonNegativeZYX | None = Field(
        None, description="FOV step of flood filling, less than half the FOV, voxels; null follows effort"
    )
    mirror: bool = Field(
        True,
        description="whether the image is mirror-padded by the FOV's radius, so that objects at its faces are "
        "segmented as well; at the faces of a box inside it, FOVs see how it goes on",
    )
    engine: Literal["auto", "openvino", "kernels", "jax"] = Field(
        "auto", description="library that runs the network; auto takes the fastest where the run's first job is"
    )
    precision: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="number format of the network; auto takes the fastest where the run's first job is; float16 with "
        "the engine jax alone",
    )
    canvases: Literal["auto"] | PositiveInt = Field(
        "auto",
        description="subvolumes, or windows of agglomeration, that one process floods at once with the engine jax; "
        "auto: 1 on a CPU, and on a GPU as many as its memory holds, at most 64",
    )

    @model_validator(mode="after")
    def _options_fit(self) -> FloodConfig:
        if self.init_activation < self.move_threshold:
            found = f"init_activation: {self.init_activation} is less than move_threshold ({self.move_threshold})"
            raise ValueError(f"{found}, so no seed would ever start")
        if self.precision == "float16" and self.engine not in ("auto", "jax"):
            raise ValueError(f"precision: found float16, the engine {self.engine} has none. Choose the engine jax")
        return self


class SegmentConfig(FloodConfig):
    """Flood filling of one subvolume."""

    seed_policy: Literal["peaks", "peaks_2d"] = Field(
        "peaks", description="where objects start: at peaks of the distance to membranes, in 3D or by section"
    )
    seed_order: Literal["forward", "reversed"] = Field(
        "forward", description="seeds by ascending or descending (z, y, x); points as listed or from the last"
    )
    min_boundary_dist_zyx: NonNegativeZYX = Field(
        (1, 1, 1), description="distance of a seed from existing segments, voxels"
    )
    min_segment_um3: PositiveFloat = Field(0.001, description="smaller objects are dropped, µm³")
    second_pass: bool = Field(False, description="whether to seed again where the first pass left voxels empty")
    max_fovs: PositiveInt | None = Field(
        None, description="an object stops growing after this many FOVs; null: no limit"
    )
    seed_distance_nm: PositiveFloat | None = Field(
        None, description="least distance between two peak seeds, nm; null: 30, or 56 by section, as in google/ffn"
    )
    seed_points: PathText | None = Field(
        None,
        description="where objects start instead, full-volume voxels: a CSV file with the header z,y,x and one seed "
        "per line, or one seed as z,y,x",
    )
    checkpoint_seconds: SameResult[Annotated[float, Field(gt=0)]] = Field(
        300.0, description="seconds between checkpoints, from which a killed job resumes"
    )


def flooding_model(model: ModelConfig, config: FloodConfig) -> ModelConfig:
    """Return the network with the deltas of growing objects, which `effort` or `deltas_zyx` may change.

    Examples
    --------
    >>> network = ModelConfig(fov_size_zyx=(17, 33, 33), deltas_zyx=(4, 8, 8))
    >>> [flooding_model(network, SegmentConfig(effort=name)).deltas_zyx for name in ("fast", "normal", "best")]
    [(6, 12, 12), (4, 8, 8), (3, 6, 6)]
    """
    z, y, x = (_delta(*sizes, config) for sizes in zip(model.fov_radius_zyx, model.deltas_zyx, strict=True))
    try:
        return ModelConfig(**{**model.model_dump(), "deltas_zyx": config.deltas_zyx or (z, y, x)})
    except ValidationError as error:
        raise ConfigError(f"segment.{explain(error, '.'.join)}") from None


def _delta(radius: int, delta: int, config: FloodConfig) -> int:
    """Step on one axis; an axis that the model does not move along stays so."""
    if config.effort == "normal" or delta == 0:
        return delta
    return max(delta, int(FAST_SHARE * radius)) if config.effort == "fast" else max(1, int(BEST_SHARE * delta))
