"""A change of any option repeats what depends on it, and nothing else: every leaf of the configuration is changed.

Two runs are finished by `stub_ffn`, which only writes files. With other valid values of leaves, the rules that
Snakemake repeats first have to be those of the stage whose section they are in; `READ_BY` has the options of no stage.
"""

import copy
import functools
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ffn.errors import ConfigError
from ffn.geometry import Box
from ffn.io.config import SourceConfig
from ffn.io.hdf5 import write_arrays
from ffn.workflow.places import check_sources
from ffn.workflow.run import RunConfig, load_run
from ffn.workflow.stages import STAGES, rules_of

from ..small_run import SMALL_RUN, Workflow, shown
from ..snakemake_forks import is_builtin
from .options import Leaf, changes, leaves_of
from .stubbed import Stubbed, jobs_of

SHAPE = (64, 56, 72)
STUDIES = ("study_scaling", "study_learning_rate", "study_curves", "study_staleness")
TRAININGS = {"train", "study_train", "study_train_best", "study_measure", "study_staleness"}
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
            **{"image": "raw.npy", "labels": "labels.npy", "skeletons": "skeletons"},
            "voxel_size_zyx_nm": [10, 10, 10],
            "train_box": "0:40,0:56,0:72",
            "evaluate_box": "52:64,0:56,0:72",
        },
    },
    "model": {**SMALL_RUN["model"], "image_mean": 128.0, "image_stddev": 33.0},
    "subvolumes": {"size_zyx": [64, 56, 48], "overlap_zyx": [14, 14, 14]},
    "train": {**SMALL_RUN["train"], "collective": "mpi"},
    "consensus": {"enabled": True},
    "affinities": {"enabled": True},
    "select": {"checkpoints": 2, "box": "40:52,0:56,0:72", "volume": "phantom"},
    "study": {"workers": [1, 2], "learning_rates": [0.1, 0.2, 0.3], "seeds": 2, "processes": [1]},
}
# What the other run cannot have: an imported checkpoint, seeds at points, and options that only others permit.
IMPORTED = {
    **{"run": "imported", "init": "published", "volumes": {"phantom": EVERYTHING["volumes"]["phantom"]}},
    **{name: EVERYTHING[name] for name in ("subvolumes", "partition")},
    "model": {**EVERYTHING["model"], "depth": 3},  # for two stages
    "train": {
        **SMALL_RUN["train"],
        **{"fov_policy": "max_pred", "optimizer": "adamw", "weight_decay": 0.1, "scaling_rule": "linear"},
        **{"schedule": "cyclic", "compression": "qsgd", "engine": "jax"},
    },
    "segment": {"seed_points": "1,2,3"},
}
RUNS = {"everything": EVERYTHING, "imported": IMPORTED}
TARGETS = {"everything": ("all", *STUDIES), "imported": ("all",)}
SECTIONS = {"everything": tuple(RunConfig.model_fields), "imported": ("init", "model", "train", "segment")}

