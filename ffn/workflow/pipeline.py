"""The volumes that each stage of a run works on, the files that it has to make, and what its jobs need."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from ffn.config import SegmentConfig
from ffn.geometry import Box, doubt_about_size, extent_um
from ffn.inference.canvas import Frame
from ffn.io.store_names import tracked_file
from ffn.workflow.jobs import Jobs
from ffn.workflow.models import Models
from ffn.workflow.needs import (
    agglomerating_mb,
    flooding_here,
    flooding_mb,
    flooding_minutes,
    in_words,
    memory_mb,
    minutes,
    takes_gpu,
    training_here,
)
from ffn.workflow.paths import WILDCARD, RunPaths, find_output, finished
from ffn.workflow.places import Place, files_among, trained_in
from ffn.workflow.run import RunConfig
from ffn.workflow.sources import doubts_about, is_newer
from ffn.workflow.stages import STAGES, Output

MOST_VOLUMES = 5  # that a plan lists
RECORDS_PER_VOXEL = 2  # of training boxes: 13 partitions as large as the largest, which has a sixth; our choice

Resource = Callable[..., int]


class Pipeline:
    """A configuration and its volumes, turned into lists that the rules read."""

    def __init__(self, run: RunConfig, places: dict[str, Place], gpus: int = 0, nodes: int = 1) -> None:
        self.run = run
        self.gpus = gpus
        self.places = places
        self.paths = RunPaths(f"results/{run.run}")
        self._sort_volumes()
        self.models = Models(run, self.paths, bool(self.validated))
        self.imported, self.steps = self.models.imported, self.models.steps
        self.jobs = Jobs(places, self.models, gpus, gpus * nodes)

    @property
    def warnings(self) -> list[str]:
        """Implicit effects of the configuration, and settings that make scores look better than they are."""
        found = [f"volumes.{name}{warning}" for name in self.places for warning in self._warnings_of(name)]
        found += [
            f"{change}: the network takes any size, but its accuracy there is unknown" for change in self.models.resized
        ]
        run = self.run
        if self.steps and trained_in(self.places, run.select_volume, Box.parse(str(run.select.box))):
            found.append("select.box and train_box overlap, so the choice favours checkpoints that memorised that box")
        return found

    def _warnings_of(self, name: str) -> Iterator[str]:
        """Yield what to warn of in a volume, each with what follows its name."""
        volume, place = self.run.volumes[name], self.places[name]
        if self.run.is_cut(volume) and place.config.is_validated_on:
            found = f"{place.validate_box} is kept for validation, {place.train_box} for training"
            yield f": {found}. Give a validate_box to choose"
        if place.may_be_misplaced:
            found = f"cover {place.labels} of {place.image}, from its first voxel on, as labels without a place do"
            yield f".labels: {found}. Give their place in labels_offset_zyx, also if it is 0, 0, 0"
        if doubt := doubt_about_size(place.voxel_size_zyx_nm):
            yield f".voxel_size_zyx_nm: {doubt}"
        applied, merged = self.paths.corrections(name), finished([self.paths.of("merge", volume=name)])
        if not volume.corrections and merged and f'"{applied}"' in Path(tracked_file(str(merged[0]))).read_text():
            yield f".corrections: not given, so what ffn correct has applied is undone. To keep it, name {applied}"
        if volume.labels:
            doubts = doubts_about(volume, place.finer.get("labels"), place.voxel_size_zyx_nm)
            yield from (f".labels: {doubt}" for doubt in doubts)
        for other in trained_in(self.places, name, place.evaluate_box) if name in self.evaluated else ():
            trained = "train_box" if other == name else f"train_box of volumes.{other}"
            yield f": evaluate_box and {trained} overlap, so its scores include training data"
        for key, rule in (("image", "ingest"), ("labels", "ingest_labels")):
            source = getattr(volume, key)
            if source and is_newer(source, tracked_file(self.paths.of("ingest", key, volume=name))):
                changed = f"{source} has changed since the run read it"
                yield f".{key}: {changed}. If its voxels are others, add --forcerun {rule}"
        trained_on = self.models.trained_on({self.places[name].voxel_size_zyx_nm for name in self.trained})
        if trained_on and name in self.segmented and (unlike := trained_on.other_size(place.voxel_size_zyx_nm)):
            yield f": {unlike}"

    def _sort_volumes(self) -> None:
        """Sort the volumes by what is made from them."""
        run, volumes, places = self.run, self.run.volumes, self.places
        self.volumes = list(volumes)
        self.synthetic = [name for name, volume in volumes.items() if volume.synthetic]
        self.foreign = [name for name in volumes if name not in self.synthetic]  # read from a source
        self.foreign_labelled = [name for name in self.foreign if volumes[name].has_labels]
        self.trained = [name for name, volume in volumes.items() if run.train.max_steps and volume.is_trained_on]
        self.validated = [n for n, place in places.items() if run.is_validated and place.config.is_validated_on]
        self.learnt_from = self.trained + [name for name in self.validated if name not in self.trained]
        self.segmented = [name for name, volume in volumes.items() if volume.is_segmented]
        selecting = [run.select_volume] if run.selectable_steps else []
        self.normalized = [name for name in volumes if name in [*self.segmented, *selecting]]
        self.segmented_twice = self.segmented if run.consensus.enabled else []  # with seeds in both orders
        self.agglomerated = self.segmented if run.agglomerate.enabled else []
        self.cut = [name for name in self.agglomerated if _has_cuts(volumes[name].corrections)]
        self.filled = self.segmented if run.is_filled else []
        self.joined = self.segmented if run.affinities.enabled else []  # by affinities, which are learnt from `taught`
        learns = bool(self.joined) and run.affinities.max_steps > 0
        self.taught = [name for name, volume in volumes.items() if learns and volume.is_trained_on]
        self.evaluated = [name for name, place in places.items() if place.is_evaluated]
        self.compared = self.evaluated if run.evaluate.watershed else []  # with a watershed
        self.swept = [name for name in self.agglomerated if name in self.evaluated]
        without = [name for name in self.evaluated if not volumes[name].skeletons]
        self.skeletonized = without if run.skeletonize.spacing_nm else []

    def seed_of(self, volume: str) -> int:
        """Random seed of a synthetic volume; each has another, so that equal options make different tissue."""
        return self.run.rng_seed + self.synthetic.index(volume)

    def mask_files(self, volumes: Sequence[str]) -> list[str]:
        """Return the files of the masks of some volumes."""
        return files_among(*(mask.path for name in volumes for mask in self.run.volumes[name].masks))

    @cached_property
    def orders(self) -> dict[str, SegmentConfig]:
        """Orders of seeds, by their suffix in file names; the consensus needs both."""
        config = self.run.segment
        if not self.run.consensus.enabled:
            return {"": config}
        orders = {"": "forward", "-reversed": "reversed"}
        return {suffix: config.model_copy(update={"seed_order": order}) for suffix, order in orders.items()}

    # --- Voxels ---------------------------------------------------------------------------------------------
    @property
    def selection_voxels(self) -> int:
        """Voxels that a candidate for the choice floods: those of the canvas of its box."""
        if not self.steps:
            return 0
        box, image = Box.parse(str(self.run.select.box)), self.places[self.run.select_volume].image
        return Frame.of(box, image, self.models.costed.flooding_model, self.run.segment.mirror).canvas.num_voxels

    @property
    def trained_voxels(self) -> int:
        """Voxels of all training boxes."""
        return sum(self.places[name].train_box.num_voxels for name in self.trained)

    @property
    def most_records(self) -> int:
        """Training records: without a limit, those of all partitions, repeated up to the largest."""
        return min(RECORDS_PER_VOXEL * self.trained_voxels, self.run.records.max_records or sys.maxsize)

    @property
    def learnt_voxels(self) -> list[int]:
        """Voxels with image and labels of each volume that training reads, which it keeps in memory."""
        return [self.places[name].labelled.num_voxels for name in self.learnt_from]

    # --- Inputs --------------------------------------------------------------------------------
    def shown_labels(self, volume: str) -> list[str]:
        """Return the ground truth to export with a segmentation, if there is one."""
        return [self.paths.file("ingest", "labels", volume=volume)] if self.places[volume].shows_truth else []

    # --- Files -----------------------------------------------------------------------------------------------
    def targets(self, stage: str) -> list[str]:
        """Return the files of a stage that Snakemake watches; none if the configuration leaves the stage out."""
        return [path for output in STAGES[stage].outputs for path in self.watched(stage, output.name)]

    def watched(self, stage: str, output: str | None = None, **given: str) -> list[str]:
        """Return the `files` of an output or, where jobs make lists of them, the records of these jobs."""
        found = []
        for wildcards in self._wildcards(stage, output, given):
            has_lists = find_output(stage, output).boxes and self.jobs.of(stage, wildcards["volume"])
            found += self.jobs.records(stage, **wildcards) if has_lists else self.files(stage, output, **wildcards)
        return found

    def files(self, stage: str, output: str | None = None, **given: str) -> list[str]:
        """Return the files of one output of a stage."""
        found = []
        for wildcards in self._wildcards(stage, output, given):
            path, boxes = self.paths.file(stage, output, **wildcards), find_output(stage, output).boxes
            before, _, after = path.partition("{subvolume}")  # once, as there may be a million
            if boxes:
                found += [f"{before}{box.stem}{after}" for box in self.jobs.boxes(stage, wildcards["volume"])]
            else:
                found.append(path)
        return found

    def _wildcards(self, stage: str, output: str | None, given: dict[str, str]) -> list[dict[str, str]]:
        """Return all wildcards of an output but its boxes, with those that are `given`."""
        made = find_output(stage, output)
        values = {name: self._values(name, made) for name in WILDCARD.findall(made.path) if name != "subvolume"}
        values |= {name: [value] for name, value in given.items() if value in values.get(name, [])}
        if not getattr(self, made.of) or any(value not in values[name] for name, value in given.items()):
            return []
        return [dict(zip(values, combination, strict=True)) for combination in itertools.product(*values.values())]

    def _values(self, wildcard: str, made: Output) -> list[str]:
        """Values of a wildcard over all jobs of an output."""
        return list({"volume": getattr(self, made.of), "order": self.orders, "step": self.steps}[wildcard])

    def is_shared(self, stage: str) -> bool:
        """Whether several jobs share the blocks of a volume in this stage."""
        volumes = getattr(self, find_output(stage).of) if STAGES[stage].blocks else []
        return any(self.jobs.of(stage, volume) for volume in volumes)


def plan_lines(pipeline: Pipeline) -> list[str]:
    """Return at most ten lines on a run; times are those of this machine for the network, which takes most."""
    run, model = pipeline.run, pipeline.models.costed
    counts = {name: len(pipeline.watched(name, stage.outputs[0].name)) for name, stage in STAGES.items()}
    stages = [name if count == 1 else f"{name} × {count}" for name, count in counts.items() if count]
    lines = [f"{run.run}: {', '.join(stages)}"]
    for name, place in list(pipeline.places.items())[:MOST_VOLUMES]:
        sides = " × ".join(f"{side:g}" for side in place.voxel_size_zyx_nm)
        extent = extent_um(place.image.shape, place.voxel_size_zyx_nm)
        lines.append(f"  {name}: {' × '.join(map(str, place.image.shape))} voxels of {sides} nm, {extent}")
    if len(pipeline.places) > MOST_VOLUMES:
        lines.append(f"  and {len(pipeline.places) - MOST_VOLUMES} more volumes")
    if pipeline.trained:
        fovs = run.train.max_steps * run.train.global_batch
        lines.append(f"  training: {fovs:,} FOVs, about {in_words(training_here(model.model, fovs))} on this machine")
    if pipeline.segmented:
        voxels = sum(pipeline.places[name].segment_box.num_voxels for name in pipeline.segmented)
        flooded = sum(pipeline.jobs.boxes("segment", name).num_voxels for name in pipeline.segmented)
        flooding = in_words(flooding_here(model.flooding_model, flooded))
        lines.append(f"  flood filling: {voxels / 1e6:,.1f} million voxels, about {flooding} on this machine")
    return lines


def by_attempt(amount: int | Callable[[Any, int], int]) -> Resource:
    """Return a resource that doubles with every attempt, for jobs that were killed because they had too little.

    Examples
    --------
    >>> by_attempt(10)(None, threads=1, attempt=3)
    40
    """

    def doubled(wildcards: Any, threads: int, attempt: int) -> int:
        first = amount(wildcards, threads) if callable(amount) else amount
        return first * 2 ** (attempt - 1)

    return doubled


def memory(stage: str, num_voxels: int = 0) -> Resource:
    """Memory of a stage's jobs by voxels and their threads, MB."""
    return by_attempt(lambda wildcards, threads: memory_mb(stage, num_voxels, threads))


