"""The volumes that each stage of a run works on, and the files that it has to make."""

from __future__ import annotations

import glob
import itertools
import math
import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from ffn.assembly.fill import with_halo
from ffn.config import SegmentConfig
from ffn.errors import ConfigError
from ffn.geometry import Box
from ffn.inference.canvas import Frame
from ffn.io.block_log import share_of
from ffn.io.blocks import jobs_of
from ffn.io.reference import has_copy
from ffn.io.shards import Shards, shard_shape
from ffn.io.store_names import LAST, tracked_file
from ffn.options import flags
from ffn.training.checkpoint import MANIFEST, architecture_of, is_checkpoint
from ffn.training.config import fine_tuning_defaults
from ffn.workflow.job_boxes import JobBoxes, contact_boxes, subvolume_boxes
from ffn.workflow.needs import most_canvases
from ffn.workflow.paths import WILDCARD, RunPaths, find_output
from ffn.workflow.places import Place, check_sources, files_among, selection_box, trained_in
from ffn.workflow.repeated_keys import check_keys
from ffn.workflow.run import RunConfig, load_run
from ffn.workflow.sources import is_newer
from ffn.workflow.stages import STAGES, Blocks, Output, Step
from ffn.workflow.subvolume_lists import filling_gpus, subvolumes_of_a_job

# Keys that are not part of the run, with examples: environment modules of the site, for `--software-deployment-method
# env-modules`, and an image with the software, for `--software-deployment-method apptainer`.
SOFTWARE = {"modules": "cray-python gcc/12", "container": "ffn.sif"}


class JobSpec(NamedTuple):
    """The work of a job, for inputs, resources and parameters of its rule."""

    box: str  # what its command is told; text, because Snakemake ignores other types
    voxels: int  # that it works on, which decide about its time
    at_once: int = 0  # of them, which decide about its memory; 0 where a block does
    files: Sequence[str] = ()  # of earlier jobs, which it waits for
    option: str = ""  # what it does of its stage, unless that is everything
    canvases: int = 1  # subvolumes that are flooded at once


