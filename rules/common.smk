# Configuration, paths and targets; no science.
import math
import os
import re
import shlex
import shutil
import sys

import yaml
from snakemake.exceptions import WorkflowError

from ffn import __version__
from ffn.io import atomic
from ffn.machine.processes import dying_with_parent
from ffn.cluster.site import check_none_left
from ffn.errors import FfnError
from ffn.geometry import Box
from ffn.workflow.rank_layout import layout_of
from ffn.workflow.needs import flooding_minutes, memory_mb, minutes
from ffn.options import flags
from ffn.workflow.places import check_sources, contact_boxes, segment_files, subvolume_boxes
from ffn.workflow.run import load_run
from ffn.machine.runlock import lock_run
from ffn.training.checkpoint import MANIFEST, is_checkpoint

# `--configfile other.yaml` replaces the demo's configuration; Snakemake alone would merge the two.
if not workflow.overwrite_configfiles:

    configfile: "config.yaml"


# Modules that a site's software comes from, for `--software-deployment-method env-modules`; no part of a run.
MODULES = shlex.split(str(config.pop("modules", None) or ""))

try:
    RUN = load_run(config)
    PLACES = check_sources(RUN)
except FfnError as error:
    raise WorkflowError(str(error)) from None

OUT = f"results/{RUN.run}"
SEED = RUN.rng_seed
VOLUME = f"{OUT}/volumes/{{volume}}"

# --- What is made of which volume ---------------------------------------------------------------------------
SYNTHETIC = [name for name, volume in RUN.volumes.items() if volume.synthetic]
LABELLED = [name for name, volume in RUN.volumes.items() if volume.has_labels]
TRAINED = [
    name
    for name, volume in RUN.volumes.items()
    if volume.is_trained_on and RUN.train.max_steps > 0
]
VALIDATED = [
    name
    for name, volume in RUN.volumes.items()
    if volume.is_validated_on and RUN.is_validated
]
LEARNT_FROM = TRAINED + [name for name in VALIDATED if name not in TRAINED]
SEGMENTED = [name for name, volume in RUN.volumes.items() if volume.is_segmented]
EVALUATED = [name for name, place in PLACES.items() if place.is_evaluated]
# Volumes whose skeletons are made, not given.
SKELETONIZED = [
    name
    for name in EVALUATED
    if RUN.skeletonize.spacing_nm and not RUN.volumes[name].skeletons
]
SHOWN_TRUTH = [name for name in SEGMENTED if PLACES[name].shows_truth]
SUBVOLUMES = {name: subvolume_boxes(RUN, PLACES[name]) for name in SEGMENTED}
TRAINED_VOXELS = sum(PLACES[name].train_box.num_voxels for name in TRAINED)

for name in EVALUATED:
    if PLACES[name].is_scored_on_training_data:
        logger.warning(
            f"volumes.{name}: evaluate_box and train_box overlap, the scores are not those of unseen data"
        )
if RUN.selectable_steps and PLACES[RUN.select_volume].selects_on_training_data(
    RUN.select.box
):
    logger.warning(
        "select.box and train_box overlap, the choice favours checkpoints that know it by heart"
    )


def source_of(name, key):
    """Source and voxel size of a volume's image or labels, as arguments of `ffn ingest`."""
    size = " ".join(map(str, PLACES[name].voxel_size_zyx_nm))
    return f"{shlex.quote(getattr(RUN.volumes[name], key))} --voxel-size {size}"


def skeletons_of(name, made):
    """Argument of `ffn evaluate`: the skeletons that were made of a volume, or those that it has, if any."""
    paths = [*made, RUN.volumes[name].skeletons]
    return " ".join(f"--skeletons {shlex.quote(path)}" for path in paths if path)


def baseline_of(image, kept):
    """Arguments of `ffn evaluate`: the image, and where its watershed is kept, if it is wanted."""
    return "".join(
        f"--image {image}:raw --baseline-out {path}:segmentation" for path in kept
    )


# A checkpoint, published or ours, is imported first; a model folder is used where it is. Without training it is the model.
INIT = RUN.init and RUN.init.rstrip("/")
INIT_MANIFEST = [f"{INIT}/{MANIFEST}"] if INIT and is_checkpoint(INIT) else []
if INIT and (INIT_MANIFEST or not os.path.isdir(INIT)):
    INIT = f"{OUT}/initial"
MODEL = f"{OUT}/model" if RUN.train.max_steps > 0 else INIT

# Orders of seeds by what they add to the names of files; the consensus needs both.
ORDERS = {"": RUN.segment}
if RUN.consensus.enabled:
    ORDERS["-reversed"] = RUN.segment.model_copy(update={"seed_order": "reversed"})

