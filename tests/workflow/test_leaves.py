"""A change of any option repeats what depends on it, and nothing else: every leaf of the configuration is changed.

Two runs are finished by `stub_ffn`, which only writes files. For each leaf, the rules that Snakemake plans with another
valid value are compared with those that the models name.
"""

import copy
import functools
import os
import re
import stat
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

import numpy as np
import pytest

from ffn.config import FloodConfig, Section
from ffn.errors import ConfigError
from ffn.geometry import Box
from ffn.workflow.pipeline import Pipeline
from ffn.workflow.places import check_sources
from ffn.workflow.run import RunConfig, load_run
from ffn.workflow.stages import STAGES

from ..small_run import SMALL_RUN, Workflow, fork_snakemake, shown
from ..snakemake_forks import is_builtin

SHAPE = (64, 56, 72)
STUDIES = ("study_scaling", "study_learning_rate", "study_efficiency", "study_curves")
RUNS_OF_STUDIES = ("study_train", "study_train_best")
TRAININGS = ("train", *RUNS_OF_STUDIES, "study_measure")
EVERYTHING = {
    **SMALL_RUN,
    "volumes": {
        "phantom": {
            "synthetic": {"shape_zyx": list(SHAPE)},
            "train_box": "0:26,0:56,0:72",
            "validate_box": "26:40,0:56,0:72",
            "evaluate_box": "52:64,0:56,0:72",
        },
        "tissue": {
            "image": "raw.npy",
            "labels": "labels.npy",
            "skeletons": "skeletons",
            "voxel_size_zyx_nm": [10, 10, 10],
            "train_box": "0:40,0:56,0:72",
            "evaluate_box": "52:64,0:56,0:72",
        },
    },
    "model": {**SMALL_RUN["model"], "image_mean": 128.0, "image_stddev": 33.0},
    "subvolumes": {"size_zyx": [64, 56, 48], "overlap_zyx": [14, 14, 14]},
    "consensus": {"enabled": True},
    "select": {"checkpoints": 2, "box": "40:52,0:56,0:72", "volume": "phantom"},
    "study": {"workers": [1, 2], "learning_rates": [0.1, 0.2, 0.3], "seeds": 2, "processes": [1]},
}
# What the other run cannot have: an imported checkpoint, no choice among checkpoints, seeds at points, and options that
# only others permit.
IMPORTED = {
    "run": "imported",
    "init": "published",
    "volumes": {"phantom": EVERYTHING["volumes"]["phantom"]},
    "model": EVERYTHING["model"],
    "train": {
        **SMALL_RUN["train"],
        "fov_policy": "max_pred",
        "optimizer": "lars",
        "weight_decay": 0.1,
        "scaling_rule": "linear",
        "schedule": "cyclic",
        "compression": "qsgd",
    },
    "subvolumes": EVERYTHING["subvolumes"],
    "segment": {"seed_policy": "points", "seed_points": "1,2,3"},
    "partition": SMALL_RUN["partition"],
}
RUNS = {"everything": EVERYTHING, "imported": IMPORTED}
SECTIONS = {"everything": tuple(RunConfig.model_fields), "imported": ("init", "model", "train", "segment")}

