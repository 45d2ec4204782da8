"""Compare training recipes by what they reach with so many FOVs, from the same weights, on volumes not trained on.

    OMP_NUM_THREADS=1 python benchmarks/recipes.py                                  # phantoms, all recipes, three seeds
    python benchmarks/recipes.py --config config/mine.yaml --fovs 100000 --recipes paper-1e-3 cosine batch-4
    python benchmarks/recipes.py --config config/mine.yaml --judge config/small.yaml

The recipes are in RECIPES below: options on top of the paper's recipe, all without its centres on the background unless
the configuration or the recipe has them. What describes data and machine (KEPT) and the network come from the
configuration. Runs with the same seed start from the same weights and draw their examples from the same records, those
of longer walks from records further from the faces. With `init` in the configuration, all start from its weights, the
first score is theirs, and the recipes are by default those that fine-tune, `tune-…`. At equal intervals, the weights
that the model would get are scored: walks to the 26 neighbours, on `validation_examples` examples in the validation
boxes. So the scores of all recipes can be compared, whatever their own walks are. Recipes whose names end with `-third`
end after a third of the FOVs, and their rate falls within these.

The F1 at the end is the mean over the last third of a run's own FOVs, because scores jump with a constant rate and
without averaged weights. The baseline is the best, by that, of the recipes whose names begin with `paper`, or the first
recipe. The target of a seed is the baseline's F1 at the end with that seed; a recipe reaches it where its curve rises
above it for good. Core-hours are processor time of training, without scoring. Intervals are 95 % of Student's t over
the seeds. An answer of yes everywhere has an F1 of 0.58 on the phantoms: of a lower one, precision and recall say what
it means.

With --judge, a whole pipeline segments with the final weights of every run: that of a configuration whose volumes have
labels and whose network is the same, without training. The table then has the VOI over voxels that have a segment, with
the share that these cover, and over all voxels of the final segmentation, filled if the configuration fills. Give it
`init` and run it by itself for the scores of other weights, such as those that fine-tuning starts from.

Every run leaves its result and its weights in OUT; the same command goes on where it was stopped, unless the data have
changed. Needs labels with a train_box and a validate_box; makes volumes and records with Snakemake first, in the folder
results of the working directory.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from ffn.config import CoordinatesConfig, ModelConfig
from ffn.geometry import zyx
from ffn.io import atomic
from ffn.io.masks import identities
from ffn.io.open import identity
from ffn.model.choice import FOLDER
from ffn.model.store import load_architecture, load_model, save_model, weights_checksum
from ffn.options import flags
from ffn.training.config import TrainConfig
from ffn.training.plan import TrainingData, ValidationSource
from ffn.workflow.arguments import image_option
from ffn.workflow.pipeline import Pipeline
from ffn.workflow.places import check_sources
from ffn.workflow.run import load_run, training_reach

ROOT = Path(__file__).resolve().parents[1]
KEPT = ("engine", "precision", "unlabelled_weight", "permutable_axes", "reflectable_axes", "validation_examples")
SCORED_AT_A_TIME = 16  # FOVs
JUDGEMENT = {"voi": "VOI where segmented", "covered": "share segmented", "voi_all": "VOI of all voxels"}

PAPER = {"preset": "dong2019", "scaling_rule": "constant"}
COSINE = {**PAPER, "warmup": 0.05, "schedule": "cosine", "average": 0.05}
BATCH = {**COSINE, "batch_size": 4, "learning_rate": 2e-3}
MUON = {**BATCH, "optimizer": "muon"}
MUON_FACES = {**MUON, "fov_policy": "faces"}
TUNE = {**BATCH, "schedule": "constant"}  # from trained weights; with a preset, their defaults are those of new ones
THIRD: tuple[tuple[float, dict[str, Any]], ...] = ((1 / 3, {}),)
# Options of `train`, by name. `warmup` and `average` are shares of the steps: of warmup_steps, and of what ema_decay
# spans. `model` are options of the network in training, `coordinates` those of that stage. `phases` are shares of the
# FOVs, each with what `reduced` makes of the network; each phase starts from the weights of the one before. With less
# than 1 in sum, the run is shorter than the others.
RECIPES: dict[str, dict[str, Any]] = {
    "paper-1e-4": {**PAPER, "learning_rate": 1e-4},
    "paper-3e-4": {**PAPER, "learning_rate": 3e-4},
    "paper-1e-3": {**PAPER, "learning_rate": 1e-3},
    "paper-2e-3": {**PAPER, "learning_rate": 2e-3},
    "cosine": {**COSINE, "learning_rate": 1e-3},
    "cosine-2e-3": {**COSINE, "learning_rate": 2e-3},
    "batch-4": BATCH,
    "batch-4-4e-3": {**BATCH, "learning_rate": 4e-3},
    "batch-8": {**BATCH, "batch_size": 8, "learning_rate": 4e-3},
    "faces": {**BATCH, "fov_policy": "faces"},
    "faces-batch-1": {**COSINE, "learning_rate": 2e-3, "fov_policy": "faces"},
    "max-pred": {**BATCH, "fov_policy": "max_pred"},
    "all-axes": {**BATCH, "permutable_axes": ("z", "y", "x")},
    "contrast": {**BATCH, "contrast_jitter": 0.2, "brightness_jitter": 0.2},
    # Centres in partition 0, for `reject` also on membranes: their targets are empty where they have no label. The
    # phantoms have labels everywhere and no small object: there, `background` is `batch-4`, and `reject` rejects
    # nothing.
    "background": {**BATCH, "coordinates": {"include_background": True}},
    "reject": {**BATCH, "coordinates": {"include_background": True, "min_membrane_distance": 0.0}},
    "deltas-4": {**BATCH, "model": {"deltas_zyx": (4, 4, 4)}},
    "curriculum": {**BATCH, "phases": ((0.25, {"fov": 0.5}), (0.25, {"fov": 0.75}), (0.5, {}))},
    "half-fov": {**BATCH, "phases": ((1.0, {"fov": 0.5}),)},
    "half-fov-first": {**BATCH, "phases": ((0.5, {"fov": 0.5}), (0.5, {}))},
    "half-fov-faces": {**BATCH, "fov_policy": "faces", "phases": ((1.0, {"fov": 0.5}),)},
    "deeper": {**BATCH, "phases": ((0.5, {"depth": 0.5}), (0.5, {}))},
    "skip-right": {**BATCH, "batch_size": 1, "virtual_workers": 4, "tolerated_loss": 0.01},
    "hard": {**BATCH, "easy_share": 0.2},
    "muon": MUON,
    "muon-faces": MUON_FACES,
    "batch-4-third": {**BATCH, "phases": THIRD},
    "faces-third": {**BATCH, "fov_policy": "faces", "phases": THIRD},
    "faces-batch-1-third": {**COSINE, "learning_rate": 2e-3, "fov_policy": "faces", "phases": THIRD},
    "muon-third": {**MUON, "phases": THIRD},
    "muon-faces-third": {**MUON_FACES, "phases": THIRD},
    "muon-faces-batch-1-third": {**MUON_FACES, "batch_size": 1, "learning_rate": 1e-3, "phases": THIRD},
    "tune-1e-6": {**TUNE, "learning_rate": 1e-6},
    "tune-1e-5": {**TUNE, "learning_rate": 1e-5},
    "tune-1e-5-max-pred": {**TUNE, "learning_rate": 1e-5, "fov_policy": "max_pred", "fov_moves": 2},
    "tune-1e-4-cosine": {**BATCH, "learning_rate": 1e-4},
}


class Job(NamedTuple):
    """One training run and its scoring.

    Parameters
    ----------
    data : TrainingData
        Records, volumes and validation boxes.
    folder : str
        Folder for its models.
    model : ModelConfig
        The network that is scored.
    phases : tuple of (ModelConfig, TrainConfig)
        What is trained one after the other.
    seed : int
        Seed of everything random.
    init : str, optional
        Model folder to start from, by default none.
    """

    data: TrainingData
    folder: str
    model: ModelConfig
    phases: tuple[tuple[ModelConfig, TrainConfig], ...]
    seed: int
    init: str | None = None


def main() -> None:
    """Train what is missing, judge it, and print the table."""
    arguments = parse()
    config = yaml.safe_load(arguments.config.read_text())
    pipeline = make_volumes(arguments.config, config)
    out = arguments.out or Path(pipeline.paths.root) / "recipes"
    tunes = pipeline.initial is not None
    names = arguments.recipes or [name for name in RECIPES if name.startswith("tune") == tunes]
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for seed in arguments.seeds:
        for name in names:
            place = out / f"{name}-seed-{seed}.json"
            found = result(place, make_job(name, seed, pipeline, out, arguments))
            results[name].append(found | (judged(place, arguments.judge) if arguments.judge else {}))
            print(f"{place}: F1 {at_end(results[name], 'f1')[-1]:.3f}", file=sys.stderr)
    print("\n".join(table(results)))
    if arguments.figure:
        draw(results, arguments.figure)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--config", type=Path, default=ROOT / "benchmarks/recipes.yaml", help="of a run (default: phantoms)"
    )
    parser.add_argument(
        "--recipes", nargs="+", choices=RECIPES, help="default: all, with init those that fine-tune, else the others"
    )
    parser.add_argument("--judge", type=Path, help="configuration of a run that segments with the weights of each run")
    parser.add_argument("--fovs", type=int, default=100_000, help="FOVs to train on in each run (default: 100000)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="random seeds (default: 1 2 3)")
    parser.add_argument("--points", type=int, default=12, help="scores along each run (default: 12)")
    parser.add_argument("--out", type=Path, help="folder for the results (default: recipes in the run's folder)")
    parser.add_argument("--figure", type=Path, help="picture of the curves to write")
    return parser.parse_args()


def make_volumes(path: Path, config: Mapping[str, Any]) -> Pipeline:
    """Make volumes, partitions and membranes of a run where they are missing."""
    run = load_run(dict(config))
    pipeline = Pipeline(run, check_sources(run))
    require_boxes(pipeline)
    snakemake(path, "synth_all", "ingest_all", "coordinates_all", "import_checkpoint_all")
    return pipeline


def snakemake(path: Path, *targets: str) -> None:
    """Make targets of a configuration."""
    places = ["--snakefile", str(ROOT / "Snakefile"), "--profile", str(ROOT / "profiles/local")]
    command = [sys.executable, "-m", "snakemake", *places, "--configfile", str(path), "--quiet", "all"]
    subprocess.run([*command, "--", *targets], check=True)


def require_boxes(pipeline: Pipeline) -> None:
    """End if there is nothing to train on or to score on, before time is spent."""
    for box, volumes in (("train_box", pipeline.trained), ("validate_box", pipeline.validated)):
        if not volumes:
            sys.exit(
                f"volumes: none has labels and a {box}, expected one at least, and train.max_steps and "
                "train.validation_steps above 0"
            )


def make_job(name: str, seed: int, pipeline: Pipeline, out: Path, arguments: argparse.Namespace) -> Job:
    """Return the run of a recipe with a seed; make its records if there are none."""
    recipe, run = dict(RECIPES[name]), pipeline.run
    # room for the patches of all walks of one move, so that most recipes start from the same voxels
    walk = TrainConfig(fov_policy="max_pred", fov_moves=recipe.get("fov_moves", 1))
    margin_zyx = np.maximum(run.coordinates.margin_zyx, training_reach(run.model, walk))
    wanted = {"margin_zyx": zyx(margin_zyx), **recipe.pop("coordinates", {})}
    coordinates = run.coordinates.model_copy(update=wanted)
    whole = network(pipeline)
    model = whole.model_copy(update=recipe.pop("model", {}))
    phases = recipe.pop("phases", ((1.0, {}),))
    kept = {option: getattr(run.train, option) for option in KEPT if option in run.train.model_fields_set}
    trained = []
    for index, (share, sizes) in enumerate(phases):
        given = {**kept, **recipe}
        if index < len(phases) - 1:
            given["schedule"] = "constant"
        options = train_config(given, round(share * arguments.fovs), max(1, round(share * arguments.points)))
        trained.append((reduced(model, **sizes), options))
    paths = pipeline.paths.of
    used = {volume: run.volumes[volume] for volume in pipeline.learnt_from}
    files = {name: (paths("ingest", "image", volume=name), paths("ingest", "labels", volume=name)) for name in used}
    boxes = {volume: pipeline.places[volume].validate_box for volume in pipeline.validated}
    data = TrainingData(
        str(records(coordinates, pipeline, out)),
        {volume: files[volume] for volume in pipeline.trained},
        {volume: ValidationSource(*files[volume], box) for volume, box in boxes.items()},
        {name: volume.normalize for name, volume in used.items()},
        {name: volume.masks for name, volume in used.items() if volume.masks},
    )
    return Job(data, str(out / f"{name}-seed-{seed}"), whole, tuple(trained), seed, pipeline.initial)


def network(pipeline: Pipeline) -> ModelConfig:
    """Return the network of a run; initial weights bring what the configuration does not give, but no grey levels."""
    model = pipeline.run.model
    if not pipeline.initial:
        return model
    own = load_architecture(pipeline.initial).model_copy(update={"image_mean": None, "image_stddev": None})
    return own.model_copy(update={name: getattr(model, name) for name in pipeline.model_options})


def reduced(model: ModelConfig, fov: float = 1.0, depth: float = 1.0) -> ModelConfig:
    """Return a network with a share of the depth, of the FOV's radius and of the deltas.

    Examples
    --------
    >>> small = reduced(ModelConfig(), fov=0.5, depth=0.5)
    >>> small.fov_size_zyx, small.deltas_zyx, small.depth
    ((17, 17, 17), (4, 4, 4), 4)
    """
    sizes = {
        "fov_size_zyx": tuple(2 * round(fov * radius) + 1 for radius in model.fov_radius_zyx),
        "deltas_zyx": tuple(round(fov * delta) for delta in model.deltas_zyx),
        "depth": round(depth * model.depth),
    }
    return model.model_copy(update=sizes)


def train_config(recipe: Mapping[str, Any], fovs: int, points: int) -> TrainConfig:
    """Return the options of a training on so many FOVs."""
    given = dict(recipe)
    warmup, average = given.pop("warmup", 0), given.pop("average", None)
    steps = fovs // (given.get("batch_size", 1) * given.get("virtual_workers", 1))
    given |= {
        "num_workers": 1,
        "max_steps": steps,
        "warmup_steps": round(warmup * steps),
        "ema_decay": 1 - 1 / max(2.0, average * steps) if average else None,
        "checkpoint_steps": -(-steps // points),  # rounded up, or the last steps would make one score more
        "keep_checkpoints": points + 1,
        "log_steps": max(1, steps // points),
        "image_steps": 0,
        "validation_steps": 0,
    }
    return TrainConfig(**given)


def records(coordinates: CoordinatesConfig, pipeline: Pipeline, out: Path) -> Path:
    """Return the folder of the records drawn with these options; make them if there are none of the present data."""
    kinds = "with-background" if coordinates.include_background else "without-background"
    margin = "-".join(map(str, coordinates.margin_zyx))
    folder = out / f"records-{kinds}-{coordinates.min_membrane_distance:g}-from-membranes-{margin}-from-faces"
    of, config = pipeline.paths.file, pipeline.run.volumes
    inputs, commands, tables, weights = {}, [], [], []
    for volume in pipeline.trained:
        stages = {stage: of(stage, volume=volume) for stage in ("partition", "membrane")}
        inputs[volume] = identities(stages, config[volume].masks)
        tables.append(f"{volume}={folder}-{volume}.h5")
        weights.append(f"--weight {volume}={config[volume].train_weight}")
        commands.append(
            f"coordinates --partitions {stages['partition']} --membrane {stages['membrane']} "
            f"{image_option(pipeline, volume, 'masks')} {flags(coordinates)} --out {folder}-{volume}.h5"
        )
    drawn = f"{' '.join(tables)} {' '.join(weights)} {flags(pipeline.run.records)}"
    commands.append(f"records --coordinates {drawn} --out {folder}")
    made, present = folder.with_name(f"{folder.name}.json"), json.dumps({"commands": commands, "inputs": inputs})
    if not ((folder / "index.json").exists() and made.exists() and made.read_text() == present):
        for command in commands:
            ffn(command)
        atomic.write_text(made, present)
    return folder


def ffn(command: str) -> None:
    """Run a command of this package."""
    subprocess.run([sys.executable, "-m", "ffn", *shlex.split(command)], check=True)


def result(place: Path, job: Job) -> dict[str, Any]:
    """Return the result of a run; train if there is none."""
    wanted = made_of(job)
    if place.exists():
        found = json.loads(place.read_text())
        if any(found.get(name) != value for name, value in wanted.items()):
            sys.exit(f"{place}: was made with other options or data. Move it away, or choose another --out")
        return found
    shutil.rmtree(job.folder, ignore_errors=True)  # processor time counts whole runs only
    with multiprocessing.get_context("spawn").Pool(1) as pool:  # TensorFlow and its memory end with each run
        curve, seconds = pool.apply(train_and_score, (job,))
    found = {**wanted, "seconds": seconds, "curve": curve}
    keep_model(job)
    atomic.write_text(place, json.dumps(found, indent=1))
    return found


def keep_model(job: Job) -> None:
    """Replace what a run left by its final weights, in the network that is scored."""
    final = load_model(f"{job.folder}/{len(job.phases) - 1}")
    seen = {name: getattr(job.model, name) for name in ("fov_size_zyx", "deltas_zyx")}
    shutil.rmtree(job.folder)
    save_model(job.folder, replace(final, config=final.config.model_copy(update=seen)))


def judged(place: Path, path: Path) -> dict[str, float]:
    """Return what JUDGEMENT names, of a run of `path` with the weights of a result: means over its volumes."""
    weights, judge = place.with_suffix(""), yaml.safe_load(path.read_text())
    if not (weights / "model.yaml").exists():
        sys.exit(f"{place}: was made without keeping its weights. Move it away to train again")
    given = {"run": f"{judge.get('run', 'judge')}-{place.stem}", "init": str(weights)}
    config = {**judge, **given, "train": {**(judge.get("train") or {}), "max_steps": 0}}
    run = load_run(config)  # whose errors a quiet Snakemake does not show
    pipeline = Pipeline(run, check_sources(run))
    if not pipeline.evaluated:
        sys.exit(f"{path}: no volume is scored, expected one with labels, a segment_box and an evaluate_box")
    written = place.with_name(f"{place.stem}-judge.yaml")
    atomic.write_text(written, yaml.safe_dump(config))
    snakemake(written, "evaluate_all")
    files = [Path(pipeline.paths.of("evaluate", volume=volume)) for volume in pipeline.evaluated]
    rows = np.array([voi_of(json.loads(file.read_text())) for file in files], np.float64)
    return dict(zip(JUDGEMENT, rows.mean(axis=0).tolist(), strict=True))


def voi_of(scores: Mapping[str, Any]) -> tuple[float | None, float, float | None]:
    """Return VOI and share of the voxels that have a segment, before filling, and the VOI over all voxels after it."""
    before = [*scores.get("earlier", {}).values()][-1] if scores["segmentation"] == "filled" else scores
    return before["scores"]["foreground"]["voi"], before["covered_fraction"], scores["scores"]["all"]["voi"]


def made_of(job: Job) -> dict[str, Any]:
    """Return what decides the scores of a run, as JSON has it: only runs of the same data can be compared."""
    data = job.data
    options = [[model.model_dump(mode="json"), train.model_dump(mode="json")] for model, train in job.phases]
    validated = {name: (source.image, source.labels) for name, source in data.validation.items()}
    read = {file: identity(file) for files in {**data.volumes, **validated}.values() for file in files}
    found = {
        "records": hashlib.sha256(Path(data.records, "index.json").read_bytes()).hexdigest(),
        "volumes": read,
        "boxes": {name: str(source.box) for name, source in data.validation.items()},
        "normalize": {name: str(method) for name, method in data.normalize.items()},
        "masks": {name: identities({}, masks) for name, masks in data.masks.items()},
    }
    start = weights_checksum(load_model(job.init).weights) if job.init else None
    return json.loads(json.dumps({"options": options, "data": found, "init": start}))


def train_and_score(job: Job) -> tuple[list[dict[str, float]], float]:
    """Train all phases.

    Returns
    -------
    curve : list of dict
        FOVs trained on, and scores.
    seconds : float
        Processor time of training.
    """
    import tensorflow  # noqa: F401  its start is not training

    from ffn.training.train import train

    started, before, init = time.process_time(), 0, job.init
    machine = str(Path(job.folder).with_name(FOLDER))  # one for all runs: `auto` measures, and could take another
    checkpoints: list[tuple[int, Path]] = [(0, Path(job.init))] if job.init else []
    for index, (model, options) in enumerate(job.phases):
        folder = f"{job.folder}/{index}"
        train(job.data, folder, model, options, job.seed, init, machine=machine)
        for path in sorted(Path(folder, "checkpoints").glob("step-*")):
            checkpoints.append((before + int(path.name.split("-")[1]) * options.num_lanes, path))
        before, init = before + options.max_steps * options.num_lanes, folder
    seconds = time.process_time() - started
    return score(job, checkpoints), seconds


def score(job: Job, checkpoints: Sequence[tuple[int, Path]]) -> list[dict[str, float]]:
    """Return the FOVs trained on and the scores of each checkpoint, by walks to the 26 neighbours."""
    from ffn.model.network import build_network, set_weights
    from ffn.training.checkpoint_files import is_checkpoint, load_checkpoint
    from ffn.training.initial import weights_of_depth
    from ffn.training.train import training_job
    from ffn.training.validation import Validation
    from ffn.training.validation_set import ValidationBox, make_validation_set

    examples = job.phases[0][1].validation_examples
    train = TrainConfig(num_workers=1, batch_size=SCORED_AT_A_TIME, validation_examples=examples, permutable_axes=())
    curve = []
    with training_job(job.data, job.model, train, job.seed) as (group, plan, opened):
        boxes = {name: ValidationBox(opened[name], source.box) for name, source in job.data.validation.items()}
        # the same examples for all seeds: these vary the training
        validation_set = make_validation_set(boxes, plan.initial.config, train, 1, group)
        assert validation_set is not None
        validation = Validation(validation_set, plan.initial.config, train, group)
        network = build_network(plan.initial.config, batch_size=SCORED_AT_A_TIME)
        for fovs, path in checkpoints:
            stored = (load_checkpoint if is_checkpoint(path) else load_model)(path)
            set_weights(network, plan.initial.config, weights_of_depth(stored.weights, plan.initial.config, job.seed))
            row = validation.run(forward_of(network), fovs)
            curve.append({"fovs": fovs, **{name: row[name] for name in ("f1", "precision", "recall", "loss")}})
    return curve


def forward_of(network: Any) -> Callable:
    """Return what `Validation` needs: the updated POM and the loss of any number of FOVs up to a full batch."""
    import tensorflow as tf

    @tf.function(autograph=False)
    def forward(image: Any, pom_logit: Any, labels: Any, loss_weight: Any) -> Any:
        updated = network([image[..., None], pom_logit[..., None]], training=True)[..., 0]
        entropy = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=updated)
        return updated, tf.reduce_mean(loss_weight * entropy, (1, 2, 3))

    def of_some(batch: Any) -> tuple[np.ndarray, np.ndarray]:
        filled = (np.take(field, range(SCORED_AT_A_TIME), 0, mode="wrap") for field in batch)
        pom_logit, loss = forward(*filled)
        return pom_logit.numpy()[: len(batch.image)], loss.numpy()[: len(batch.image)]

    return of_some


def table(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Return the lines of a table in Markdown, the baseline first."""
    baseline = baseline_of(results)
    targets = at_end(results[baseline], "f1")
    judgement = [name for name in JUDGEMENT if name in results[baseline][0]]
    lines = [
        f"| recipe | F1 at the end | precision, recall | FOVs to F1 of {baseline} | share of its FOVs | core-hours |"
        + "".join(f" {JUDGEMENT[name]} |" for name in judgement),
        "| --- | --- | --- | --- | --- | --- |" + " --- |" * len(judgement),
    ]
    ordered = sorted(results, key=lambda name: (name != baseline, -np.mean(at_end(results[name], "f1"))))
    for name in ordered:
        needed = [fovs_to_reach(run["curve"], target) for run, target in zip(results[name], targets, strict=True)]
        whole = [run["curve"][-1]["fovs"] for run in results[baseline]]
        reached = np.isfinite(needed).all()
        share = interval(np.divide(needed, whole), 2) if reached else "-"
        missed = f"not in {np.isnan(needed).sum()} of {len(needed)}"
        hours = [run["seconds"] / 3600 for run in results[name]]
        f1, fovs = interval(at_end(results[name], "f1"), 3), interval(needed, 0) if reached else missed
        precision, recall = (interval(at_end(results[name], score), 2) for score in ("precision", "recall"))
        line = f"| {name} | {f1} | {precision}, {recall} | {fovs} | {share} | {np.mean(hours):.3f} |"
        lines.append(line + "".join(f" {interval([run[key] for run in results[name]], 3)} |" for key in judgement))
    return lines


