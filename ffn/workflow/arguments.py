"""Arguments of `ffn` commands in the shell lines of the rules, quoted for the shell, and the jobs of the studies."""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Callable, Iterable
from typing import Any

from ffn.config import ModelConfig, Section
from ffn.io import atomic
from ffn.io.config import IngestConfig
from ffn.io.store_names import JOBS, LAST, without_metadata
from ffn.options import flags
from ffn.studies.config import NUM_ROWS, WARM_UP_STEPS
from ffn.training.config import SYNCHRONOUS, TrainConfig, fine_tuning_defaults
from ffn.workflow.needs import training_minutes
from ffn.workflow.pipeline import Pipeline
from ffn.workflow.places import files_among
from ffn.workflow.run import NEEDED, RunConfig

LEAST_MEASURING = 60  # minutes to ask for; our choice


def study_model(run: RunConfig) -> ModelConfig:
    """Return the network that the studies train."""
    own = {"depth": run.study.depth, "features": run.study.features}
    return run.model.model_copy(update={name: value for name, value in own.items() if value is not None})


def study_train(run: RunConfig) -> TrainConfig:
    """Return the options of a training run with one worker: everything else is as in section ``train``.

    The runs start from new weights, so options that follow from `init` have their usual defaults.
    """
    tuning = fine_tuning_defaults(run.train, is_validated=False) if run.init else {}
    own = {
        **{name: run.train.defaults()[name] for name in tuning if getattr(run.train, name) == tuning[name]},
        "num_workers": 1,
        "virtual_workers": 1,
        "batch_size": 1,
        **SYNCHRONOUS,
        "max_steps": run.study.steps,
        "log_steps": max(1, run.study.steps // NUM_ROWS),
        "scaling_rule": "constant",
        "schedule": "cyclic" if run.train.schedule == "cyclic" else "constant",
        "on_row": None,
        "validation_steps": 0,
        "validation_examples": 1,
        "use_best": False,
        "intra_op_threads": min(1, run.train.intra_op_threads),
    }
    return run.train.model_copy(update=own)


def measuring_minutes(run: RunConfig, train: TrainConfig, threads: int) -> int:
    """Return the time to ask for to measure step times, which a killed job begins again."""
    steps = WARM_UP_STEPS + run.study.measured_steps
    return max(LEAST_MEASURING, training_minutes(run.model, train.model_copy(update={"max_steps": steps}), threads))


def option(name: str, values: Iterable[object]) -> str:
    """Return an option with these values, or nothing if there are none.

    Examples
    --------
    >>> option("--truth", ["my labels.h5"]), option("--truth", [])
    ("--truth 'my labels.h5'", '')
    """
    words = [shlex.quote(str(value)) for value in values]
    return " ".join([name, *words]) if words else ""


def import_flags(pipeline: Pipeline) -> str:
    """Return the options of the import."""
    own = pipeline.models.resized  # a model of ours brings its sizes, so that the usual ones have to be said
    sizes: dict[str, object] = dict.fromkeys(("fov_size_zyx", "deltas_zyx")) if own else {}
    return flags(pipeline.run.model, skip=("depth", "features"), defaults=sizes)


def files(pipeline: Pipeline, stage: str, **wildcards: str) -> str:
    """Return the files of a stage as an argument, which names their list."""
    return f"@{file_list(pipeline, stage, **wildcards)[0]}"


def file_list(pipeline: Pipeline, stage: str, **wildcards: str) -> tuple[str, list[str]]:
    """Return where the files of a stage are listed, and these lines; a command line has room for some ten thousand.

    The name of the list has a digest of its lines, so that a shell line never changes its meaning.
    """
    lines = [without_metadata(file) for file in pipeline.files(stage, **wildcards)]
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]
    words = [stage, *(value.strip("-") for value in wildcards.values()), digest]
    return pipeline.paths.file_list("-".join(filter(None, words))), lines


def write_file_lists(pipeline: Pipeline) -> None:
    """Write all lists that jobs of a run read."""
    orders = [{"volume": volume, "order": order} for volume in pipeline.segmented for order in pipeline.orders]
    lists = [file_list(pipeline, "segment", **wildcards) for wildcards in orders]
    lists += [file_list(pipeline, "agglomerate", volume=volume) for volume in pipeline.agglomerated]
    for path, lines in lists:
        atomic.write_text(path, "".join(f"{line}\n" for line in lines))


def job(wildcards: Any, output: Any) -> str:
    """Return the options of a job on a share of the blocks, as a parameter."""
    step = "" if wildcards.step_name == LAST else f"--step {wildcards.step_name} "
    return f"{step}--job {wildcards.job} --job-record {output.record}"


def list_of_boxes(wildcards: Any, record: str, cut: str) -> str:
    """Return the options of a job that walks a list of boxes: how they are cut, which are its own, where files go."""
    folder = os.path.dirname(os.path.dirname(record)).removesuffix(f".{JOBS}")
    return f"{cut} --job {wildcards.job} --job-record {record} --out {folder}/".lstrip()


def source(pipeline: Pipeline, volume: str, key: str) -> str:
    """Return source and options of a volume's image or labels, as `ffn ingest` takes them."""
    config, place = pipeline.run.volumes[volume], pipeline.places[volume]
    finer = place.finer.get(key)
    size = finer.voxel_size_zyx_nm if finer else place.voxel_size_zyx_nm
    filled = ("missing_sections", "unequal_sections")
    names = (*filled, "intensity_range", "mip", "copy_image", "clahe_tile", "level_sections", "max_shift")
    given = {name: getattr(config, name) for name in names}
    if key == "labels":
        given = {name: getattr(config, name) for name in (*filled, "ignore_labels", "colour_ids")}
        given["offset_zyx"] = config.labels_offset_zyx
        given["mip"] = finer.mip if finer else None
    box = "" if place.config.image_box in ("all", NEEDED) else f" --box={getattr(place, key)}"
    return f"{shlex.quote(getattr(config, key))} {flags(IngestConfig(voxel_size_zyx_nm=size, **given))}{box}"


