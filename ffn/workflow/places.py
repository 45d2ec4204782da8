"""Open the sources of a run's volumes and check the boxes before the first job starts."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from ffn.config import MAX_VOXEL_SIZE_RATIO
from ffn.errors import Complaints, ConfigError, InputError, ModelError, VolumeError, under
from ffn.geometry import ZYX, Box, VoxelSize, add, scale, zyx
from ffn.io.foreign.locations import Location
from ffn.io.open import open_volume
from ffn.io.store_names import tracked_file
from ffn.io.volume import NO_SIZE, file_of, is_same_source
from ffn.training.config import require_equal_sides
from ffn.workflow import sources
from ffn.workflow.config_files import in_root
from ffn.workflow.run import NEEDED, RunConfig, VolumeConfig, load_run
from ffn.workflow.sources import Finer, check_source, find_image, find_labels

# Voxels around the boxes of a run that are brought in of a remote image, too: membranes and FOVs look less far.
SURROUNDINGS = 64


@dataclass(frozen=True)
class Place:
    """Boxes of a volume's image and ground truth, and the boxes of the configuration with 'all' resolved."""

    image: Box  # the whole image, or the part that is read
    labels: Box | None  # the ground truth of it
    voxel_size_zyx_nm: VoxelSize  # of the mip that the run works at
    config: VolumeConfig
    image_stays: bool = False  # read where it is, see ffn.io.ingest.can_stay
    finer: Mapping[str, Finer] = field(default_factory=dict)  # by "image" and "labels", the mips that ingest makes

    @property
    def is_evaluated(self) -> bool:
        """Whether anything is scored. 'all' may resolve to an empty box; an explicit box may not."""
        return self.config.is_evaluated and (self.config.evaluate_box != "all" or not self.evaluate_box.is_empty)

    @property
    def shows_truth(self) -> bool:
        """Whether a part of the segmented box has labels."""
        return self.labels is not None and not self.segment_box.intersect(self.labels).is_empty

    @property
    def may_be_misplaced(self) -> bool:
        """Whether labels of a part of the image begin at its first voxel because neither file nor offset says where."""
        is_part = self.labels is not None and self.labels.start == (0, 0, 0) and self.labels != self.image
        if not is_part or self.config.labels_offset_zyx is not None:
            return False
        with sources.open_source(self.config, "labels") as (labels, _):
            made_by = labels.provenance
        # Others lie in the place of the image that they were made of, which may be a crop of this one.
        inputs = made_by.get("inputs", {})
        is_elsewhere = not Box.parse(inputs.get("within", str(self.image))).contains(self.image)
        return is_elsewhere or inputs.get("box") == "all" or made_by.get("stage", "ingest") == "ingest"

    def is_of_image_of(self, other: Place) -> bool:
        """Whether another volume has the same image or labels, in the same voxels."""
        pairs = [(getattr(self.config, key), getattr(other.config, key)) for key in ("image", "labels")]
        is_same = any(a and b and is_same_source(a, b) for a, b in pairs)
        return is_same and self.voxel_size_zyx_nm == other.voxel_size_zyx_nm

    @property
    def labelled(self) -> Box:
        """The labelled part of the image."""
        assert self.labels is not None
        return self.image.intersect(self.labels)

    @property
    def train_box(self) -> Box:
        """Where training examples come from: by default the labelled part of the image."""
        return self._resolve(self.config.train_box, self.labelled)

    @property
    def validate_box(self) -> Box:
        """Where the validation examples of training come from: by default the labelled part of the image."""
        return self._resolve(self.config.validate_box, self.labelled)

    @property
    def segment_box(self) -> Box:
        """The box to segment."""
        return self._resolve(self.config.segment_box, self.image)

    @property
    def evaluate_box(self) -> Box:
        """The box to score: by default the labelled part of `segment_box`."""
        assert self.labels is not None
        return self._resolve(self.config.evaluate_box, self.segment_box.intersect(self.labels))

    @staticmethod
    def _resolve(text: str, everything: Box) -> Box:
        return everything if text == "all" else Box.parse(text)