# What agglomeration starts from, what it gives, and what is scored and shown.
BASE = f"{OUT}/segmentation/{{volume}}/{'consensus' if RUN.consensus.enabled else 'segmentation'}.h5"
MERGED = (
    f"{OUT}/segmentation/{{volume}}/agglomerated.h5"
    if RUN.agglomerate.enabled
    else BASE
)
FINAL = f"{OUT}/segmentation/{{volume}}/filled.h5" if RUN.fill.max_distance else MERGED
AGGLOMERATED = SEGMENTED if RUN.agglomerate.enabled else []
CONTACT_BOXES = {name: contact_boxes(RUN, PLACES[name]) for name in AGGLOMERATED}
GRAPHS = {
    name: [f"{OUT}/agglomeration/{name}/graphs/{stem}.csv" for stem in boxes]
    for name, boxes in CONTACT_BOXES.items()
}
# Checkpoints that compete for being used, and the model that segments.
STEPS = [f"{step:08d}" for step in RUN.selectable_steps]
USED_MODEL = f"{OUT}/selected" if STEPS else MODEL


def any_of(names):
    """Regular expression of a wildcard; matches nothing if there are no names."""
    return "|".join(map(re.escape, names)) or "(?!)"


def option(name, files, suffix=""):
    """Option of a command with these files, nothing where there are none."""
    return " ".join([name, *(f"{file}{suffix}" for file in files)]) if files else ""


def by_attempt(amount):
    """Resource that doubles with every attempt, for jobs killed for want of it; a function may say how much it is."""
    if not callable(amount):
        return lambda wildcards, attempt: amount * 2 ** (attempt - 1)
    return lambda wildcards, threads, attempt: amount(wildcards, threads) * 2 ** (
        attempt - 1
    )


def voxels_in(part):
    """Function of the wildcards: voxels of a box of the volume, such as 'segment_box'."""
    return lambda wildcards: getattr(PLACES[wildcards.volume], part).num_voxels


def voxels_of_job(boxes):
    """Function of the wildcards: voxels of the job's own box."""
    return lambda wildcards: boxes[wildcards.volume][wildcards.subvolume].num_voxels


def evaluated(voxels, wildcards):
    """A number of voxels that may be a function of the wildcards."""
    return voxels(wildcards) if callable(voxels) else voxels


def memory(stage, voxels=0):
    """Memory of a stage's jobs by what they hold at once and their threads, MB."""
    return by_attempt(
        lambda wildcards, threads: memory_mb(
            stage, evaluated(voxels, wildcards), threads
        )
    )


def duration(stage, voxels=0):
    """Time of a stage's jobs by the voxels of their whole box and their threads, minutes."""
    return by_attempt(
        lambda wildcards, threads: minutes(stage, evaluated(voxels, wildcards), threads)
    )


def flooding(voxels):
    """Time of jobs that run the network over a box, minutes."""
    return by_attempt(
        lambda wildcards, threads: flooding_minutes(
            evaluated(voxels, wildcards), RUN.model, threads
        )
    )


def staging(wildcards, resources):
    """Option of a command: the node-local folder that the profile wants its inputs in, as resource `stage_to`; quoted,
    because its variables are those of each node.
    """
    folder = resources.get("stage_to")
    return option("--stage-to", [shlex.quote(folder)] if folder else [])


def block(section):
    """Voxels of a block of a stage."""
    return math.prod(section.block_size_zyx)


def scored_at_once(wildcards):
    """Voxels that evaluation holds: those of the watershed baseline, else of a block."""
    if not RUN.evaluate.watershed:
        return block(RUN.evaluate)
    box = PLACES[wildcards.volume].evaluate_box
    return max(
        block(RUN.evaluate), min(box.num_voxels, RUN.evaluate.watershed_max_voxels)
    )


wildcard_constraints:
    volume=any_of(RUN.volumes),
    order="|-reversed",
    step=any_of(STEPS),
    subvolume=r"z-?\d+-y-?\d+-x-?\d+",