# The rules that read an option, where these are not those of the stage whose section it is in. The longest key counts.
READ_BY = {
    "run": ("all",),
    "rng_seed": ("synth", "records", *TRAININGS),
    "init": ("import_checkpoint", "train"),
    "volumes.synthetic": ("synth",),
    "volumes.image": ("ingest",),
    "volumes.labels": ("ingest_labels",),
    "volumes.labels_offset_zyx": ("ingest_labels",),
    "volumes.skeletons": ("evaluate",),
    "volumes.voxel_size_zyx_nm": ("ingest", "ingest_labels"),
    "volumes.mip": ("ingest",),
    "volumes.image_box": ("ingest", "ingest_labels"),
    "volumes.copy_image": ("ingest",),
    "volumes.clahe_tile": ("ingest",),
    "volumes.clahe_clip": ("ingest",),
    "volumes.ignore_labels": ("ingest_labels",),
    "volumes.masks": (
        *("coordinates", "normalize", "segment", "agglomerate", "fill", "skeletonize", "evaluate", "sweep"),
        *("checkpoint_segment", "checkpoint_evaluate", *TRAININGS),
    ),
    "volumes.init_segmentation": ("segment", "checkpoint_segment"),
    "volumes.corrections": ("merge", "sweep"),
    "volumes.nuclei": ("merge", "sweep"),
    "volumes.normalize": ("normalize", *TRAININGS),
    "volumes.train_box": ("membrane", "partition"),
    "volumes.train_weight": ("records",),
    "volumes.validate_box": ("train",),
    "volumes.segment_box": ("segment", "agglomerate", "export"),
    "volumes.evaluate_box": ("skeletonize", "evaluate", "sweep"),
    "model": (*TRAININGS, "import_checkpoint"),
    "model.depth": ("train", "study_measure"),  # the studies train a network of their own size
    "model.features": ("train", "study_measure"),
    "train": TRAININGS,
    "subvolumes": ("segment",),
    "segment": ("segment", "checkpoint_segment"),
    "evaluate": ("evaluate", "checkpoint_evaluate"),
    "evaluate.watershed": ("evaluate", "checkpoint_evaluate"),
    "select": ("select",),
    "select.volume": ("checkpoint_segment", "checkpoint_evaluate"),
    "select.box": ("checkpoint_segment", "checkpoint_evaluate"),
    "workflow": (),
    "study.steps": ("study_learning_rate", "study_curves", "study_train", "study_train_best"),
    "study.seeds": ("study_efficiency", "study_curves", "study_train_best"),
    "study.depth": RUNS_OF_STUDIES,
    "study.features": RUNS_OF_STUDIES,
    "study.workers": ("study_learning_rate", "study_train"),
    "study.learning_rates": ("study_learning_rate", "study_train"),
    "study.f1_targets": ("study_efficiency",),
    "study.measured_steps": ("study_measure",),
    "study.processes": ("study_scaling", "study_measure"),
    "study.max_nodes": ("study_scaling",),
    "study.network": ("study_scaling",),
}
# Agglomeration floods as segmentation does.
READ_BY |= {f"segment.{name}": ("segment", "checkpoint_segment", "agglomerate") for name in FloodConfig.model_fields}
# Studies set these options of `train` themselves.
READ_BY |= dict.fromkeys(
    ["train.num_workers", "train.virtual_workers", "train.validation_steps", "train.validation_examples"], ("train",)
)
READ_BY |= dict.fromkeys(["train.use_best"], ("train",))
READ_BY |= dict.fromkeys(
    [f"train.{name}" for name in ("learning_rate", "batch_size", "max_steps", "scaling_rule", "schedule")],
    ("train", "study_measure"),
)
# Times depend on threads; the studies set intra_op_threads themselves.
KEPT_RESULTS = {"train.inter_op_threads": ("study_measure",)}
# An imported checkpoint has its own network, and training makes another one of it.
WITH_INIT = {"model": ("import_checkpoint", "train"), **dict.fromkeys(["model.depth", "model.features"], ("train",))}
WITH_INIT["train.warmup_steps"] = ("train", "study_measure")  # the studies have that of new weights
# What changes which checkpoints there are to choose from: their rules run for those that are new.
CANDIDATES = ("train.max_steps", "train.checkpoint_steps", "train.keep_checkpoints")
OTHER_VALUES: dict[str, list[Any]] = {
    "run": ["other"],
    "init": ["published-too"],
    "volumes.image": ["raw-too.npy"],
    "volumes.labels": ["labels-too.npy"],
    "volumes.labels_offset_zyx": [[0, 0, 0]],
    "volumes.skeletons": ["skeletons-too"],
    "volumes.mip": [0],
    "volumes.image_box": ["0:64,0:56,0:72"],
    "volumes.clahe_tile": [64],
    "volumes.clahe_clip": [0.02],
    "normalize.reference_image": ["raw.npy"],
    "volumes.train_box": ["0:24,0:56,0:72"],
    "volumes.validate_box": ["27:40,0:56,0:72", "40:52,0:56,0:72"],
    "volumes.segment_box": ["2:64,0:56,0:72"],
    "volumes.evaluate_box": ["53:64,0:56,0:72"],
    "subvolumes.size_zyx": [[64, 56, 44]],
    "subvolumes.overlap_zyx": [[14, 14, 30]],
    "agglomerate.job_size_zyx": [[64, 56, 40]],
    "segment.deltas_zyx": [[1, 1, 1]],
    "volumes.init_segmentation": ["mask.npy"],
    "volumes.masks": [[{"path": "mask.npy"}]],
    "volumes.corrections": ["corrections.csv"],
    "volumes.nuclei": ["mask.npy"],
    "segment.canvases": [1],  # with more, lists of subvolumes are other jobs
    "segment.seed_points": ["4,5,6"],
    "merge.calibration": ["calibration.yaml"],
    "sweep.calibration": ["calibration.yaml"],
    "select.box": ["41:52,0:56,0:72"],
    "select.volume": ["tissue"],
    "select.checkpoints": [1],
}
# No other value is valid while everything else stays: one kind of source excludes the other.
FIXED = {
    "volumes.phantom.image",
    "volumes.phantom.labels",
    "volumes.phantom.labels_offset_zyx",
    "volumes.phantom.voxel_size_zyx_nm",
    "volumes.phantom.mip",
    "volumes.phantom.image_box",
    "volumes.phantom.copy_image",
    "volumes.phantom.clahe_tile",
    "volumes.phantom.clahe_clip",
    "volumes.phantom.ignore_labels",
    "volumes.tissue.synthetic",
}


