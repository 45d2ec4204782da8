"""How the work of a stage on a volume is cut into jobs, and what each of them takes."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from ffn.assembly.competitors import with_halo
from ffn.evaluation import skeletonize
from ffn.geometry import ZYX, Box, Grid, cut, tile
from ffn.inference.canvas import Frame
from ffn.inference.lanes import MOST_CANVASES
from ffn.io import atomic
from ffn.io.block_log import share_of
from ffn.io.blocks import jobs_of
from ffn.io.ingest import has_copy
from ffn.io.shards import Shards, shard_shape
from ffn.io.store_names import LAST
from ffn.workflow.models import Models
from ffn.workflow.needs import PLANNED_THREADS, flooding_minutes, jobs_within, minutes, most_canvases, takes_gpu
from ffn.workflow.paths import find_output
from ffn.workflow.places import Place
from ffn.workflow.stages import STAGES, Blocks, Step


class JobSpec(NamedTuple):
    """The work of a job, for inputs, resources and parameters of its rule."""

    box: str  # what its command is told; text, because Snakemake ignores other types
    voxels: int  # that it works on, which decide about its time
    at_once: int = 0  # of them, which decide about its memory; 0 where a block does
    files: Sequence[str] = ()  # of earlier jobs, which it waits for
    option: str = ""  # what it does of its stage, unless that is everything
    canvases: int = 1  # subvolumes that are flooded at once


class Kept(NamedTuple):
    """What a run keeps of its first plan, because jobs of other subvolumes are other jobs to Snakemake."""

    subvolumes_of_a_job: int = 1  # at least
    on_gpus: bool = False  # whether the hours of a job are those of a GPU


class Jobs:
    """The jobs of a run on machines with this number of GPUs; `gpus_at_a_time` are those of all machines."""

    def __init__(self, places: dict[str, Place], models: Models, gpus: int, gpus_at_a_time: int) -> None:
        self.run = models.run
        self.paths = models.paths
        self.places = places
        self._models = models
        self._gpus = gpus
        self._gpus_at_a_time = gpus_at_a_time
        self.boxes = functools.cache(self._boxes)
        self.records = functools.cache(self._records)  # thousands of jobs wait for the same ones, and have resources

    def _boxes(self, stage: str, volume: str) -> Grid:
        """Return the boxes of flood filling, which overlap, or of agglomeration, which do not."""
        box = self.places[volume].segment_box
        if stage == "segment":
            return tile(box, self.run.subvolumes.size_zyx, self.run.subvolumes.overlap_zyx)
        return cut(box, self.run.agglomerate.job_size_zyx)

    @property
    def subvolumes_of_a_job(self) -> int:
        """How many subvolumes a job floods at least."""
        canvases = self.run.segment.canvases
        return self.kept.subvolumes_of_a_job if canvases == "auto" else canvases

    @cached_property
    def kept(self) -> Kept:
        """What the run began with, on any machine: with GPUs, so many subvolumes that each canvas of a GPU has one."""
        path, config = Path(self.paths.subvolumes_of_a_job), self.run.segment
        if path.exists():
            return Kept(**yaml.safe_load(path.read_text()))
        if not self._gpus or not takes_gpu(config) or self.paths.existing("segment"):
            return Kept()
        volumes = [name for name, volume in self.run.volumes.items() if volume.is_segmented]
        number = sum(len(self.boxes("segment", name)) for name in volumes) * (1 + self.run.consensus.enabled)
        return Kept(max(1, min(MOST_CANVASES, number // self._gpus_at_a_time)), True)

    def keep_plan(self) -> None:
        """Keep it for later calls of Snakemake."""
        plan = self.kept._replace(subvolumes_of_a_job=self.subvolumes_of_a_job)
        if plan != Kept():
            atomic.write_text(self.paths.subvolumes_of_a_job, yaml.safe_dump(plan._asdict()))

    # --- The work of one job ---------------------------------------------------------------------------------
    def spec(self, rule: str, wildcards: Any) -> JobSpec:
        """Return the work of a job: of a stage (rule ``fill``), its shares (``fill_blocks``) or a step."""
        stage, _, part = rule.partition("_")
        place = self.places[wildcards.volume]
        if find_output(stage).boxes:
            return self._spec_of_list(stage, wildcards) if part == "list" else self._spec_of_box(stage, wildcards)
        if stage == "synth":
            return JobSpec(str(place.image), place.image.num_voxels, place.image.num_voxels)
        output = ("labels" if part.startswith("labels") else "image") if stage == "ingest" else None
        step = part.removeprefix("labels").removeprefix("_")
        box = getattr(place, _blocks(stage, output).box)
        if step:  # a share, or what finishes a step
            files = self._before(stage, "" if step == "blocks" else step, wildcards)
            at_once = self._at_once(stage, place) if stage in ("fill", "skeletonize") else 0
            at_once = max(at_once, self._joined_at_once(place) if step == "compete" else 0)
            return JobSpec(str(box), self._voxels_of_a_share(stage, wildcards.volume, output), at_once, files)
        files = self.records(stage, output=output, **_without_job(wildcards))
        is_last = bool(files) and bool(_blocks(stage, output).steps)
        takes_all = stage == "coordinates"  # of the box, at its end
        voxels = box.num_voxels if takes_all else self._voxels_of_a_share(stage, wildcards.volume, output)
        at_once = max(self._at_once(stage, place), self._joined_at_once(place) if stage == "fill" and not files else 0)
        return JobSpec(str(box), voxels, at_once, files, f"--step {LAST}" if is_last else "")

    def _spec_of_box(self, stage: str, wildcards: Any) -> JobSpec:
        box = self.boxes(stage, wildcards.volume).named(wildcards.subvolume)
        voxels = self.flooded_voxels(stage, wildcards.volume, box)
        return JobSpec(str(box), voxels, voxels)

    def _spec_of_list(self, stage: str, wildcards: Any) -> JobSpec:
        boxes = self.boxes(stage, wildcards.volume)
        number = len(share_of(wildcards.job, len(boxes)))
        largest = self._largest(stage, wildcards.volume)
        canvases = min(number, most_canvases(self.run.segment, self._gpus))
        return JobSpec(str(self.places[wildcards.volume].segment_box), number * largest, largest, canvases=canvases)

    def _largest(self, stage: str, volume: str) -> int:
        grid = self.boxes(stage, volume)
        return max(self.flooded_voxels(stage, volume, box) for box in (grid[0], grid[-1]))

    def flooded_voxels(self, stage: str, volume: str, box: Box) -> int:
        """Count the voxels of a box: of a subvolume, those of its canvas."""
        if stage != "segment":
            return box.num_voxels
        place, model = self.places[volume], self._models.costed.flooding_model
        return Frame.of(box, place.image, model, self.run.segment.mirror, place.segment_box).canvas.num_voxels

    def _voxels_of_a_share(self, stage: str, volume: str, output: str | None) -> int:
        """Count the voxels that a share works on, also in steps; if there are no shares, all."""
        return self._voxels(stage, volume, output) // max(1, len(self.of(stage, volume, output)))

    def _voxels(self, stage: str, volume: str, output: str | None) -> int:
        """Count the voxels that all jobs work on, of `fill` with their halos."""
        place = self.places[volume]
        voxels = getattr(place, _blocks(stage, output).box).num_voxels
        if stage == "fill":
            tile_zyx = map(min, self.run.fill.block_size_zyx, place.segment_box.shape)
            voxels = voxels * self._at_once(stage, place) // math.prod(tile_zyx)
        finer = place.finer.get(output or "")  # a mip that ingest makes is made of more voxels
        return voxels * (finer.num_voxels if finer else 1)

    def _at_once(self, stage: str, place: Place) -> int:
        """Voxels that a job of `fill` and `skeletonize`, of others the last one, holds at once beyond its blocks."""
        if stage == "fill":  # a tile and its halo
            outer = with_halo(Box.from_shape(self.run.fill.block_size_zyx), self.run.fill, place.voxel_size_zyx_nm)
            return math.prod(map(min, outer.shape, place.segment_box.shape))
        if stage == "skeletonize":
            return math.prod(skeletonize.block_shape(place.evaluate_box, self._skeleton_step(place)))
        if stage == "evaluate" and self.run.evaluate.watershed:
            return min(place.evaluate_box.num_voxels, self.run.evaluate.watershed_max_voxels)
        return 0

    def _joined_at_once(self, place: Place) -> int:
        """Voxels of `fill` that take as much memory as all fragments and their contacts, which are joined at once.

        A fragment takes 3 KB with its contacts; SNEMI3D at 12 nm has 4.4 in 1,000 voxels, FIB-25 0.5.
        """
        return place.segment_box.num_voxels // 6 if self.run.affinities.enabled else 0

    def _skeleton_step(self, place: Place) -> ZYX:
        return skeletonize.step_for(self.run.skeletonize.spacing_nm, place.voxel_size_zyx_nm, place.evaluate_box.shape)

    # --- Jobs that share the blocks or the boxes of a volume -------------------------------------------------------
    def of(self, stage: str, volume: str, output: str | None = None, step: Step | None = None) -> list[str]:
        """Return the jobs that each walk a list of the blocks or boxes of a volume, by default after all steps.

        None if a single job does all blocks, if there are so few boxes that each is a job, or for an image that stays
        where it is. Each list has at least `subvolumes_of_a_job` boxes to flood, if there are as many.
        """
        if find_output(stage, output).boxes:
            number, model = len(self.boxes(stage, volume)), self._models.costed.flooding_model
            voxels = number * self._largest(stage, volume)
            most = self._most(flooding_minutes(voxels, model, PLANNED_THREADS, self.kept.on_gpus), number)
            most = min(most, max(1, number // (self.subvolumes_of_a_job if stage == "segment" else 1)))
            return jobs_of(number, most) if number > most else []
        if (stage, output) == ("ingest", "image") and self._refers(volume):
            return []
        number = self._number_of_blocks(stage, volume, output)
        most = self._most(minutes(stage, self._voxels(stage, volume, output)), number)
        jobs = jobs_of(number // (step.blocks_per_job if step else 1), most)
        return jobs if len(jobs) > 1 else []

    def _most(self, num_minutes: int, num_parts: int) -> int:
        """Return how many jobs may share what one does in this time."""
        config = self.run.workflow
        return max(config.max_jobs_per_stage, jobs_within(config.max_hours_per_job, num_minutes, num_parts))

    def _refers(self, volume: str) -> bool:
        """Whether an image stays where it is; one that was copied before remains a copy."""
        return self.places[volume].image_stays and not has_copy(self.paths.of("ingest", "image", volume=volume))

    def _number_of_blocks(self, stage: str, volume: str, output: str | None) -> int:
        """Return how many blocks a stage has."""
        if stage == "skeletonize":
            place = self.places[volume]
            return len(skeletonize.blocks_in(place.evaluate_box, self._skeleton_step(place)))
        blocks = _blocks(stage, output)
        box = getattr(self.places[volume], blocks.box)
        shards = Shards(box, shard_shape(box.shape, blocks.itemsize))
        return len(shards.layers()) if blocks.layers else shards.number

    def _records(
        self, stage: str, volume: str, output: str | None = None, step: str = LAST, **wildcards: str
    ) -> list[str]:
        """Return the records of jobs that share a volume, by default of the last step."""
        steps = {} if step == LAST else {each.name: each for each in _blocks(stage, output).steps}
        jobs = self.of(stage, volume, output, steps.get(step))
        return [self.paths.job(stage, job, step, output, volume=volume, **wildcards) for job in jobs]

    def _before(self, stage: str, step: str, wildcards: Any) -> list[str]:
        """Return the files that the end of a step waits for, its shares; without `step`, a share: the step before."""
        steps, of = _blocks(stage, None).steps, _without_job(wildcards)
        names = [*(each.name for each in steps), LAST]
        place = names.index(step or wildcards.step_name)
        if step and steps[place].in_parts:
            return self.records(stage, step=step, **of)
        for earlier in reversed(steps[:place]):  # the last one for which this volume has jobs
            if earlier.finishes:
                return [self.paths.tables(stage, earlier.name, **of)]
            if records := self.records(stage, step=earlier.name, **of):
                return records
        return []


def _blocks(stage: str, output: str | None) -> Blocks:
    blocks = find_output(stage, output).blocks or STAGES[stage].blocks
    assert blocks is not None, stage
    return blocks


def _without_job(wildcards: Any) -> dict[str, str]:
    return {name: value for name, value in wildcards.items() if name not in ("job", "step_name")}