INGEST = {"ingest", "ingest_labels"}
# Rules that read an option of no stage's section; the longest key counts. The changed ones that follow no other are
# compared, so what every reader follows is enough.
READ_BY = {
    "run": {"synth", *INGEST},
    "rng_seed": {"synth", "records", *TRAININGS},
    "init": {"import_checkpoint", "train", "study_measure"},
    "volumes.synthetic": {"synth"},
    "volumes": INGEST,
    "volumes.image": {"ingest"},
    "volumes.mip": {"ingest"},
    "volumes.copy_image": {"ingest"},
    "volumes.clahe_tile": {"ingest"},
    "volumes.level_sections": {"ingest"},
    "volumes.max_shift": {"ingest"},
    "volumes.labels": {"ingest_labels"},
    "volumes.labels_offset_zyx": {"ingest_labels"},
    "volumes.ignore_labels": {"ingest_labels"},
    "volumes.skeletons": {"evaluate"},
    "volumes.masks": {"coordinates", "skeletonize", "learn_affinities"},
    "volumes.init_segmentation": {"segment", "checkpoint_segment"},
    "volumes.corrections": {"merge", "sweep"},
    "volumes.normalize": TRAININGS,
    "volumes.train_box": {"membrane", "partition", "learn_affinities"},
    "volumes.train_weight": {"records"},
    "volumes.validate_box": {"train", "study_staleness"},
    "volumes.segment_box": {"segment", "affinities"},
    "volumes.evaluate_box": {"skeletonize", "evaluate", "sweep"},
    "model": {*TRAININGS, "import_checkpoint"},
    "train": {*TRAININGS, "checkpoint_model"},
    "segment": {"segment", "checkpoint_segment", "agglomerate"},  # agglomeration floods as segmentation does
    "evaluate": {"evaluate", "checkpoint_evaluate"},
    "select": {"select", "checkpoint_model", "checkpoint_segment", "checkpoint_evaluate"},
    "consensus.enabled": {"consensus", "agglomerate"},
    "agglomerate.enabled": {"agglomerate", "fill"},
    "affinities": {"learn_affinities"},
    "affinities.enabled": {"fill"},
    "affinities.network": {"affinities"},
    "subvolumes": {"segment"},
    "workflow": set(),
    "study": {*TRAININGS, *STUDIES} - {"train"},
}
READERS = {name: set(rules_of(name)) for name in STAGES} | READ_BY
# Options that keep the result: times depend on threads, and there may be other checkpoints to choose from.
UNTRACKED = {"train.inter_op_threads": {"study_measure"}}
UNTRACKED |= {f"train.{name}": {"checkpoint_model"} for name in ("checkpoint_steps", "keep_checkpoints")}
OTHER_VALUES: dict[str, list[Any]] = {
    "run": ["other"],
    "init": ["published-too"],
    "train.on_row": ["python track.py"],
    "train.gradients_per_update": [1],
    "train.max_staleness": [1],
    "volumes.image": ["raw-too.npy"],
    "volumes.labels": ["labels-too.npy"],
    "volumes.labels_offset_zyx": [[0, 0, 0]],
    "volumes.skeletons": ["skeletons-too"],
    "affinities.network": ["network.h5"],
    "volumes.mip": [0],
    "volumes.image_box": ["0:64,0:56,0:72"],
    "volumes.clahe_tile": [64],
    "volumes.intensity_range": [[0, 200]],
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
    "segment.canvases": [1],  # with more, lists of subvolumes are other jobs
    "segment.seed_points": ["4,5,6"],
    "select.box": ["41:52,0:56,0:72"],
    "select.volume": ["tissue"],
    "select.checkpoints": [1],
}


@functools.cache
def all_leaves(run: str) -> dict[str, Leaf]:
    """Leaves of one of `RUNS` by their names."""
    found = {".".join(leaf.path): leaf for leaf in leaves_of(load_run(RUNS[run]))}
    return {name: leaf for name, leaf in found.items() if leaf.path[0] in SECTIONS[run]}


def changed(config: dict, leaf: Leaf) -> dict | None:
    """Return the configuration with the first other value of an option that is valid."""
    for value in OTHER_VALUES.get(leaf.key) or changes(leaf.value, leaf.annotation):
        other = copy.deepcopy(config)
        *sections, name = leaf.path
        functools.reduce(lambda section, part: section.setdefault(part, {}), sections, other)[name] = value
        try:
            check_sources(load_run(other))
        except ConfigError:
            continue
        return other
    return None


class Finished(Stubbed):
    """One of `RUNS`, finished, and what follows what in it."""

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__(folder, RUNS[name], TARGETS[name])
        write_sources(folder)
        shown(self.snakemake("--quiet"))
        output = shown(self.snakemake("--rulegraph"))
        names = dict(re.findall(r'^\s*(\d+)\[label = "(\w+)', output, re.MULTILINE))
        self.follow: dict[str, set[str]] = {name: set() for name in names.values()}
        for one, other in re.findall(r"^\s*(\d+) -> (\d+)", output, re.MULTILINE):
            self.follow[names[one]].add(names[other])

    def downstream(self, rules: set[str]) -> set[str]:
        """Return these rules and all that follow from them."""
        found, todo = set(), [*rules]
        while todo:
            rule = todo.pop()
            if rule not in found:
                found.add(rule)
                todo += self.follow.get(rule, ())
        return found

    def first(self, rules: set[str]) -> set[str]:
        """Return those of the rules that follow no other of them."""
        return {rule for rule in rules if not any(rule in self.downstream({other}) for other in rules - {rule})}


def changed_options(plan: str) -> set[tuple[str, str]]:
    """Rules, and options on their command lines, as ``--sigma``, with another value than before in a dry run."""
    found = re.findall(
        r"^\w+ (\w+):\n(?:    .*\n)*?.*exclusive params .*?: before: (.*?) now: (.*)$", plan, re.MULTILINE
    )
    return {(rule, each.split()[0]) for rule, before, now in found for each in options_in(before) ^ options_in(now)}