class Leaf(NamedTuple):
    """An option of a configuration: its place, and its place without the name of a volume."""

    path: tuple[str, ...]
    key: str
    annotation: Any
    value: Any


def leaves_of(section: Section, path: tuple[str, ...] = (), key: tuple[str, ...] = ()) -> Iterator[Leaf]:
    """Iterate over all options of a section and the sections in it."""
    for name, info in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, Section):
            yield from leaves_of(value, (*path, name), (*key, name))
        elif isinstance(value, dict):
            for volume, one in value.items():
                yield from leaves_of(one, (*path, name, volume), (*key, name))
        else:
            yield Leaf((*path, name), ".".join((*key, name)), info.annotation, value)


@functools.cache
def all_leaves(run: str) -> dict[str, Leaf]:
    """Leaves of one of `RUNS` by their names."""
    found = {".".join(leaf.path): leaf for leaf in leaves_of(load_run(RUNS[run]))}
    return {name: leaf for name, leaf in found.items() if leaf.path[0] in SECTIONS[run]}


def same_result(key: str) -> bool:
    """Whether the models say that an option keeps the result."""
    *sections, name = key.split(".")
    model: Any = RunConfig
    for section in sections:
        model = next(kind for kind in kinds(model.model_fields[section].annotation) if issubclass(kind, Section))
    return name in model.same_result()


def kinds(annotation: Any) -> Iterator[Any]:
    """Iterate over the classes in a type."""
    if isinstance(annotation, type) and not get_args(annotation):
        yield annotation
    for argument in get_args(annotation):
        yield from kinds(argument)


def other_values(leaf: Leaf) -> list[Any]:
    """Return values to try, of which at least one is valid."""
    return OTHER_VALUES.get(leaf.key) or list(changes(leaf.value, leaf.annotation))


