# Configuration and targets; no science.
import atexit
import functools
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import yaml
from snakemake.exceptions import WorkflowError

from ffn.assembly.config import OF_CONTACTS
from ffn.cluster.batch import check_commands, check_none_left
from ffn.cluster.batch import make_state, warn_of_secrets
from ffn.errors import FfnError, without_secrets
from ffn.geometry import Box
from ffn.io import atomic
from ffn.io.store_names import LAST, tracked_file
from ffn.machine.processes import dying_with_parent
from ffn.machine.processes import take_lock
from ffn.options import flags
from ffn.workflow import arguments, snakemake_patches
from ffn.workflow.config_files import ROOT, check_keys, take_software
from ffn.workflow.needs import (
    flooding_mb,
    flooding_minutes,
    minutes,
    takes_gpu,
    threads_of,
    training_mb,
    training_minutes,
)
from ffn.workflow.paths import any_of
from ffn.workflow.pipeline import Pipeline
from ffn.workflow.places import files_among, open_run, skeleton_files
from ffn.workflow.pipeline import plan_lines
from ffn.workflow.rank_layout import layout_of, possible_here
from ffn.workflow.pipeline import by_attempt, memory, resources_of
from ffn.workflow.stages import STAGES
from ffn.workflow.arguments import measuring_minutes, study_model, study_train

snakemake_patches.apply(workflow)

# `--configfile other.yaml` replaces the demo's configuration. Without this, Snakemake would merge the two.
if not snakemake_patches.has_configfile(workflow):

    configfile: "config/config.yaml"


# envs/ffn.post-deploy.sh runs as a copy next to the new conda environment, in the folder of the run.
os.environ.update(FFN_REPOSITORY=str(ROOT))

# The configuration says how many processes train. The profile says where they run and what starts them.
GPUS, NODES = snakemake_patches.gpus(workflow), snakemake_patches.nodes(workflow)
SITE = snakemake_patches.site(workflow, "train")

try:
    for path in snakemake_patches.configfiles(workflow):
        check_keys(path, of_run=True)
    SOFTWARE = take_software(config)
    RUN, PLACES, DERIVED = open_run(config)
    if not workflow.deployment_settings.deployment_method:  # else jobs have a Horovod of their own
        RUN = RUN.model_copy(update={"train": possible_here(RUN.train, SITE)})
    PIPELINE = Pipeline(RUN, PLACES, GPUS, NODES)
    LAYOUT = layout_of(RUN.train.num_processes, SITE, snakemake_patches.cores(workflow))
    LAYOUT.command  # names a wrong placeholder now, not in the job
    WARNINGS = PIPELINE.warnings if workflow.is_main_process else []  # they read labels
    PLAN = plan_lines(PIPELINE) if workflow.is_main_process else []
    with atomic.named(".snakemake"):  # which Snakemake makes next, also for a plan
        os.makedirs(".snakemake", exist_ok=True)
except (FfnError, OSError) as error:
    sys.exit(str(error))  # a WorkflowError would come in a frame with a line of this file
if snakemake_patches.submits(workflow) and "launcher" not in SITE:
    raise WorkflowError(
        "set-resources: train has no launcher, a cluster needs one. Options on the command line replace the "
        "profile's of the same name: put them into a copy of the profile"
    )

for line in [*PLAN, *([DERIVED] if DERIVED else [])]:
    logger.info(line)
for warning in WARNINGS:
    logger.warning(warning)

PATHS = PIPELINE.paths
COSTED = PIPELINE.models.costed
FILES = functools.cache(functools.partial(arguments.files, PIPELINE))
IMAGE = PATHS.file("ingest", "image")
LABELS = PATHS.file("ingest", "labels")
NORMALIZATION = PATHS.of("normalize")
TRAINED, MODEL = (str(Path(folder, "model.yaml")) for folder in (PIPELINE.models.trained, PIPELINE.models.used))
MASKED, MASKS = arguments.known(PIPELINE, "masks")
CORRECTIONS, CORRECTION_FILES = arguments.known(PIPELINE, "corrections")
CUTS, CUT_FILES = arguments.cuts(PIPELINE)
SEED = RUN.rng_seed


def of(rule, field):
    """Return the function of a job's wildcards with a field of its `JobSpec`."""
    return lambda wildcards: getattr(PIPELINE.jobs.spec(rule, wildcards), field)


needs = functools.partial(resources_of, PIPELINE)
CORES = min(snakemake_patches.cores(workflow), LAYOUT.cores_per_node)  # of this machine, or of a node
# Jobs that run at the same time share the cores of this machine. On a cluster, the profile sets their threads.
FLOOD_GPU = min(1, GPUS) if takes_gpu(RUN.segment) else 0
SEGMENT_THREADS = threads_of(len(PIPELINE.targets("segment")), CORES, GPUS if FLOOD_GPU else 0)
AGGLOMERATE_THREADS = threads_of(len(PIPELINE.targets("agglomerate")), CORES, GPUS if FLOOD_GPU else 0)


wildcard_constraints:
    volume=any_of(PIPELINE.volumes),
    order="|-reversed",
    step=any_of(PIPELINE.steps),
    job=r"\d+-of-\d+",
    step_name=r"[a-z]+\d*",
    subvolume=r"z-?\d+-y-?\d+-x-?\d+",


# --- Stages as targets: `snakemake membrane_all` --------------------------------------------------------------
for stage in STAGES:

    rule:
        name:
            f"{stage.replace('-', '_')}_all"
        input:
            PIPELINE.targets(stage),
        message:
            stage if PIPELINE.targets(stage) else f"{stage}: nothing to do in this configuration"


# --- Processes -------------------------------------------------------------------------------------------------
# If `.venv/bin/snakemake` starts without an activated environment, jobs and the scheduler's commands still need it.
if shutil.which("ffn") is None:
    folders = [os.path.dirname(sys.executable), *os.get_exec_path()]
    os.environ.update(PATH=os.pathsep.join(folders))

# A job dies with the Snakemake that started it, so that a repeated run does not compete with orphans of a killed one.
if dying_with_parent() and not snakemake_patches.is_module(workflow):
    shell.prefix(f"exec {shlex.join(dying_with_parent())} ")


def start(jobs_of):
    """Lock the run and write what its jobs read."""
    submit = snakemake_patches.submit_command(workflow)
    try:
        check_commands(snakemake_patches.executor(workflow), submit)
        if lock := take_lock(PATHS.root):
            atexit.register(lock.close)
        else:
            snakemake_patches.lock(workflow)
        if submit:
            make_state()  # or a line that the records of jobs are another user's
            check_none_left(submit, PATHS.root)
            warn_of_secrets()
        arguments.write_file_lists(PIPELINE)
        if jobs_of("segment") or jobs_of("segment_list"):
            PIPELINE.jobs.keep_plan()
        atomic.write_text(PATHS.config, without_secrets(yaml.safe_dump(RUN.as_written(), sort_keys=False)))
    except FfnError as error:
        raise WorkflowError(str(error)) from None
    if not snakemake_patches.is_quiet(workflow):
        snakemake_patches.LiveJobs().start(logger)


snakemake_patches.at_start(workflow, PATHS.root, start)


onsuccess:
    if not snakemake_patches.is_quiet(workflow):
        subprocess.run(f"ffn info {PATHS.root} --tables", shell=True)  # if it fails, the run does not