def image_option(pipeline: Pipeline, volume: str, name: str) -> str:
    """Return an option of `VolumeConfig` for a volume."""
    config = pipeline.run.volumes[volume]
    return flags(config, skip=tuple(type(config).model_fields.keys() - {name}))


def known(
    pipeline: Pipeline, name: str, volume: str | None = None
) -> tuple[Callable[[Any], str], Callable[[Any], list[str]]]:
    """Return option and inputs for ``masks`` or another file of a volume, by default of the job's volume.

    These are two functions of the job's wildcards.
    """

    def files(wildcards: Any) -> list[str]:
        given = getattr(pipeline.run.volumes[volume or wildcards.volume], name)
        return files_among(*(mask.path for mask in given)) if name == "masks" else files_among(given)

    return lambda wildcards: image_option(pipeline, volume or wildcards.volume, name), files


def cuts(pipeline: Pipeline) -> tuple[Callable[[Any], str], Callable[[Any], list[str]]]:
    """Return option and input for the cuts of a volume, if it has any, as two functions of the job's wildcards."""

    def files(wildcards: Any) -> list[str]:
        return pipeline.files("cut", volume=wildcards.volume)

    return lambda wildcards: option("--cuts", files(wildcards)), files


def training_volumes(pipeline: Pipeline) -> str:
    """Return the volumes that training examples come from, how they are normalised, and masks, for `ffn train`."""
    methods = {name: pipeline.run.volumes[name].normalize for name in pipeline.learnt_from}
    options = [f"--volume {_labelled(pipeline, name)}" for name in pipeline.trained]
    options += [f"--normalize {name}={method}" for name, method in methods.items() if method != "training"]
    return " ".join([*options, *_masks(pipeline, pipeline.learnt_from)])


def taught_volumes(pipeline: Pipeline) -> str:
    """Return the labelled boxes that affinities are learnt from, and masks, for `ffn learn-affinities`."""
    boxes = {name: pipeline.places[name].train_box for name in pipeline.taught}
    options = [f"--volume {_labelled(pipeline, name)},{box}" for name, box in boxes.items()]
    return " ".join([*options, *_masks(pipeline, boxes)])


def validation_volumes(pipeline: Pipeline) -> str:
    """Return the volumes and boxes that training is validated on, as `ffn train` takes them."""
    boxes = {name: pipeline.places[name].validate_box for name in pipeline.validated}
    return " ".join(f"--validate {_labelled(pipeline, name)},{box}" for name, box in boxes.items())


def checkpoint(pipeline: Pipeline) -> tuple[Callable[[Any], list[str]], Callable[[Any], str]]:
    """Return input and options that make a model of a checkpoint, as functions of the job's wildcards.

    These are further inputs, and the arguments of `ffn import-checkpoint`. Step 0 are the weights of `init`.
    """
    paths, start = pipeline.paths, shlex.quote(pipeline.models.initial or "")
    return (
        lambda wildcards: [] if int(wildcards.step) else pipeline.models.initial_files,
        lambda wildcards: (
            paths.checkpoint(wildcards.step) if int(wildcards.step) else f"{start} --trained {paths.folder('train')}"
        ),
    )


def candidates(pipeline: Pipeline) -> str:
    """Return the checkpoints to choose from, each with its scores, as `ffn select` takes them."""
    models = {step: os.path.dirname(pipeline.paths.of("select", "candidate", step=step)) for step in pipeline.steps}
    scores = {step: pipeline.paths.of("select", "candidate_scores", step=step) for step in pipeline.steps}
    return " ".join(f"--candidate {step}={models[step]},{scores[step]}" for step in pipeline.steps)


def skeletons(pipeline: Pipeline, volume: str) -> str:
    """Return the skeletons for `ffn evaluate`: those that the workflow made, those of the configuration, or none."""
    given = pipeline.run.volumes[volume].skeletons
    return option("--skeletons", [given] if given else pipeline.files("skeletonize", volume=volume))


def launcher(wildcards: Any, resources: Any) -> str:
    """Return the command that starts a job on its own node, the profile's resource `mpi`; empty at most sites."""
    return str(resources.get("mpi") or "")


def untracked(section: Section) -> Callable[[Any, Any], str]:
    """Return the options of a section that the result does not depend on, as a parameter that Snakemake does not track.

    It ignores parameters that ask for `resources` when it looks for changes.
    """
    return lambda wildcards, resources: flags(section, result=False)


def processes(train: TrainConfig) -> Callable[[Any, Any], str]:
    """Return how many processes train, untracked: the result depends on their workers, not on the processes."""
    return lambda wildcards, resources: f"--num-workers {train.num_workers} --virtual-workers {train.virtual_workers}"


def _labelled(pipeline: Pipeline, name: str) -> str:
    image, labels = (pipeline.paths.of("ingest", output, volume=name) for output in ("image", "labels"))
    return f"{name}={image},{labels}"


def _masks(pipeline: Pipeline, names: Iterable[str]) -> list[str]:
    masks = [f"{name}={mask}" for name in names for mask in pipeline.run.volumes[name].masks]
    return [f"--masks {shlex.quote(mask)}" for mask in masks]