def open_run(values: dict[str, Any]) -> tuple[RunConfig, dict[str, Place], str | None]:
    """Check a configuration and its sources; return also a line on the options that follow from voxels or weights."""
    if isinstance(init := values.get("init"), str):
        values = {**values, "init": (init := in_root(init))}
    affinities = values.get("affinities")
    if isinstance(affinities, dict) and isinstance(network := affinities.get("network"), str):
        values = {**values, "affinities": {"max_steps": 0, **affinities, "network": in_root(network)}}
    complaints, initial = Complaints(), None
    size = complaints.of(sources.voxel_size, values)
    if isinstance(init, str) and Path(init).is_dir():
        from ffn.training.checkpoint import architecture_of

        initial = complaints.of(architecture_of, init)
    completed = {} if size is None else sources.derived(values, size, initial)
    run = complaints.of(load_run, {**values, **completed})
    places = complaints.of(check_sources, run) if run else None
    if run is None:
        _check_volumes(values.get("volumes"), complaints)
    complaints.settle()
    assert run and places
    return run, places, sources.note(values, completed, size) if size else None


def _check_volumes(volumes: Any, complaints: Complaints) -> None:
    """Open the sources of those volumes of a configuration that are valid by themselves, though it is not."""
    for name, values in volumes.items() if isinstance(volumes, dict) else ():
        with contextlib.suppress(ValidationError, ConfigError, TypeError):
            complaints.of(_place, name, VolumeConfig(**values))


def check_sources(config: RunConfig) -> dict[str, Place]:
    """Open every source, and check its boxes and all files that stages will read."""
    complaints = Complaints()
    if config.init is not None:
        from ffn.training import train

        complaints.of(train.check, config.init, config.model, config.train.max_steps > 0)
    found = {name: complaints.of(_place_in_run, name, config) for name in config.volumes}
    complaints.settle()
    places = {name: place for name, place in found.items() if place}
    if config.train.use_best and not any(place.config.is_validated_on for place in places.values()):
        name, place = next((name, place) for name, place in places.items() if config.is_cut(place.config))
        text = f"volumes.{name}.validate_box: auto, but train_box {place.train_box} is too small to be cut in two"
        raise ConfigError(f"{text}. Give more labels, or set validate_box: none to train without a validation")
    complaints.add(_shared_voxels(places, config))
    for name in places:
        complaints.of(under(f"volumes.{name}")(_check_given), name, places, config)
    if config.affinities.enabled and config.affinities.network:
        from ffn.io.hdf5 import read_arrays

        complaints.of(under("affinities.network")(read_arrays), config.affinities.network, ModelError)
    complaints.settle()
    return places


def _check_given(name: str, places: Mapping[str, Place], config: RunConfig) -> None:
    """Let stages check the files that a volume names: masks, segments, seeds, corrections, skeletons."""
    place, volume, size = places[name], places[name].config, places[name].voxel_size_zyx_nm
    box = place.segment_box if volume.is_segmented else place.image
    boxes = [box] if volume.is_segmented else []
    if volume.is_trained_on and config.train.max_steps:
        boxes.append(place.train_box)
    if config.select.checkpoints and name == config.select_volume:
        boxes.append(Box.parse(str(config.select.box)))
    if volume.is_trained_on and config.affinities.enabled and config.affinities.max_steps:
        from ffn.training import affinities

        affinities.crop_of(place.train_box, name)
        first = next(other.voxel_size_zyx_nm for other in places.values() if other.config.is_trained_on)
        if not np.allclose(size, first, rtol=1e-3):
            found = f"affinities would be learnt from voxels of {first} nm, too, expected one size"
            raise ConfigError(f"{found}. Set train_box: none for one of them, or affinities.max_steps: 0")
    named = [*(("masks", mask.path) for mask in volume.masks), ("init_segmentation", volume.init_segmentation)]
    for key, spec in named:
        if spec and sources.is_coarser(volume, size):
            _require_size(key, spec, place)
    if boxes:
        from ffn.inference.canvas import Frame
        from ffn.inference.inputs import check

        frames = [Frame.of(box, place.image, config.model, config.segment.mirror) for box in boxes]
        check(place.image, frames, size, volume, config.segment, config.model)
    if volume.corrections:
        from ffn.assembly import given

        if not (volume.is_segmented and config.agglomerate.enabled):
            advice = "Set agglomerate.enabled and a segment_box, or omit it"
            raise InputError("corrections", f"is for merge, which leaves this volume out. {advice}")
        given.check(box, volume.corrections)
    if volume.skeletons:
        from ffn.evaluation import evaluate

        evaluate.check(volume.skeletons, size)