# --- Stages as targets: `snakemake membrane`, `--forcerun membrane` ------------------------------------------
STAGES = {
    "ingest": expand(f"{VOLUME}/raw.h5", volume=RUN.volumes)
    + expand(f"{VOLUME}/labels.h5", volume=LABELLED),
    "membrane": expand(f"{OUT}/membrane/{{volume}}.h5", volume=TRAINED),
    "partition": expand(f"{OUT}/partitions/{{volume}}.h5", volume=TRAINED),
    "coordinates": expand(f"{OUT}/coordinates/{{volume}}.h5", volume=TRAINED),
    "records": [f"{OUT}/records/index.json"] if TRAINED else [],
    "train": [f"{MODEL}/model.yaml"],
    "select": [f"{USED_MODEL}/model.yaml"] if STEPS else [],
    "segment": [
        f"{OUT}/segmentation/{name}/subvolumes{order}/{stem}.h5"
        for order in ORDERS
        for name in SEGMENTED
        for stem in SUBVOLUMES[name]
    ],
    "reconcile": expand(
        f"{OUT}/segmentation/{{volume}}/segmentation{{order}}.h5",
        volume=SEGMENTED,
        order=ORDERS,
    ),
    "consensus": expand(
        f"{OUT}/segmentation/{{volume}}/consensus.h5",
        volume=SEGMENTED if RUN.consensus.enabled else [],
    ),
    "agglomerate": [graph for graphs in GRAPHS.values() for graph in graphs],
    "merge": expand(
        f"{OUT}/segmentation/{{volume}}/agglomerated.h5", volume=AGGLOMERATED
    ),
    "sweep": expand(
        f"{OUT}/agglomeration/{{volume}}/sweep.json",
        volume=[name for name in AGGLOMERATED if name in EVALUATED],
    ),
    "fill": expand(
        f"{OUT}/segmentation/{{volume}}/filled.h5",
        volume=SEGMENTED if RUN.fill.max_distance else [],
    ),
    "skeletonize": expand(
        f"{OUT}/evaluation/{{volume}}-skeletons.h5", volume=SKELETONIZED
    ),
    "evaluate": expand(f"{OUT}/evaluation/{{volume}}.json", volume=EVALUATED),
    "export": expand(
        f"{OUT}/precomputed/{{volume}}/neuroglancer.json", volume=SEGMENTED
    ),
    "report": [f"{OUT}/report.html"],
}
STAGE_RULES = {"ingest": ["ingest", "ingest_labels", "synth"]}


def replaced(names, table):
    """Replace names of stages by what stands for them."""
    return set().union(*(table.get(name, [name]) for name in names))


class StageTargets(type(workflow)):
    """Workflow that knows stages: for Snakemake a rule with wildcards is no target, and a rule that only collects
    files is nothing to force. Its command line arrives after this file has been read, hence the setter.
    """

    def __setattr__(self, name, value):
        if name == "dag_settings" and value is not None:
            targets = replaced(value.targets, STAGES)
            if (
                value.targets and not targets
            ):  # for Snakemake no target at all means everything
                raise WorkflowError(
                    f"{', '.join(value.targets)}: nothing to do there in this configuration"
                )
            value.targets = targets
            value.forcerun = replaced(value.forcerun, STAGE_RULES)
        super().__setattr__(name, value)


workflow.__class__ = StageTargets

# --- Processes -----------------------------------------------------------------------------------------------
CORES = workflow.resource_settings.cores or 1
# GPUs that Snakemake may use: `resources: gpu: N` of the profile, of a node on a cluster.
GPUS = int(workflow.global_resources.get("gpu").value or 0)
# The subvolumes that run side by side get their shares of the machine; on a cluster the profile sets threads.
SEGMENT_THREADS = max(1, CORES // max(1, len(STAGES["segment"])))
AGGLOMERATE_THREADS = max(1, CORES // max(1, len(STAGES["agglomerate"])))
# The configuration says how many processes train, the profile how they lie on nodes and what starts them.
SITE = workflow.resource_settings._parsed_overwrite_resources.get("train", {})


def site_layout(ranks):
    """How so many processes lie on the site's nodes."""
    return layout_of(ranks, {name: SITE[name].raw for name in SITE}, CORES)


def layout_measured(wildcards):
    """How the processes of a study's measurement lie on the site's nodes."""
    return site_layout(int(wildcards.processes))


try:
    LAYOUT = site_layout(RUN.train.num_workers)
    LAUNCH = LAYOUT.command
except FfnError as error:
    raise WorkflowError(str(error)) from None
if not (workflow.local_exec or workflow.remote_exec or "launcher" in SITE):
    raise WorkflowError(
        "set-resources: train has no launcher, a cluster needs one. Options on the command line replace the "
        "profile's of the same name: put them into a copy of the profile"
    )

# `.venv/bin/snakemake` without an activated environment: its jobs and the profile's scripts need that one, too.
if shutil.which("ffn") is None:
    folders = [os.path.dirname(sys.executable), *os.get_exec_path()]
    os.environ.update(PATH=os.pathsep.join(folders))

# A job dies with the Snakemake that started it: a repeated run must not meet the orphans of a killed one.
if dying_with_parent():
    shell.prefix(f"exec {shlex.join(dying_with_parent())} ")


onstart:
    try:
        lock_run(OUT)
        check_none_left(
            getattr(workflow.executor_settings, "submit_cmd", None), OUT
        )
    except FfnError as error:
        raise WorkflowError(str(error)) from None
    atomic.write_text(
        f"{OUT}/config.yaml",
        yaml.safe_dump(RUN.model_dump(mode="json"), sort_keys=False),
    )
