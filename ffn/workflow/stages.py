"""The stages of the pipeline: the one list that the command line, the workflow, `ffn info` and the report read.

A new stage is a row here, a section in ``config.py``, a rule file of its name and a module. It imports nothing heavy,
because ``ffn --help`` reads it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from ffn.provenance import revision
from ffn.viewing import COARSE, MIPS, PIECES, PLAN

COMMAND = re.compile(r"\bffn (\S+) (\S+)")


class Output(NamedTuple):
    """A file or a store that a stage writes."""

    name: str  # in the rule
    path: str  # below the run's folder, with {volume}, {order}, {subvolume} and {step}
    of: str  # attribute of Pipeline, mostly a list of volumes; if it is empty, the stage has nothing to do
    boxes: bool = False  # whether each job works on a box, or several
    blocks: Blocks | None = None  # where another output of the stage has others


@dataclass(frozen=True)
class Need:
    """Peak memory and time of one job, measured on the demo and on FIB-25, with a margin."""

    base_mb: int  # with the blocks that it reads; TensorFlow or OpenVINO alone take 1-2 GB
    bytes_per_voxel: float = 0  # that the stage holds at once, beyond its blocks
    mb_per_thread: int = 0  # or process
    seconds_per_mvoxel: float = 0  # of one core, for 10⁶ voxels of the whole box


class Step(NamedTuple):
    """A step of a stage before the one that writes its output; see `ffn.io.blocks.reduce_step`."""

    name: str  # as in --step NAME
    in_parts: bool = True  # whether several jobs share it
    blocks_per_job: int = 1  # at least; if one job would do, the step is left to the next
    finishes: bool = True  # whether a job comes after those that share it


class Blocks(NamedTuple):
    """The blocks of a stage, which are the shards of its output or, if that is a table, of its input."""

    box: str  # attribute of Place
    itemsize: int  # bytes of a voxel; of several volumes, of the largest
    steps: tuple[Step, ...] = ()  # that come before
    layers: bool = False  # whether a block is a layer of shards


# Each mip of an export has an eighth of the voxels of the finer one.
EXPORT_MIPS = tuple(Step(name, blocks_per_job=8**mip, finishes=False) for mip, name in enumerate(MIPS))
EXPORT_STEPS = (Step(PLAN, in_parts=False), *EXPORT_MIPS, Step(COARSE, in_parts=False), Step(PIECES))
LABELS = Blocks("evaluate_box", itemsize=8)  # where a segmentation and the truth are compared


@dataclass(frozen=True)
class Stage:
    """One stage: a subcommand of ``ffn``, a rule file and, where it has options, a section of the configuration."""

    module: str  # with the function, and the command line that calls it
    title: str
    outputs: tuple[Output, ...]  # a job is done when the first one exists
    need: Need
    own_rules: tuple[str, ...] = ()  # in their order, where they are not as in `rules_of`
    blocks: Blocks | None = None  # if several jobs may work on a volume, by the rule <name>_blocks


# By name, in the order of the pipeline; <name>_all is the target. Needs were measured on FIB-25 (250³ in blocks of
# 128³) and on the demo: `max_rss` and `s` in results/*/benchmarks.
STAGES = {
    "synth": Stage(
        module="ffn.synthetic.write",
        title="make a synthetic EM volume with labels",
        outputs=(
            Output("image", "volumes/{volume}/raw.zarr", of="synthetic"),
            Output("labels", "volumes/{volume}/labels.zarr", of="synthetic"),
        ),
        need=Need(base_mb=500, bytes_per_voxel=120, seconds_per_mvoxel=4),
    ),
    "ingest": Stage(
        module="ffn.io.ingest",
        title="bring images or labels of any supported format into the project's format",
        outputs=(
            Output("image", "volumes/{volume}/raw.zarr", of="foreign", blocks=Blocks("image", 1, layers=True)),
            Output(
                "labels", "volumes/{volume}/labels.zarr", of="foreign_labelled", blocks=Blocks("labels", 8, layers=True)
            ),
        ),
        need=Need(base_mb=1500, seconds_per_mvoxel=1),
        own_rules=("ingest_blocks", "ingest", "ingest_labels_blocks", "ingest_labels"),
    ),
    "import-checkpoint": Stage(
        module="ffn.commands.import_checkpoint",
        title="turn a published TensorFlow 1 FFN checkpoint into a model folder",
        outputs=(
            Output("model", "initial/model.yaml", of="imported"),
            Output("weights", "initial/weights.h5", of="imported"),
        ),
        need=Need(base_mb=1500),
    ),
    "membrane": Stage(
        module="ffn.sampling.membrane",
        title="detect membranes: edges and the distance to them",
        outputs=(Output("membrane", "membrane/{volume}.zarr", of="trained"),),
        need=Need(base_mb=1500, seconds_per_mvoxel=1),  # 500 MB for a shard
        blocks=Blocks("train_box", itemsize=4),
    ),
    "partition": Stage(
        module="ffn.sampling.partition",
        title="sort labelled voxels by the share of their neighbourhood that is the same object",
        outputs=(Output("partitions", "partitions/{volume}.zarr", of="trained"),),
        need=Need(base_mb=500, mb_per_thread=250, seconds_per_mvoxel=1),  # 134 MB for a shard
        blocks=Blocks("train_box", itemsize=1, steps=(Step("sizes"),)),
    ),
    "coordinates": Stage(
        module="ffn.sampling.coordinates",
        title="list the voxels that training may start from",
        outputs=(Output("coordinates", "coordinates/{volume}.h5", of="trained"),),
        need=Need(base_mb=800, seconds_per_mvoxel=0.5),
        blocks=Blocks("train_box", itemsize=1),
    ),
    "records": Stage(
        module="ffn.sampling.records",
        title="write balanced, shuffled, sharded TFRecord files of coordinates",
        outputs=(Output("index", "records/index.json", of="trained"),),
        need=Need(base_mb=750, bytes_per_voxel=40, seconds_per_mvoxel=1),  # bytes of a record, with 16 shards
    ),
    "train": Stage(
        module="ffn.training.train",
        title="train an FFN, on one process or under ffn launch, srun, mpirun, aprun",
        outputs=(
            Output("model", "model/model.yaml", of="trained"),
            Output("weights", "model/weights.h5", of="trained"),
        ),
        need=Need(base_mb=2000),  # 0.7 GB on a CPU; the rest for CUDA. What else it needs: `needs.training_mb`
    ),
    "select": Stage(
        module="ffn.evaluation.select",
        title="choose the best of several checkpoints by their scores on a validation box",
        outputs=(
            Output("model", "selected/model.yaml", of="steps"),
            Output("weights", "selected/weights.h5", of="steps"),
            Output("selection", "selected/selection.json", of="steps"),
            Output("candidate", "selection/step-{step}/model.yaml", of="steps"),
            Output("candidate_weights", "selection/step-{step}/weights.h5", of="steps"),
            Output("candidate_segmentation", "selection/step-{step}/segmentation.zarr", of="steps"),
            Output("candidate_scores", "selection/step-{step}/scores.json", of="steps"),
        ),
        need=Need(base_mb=500),
        own_rules=("checkpoint_model", "checkpoint_segment", "checkpoint_evaluate", "select"),
    ),
    "normalize": Stage(
        module="ffn.model.normalize",
        title="fit the grey levels of a volume to those that the network was trained on",
        outputs=(Output("normalization", "normalization/{volume}.json", of="normalized"),),
        need=Need(base_mb=500),
    ),
    "segment": Stage(
        module="ffn.inference.segment",
        title="flood-fill boxes of an image",
        outputs=(
            Output(
                "segmentation", "segmentation/{volume}/subvolumes{order}/{subvolume}.zarr", of="segmented", boxes=True
            ),
        ),
        need=Need(base_mb=2500, bytes_per_voxel=60),  # with one canvas, see `needs.flooding_mb`
    ),
    "reconcile": Stage(
        module="ffn.assembly.reconcile",
        title="join overlapping subvolumes into one volume with global ids",
        outputs=(Output("segmentation", "segmentation/{volume}/segmentation{order}.zarr", of="segmented"),),
        need=Need(base_mb=1130, seconds_per_mvoxel=0.5),
        blocks=Blocks("segment_box", 8, (Step("tiling", in_parts=False), Step("match"), Step("label"))),
    ),
    "consensus": Stage(
        module="ffn.assembly.consensus",
        title="split two segmentations wherever they disagree",
        outputs=(Output("segmentation", "segmentation/{volume}/consensus.zarr", of="segmented_twice"),),
        need=Need(base_mb=1130, seconds_per_mvoxel=1),
        blocks=Blocks("segment_box", itemsize=8, steps=(Step("count"),)),
    ),
    "agglomerate": Stage(
        module="ffn.assembly.agglomerate",
        title="score which touching segments are one object",
        outputs=(Output("graph", "agglomeration/{volume}/graphs/{subvolume}.csv", of="agglomerated", boxes=True),),
        need=Need(base_mb=2630),  # with one canvas, see `needs.agglomerating_mb`
    ),
    "cut": Stage(
        module="ffn.assembly.cut",
        title="apply the cuts and traces of people",
        outputs=(Output("cuts", "agglomeration/{volume}/cuts.csv", of="cut"),),
        need=Need(base_mb=3700),  # agglomeration's, and 1 GB for the watershed of the largest box
    ),
    "merge": Stage(
        module="ffn.assembly.merge",
        title="join the segments that an agglomeration graph joins",
        outputs=(
            Output("segmentation", "segmentation/{volume}/agglomerated.zarr", of="agglomerated"),
            Output("mapping", "agglomeration/{volume}/mapping.csv", of="agglomerated"),
        ),
        need=Need(base_mb=930, seconds_per_mvoxel=0.5),
        blocks=Blocks("segment_box", 8, (Step("mapping", in_parts=False),)),
    ),
    "sweep": Stage(
        module="ffn.evaluation.sweep",
        title="score an agglomeration graph at every threshold",
        outputs=(Output("table", "agglomeration/{volume}/sweep.json", of="swept"),),
        need=Need(base_mb=630, seconds_per_mvoxel=1),
        blocks=LABELS,
    ),
    "learn-affinities": Stage(
        module="ffn.training.affinities",
        title="learn which neighbouring voxels lie in one body, in minutes",
        outputs=(Output("network", "affinities/network.h5", of="taught"),),
        need=Need(base_mb=2500),
    ),
    "affinities": Stage(
        module="ffn.inference.affinities",
        title="predict affinities of neighbouring voxels, and the fragments that they enclose",
        outputs=(Output("affinities", "affinities/{volume}.zarr", of="joined"),),
        need=Need(base_mb=3000, seconds_per_mvoxel=30),
        blocks=Blocks("segment_box", itemsize=8),
    ),
    "fill": Stage(
        module="ffn.assembly.fill",
        title="give unsegmented voxels to the segments around them",
        outputs=(Output("segmentation", "segmentation/{volume}/filled.zarr", of="filled"),),
        need=Need(base_mb=800, bytes_per_voxel=80, seconds_per_mvoxel=1.6),
        blocks=Blocks("segment_box", itemsize=8, steps=(Step("compete"),)),
    ),
    "skeletonize": Stage(
        module="ffn.evaluation.skeletonize",
        title="find the centre lines of the truth's bodies, for the run length",
        outputs=(Output("skeletons", "evaluation/{volume}-skeletons.h5", of="skeletonized"),),
        need=Need(base_mb=700, bytes_per_voxel=40, seconds_per_mvoxel=5),
        blocks=LABELS,
    ),
    "evaluate": Stage(
        module="ffn.evaluation.evaluate",
        title="score a segmentation against the truth: ARE, VOI, coverage, run length, worst errors",
        outputs=(
            Output("scores", "evaluation/{volume}.json", of="evaluated"),
            Output("baseline", "evaluation/{volume}-baseline.zarr", of="compared"),
        ),
        need=Need(base_mb=1210, bytes_per_voxel=100, seconds_per_mvoxel=15),  # includes the watershed's 90 bytes
        blocks=LABELS,
    ),
    "export": Stage(
        module="ffn.viewing.export",
        title="write Neuroglancer volumes, meshes, skeletons and states",
        outputs=(Output("state", "precomputed/{volume}/neuroglancer.json", of="segmented"),),
        need=Need(base_mb=1000, mb_per_thread=300, seconds_per_mvoxel=2),
        blocks=Blocks("segment_box", itemsize=8, steps=EXPORT_STEPS),
    ),
    "report": Stage(
        module="ffn.report.page",
        title="write one HTML page: slices, curves, scores, cost of the stages",
        outputs=(Output("report", "report.html", of="volumes"), Output("look", "look.html", of="volumes")),
        need=Need(base_mb=1000),
        own_rules=("look", "report"),
    ),
}


def rules_of(name: str) -> list[str]:
    """Return the rules of a stage: of shares of the blocks or lists of boxes, of the ends of steps, of the output."""
    stage, rule = STAGES[name], name.replace("-", "_")
    parts = [f"{rule}_blocks"] if stage.blocks else [f"{rule}_list"] if stage.outputs[0].boxes else []
    steps = [f"{rule}_{step.name}" for step in (stage.blocks.steps if stage.blocks else ()) if step.finishes]
    return list(stage.own_rules or (*parts, *steps, rule))


# Every rule in the order of the pipeline.
RULES = tuple(rule for name in STAGES for rule in rules_of(name))


def revisions_of(shell_line: str) -> list[int]:
    """Return the revisions of what a rule runs; a training of the studies has that of training as well.

    Examples
    --------
    >>> revisions_of("ffn segment --image raw.zarr") == [revision("segment")]
    True
    >>> len(revisions_of("ffn study train --runs runs/")), len(revisions_of("ffn study measure --out 1.h5"))
    (2, 1)
    """
    words = COMMAND.search(shell_line)
    return [revision(word) for word in words.groups() if word in {*STAGES, "study"}] if words else []