def changes(value: Any, annotation: Any) -> Iterator[Any]:
    """Iterate over other values of a type."""
    choices = [choice for choice in literals(annotation) if choice != value]
    if choices:
        yield from choices
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, tuple):
        for i, part in reversed(list(enumerate(value))):
            yield from ([*value[:i], other, *value[i + 1 :]] for other in changes(part, type(part)))
        yield from ([*value[:-1]], [*value, "y"])
    elif isinstance(value, int):
        yield from (value + 1, value - 1, value + 2, 2 * value, value - 20)
    elif isinstance(value, float):
        yield from (0.9 * value, 1.1 * value, (1 + value) / 2)
    elif value is None:
        yield from (0.5, 1, 500)


def literals(annotation: Any) -> Iterator[Any]:
    """Iterate over the choices in a type."""
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    elif get_origin(annotation) in (Union, types.UnionType):
        for argument in get_args(annotation):
            yield from literals(argument)


def changed(config: dict, leaf: Leaf, value: Any) -> dict:
    """Return the configuration with another value."""
    config = copy.deepcopy(config)
    *sections, name = leaf.path
    section = config
    for part in sections:
        section = section.setdefault(part, {})
    section[name] = value
    return config


class Stubbed:
    """A run that was finished by the stub."""

    def __init__(self, folder: Path, config: dict, targets: tuple[str, ...]) -> None:
        self.workflow, self.config, self.targets = Workflow(folder, config), config, targets
        write_sources(folder)
        executable = folder / "bin/ffn"
        executable.parent.mkdir()
        stub = Path(__file__).with_name("stub_ffn.py")
        executable.write_text(f'#!/bin/sh\nexec {sys.executable} -SE {stub} "$@"\n')
        executable.chmod(executable.stat().st_mode | stat.S_IXUSR)
        shown(self.snakemake("--quiet"))
        self.follow = self.rule_graph()

    def snakemake(self, *arguments: str):
        """Run Snakemake for all targets, with the stub first in the path."""
        path = f"{self.workflow.folder / 'bin'}:{os.environ['PATH']}"
        arguments = (*self.targets, *arguments)
        return fork_snakemake(self.workflow.arguments(*arguments), self.workflow.folder, {"PATH": path})

    def planned(self, config: dict) -> set[str]:
        """Rules that run after a change of the configuration."""
        self.workflow.configure(config)
        output = shown(self.snakemake("-n", "--quiet", "reason"))
        table = output.rpartition("Job stats:")[2] if "Job stats:" in output else ""
        return set(re.findall(r"^(\w+) +\d+$", table, re.MULTILINE)) - {"total", "all"}

    def rule_graph(self) -> dict[str, set[str]]:
        """Rules that read the outputs of each rule."""
        output = shown(self.snakemake("--rulegraph"))
        names = dict(re.findall(r'^\s*(\d+)\[label = "(\w+)', output, re.MULTILINE))
        follow: dict[str, set[str]] = {name: set() for name in names.values()}
        for one, other in re.findall(r"^\s*(\d+) -> (\d+)", output, re.MULTILINE):
            follow[names[one]].add(names[other])
        return follow

    def downstream(self, rules: set[str]) -> set[str]:
        """Return these rules and all that follow from them."""
        found, todo = set(), [*rules]
        while todo:
            rule = todo.pop()
            if rule not in found:
                found.add(rule)
                todo += self.follow.get(rule, ())
        return found


def write_sources(folder: Path) -> None:
    """Write the files that the configurations name; only their shapes count."""
    for name in ("raw", "raw-too"):
        np.save(folder / f"{name}.npy", np.zeros(SHAPE, np.uint8))
    for name in ("labels", "labels-too", "mask"):
        np.save(folder / f"{name}.npy", np.zeros(SHAPE, np.uint64))
    (folder / "corrections.csv").write_text("action,z_a,y_a,x_a,z_b,y_b,x_b\n")
    (folder / "calibration.yaml").write_text("intercept: 1\nfeatures: {iou: {mean: 0, spread: 1, weight: 2}}\n")
    for name in ("skeletons", "skeletons-too"):
        (folder / name).mkdir()
        (folder / name / "1.swc").write_text("1 0 10 10 10 1 -1\n2 0 10 10 90 1 1\n")
    for name in ("published", "published-too"):
        (folder / f"{name}.index").touch()
        (folder / f"{name}.data-00000-of-00001").touch()