def baseline_of(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return the best of the paper's recipes; the first recipe if there is none."""
    papers = [name for name in results if name.startswith("paper")] or list(results)[:1]
    return max(papers, key=lambda name: np.mean(at_end(results[name], "f1")))


def at_end(runs: Sequence[Mapping[str, Any]], score: str) -> list[float]:
    """Return the mean of a score over the last third of the FOVs of every run, between scores by a line.

    A run of a third of the FOVs has a third of the scores; the last third of these would be one, of the very end.

    Examples
    --------
    >>> at_end([{"curve": [{"fovs": 10, "f1": 0.2}, {"fovs": 20, "f1": 0.4}, {"fovs": 30, "f1": 0.6}]}], "f1")
    [0.5]
    """
    means = []
    for run in runs:
        fovs, values = (np.array([point[name] for point in run["curve"]]) for name in ("fovs", score))
        start = 2 / 3 * fovs[-1]
        within = np.array([start, *fovs[fovs > start]])
        area = np.trapezoid(np.interp(within, fovs, values), within)
        means.append(float(area / (fovs[-1] - start)))
    return means


def fovs_to_reach(curve: Sequence[Mapping[str, float]], target: float) -> float:
    """Return the FOVs from which the F1 stays at or above `target`, between scores by a line; NaN if it never does.

    Examples
    --------
    >>> curve = [{"fovs": 10, "f1": 0.2}, {"fovs": 20, "f1": 0.4}, {"fovs": 30, "f1": 0.3}, {"fovs": 40, "f1": 0.7}]
    >>> fovs_to_reach(curve, 0.5), fovs_to_reach(curve, 0.1), fovs_to_reach(curve, 0.8)
    (35.0, 5.0, nan)
    """
    f1 = np.array([0.0, *(point["f1"] for point in curve)])
    fovs = np.array([0.0, *(point["fovs"] for point in curve)])
    last_below = int(np.flatnonzero(f1 < target).max(initial=-1))
    if last_below < 0:
        return 0.0
    if last_below == len(f1) - 1:
        return float("nan")
    low, high = f1[last_below : last_below + 2]
    start, stop = fovs[last_below : last_below + 2]
    return float(start + (stop - start) * (target - low) / (high - low))


def interval(values: Sequence[float] | np.ndarray, digits: int) -> str:
    """Return the mean and half the width of its 95 % interval; only the mean of a single value."""
    from scipy.stats import t

    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    half = t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return f"{np.mean(values):.{digits}f} ± {half:.{digits}f}"


def draw(results: Mapping[str, Sequence[Mapping[str, Any]]], path: Path) -> None:
    """Draw the F1 over FOVs: the mean of every recipe, and each run as a thin line."""
    from ffn.studies.pages import COLOURS, new_figure

    figure, (panel,) = new_figure(1)
    for colour, (name, runs) in zip(COLOURS * len(results), results.items(), strict=False):
        fovs = [point["fovs"] for point in runs[0]["curve"]]
        scores = np.array([[point["f1"] for point in run["curve"]] for run in runs])
        panel.plot(fovs, scores.mean(axis=0), color=colour, label=name)
        panel.plot(fovs, scores.T, color=colour, linewidth=0.5)
    panel.set(xlabel="FOVs trained on", ylabel="F1 on other volumes", ylim=(0, 1))
    panel.legend(fontsize=8)
    figure.savefig(path)


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    main()