def options_in(words: str) -> set[str]:
    """Options with their values."""
    return set(re.findall(r"--\w[^']*?(?= --|'|$)", words))


def write_sources(folder: Path) -> None:
    """Write the files that the configurations name; only their shapes count."""
    for name in ("raw", "raw-too"):
        np.save(folder / f"{name}.npy", np.zeros(SHAPE, np.uint8))
    for name in ("labels", "labels-too", "mask"):
        np.save(folder / f"{name}.npy", np.zeros(SHAPE, np.uint64))
    (folder / "corrections.csv").write_text("action,z_a,y_a,x_a,z_b,y_b,x_b\n")
    write_arrays(folder / "network.h5", {}, {})
    (folder / "cuts.csv").write_text("action,z_a,y_a,x_a,z_b,y_b,x_b\ncut,1,2,3,4,5,6\n")
    (folder / "points.csv").write_text("z,y,x\n1,2,3\n")
    for name in ("skeletons", "skeletons-too"):
        (folder / name).mkdir()
        (folder / name / "1.swc").write_text("1 0 10 10 10 1 -1\n2 0 10 10 90 1 1\n")
    for name in ("published", "published-too"):
        (folder / f"{name}.index").touch()
        (folder / f"{name}.data-00000-of-00001").touch()


@pytest.fixture(scope="module")
def stubbed(tmp_path_factory):
    """Function that returns one of `RUNS`, finished."""
    return functools.cache(lambda name: Finished(tmp_path_factory.mktemp(name), name))


def readers(leaf: Leaf) -> set[str]:
    """Return the rules that read an option."""
    if leaf.keeps_result:
        return UNTRACKED.get(leaf.key, set())
    parts = leaf.key.split(".")
    keys = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
    return READERS[next(key for key in keys if key in READERS)]


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS)
def test_a_change_repeats_what_depends_on_it_and_nothing_else(run, stubbed, monkeypatch):
    """All options that the same rules read change at once; those that no parameter then shows by name change alone."""
    finished = stubbed(run)
    monkeypatch.chdir(finished.workflow.folder)
    leaves = [leaf for leaf in all_leaves(run).values() if changed(finished.config, leaf)]
    groups = {tuple(sorted(readers(leaf))): leaf for leaf in leaves}
    parts = [together(finished.config, [each for each in leaves if readers(each) == set(rules)]) for rules in groups]
    seen = set()
    for config, batch in batches(finished, parts):
        first, options = repeated(finished, config)
        for part, rules in batch:
            alone = len({leaf.key for leaf in part}) == 1 and rules & first
            kept = [leaf for leaf in part if leaf.keeps_result or leaf.path[0] == "workflow"]
            shown = [leaf for leaf in part if any((rule, name) in options for rule in rules for name in names_of(leaf))]
            seen |= {leaf.path for leaf in (part if alone else [*kept, *shown])}
    left = [leaf for leaf in leaves if leaf.path not in seen]
    of_all_volumes = [[leaf for leaf in left if leaf.key == key] for key in dict.fromkeys(leaf.key for leaf in left)]
    for config, batch in batches(finished, of_all_volumes):
        first, _ = repeated(finished, config)
        for part, rules in batch:
            assert first & rules or part[0].keeps_result, f"no rule reads {part[0].key}"


def together(config: dict, leaves: list[Leaf]) -> list[Leaf]:
    """Return options that change at once, and no option of other rules with them."""
    before, chosen = config, []
    for leaf in leaves:
        other = changed(config, leaf)
        if other and all(readers(each) == readers(leaf) for each in differing(other, before)):
            config, chosen = other, [*chosen, leaf]
    return chosen


def batches(finished: Finished, parts: list[list[Leaf]]) -> list[tuple[dict, list]]:
    """Return configurations with several changes, of which none repeats what follows from another, and their rules."""
    found: list[tuple[dict, list]] = []
    for part in filter(None, parts):
        rules = set().union(*map(readers, differing(all_changed(finished.config, part), finished.config)))
        for number, (config, batch) in enumerate(found):
            others = set().union(*(rules for _, rules in batch))
            follow = finished.downstream(rules) & others or finished.downstream(others) & rules
            if rules and others and not follow and (more := all_changed(config, part)):
                found[number] = more, [*batch, (part, rules)]
                break
        else:
            found.append((all_changed(finished.config, part), [(part, rules)]))
    return found