@pytest.fixture(scope="module")
def stubbed(tmp_path_factory):
    """Function that returns one of `RUNS`, finished."""
    targets = {"everything": ("all", *STUDIES), "imported": ("all",)}

    @functools.cache
    def finish(name: str) -> Stubbed:
        return Stubbed(tmp_path_factory.mktemp(name), RUNS[name], targets[name])

    return finish


def valid_change(run: Stubbed, leaf: Leaf) -> tuple[dict, RunConfig] | None:
    """Return the configuration with the first valid value of those to try."""
    for value in other_values(leaf):
        config = changed(run.config, leaf, value)
        try:
            model = load_run(config)
            check_sources(model)
        except ConfigError:
            continue
        return config, model
    return None


def rules_that_read(leaf: Leaf, model: RunConfig) -> set[str]:
    """Return the rules that read an option."""
    if same_result(leaf.key):
        return set(KEPT_RESULTS.get(leaf.key, ()))
    readers = {stage.section: stage.rules or (stage.name,) for stage in STAGES.values()} | READ_BY
    if model.init:
        readers |= WITH_INIT
    parts = leaf.key.split(".")
    found = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
    rules = set(readers[next(name for name in found if name in readers)])
    if leaf.key == "volumes.init_segmentation" and leaf.path[1] != model.select_volume:
        rules -= {"checkpoint_segment"}
    with_skeletons = parts[0] == "volumes" and model.volumes[leaf.path[1]].skeletons
    return rules - {"skeletonize"} if with_skeletons else rules


def rules_of(run: Stubbed, model: RunConfig) -> set[str]:
    """Rules that have something to do in a configuration."""
    pipeline = Pipeline(model, check_sources(model))
    names = [stage for stage in STAGES if pipeline.targets(stage)]
    own = {rule for stage in names for rule in STAGES[stage].rules or (stage,)}
    own -= {f"{stage}_{kind}" for stage in names for kind in ("blocks", "list")}  # of volumes with many blocks or boxes
    studies = {rule for rule in run.follow if rule.startswith("study")}
    return own | studies


def expected(run: Stubbed, model: RunConfig) -> set[str]:
    """Rules that a changed configuration has to repeat: those that read what differs, and all that follow."""
    before = {leaf.path: leaf for leaf in leaves_of(load_run(run.config))}
    after = {leaf.path: leaf for leaf in leaves_of(model)}
    differing = [leaf for path, leaf in after.items() if leaf.value != before[path].value]
    keys = {leaf.key for leaf in differing}
    first = {rule for leaf in differing for rule in rules_that_read(leaf, model)}
    if model.run != run.config["run"]:
        first = {"synth", "ingest", "ingest_labels"}
    if set(load_run(run.config).selectable_steps) != set(model.selectable_steps) and set(keys) & {*CANDIDATES}:
        first.add("checkpoint_model")
    return run.downstream(first) & rules_of(run, model)


LEAVES = [(run, name) for run in RUNS for name in all_leaves(run)]


@pytest.mark.parametrize(("run", "name"), LEAVES, ids=[f"{run}-{name}" for run, name in LEAVES])
def test_a_change_repeats_what_depends_on_it_and_nothing_else(run, name, stubbed, monkeypatch):
    finished = stubbed(run)
    monkeypatch.chdir(finished.workflow.folder)
    change = valid_change(finished, all_leaves(run)[name])
    if change is None:
        return  # see the next but one
    config, model = change
    assert finished.planned(config) == expected(finished, model), name


def test_a_finished_run_repeats_nothing(stubbed):
    for run in RUNS:
        assert stubbed(run).planned(RUNS[run]) == set()


