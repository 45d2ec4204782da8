"""What a file of a run records, and what it would record if the configuration of the run made it now.

Values have their keys in config.yaml, such as ``train.max_steps``. Inputs that have no key keep their own names.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from ffn.config import Section
from ffn.io.masks import mask_inputs
from ffn.training.config import PROCESSES
from ffn.workflow.pipeline import Pipeline
from ffn.workflow.run import RunConfig
from ffn.workflow.stages import STAGES, Output

Values = dict[str, Any]

VOLUMES = ("synth", "ingest")  # stages that make the same files

# Boxes of a volume that the stages work on, see `ffn.workflow.places.Place`.
BOXES = {name: stage.blocks.box for name, stage in STAGES.items() if stage.blocks}
WORKERS = {f"train.{name}" for name in PROCESSES}  # compared by their product
MEASURED = ("model.image_mean", "model.image_stddev")  # null: the stage records what it found
GIVEN = ("masks", "init_segmentation", "corrections", "nuclei", "skeletons")  # with a volume
OPTIONAL_INPUTS = ("init", "normalize", "reference_image", "validation", *GIVEN)


class Product(NamedTuple):
    """A file of a run, and what makes it.

    Parameters
    ----------
    stage : str
        Key of `STAGES`.
    output : Output
        Which of its outputs the file is.
    wildcards : dict of str to str
        Their values in its path.
    """

    stage: str
    output: Output
    wildcards: dict[str, str]

    @property
    def volume(self) -> str:
        """Name of the volume; empty for a file of all volumes."""
        return self.wildcards.get("volume", "")


class Recipe(NamedTuple):
    """What decides the content of a file.

    Parameters
    ----------
    options : dict of str to value
        Options of its stage.
    inputs : dict of str to str or None
        Boxes, random seeds, files.
    """

    options: Values
    inputs: Values


def recorded_recipe(record: dict[str, Any], product: Product) -> Recipe:
    """Return what a file records of how it was made.

    Parameters
    ----------
    record : dict
        See `ffn.io.provenance.read_provenance`; not empty.
    product : Product
        The file.
    """
    config, inputs = record.get("config", {}), {**dict.fromkeys(OPTIONAL_INPUTS), **record.get("inputs", {})}
    if product.stage in VOLUMES:
        return _of_volume(record["stage"], config, inputs, product)
    return Recipe(_flat({_section(record["stage"]): config, "model": record.get("model", {})}), _named(inputs, product))


def configured_recipe(pipeline: Pipeline, command: str, product: Product) -> Recipe:
    """Return what the same file would record now, without options that keep its content the same.

    Parameters
    ----------
    pipeline : Pipeline
        The configuration and its volumes. Without volumes, boxes and inputs are left out.
    command : str
        Recorded command, such as ``segment`` for the segmentation of a competing checkpoint.
    product : Product
        The file.
    """
    if product.stage in VOLUMES:
        return _of_configured_volume(pipeline, product)
    if product.output.name == "baseline":
        return Recipe({}, {})  # the scores of the same job record what it was made with
    sections = {key: section.result_options() for key, section in _sections(pipeline, command, product).items()}
    if "model" in sections:
        sections["model"] = {key: sections["model"][key] for key in sections["model"] if key in pipeline.model_options}
    return Recipe(_flat(sections), _named(_inputs(pipeline, product), product) if pipeline.places else {})


def is_left_open(key: str, value: object) -> bool:
    """Whether the configuration leaves a value to the stage, which records what it took."""
    return value == "auto" or (value is None and (key in MEASURED or key.endswith(".voxel_size_zyx_nm")))


def _flat(sections: dict[str, dict[str, Any]]) -> Values:
    values = {f"{key}.{name}": value for key, options in sections.items() for name, value in options.items()}
    for key, field in RunConfig.model_fields.items():
        for name in getattr(field.annotation, "for_workflow", ()):  # the commands do not get them
            values.pop(f"{key}.{name}", None)
    if WORKERS <= values.keys():
        values["train.num_workers × virtual_workers"] = math.prod(values.pop(name) for name in WORKERS)
    return values


def _section(command: str) -> str:
    """Return the section of the configuration that a command records."""
    return "model" if command == "import-checkpoint" else STAGES[command].section if command in STAGES else command


def _sections(pipeline: Pipeline, command: str, product: Product) -> dict[str, Section]:
    """Return the sections whose options the command gets, by their keys."""
    run, key = pipeline.run, _section(command)
    model: dict[str, Section] = {"model": run.model}
    if command == "import-checkpoint":
        return {} if pipeline.initial else model  # initial weights bring their own
    if command == "segment":
        return {key: pipeline.orders.get(product.wildcards.get("order", ""), run.segment)}
    return ({key: getattr(run, key)} if hasattr(run, key) else {}) | (model if command == "train" else {})


def _named(inputs: dict[str, Any], product: Product) -> Values:
    """Return inputs by their keys in the configuration, where they have one; all are text, as in the records."""
    box = {"select": "select.box"} | {stage: f"volumes.{product.volume}.{key}" for stage, key in BOXES.items()}
    keys = {
        "box": box.get(product.stage, "box"),
        "checkpoint": "init",
        "reference_image": "normalize.reference_image",
        "weights": "train_weight",
    }
    return {keys.get(name, name): None if value is None else str(value) for name, value in inputs.items()}


def _inputs(pipeline: Pipeline, product: Product) -> dict[str, Any]:
    """Return boxes, random seeds and files that a file is made of, by the names under which they are recorded."""
    run, paths, volume = pipeline.run, pipeline.paths, product.volume
    own: dict[str, Any] = (
        {"box": getattr(pipeline.places[volume], BOXES[product.stage])} if product.stage in BOXES else {}
    )
    if STAGES[product.stage].masked:
        own = {**own, "masks": None, **mask_inputs(run.volumes[volume].masks)}
    match product.stage:
        case "import-checkpoint":
            return {"checkpoint": run.init, "reference_image": pipeline.reference_of_initial}
        case "records":
            weights = {name: run.volumes[name].train_weight for name in pipeline.trained}
            return {"rng_seed": run.rng_seed, "weights": weights}
        case "train":
            inputs = {"init": pipeline.initial, "validation": _validation(pipeline)}
            masks = " ".join(pipeline.training_masks) or None
            return inputs | {"rng_seed": run.rng_seed, "normalize": pipeline.training_methods or None, "masks": masks}
        case "normalize":
            return own | {"model": pipeline.model, "normalize": run.volumes[volume].normalize}
        case "select":
            return {
                "box": pipeline.selection_box if product.output.name == "candidate_segmentation" else run.select.box
            }
        case "segment":
            own["init_segmentation"] = run.volumes[volume].init_segmentation
            return own | {"box": pipeline.subvolumes[volume][product.wildcards["subvolume"]]}
        case "reconcile":
            return own | {"subvolumes": len(pipeline.subvolumes[volume])}
        case "agglomerate":
            box = pipeline.contact_boxes[volume][product.wildcards["subvolume"]]
            return own | {"box": box, "segmentation": paths.base(run, volume=volume)}
        case "merge" | "sweep":
            given = {name: getattr(run.volumes[volume], name) for name in ("corrections", "nuclei")}
            base = paths.base(run, volume=volume)
            return own | given | {"segmentation": base, "graphs": len(pipeline.contact_boxes[volume])}
        case "fill":
            return own | {"segmentation": paths.merged(run, volume=volume)}
        case "evaluate":
            made = pipeline.files("skeletonize", volume=volume)
            skeletons = run.volumes[volume].skeletons or (made[0] if made else None)
            *earlier, last = paths.segmentations(run, volume=volume).items()
            return own | dict(earlier) | {"segmentation": last[1]} | {"skeletons": skeletons, "rng_seed": run.rng_seed}
        case "export":
            return own | {"segmentation": paths.final(run, volume=volume)}
        case _:
            return own


def _validation(pipeline: Pipeline) -> str | None:
    """Return the volumes and boxes that training is validated on, as `ffn train` records them."""
    image, labels = (pipeline.paths.of("ingest", name) for name in ("image", "labels"))
    sources = [
        f"{name}={image},{labels},{pipeline.places[name].validate_box}".replace("{volume}", name)
        for name in pipeline.validated
    ]
    return " ".join(sources) or None


def _of_volume(command: str, config: dict[str, Any], inputs: dict[str, Any], product: Product) -> Recipe:
    """Return what decides a synthetic volume, or one that was brought in."""
    key, kind = f"volumes.{product.volume}", product.output.name
    if command == "synth":
        made = {f"{key}.{kind}": None, "rng_seed": inputs.get("rng_seed")}
        return Recipe(_flat({f"{key}.synthetic": config}), made)
    names = {"voxel_size_zyx_nm": "voxel_size_zyx_nm"}  # of the options of `ffn ingest`, and their keys
    names |= (
        {"offset_zyx": "labels_offset_zyx", "ignore_labels": "ignore_labels"}
        if kind == "labels"
        else {name: name for name in ("mip", "copy_image", "clahe_tile", "clahe_clip")}
    )
    if kind == "labels" and config.get("mip") is not None:  # its voxel size is that of what the labels are made of
        del names["voxel_size_zyx_nm"]
    options = {f"{key}.{names[name]}": config[name] for name in names if name in config}
    return Recipe(options, {f"{key}.{kind}": inputs.get("source")})


def _of_configured_volume(pipeline: Pipeline, product: Product) -> Recipe:
    volume = pipeline.run.volumes[product.volume].model_dump(mode="json")
    if volume["synthetic"]:
        return _of_volume("synth", volume["synthetic"], {"rng_seed": str(pipeline.seed_of(product.volume))}, product)
    config = {**volume, "offset_zyx": volume["labels_offset_zyx"]}
    return _of_volume("ingest", config, {"source": volume[product.output.name]}, product)