class Pipeline:
    """A configuration and its volumes, turned into lists that the rules read."""

    def __init__(self, run: RunConfig, places: dict[str, Place], gpus: int = 0, nodes: int = 1) -> None:
        self.run = run
        self.gpus = gpus
        self._gpus_at_a_time = gpus * nodes
        self.places = places
        self.paths = RunPaths(f"results/{run.run}")
        self.volumes = list(run.volumes)

    @property
    def warnings(self) -> list[str]:
        """Implicit effects of the configuration, and settings that make scores look better than they are."""
        found = [
            f"volumes.{name}: {place.validate_box} is kept for validation, {place.train_box} for training. "
            "Give a validate_box to choose"
            for name, place in self.places.items()
            if self.run.is_cut(self.run.volumes[name]) and place.config.is_validated_on
        ]
        found += [
            f"volumes.{name}.labels: cover {place.labels} of {place.image}, if they begin at its first voxel: "
            "nothing says so. Give their place in labels_offset_zyx, also if it is 0, 0, 0"
            for name, place in self.places.items()
            if place.may_be_misplaced
        ]
        found += [
            f"volumes.{name}: evaluate_box and train_box{'' if other == name else f' of volumes.{other}'} overlap, so "
            "its scores include training data"
            for name in self.evaluated
            for other in trained_in(self.places, name, self.places[name].evaluate_box)
        ]
        found += [
            f"volumes.{name}.{key}: {getattr(self.run.volumes[name], key)} has changed since the run read it. "
            f"If its voxels are others, add --forcerun {rule}"
            for key, rule, volumes in (
                ("image", "ingest", self.foreign),
                ("labels", "ingest_labels", self.foreign_labelled),
            )
            for name in volumes
            if is_newer(getattr(self.run.volumes[name], key), tracked_file(self.paths.of("ingest", key, volume=name)))
        ]
        run = self.run
        if self.steps and trained_in(self.places, run.select_volume, Box.parse(str(run.select.box))):
            found.append("select.box and train_box overlap, so the choice favours checkpoints that memorised that box")
        return found

    @property
    def unfit_lists(self) -> list[str]:
        """Name jobs that leave GPUs or CPUs idle: of one subvolume, or of many, if the run has begun with them."""
        filling = filling_gpus(self.run.segment, self._num_subvolumes, self._gpus_at_a_time)
        if self.run.segment.canvases != "auto" or not self.segmented:
            return []
        if filling > 1 and self.subvolumes_of_a_job == 1:
            return [
                "segment.canvases: the run has begun with a job for each subvolume, so a GPU computes one FOV at a "
                f"time. {filling} gives each job as many, to flood at once, and floods again what is finished"
            ]
        if not self.gpus and self.subvolumes_of_a_job > 1:
            return [
                f"segment: the run has begun on GPUs with {self.subvolumes_of_a_job} subvolumes for each job, which "
                f"floods them one after the other on CPUs. Without {self.paths.subvolumes_of_a_job}, each has a job, "
                "and what is finished is flooded again"
            ]
        return []

    @cached_property
    def subvolumes_of_a_job(self) -> int:
        """How many subvolumes a job floods at least."""
        return subvolumes_of_a_job(self.run.segment, self.paths, self._num_subvolumes, self._gpus_at_a_time)

    @property
    def _num_subvolumes(self) -> int:
        return sum(len(self.subvolumes[name]) for name in self.segmented) * len(self.orders)

    # --- Volumes by what is made from them ---------------------------------------------------------------------
    @cached_property
    def synthetic(self) -> list[str]:
        """Volumes that the run synthesises."""
        return [name for name, volume in self.run.volumes.items() if volume.synthetic]

    def seed_of(self, volume: str) -> int:
        """Random seed of a synthetic volume; each has another, so that equal options make different tissue."""
        return self.run.rng_seed + self.synthetic.index(volume)

    @cached_property
    def foreign(self) -> list[str]:
        """Volumes that are read from a source."""
        return [name for name in self.volumes if name not in self.synthetic]

    @cached_property
    def foreign_labelled(self) -> list[str]:
        """Volumes whose labels are read from a source."""
        return [name for name in self.foreign if self.run.volumes[name].has_labels]

    @cached_property
    def trained(self) -> list[str]:
        """Volumes that training examples come from."""
        is_training = self.run.train.max_steps > 0
        return [name for name, volume in self.run.volumes.items() if is_training and volume.is_trained_on]

    @cached_property
    def validated(self) -> list[str]:
        """Volumes that training is validated on."""
        return [name for name, place in self.places.items() if self.run.is_validated and place.config.is_validated_on]

    @cached_property
    def learnt_from(self) -> list[str]:
        """Volumes that training reads."""
        return self.trained + [name for name in self.validated if name not in self.trained]

    @property
    def training_methods(self) -> str:
        """How volumes that training reads are normalised, where not as usual: ``a=volume b=120.0,30.0``."""
        methods = {name: self.run.volumes[name].normalize for name in self.learnt_from}
        return " ".join(f"{name}={method}" for name, method in methods.items() if method != "training")

    @cached_property
    def training_masks(self) -> list[str]:
        """Masks of volumes that training reads: ``a=soma.zarr#invert``."""
        return [f"{name}={mask}" for name in self.learnt_from for mask in self.run.volumes[name].masks]

    @property
    def training_mask_files(self) -> list[str]:
        """Files of these masks."""
        return files_among(*(mask.path for name in self.learnt_from for mask in self.run.volumes[name].masks))

    @cached_property
    def segmented(self) -> list[str]:
        """Volumes that are segmented."""
        return [name for name, volume in self.run.volumes.items() if volume.is_segmented]

    @cached_property
    def normalized(self) -> list[str]:
        """Volumes that the network is applied to, those that choose a checkpoint included."""
        wanted = {*self.segmented, *([self.run.select_volume] if self.steps else [])}
        return [name for name in self.volumes if name in wanted]

    @cached_property
    def segmented_twice(self) -> list[str]:
        """Volumes that are segmented with seeds in both orders."""
        return self.segmented if self.run.consensus.enabled else []

    @cached_property
    def agglomerated(self) -> list[str]:
        """Volumes whose segments are agglomerated."""
        return self.segmented if self.run.agglomerate.enabled else []

    @cached_property
    def filled(self) -> list[str]:
        """Volumes whose unsegmented voxels are filled."""
        return self.segmented if self.run.fill.max_distance_nm else []

    @cached_property
    def evaluated(self) -> list[str]:
        """Volumes whose segmentation is scored."""
        return [name for name, place in self.places.items() if place.is_evaluated]

    @cached_property
    def compared(self) -> list[str]:
        """Volumes for which a watershed is scored as well."""
        return self.evaluated if self.run.evaluate.watershed else []

    @cached_property
    def swept(self) -> list[str]:
        """Volumes whose agglomeration graph is scored at every threshold."""
        return [name for name in self.agglomerated if name in self.evaluated]

    @cached_property
    def skeletonized(self) -> list[str]:
        """Volumes whose skeletons the workflow makes, because the configuration gives none."""
        wanted = self.evaluated if self.run.skeletonize.spacing_nm else []
        return [name for name in wanted if not self.run.volumes[name].skeletons]

    # --- Jobs of one volume ----------------------------------------------------------------------------------
    @cached_property
    def subvolumes(self) -> dict[str, JobBoxes]:
        """Boxes of flood filling, by volume."""
        return {name: subvolume_boxes(self.run, self.places[name]) for name in self.segmented}

    @cached_property
    def contact_boxes(self) -> dict[str, JobBoxes]:
        """Boxes of agglomeration, by volume."""
        return {name: contact_boxes(self.run, self.places[name]) for name in self.agglomerated}

    @cached_property
    def orders(self) -> dict[str, SegmentConfig]:
        """Orders of seeds, by their suffix in file names; the consensus needs both."""
        both = {"": self.run.segment, "-reversed": self.run.segment.model_copy(update={"seed_order": "reversed"})}
        return both if self.run.consensus.enabled else {"": self.run.segment}

    # --- Models ----------------------------------------------------------------------------------------------
    @cached_property
    def imported(self) -> list[str]:
        """The checkpoint that is first turned into a model folder, ours or a published one."""
        init = self.run.init
        return [init] if init and (is_checkpoint(init) or not os.path.isdir(init)) else []

    @property
    def imported_files(self) -> list[str]:
        """The files of that checkpoint whose change repeats the import: of ours the manifest, else index and data."""
        if not self.imported:
            return []
        init = str(Path(self.imported[0]))
        if is_checkpoint(init):
            return [f"{init}/{MANIFEST}"]
        return [f"{init}.index", *sorted(glob.glob(f"{glob.escape(init)}.data-*"))]

    @property
    def reference_of_initial(self) -> str | None:
        """The image whose grey levels the import records, because training matches volumes to them."""
        matches = any(self.run.volumes[name].normalize == "match" for name in self.learnt_from)
        return self.run.normalize.reference_image if matches else None

    @property
    def initial(self) -> str | None:
        """Model folder that training starts from."""
        if self.imported:
            return self.paths.folder("import-checkpoint")
        return self.run.init.rstrip("/") if self.run.init else None

    @property
    def initial_files(self) -> list[str]:
        """The file that a model folder cannot lack, in the folder that training starts from."""
        return [str(Path(self.initial, "model.yaml"))] if self.initial else []

    @property
    def model_flags(self) -> str:
        """Options of the network for `ffn train`; initial weights bring those that the configuration does not name."""
        model = self.run.model
        if not self.initial:
            return flags(model)
        names = type(model).model_fields.keys()
        return flags(model, skip=tuple(names - self.model_options), defaults=dict.fromkeys(names))

    @property
    def model_options(self) -> set[str]:
        """Names of the options of the network that training gets from the configuration, not from initial weights."""
        model = self.run.model
        # sampling and tiling follow FOV and deltas
        return (
            model.model_fields_set | {"fov_size_zyx", "deltas_zyx"} if self.initial else set(type(model).model_fields)
        )

    @property
    def train_defaults(self) -> dict[str, Any]:
        """Defaults of `ffn train` that are not those of `TrainConfig`, as its command line has them."""
        return fine_tuning_defaults(self.run.train, bool(self.validated)) if self.initial else {}

    @cached_property
    def costed(self) -> RunConfig:
        """The configuration to estimate memory and time from: initial weights of ours bring depth and features.

        Those of a published checkpoint are what the configuration says.
        """
        run, init = self.run, self.run.init
        if not init or not os.path.isdir(init):
            return run
        own = architecture_of(init)
        brought = {"depth": own.depth, "features": own.features}
        return run.model_copy(update={"model": run.model.model_copy(update=brought)})

    @property
    def model(self) -> str:
        """Model folder that training writes; without training, the initial one."""
        trained = self.paths.folder("train")
        return trained if self.run.train.max_steps > 0 else self.initial or trained

    @property
    def used_model(self) -> str:
        """Model folder that segments."""
        return self.paths.folder("select") if self.steps else self.model

    @cached_property
    def steps(self) -> list[str]:
        """Checkpoints that `select` chooses from."""
        return [f"{step:08d}" for step in self.run.selectable_steps]

    def check_checkpoints(self) -> None:
        """Refuse to choose among checkpoints that a finished training did not keep, if it does not run again."""
        made = [path.parent.name for path in self.paths.existing("select", "candidate")]
        folder = Path(self.paths.checkpoint("")).parent
        kept = sorted(path.name for path in folder.glob("step-*"))
        names = [f"step-{step}" for step in self.steps if int(step)]  # step 0 are the weights of `init`
        missing = [name for name in names if name not in made + kept]
        if missing:
            raise ConfigError(
                "train.checkpoint_steps, train.keep_checkpoints, select.checkpoints: "
                f"select needs {', '.join(missing)}, {folder} has {', '.join(kept) or 'none'}. "
                f"Undo their change, or remove {folder.parent} to train again"
            )

    # --- Jobs ------------------------------------------------------------------------------------------------
    def job(self, rule: str, wildcards: Any) -> JobSpec:
        """Return the work of a job: of a stage (rule ``fill``), its shares (``fill_blocks``) or a step."""
        stage, _, part = rule.partition("_")
        if boxes := find_output(stage).boxes:
            return self._job_on_boxes(stage, boxes, part == "list", wildcards)
        output = ("labels" if part.startswith("labels") else "image") if stage == "ingest" else None
        step = part.removeprefix("labels").removeprefix("_")
        place = self.places[wildcards.volume]
        box = getattr(place, _blocks(stage, output).box if stage != "synth" else "image")
        if stage == "synth":
            return JobSpec(str(box), box.num_voxels, box.num_voxels)
        voxels = self._voxels_of_a_share(stage, wildcards.volume, output)
        if step:  # a share, or what finishes a step
            files = self._before(stage, "" if step == "blocks" else step, wildcards)
            return JobSpec(str(box), voxels, files=files)
        files = self.job_records(stage, output=output, **_without_job(wildcards))
        is_last = bool(files) and bool(_blocks(stage, output).steps)
        at_once = {"fill": self._filled_at_once, "evaluate": self._scored_at_once}.get(stage, lambda _: 0)(place)
        if stage in ("skeletonize", "coordinates"):  # whose end takes all of the box
            voxels = box.num_voxels
            at_once = voxels if stage == "skeletonize" else 0
        return JobSpec(str(box), voxels, at_once, files, f"--step {LAST}" if is_last else "")

    def _job_on_boxes(self, stage: str, boxes: str, is_list: bool, wildcards: Any) -> JobSpec:
        """Return the work of a job on a box, or on a list of boxes."""
        of_volume: JobBoxes = getattr(self, boxes)[wildcards.volume]
        if not is_list:
            box = of_volume[wildcards.subvolume]
            voxels = self._canvas_voxels(stage, wildcards.volume, box)
            return JobSpec(str(box), voxels, voxels)
        number = len(share_of(wildcards.job, len(of_volume)))
        ends = of_volume.grid[0], of_volume.grid[-1]
        largest = max(self._canvas_voxels(stage, wildcards.volume, box) for box in ends)
        canvases = min(number, most_canvases(self.run.segment, self.gpus))
        return JobSpec(str(self.places[wildcards.volume].segment_box), number * largest, largest, canvases=canvases)

    def _canvas_voxels(self, stage: str, volume: str, box: Box) -> int:
        """Count the voxels of a box: of a subvolume, those of its canvas."""
        mirrored = stage == "segment" and self.run.segment.mirror
        radius = self.costed.model.fov_radius_zyx if mirrored else (0, 0, 0)
        return Frame.of(box, self.places[volume].image, radius).canvas.num_voxels

    def _voxels_of_a_share(self, stage: str, volume: str, output: str | None) -> int:
        """Count the voxels that a share works on, also in steps; if there are none, all."""
        place = self.places[volume]
        parts: list[Step | None] = [None, *(step for step in self._steps(stage, volume, output) if step.box)]
        voxels = max(
            getattr(place, part.box if part else _blocks(stage, output).box).num_voxels
            // max(1, len(self.jobs(stage, volume, output, part)))
            for part in parts
        )
        finer = place.finer.get(output or "")  # a mip that ingest makes is made of more voxels
        return voxels * (finer.num_voxels if finer and stage == "ingest" else 1)

    def _scored_at_once(self, place: Place) -> int:
        """Voxels that evaluation holds at once: those of the watershed baseline."""
        config = self.run.evaluate
        return min(place.evaluate_box.num_voxels, config.watershed_max_voxels) if config.watershed else 0

    def _filled_at_once(self, place: Place) -> int:
        """Voxels that filling holds at once: a tile and its halo."""
        outer = with_halo(Box.from_shape(self.run.fill.block_size_zyx), self.run.fill, place.voxel_size_zyx_nm)
        return math.prod(map(min, outer.shape, place.segment_box.shape))

    @property
    def selection_voxels(self) -> int:
        """Voxels that a candidate for the choice floods: those of the canvas of its box."""
        box = self.selection_box
        return self._canvas_voxels("segment", self.run.select_volume, box) if box else 0

    @property
    def selection_box(self) -> Box | None:
        """Box that candidates for the choice segment, None if there are none."""
        return selection_box(self.run, self.places[self.run.select_volume]) if self.steps else None

    @property
    def trained_voxels(self) -> int:
        """Voxels of all training boxes."""
        return sum(self.places[name].train_box.num_voxels for name in self.trained)

    @property
    def learnt_voxels(self) -> list[int]:
        """Voxels with image and labels of each volume that training reads, which it keeps in memory."""
        return [self.places[name].labelled.num_voxels for name in self.learnt_from]

    # --- Inputs --------------------------------------------------------------------------------
    def training_coordinates(self, wildcards: Any) -> list[str]:
        """Return the coordinates that records are drawn from; refuse to make records of nothing."""
        if not self.trained:
            raise ConfigError("records: no volume is trained on in this configuration. Check train.max_steps")
        return self.targets("coordinates")

    def shown_labels(self, volume: str) -> list[str]:
        """Return the ground truth to export with a segmentation, if there is one."""
        return [self.paths.file("ingest", "labels", volume=volume)] if self.places[volume].shows_truth else []

    def agglomerated_base(self, volume: str) -> list[str]:
        """Return the supervoxels of an agglomerated volume."""
        return [tracked_file(self.paths.base(self.run, volume=volume))] if volume in self.agglomerated else []

    # --- Blocks ----------------------------------------------------------------------------------------------
    def jobs(self, stage: str, volume: str, output: str | None = None, step: Step | None = None) -> list[str]:
        """Return the jobs that each walk a list of the blocks or boxes of a volume, by default after all steps.

        None if a single job does all blocks, those of steps with another box included, if there are so few boxes that
        each is a job, or for an image that stays where it is. Each list has at least `subvolumes_of_a_job` boxes to
        flood, if there are as many.
        """
        boxes, most = find_output(stage, output).boxes, self.run.workflow.max_jobs_per_stage
        if boxes:
            number = len(getattr(self, boxes)[volume])
            most = min(most, max(1, number // (self.subvolumes_of_a_job if stage == "segment" else 1)))
            return jobs_of(number, most) if number > most else []
        if (stage, output) == ("ingest", "image") and self._refers(volume):
            return []
        step = step or Step("")
        numbers = self._numbers_of_blocks(stage, volume, output)
        own, largest = (jobs_of(n // step.blocks_per_job, most) for n in (numbers[step.box], max(numbers.values())))
        return own if len(largest) > 1 else []

    def _numbers_of_blocks(self, stage: str, volume: str, output: str | None) -> dict[str, int]:
        """Return how many blocks a stage has, and how many the steps that have another box."""
        blocks, numbers = _blocks(stage, output), {}
        for name in ("", *(step.box for step in self._steps(stage, volume, output))):
            box = getattr(self.places[volume], name or blocks.box)
            shards = Shards(box, shard_shape(box.shape, blocks.itemsize))
            numbers[name] = len(shards.layers()) if blocks.layers else shards.number
        return numbers

    def is_shared(self, stage: str) -> bool:
        """Whether several jobs share the blocks of a volume in this stage."""
        volumes = (
            [wildcards["volume"] for wildcards in self._wildcards(stage, None, {})] if STAGES[stage].blocks else []
        )
        return any(self.jobs(stage, volume) for volume in volumes)

    def _refers(self, volume: str) -> bool:
        """Whether an image stays where it is; one that was copied before remains a copy."""
        return self.places[volume].image_stays and not has_copy(self.paths.of("ingest", "image", volume=volume))

    def job_records(
        self, stage: str, volume: str, output: str | None = None, step: str = LAST, **wildcards: str
    ) -> list[str]:
        """Return the records of `jobs`, by default of the last step."""
        of = next((each for each in _steps(stage) if each.name == step), None) if step != LAST else None
        jobs = self.jobs(stage, volume, output, of)
        return [self.paths.job(stage, job, step, output, volume=volume, **wildcards) for job in jobs]

    def _before(self, stage: str, step: str, wildcards: Any) -> list[str]:
        """Return the files that the end of a step waits for, its shares; without `step`, a share: the step before."""
        steps, of = self._steps(stage, wildcards.volume), _without_job(wildcards)
        names = [*(each.name for each in steps), LAST]
        place = names.index(step or wildcards.step_name)
        if step and steps[place].in_parts:
            return self.job_records(stage, step=step, **of)
        return self._left_by(stage, steps[:place], of)

    def _steps(self, stage: str, volume: str, output: str | None = None) -> list[Step]:
        """Return the steps that a stage has for a volume."""
        config = self.run.volumes[volume]
        return [step for step in _blocks(stage, output).steps if not step.option or getattr(config, step.option)]

    def _left_by(self, stage: str, steps: Sequence[Step], of: dict[str, str]) -> list[str]:
        """Return the files of the last step for which this volume has jobs."""
        for step in reversed(steps):
            if step.finishes:
                return [self.paths.tables(stage, step.name, **of)]
            if records := self.job_records(stage, step=step.name, **of):
                return records
        return []

    # --- Files -----------------------------------------------------------------------------------------------
    def targets(self, stage: str) -> list[str]:
        """Return the files of a stage that Snakemake watches; none if the configuration leaves the stage out."""
        return [path for output in STAGES[stage].outputs for path in self.watched(stage, output.name)]

    def watched(self, stage: str, output: str | None = None, **given: str) -> list[str]:
        """Return the `files` of an output or, where jobs make lists of them, the records of these jobs."""
        found = []
        for wildcards in self._wildcards(stage, output, given):
            has_lists = find_output(stage, output).boxes and self.jobs(stage, wildcards["volume"])
            found += self.job_records(stage, **wildcards) if has_lists else self.files(stage, output, **wildcards)
        return found

    def files(self, stage: str, output: str | None = None, **given: str) -> list[str]:
        """Return the files of one output of a stage."""
        found = []
        for wildcards in self._wildcards(stage, output, given):
            path, boxes = self.paths.file(stage, output, **wildcards), find_output(stage, output).boxes
            before, _, after = path.partition("{subvolume}")  # once, as there may be a million
            stems = getattr(self, boxes)[wildcards["volume"]] if boxes else [""]
            found += [f"{before}{stem}{after}" for stem in stems]
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


def _without_job(wildcards: Any) -> dict[str, str]:
    return {name: value for name, value in wildcards.items() if name not in ("job", "step_name")}


def _blocks(stage: str, output: str | None) -> Blocks:
    blocks = find_output(stage, output).blocks or STAGES[stage].blocks
    assert blocks is not None, stage
    return blocks


def _steps(stage: str) -> Sequence[Step]:
    return _blocks(stage, None).steps


def read_pipeline(path: str | Path) -> Pipeline:
    """Read a configuration and check it and its sources."""
    try:
        values = yaml.safe_load(Path(path).read_text())
    except OSError as reason:
        raise ConfigError(f"{path}: cannot be read ({reason.strerror}), expected a configuration") from None
    except yaml.YAMLError as reason:
        raise ConfigError(f"{path}: is not YAML ({' '.join(str(reason).split())}). Correct it") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: is not a mapping, expected a configuration such as config.yaml")
    check_keys(path)
    take_software(values)
    run = load_run(values)
    return Pipeline(run, check_sources(run))


def take_software(values: dict[str, Any]) -> dict[str, str]:
    """Take the keys of `SOFTWARE`, which are not part of the run, out of a configuration; missing ones are empty."""
    found = {name: values.pop(name, None) or "" for name in SOFTWARE}
    for name, value in found.items():
        if not isinstance(value, str):
            raise ConfigError(f"{name}: found {value!r}, expected text, such as {SOFTWARE[name]}")
    return found