@pytest.mark.parametrize(
    ("run", "name", "rule"),
    [
        ("everything", "skeletons/1.swc", "evaluate"),
        ("imported", "published.index", "import_checkpoint"),
        ("imported", "published.data-00000-of-00001", "import_checkpoint"),
    ],
)
def test_a_file_of_the_user_with_other_content_repeats_what_reads_it(run, name, rule, stubbed):
    finished = stubbed(run)
    path = finished.workflow.folder / name
    before, content = path.stat(), path.read_text()
    path.write_text(content + "# other\n")
    assert finished.planned(RUNS[run]) == finished.downstream({rule}) - {"all"}
    path.write_text(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_choice_among_checkpoints_that_training_did_not_keep_stops_before_the_first_job(stubbed):
    run = stubbed("everything")
    run.workflow.configure({**EVERYTHING, "train": {**EVERYTHING["train"], "checkpoint_steps": 30}})
    done = run.snakemake("--quiet")
    message = "select needs step-00000090, results/small/model/checkpoints has none. Undo their change, or remove"
    assert done.returncode != 0 and message in done.stdout + done.stderr
    assert run.planned(EVERYTHING) == set()


def test_every_option_is_changed_in_one_of_the_runs(stubbed, monkeypatch):
    unchanged = []
    for run in RUNS:
        monkeypatch.chdir(stubbed(run).workflow.folder)
        unchanged.append({name for name, leaf in all_leaves(run).items() if valid_change(stubbed(run), leaf) is None})
    assert (unchanged[0] & unchanged[1]) | (unchanged[0] - set(all_leaves("imported"))) == FIXED


@pytest.mark.parametrize("key", ["mask", "given", "seed_points"])
def test_all_flood_filling_depends_on_the_files_of_masks_given_segments_and_seeds(key, tmp_path):
    write_sources(tmp_path)
    (tmp_path / "points.csv").write_text("z,y,x\n1,2,3\n")
    config, file = (
        copy.deepcopy({**EVERYTHING, "consensus": {}}),
        {"mask": "mask.npy", "given": "mask.npy", "seed_points": "points.csv"}[key],
    )
    if key == "mask":
        config["volumes"]["phantom"]["masks"] = [{"path": file}]
    elif key == "given":
        config["volumes"]["phantom"]["init_segmentation"] = file
    else:
        config["segment"] = {"seed_policy": "points", "seed_points": file}
    plan = Workflow(tmp_path, config).plan("segment_all")
    for rule in ("segment", "checkpoint_segment"):
        (inputs,) = set(re.findall(rf"^rule {rule}:\n    input: (?:\S+ )*?(mask.npy|points.csv)", plan, re.MULTILINE))
        assert inputs == file


def test_merge_and_sweep_depend_on_their_calibrations(tmp_path):
    write_sources(tmp_path)
    calibration = {"calibration": "calibration.yaml"}
    config = {**EVERYTHING, "merge": {**EVERYTHING.get("merge", {}), **calibration}, "sweep": calibration}
    plan = Workflow(tmp_path, config).plan("fill_all", "sweep_all")
    for rule in ("merge", "sweep"):
        assert re.search(rf"^rule {rule}:\n    input: .*calibration.yaml", plan, re.MULTILINE)


def test_merge_and_sweep_depend_on_the_files_of_nuclei_and_corrections(tmp_path):
    write_sources(tmp_path)
    config, given = copy.deepcopy(EVERYTHING), {"nuclei": "mask.npy", "corrections": "corrections.csv"}
    config["volumes"]["tissue"] |= given
    plan = Workflow(tmp_path, config).plan("-p", "fill_all", "sweep_all")
    for rule in ("merge", "sweep"):
        inputs = re.findall(rf"^rule {rule}:\n    input: (.*)", plan, re.MULTILINE)
        for key, file in given.items():
            assert sorted(file in files for files in inputs) == [False, True]
            assert len(re.findall(rf"ffn {rule} .*--{key} {file}", plan)) == 1


def test_a_parameter_that_snakemake_would_drop_is_an_error():
    assert is_builtin([{"a": (1, None)}, 2.5, "b", True])
    assert not is_builtin([Box((0, 0, 0), (1, 1, 1))]) and not is_builtin({"a": {1}})