def _require_size(key: str, spec: str, place: Place) -> None:
    """Refuse a volume without a voxel size in a run at a coarser mip, unless it is as large as the image is there."""
    with under(key), open_volume(spec) as found:
        is_sizeless = found.voxel_size_zyx_nm in (None, NO_SIZE)
        if is_sizeless and found.box not in (place.image, find_image("", place.config).box):  # a part, or all
            advice = "Copy it: ffn ingest --voxel-size Z Y X"
            raise VolumeError(f"{spec} has no voxel size, expected one in a run at a coarser mip. {advice}")


def trained_in(places: Mapping[str, Place], name: str, box: Box) -> list[str]:
    """Return the volumes that are trained on in a box of volume `name`: itself, and others of the same image."""
    trained = {o: p for o, p in places.items() if p.config.is_trained_on and not p.train_box.intersect(box).is_empty}
    return [other for other, place in trained.items() if other == name or place.is_of_image_of(places[name])]


def files_among(*specs: str | None) -> list[str]:
    """Return the files among volumes and paths, so that a change of one repeats what reads it; no folders and URLs.

    Of a store, it is the file that is written last. Paths lose a leading ``./``, of which Snakemake warns.
    """
    return [str(path) for spec in specs if spec and (path := Path(tracked_file(file_of(spec)))).is_file()]


def skeleton_files(path: str | None) -> list[str]:
    """Return the file of skeletons, or the files in their folder, so that a change of one repeats the scores."""
    found = [Path(path), *sorted(Path(path).glob("*"))] if path else []
    return [str(file) for file in found if file.is_file()]


def _place_in_run(name: str, config: RunConfig) -> Place:
    """Find a volume, cut its validation box, and leave out the part of a remote image that the run does not need."""
    place, complaints = _with_validation(_place(name, config.volumes[name]), config), Complaints()
    complaints.add(f"volumes.{name}.{fault}" for fault in _faults_of_boxes(place, config))
    if place.config.is_trained_on and config.train.max_steps:
        axes, size = config.train.permutable_axes, place.voxel_size_zyx_nm
        complaints.of(require_equal_sides, axes, size, f"voxels of {name}", MAX_VOXEL_SIZE_RATIO)
    complaints.settle()
    return _needed(name, place, config) if place.config.image_box == NEEDED else place


def _place(name: str, volume: VolumeConfig) -> Place:
    if volume.synthetic is not None:
        box = Box.from_shape(volume.synthetic.shape_zyx)
        return Place(box, box, volume.synthetic.voxel_size_zyx_nm, volume)
    complaints = Complaints()
    image = complaints.of(find_image, name, volume)
    if image is None and volume.labels:
        complaints.of(check_source, volume.labels, volume, f"volumes.{name}.labels")
    complaints.settle()
    assert image
    sources = {"image": image} | ({"labels": find_labels(name, volume, image)} if volume.labels else {})
    is_whole = volume.image_box in ("all", NEEDED)
    with under(f"volumes.{name}.image_box"):
        box = image.box if is_whole else Box.parse(volume.image_box)
    if box.is_empty or not image.box.contains(box):
        raise ConfigError(f"volumes.{name}.image_box: {box} leaves the image {image.box}. Give a part of it")
    labels = sources["labels"].box if volume.labels else None
    labels = labels and (labels if is_whole else labels.intersect(box))
    finer = {kind: source.finer for kind, source in sources.items() if source.finer}
    return Place(box, labels, image.voxel_size_zyx_nm, volume, image.stays, finer)


def _needed(name: str, place: Place, config: RunConfig) -> Place:
    """Crop a remote image to the boxes the run uses."""
    boxes = [getattr(place, key) for key in _used_boxes(place)]
    if config.select.checkpoints and name == config.select_volume:
        boxes.append(Box.parse(str(config.select.box)))
    image = place.config.image
    if not boxes or image is None or Location.parse(image).path is not None:
        return place
    box = Box.hull(boxes).grow((SURROUNDINGS,) * 3).intersect(place.image)
    labels = place.labels and place.labels.intersect(box)
    if box == place.image or (labels is not None and labels.is_empty):
        return place
    part = place.config.model_copy(update={"image_box": str(box)})
    return dataclasses.replace(place, image=box, labels=labels, config=part)