def resources_of(pipeline: Pipeline, rule: str) -> dict[str, Resource]:
    """Return memory and time of the jobs of a rule, which follow from `Jobs.spec`."""
    stage = rule.partition("_")[0]

    def megabytes(wildcards: Any, threads: int) -> int:
        job, model = pipeline.jobs.spec(rule, wildcards), pipeline.models.costed.flooding_model
        if stage == "segment":
            return flooding_mb(job.at_once, model, job.canvases)
        if stage == "agglomerate":
            return agglomerating_mb(pipeline.run.agglomeration, model, pipeline.gpus)
        return memory_mb(stage, job.at_once, threads)

    def duration(wildcards: Any, threads: int) -> int:
        voxels = pipeline.jobs.spec(rule, wildcards).voxels
        if stage in ("segment", "agglomerate"):
            on_gpu = pipeline.gpus > 0 and takes_gpu(pipeline.run.segment)
            return flooding_minutes(voxels, pipeline.models.costed.flooding_model, threads, on_gpu)
        return minutes(stage, voxels, threads)

    return {"mem_mb": by_attempt(megabytes), "runtime": by_attempt(duration)}


def _has_cuts(corrections: str | None) -> bool:
    """Whether people have cut a supervoxel, or traced an object, in a file of corrections."""
    if corrections is None:
        return False
    from ffn.assembly.given import GROWN, read_corrections

    return any(each.action in GROWN for each in read_corrections(corrections))