def all_changed(config: dict, leaves: list[Leaf]) -> dict:
    """Return the configuration with other values of these options; nothing if one is not valid."""
    return functools.reduce(lambda config, leaf: changed(config, leaf) or {} if config else {}, leaves, config)


def differing(config: dict, other: dict) -> list[Leaf]:
    """Leaves of which two configurations have other values; some follow from others."""
    before = {each.path: each.value for each in leaves_of(load_run(other))}
    return [each for each in leaves_of(load_run(config)) if each.value != before[each.path]]


def repeated(finished: Finished, config: dict) -> tuple[set[str], set[tuple[str, str]]]:
    """Return the rules that are repeated first, which read what has changed, and their changed options."""
    plan = finished.plan(config)
    first, options, other = finished.first(jobs_of(plan)), changed_options(plan), differing(config, finished.config)
    assert first <= set().union(*map(readers, other))
    for rule, name in options:  # of rules that another change of the batch repeats, too
        named = [leaf for leaf in other if name in names_of(leaf)]
        assert rule not in first or not named or any(rule in readers(leaf) for leaf in named), f"{rule} reads {name}"
    return first, options


def names_of(leaf: Leaf) -> set[str]:
    """Return the names of an option on command lines."""
    name = re.sub("_(zyx|nm)$", "", leaf.path[-1]).replace("_", "-")
    return {f"--{name}", f"--no-{name}"}


@pytest.mark.slow
def test_every_option_is_changed_in_one_of_the_runs(stubbed, monkeypatch):
    unchanged = []
    for run in RUNS:
        monkeypatch.chdir(stubbed(run).workflow.folder)
        unchanged.append({name for name, leaf in all_leaves(run).items() if changed(RUNS[run], leaf) is None})
    of_a_source = {"image", "labels", "labels_offset_zyx", "image_box", *SourceConfig.model_fields}
    fixed = {f"volumes.phantom.{name}" for name in (*of_a_source, "synthetic.voxel_size_zyx_nm")}  # for affinities
    fixed |= {f"volumes.tissue.{name}" for name in ("synthetic", "colour_ids", "voxel_size_zyx_nm")}  # no colours
    assert (unchanged[0] & unchanged[1]) | (unchanged[0] - set(all_leaves("imported"))) == fixed


@pytest.mark.slow
def test_a_finished_run_repeats_nothing(stubbed):
    for run in RUNS:
        assert stubbed(run).planned(RUNS[run]) == set()


@pytest.mark.slow
def test_a_copy_of_a_project_repeats_nothing(stubbed, tmp_path):
    finished = stubbed("everything")
    shutil.copytree(finished.workflow.folder, tmp_path / "copy", symlinks=True)
    copy = Workflow(tmp_path / "copy", RUNS["everything"])
    assert jobs_of(copy.plan(*finished.targets)) == set()
    shutil.rmtree(copy.folder / ".snakemake")
    shown(copy.fork("--touch", *finished.targets))
    assert jobs_of(copy.plan(*finished.targets)) == set()


@pytest.mark.slow
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


def phantom(**given):
    return {"volumes": {"phantom": {**EVERYTHING["volumes"]["phantom"], **given}}}


@pytest.mark.parametrize(
    ("change", "rules", "file"),
    [
        (phantom(masks=[{"path": "mask.npy"}]), "segment checkpoint_segment", "mask.npy"),
        (phantom(init_segmentation="mask.npy"), "segment checkpoint_segment", "mask.npy"),
        ({"segment": {"seed_points": "points.csv"}}, "segment checkpoint_segment", "points.csv"),
        (phantom(corrections="corrections.csv"), "merge sweep", "corrections.csv"),
        (phantom(corrections="cuts.csv"), "cut merge sweep", "cuts.csv"),
    ],
)
def test_rules_depend_on_the_files_that_are_given(change, rules, file, tmp_path):
    write_sources(tmp_path)
    plan = Workflow(tmp_path, {**EVERYTHING, **change}).plan("fill_all", "sweep_all")
    for rule in rules.split():
        assert re.search(rf"^rule {rule}:\n    input: .*{file}", plan, re.MULTILINE)


def test_a_parameter_that_snakemake_would_drop_is_an_error():
    assert is_builtin([{"a": (1, None)}, 2.5, "b", True])
    assert not is_builtin([Box((0, 0, 0), (1, 1, 1))]) and not is_builtin({"a": {1}})