def _used_boxes(place: Place) -> list[str]:
    used = {
        "train_box": place.config.is_trained_on,
        "validate_box": place.config.is_validated_on,
        "segment_box": place.config.is_segmented,
        "evaluate_box": place.is_evaluated,
    }
    return [key for key, wanted in used.items() if wanted]


def _with_validation(place: Place, config: RunConfig) -> Place:
    """Cut a validation box from the end of the training box along its longest axis, if the configuration wants one.

    Centres of validation examples are in a tenth of the box; its last voxels hold the rest of their patches.
    """
    if not config.is_cut(place.config):
        return place
    box, patch = place.train_box, _patch_size(config)
    axis = max(range(3), key=lambda i: box.shape[i])
    at = box.stop[axis] - patch[axis] // 2 - box.shape[axis] // 10
    if at - box.start[axis] < _trainable_size(config)[axis]:
        return place
    train = Box(box.start, zyx(at if i == axis else n for i, n in enumerate(box.stop)))
    validate = Box(zyx(at if i == axis else n for i, n in enumerate(box.start)), box.stop)
    boxes = {"train_box": str(train), "validate_box": str(validate)}
    return dataclasses.replace(place, config=place.config.model_copy(update=boxes))


def _faults_of_boxes(place: Place, config: RunConfig) -> Iterator[str]:
    """Yield what is wrong with the boxes of a volume, beginning with their keys."""
    for key in _used_boxes(place):
        box, around = getattr(place, key), _surroundings(place, key)
        if box.is_empty or not around.contains(box):
            outer = {"segment_box": "image", "evaluate_box": "labelled part of segment_box"}
            yield f"{key}: {box} is empty or leaves the {outer.get(key, 'labelled part of the image')}, {around}"
    if place.config.is_trained_on and config.train.max_steps:
        for axis, size, need in zip("zyx", place.train_box.shape, _trainable_size(config), strict=True):
            if size < need:
                found = f"train_box: {place.train_box} has {size} voxels on axis {axis}"
                needed = f"at least {need} are needed for one LOM and the margin"
                yield f"{found}, {needed}. Take a larger box; of ffn round, it is the segment_box of the last run"
    if place.config.is_validated_on:
        (z, y, x), labelled = _patch_size(config), _surroundings(place, "validate_box")
        if place.validate_box.intersect(labelled.grow((-(z // 2), -(y // 2), -(x // 2)))).is_empty:
            found = f"validate_box: {place.validate_box} has no room for a patch of {(z, y, x)} within {labelled}"
            yield f"{found}, the labelled part of the image. Move it away from the border"


def _surroundings(place: Place, key: str) -> Box:
    """Return the box that must contain a box of the configuration."""
    box = place.segment_box if key == "evaluate_box" else place.image
    return box if key == "segment_box" or place.labels is None else box.intersect(place.labels)


def _shared_voxels(places: Mapping[str, Place], config: RunConfig) -> Iterator[str]:
    """Yield boxes of validation that are also trained on or scored, or that cannot be scored."""
    for name, place in places.items() if config.train.max_steps else ():
        for other in trained_in(places, name, place.validate_box) if place.config.is_validated_on else ():
            found = f"volumes.{name}.validate_box: {place.validate_box} overlaps volumes.{other}.train_box"
            yield f"{found} {places[other].train_box}, of the same image. Keep the two apart"
    if not config.select.checkpoints:
        return
    name, box, place = config.select_volume, Box.parse(str(config.select.box)), places[config.select_volume]
    if place.labels is None or not place.labelled.contains(box):
        labelled = place.labelled if place.labels else "which has no labels"
        yield f"select.box: {box} leaves the labelled part of {name}, {labelled}"
    elif place.is_evaluated and not box.intersect(place.evaluate_box).is_empty:
        found = f"select.box: {box} overlaps volumes.{name}.evaluate_box {place.evaluate_box}"
        yield f"{found}, so the reported scores would be those that were selected for. Keep the two apart"


def _patch_size(config: RunConfig) -> ZYX:
    return add(config.model.fov_size_zyx, scale(config.model.deltas_zyx, 2 * config.train.patch_moves))


def _trainable_size(config: RunConfig) -> ZYX:
    """Return the smallest training box that has room for a whole LOM and for a patch."""
    reaches = zip(config.partition.lom_radius_zyx, config.coordinates.margin_zyx, strict=True)
    return zyx(2 * max(both) + 1 for both in reaches)
