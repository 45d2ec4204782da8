"""The comparison of recipes: options, scores at the end, and the table."""

import argparse
import importlib.util
import json
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from ffn.config import ModelConfig
from ffn.model.store import Model, load_architecture, save_model
from ffn.training.initial import initial_weights
from ffn.workflow.pipeline import Pipeline
from ffn.workflow.places import check_sources
from ffn.workflow.run import load_run

from ...small_run import ROOT, SMALL_RUN


@pytest.fixture
def recipes(pytestconfig, monkeypatch):
    spec = importlib.util.spec_from_file_location("recipes_benchmark", pytestconfig.rootpath / "benchmarks/recipes.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def runs(*curves, seconds=36.0):
    """Runs with these F1 scores after every 100 FOVs."""
    return [
        {
            "curve": [{"fovs": 100 * i, "f1": f1, "precision": 0.9, "recall": f1 / 2} for i, f1 in enumerate(curve, 1)],
            "seconds": seconds,
        }
        for curve in curves
    ]


def test_every_recipe_is_a_training_on_as_many_fovs(recipes):
    for name, recipe in recipes.RECIPES.items():
        options = {key: value for key, value in recipe.items() if key not in ("model", "coordinates", "phases")}
        train = recipes.train_config(options, 8000, 10)
        assert train.max_steps * train.num_lanes == 8000, name
        assert train.max_steps // train.checkpoint_steps == 10, name
        assert train.preset == "dong2019" and train.scaling_rule == "constant", name
        assert train.departures().keys() <= {*options} - {"preset"} | {"warmup_steps", "ema_decay"}, name


def test_warm_up_and_average_are_shares_of_the_steps(recipes):
    train = recipes.train_config({"warmup": 0.05, "average": 0.1, "batch_size": 4}, 8000, 10)
    assert (train.max_steps, train.warmup_steps) == (2000, 100)
    assert train.ema_decay == pytest.approx(1 - 1 / 200)


PHANTOM = {"synthetic": {"shape_zyx": [96, 112, 128]}, "segment_box": "none"}
VALIDATED = {**PHANTOM, "train_box": "none", "validate_box": "all"}
OPTIONS = argparse.Namespace(fovs=8000, points=10)


def pipeline_of(**sections):
    run = load_run(sections)
    return Pipeline(run, check_sources(run))


@pytest.fixture
def commands(recipes, monkeypatch):
    """Return the commands of this package that were called, as words; none of them does anything."""
    called = []
    monkeypatch.setattr(recipes, "ffn", lambda command: called.append(shlex.split(command)))
    return called


def test_examples_avoid_the_masks_of_their_volume(recipes, tmp_path, commands):
    masked = {**PHANTOM, "masks": [{"box": "0:9,0:9,0:9"}]}
    pipeline = pipeline_of(volumes={"a": masked, "b": PHANTOM, "c": {**VALIDATED, "masks": ["c.h5:soma"]}})
    job = recipes.make_job("cosine", 1, pipeline, tmp_path, OPTIONS)
    assert ["#box=0:9,0:9,0:9" in command for command in commands[:2]] == [True, False]
    assert commands[0][commands[0].index("--margin") + 1 :][:3] == ["32"] * 3  # two deltas, for the walk max_pred
    # as in the run itself, they do not count among the grey levels either
    masks = [f"{name}={mask}" for name, masks in job.data.masks.items() for mask in masks]
    assert masks == pipeline.training_masks != []


def test_examples_of_longer_walks_are_drawn_further_from_the_faces_and_kept_apart(recipes, tmp_path, commands):
    pipeline = pipeline_of(init=save(tmp_path / "start"), volumes={"a": PHANTOM, "c": VALIDATED})
    jobs = [recipes.make_job(name, 1, pipeline, tmp_path, OPTIONS) for name in ("tune-1e-5", "tune-1e-5-max-pred")]
    margins = [words[words.index("--margin") + 1] for words in commands if words[0] == "coordinates"]
    far, farther = map(int, margins)
    assert farther == far + jobs[0].model.deltas_zyx[0] and jobs[0].data.records != jobs[1].data.records


def test_volumes_have_the_weights_of_the_configuration(recipes, tmp_path, commands):
    volumes = {"a": PHANTOM, "b": {**PHANTOM, "train_weight": 3.0}, "c": VALIDATED}
    recipes.make_job("cosine", 1, pipeline_of(volumes=volumes), tmp_path, OPTIONS)
    assert shlex.join(commands[2]).count("--weight") == 2 and "b=3.0" in commands[2]


def test_all_recipes_are_scored_at_the_same_numbers_of_fovs(recipes, tmp_path, commands):
    pipeline, options = pipeline_of(volumes={"a": PHANTOM, "c": VALIDATED}), argparse.Namespace(fovs=100_000, points=12)
    for name in recipes.RECIPES:
        before, scored = 0, []
        for _, train in recipes.make_job(name, 1, pipeline, tmp_path, options).phases:
            steps = {*range(train.checkpoint_steps, train.max_steps, train.checkpoint_steps), train.max_steps}
            assert len(steps) <= train.keep_checkpoints
            scored += [before + step * train.num_lanes for step in sorted(steps)]
            before += train.max_steps * train.num_lanes
        last = 4 if name.endswith("-third") else 12
        assert scored == pytest.approx(np.linspace(0, 100_000, 13)[1 : last + 1], abs=100), name
        assert train.schedule == recipes.RECIPES[name].get("schedule", "constant"), name


def test_a_run_without_a_validation_box_ends_before_anything_is_trained(recipes):
    with pytest.raises(SystemExit, match="volumes: none has labels and a validate_box"):
        recipes.require_boxes(pipeline_of(volumes={"a": PHANTOM}))
    recipes.require_boxes(pipeline_of(volumes={"a": PHANTOM, "c": VALIDATED}))


def test_all_runs_have_the_precision_of_the_first(recipes, tmp_path, commands, monkeypatch):
    places = []
    monkeypatch.setattr("ffn.training.train.train", lambda *given, machine: places.append(machine))
    monkeypatch.setattr(recipes, "score", lambda job, checkpoints: [])
    pipeline = pipeline_of(volumes={"a": PHANTOM, "c": VALIDATED}, train={"precision": "auto"})
    for name in ("cosine", "deeper"):
        recipes.train_and_score(recipes.make_job(name, 1, pipeline, tmp_path, OPTIONS))
    assert places == [f"{tmp_path}/machine"] * 3


def save(folder, **changes):
    config = ModelConfig(depth=3, features=4, image_mean=1, image_stddev=2).model_copy(update=changes)
    save_model(folder, Model(config, initial_weights(config, 1), {}))
    return str(folder)


def test_all_recipes_start_from_the_weights_and_the_network_of_the_configuration(
    recipes, tmp_path, commands, monkeypatch
):
    inits, scored = [], []
    monkeypatch.setattr("ffn.training.train.train", lambda *given, machine: inits.append(given[5]))
    monkeypatch.setattr(recipes, "score", lambda job, checkpoints: scored.append(checkpoints))
    init, volumes = save(tmp_path / "start"), {"a": PHANTOM, "c": VALIDATED}
    job = recipes.make_job("half-fov-first", 1, pipeline_of(init=init, volumes=volumes), tmp_path, OPTIONS)
    assert (job.model.depth, job.model.features, job.model.image_mean) == (3, 4, None)
    assert [model.depth for model, _ in job.phases] == [3, 3]
    recipes.train_and_score(job)
    assert inits == [init, f"{job.folder}/0"] and scored == [[(0, Path(init))]]


def test_a_result_of_other_initial_weights_does_not_count(recipes, tmp_path, commands):
    made = []
    (tmp_path / "records-without-background-1-from-membranes-32-32-32-from-faces").mkdir()
    (tmp_path / "records-without-background-1-from-membranes-32-32-32-from-faces/index.json").touch()
    for name, depth in (("deep", 3), ("deeper", 4)):
        pipeline = pipeline_of(init=save(tmp_path / name, depth=depth), volumes={"a": PHANTOM, "c": VALIDATED})
        made.append(recipes.made_of(recipes.make_job("tune-1e-5", 1, pipeline, tmp_path, OPTIONS)))
    assert made[0]["init"] != made[1]["init"]
    without = pipeline_of(volumes={"a": PHANTOM, "c": VALIDATED})
    assert recipes.made_of(recipes.make_job("cosine", 1, without, tmp_path, OPTIONS))["init"] is None


def test_results_of_other_data_do_not_count(recipes, tmp_path, monkeypatch):
    def job(trained=PHANTOM, validated=VALIDATED):
        return recipes.make_job("cosine", 1, pipeline_of(volumes={"a": trained, "c": validated}), tmp_path, OPTIONS)

    def ffn(command):
        words = shlex.split(command)
        if words[0] == "records":
            records.append(folder := tmp_path / words[words.index("--out") + 1])
            folder.mkdir(exist_ok=True)
            (folder / "index.json").write_text(f"{len(records)}")

    records, curve = [], runs([0.5])[0]["curve"]
    monkeypatch.setattr(recipes, "ffn", ffn)
    place, made = tmp_path / "cosine-seed-1.json", recipes.made_of(job())
    place.write_text(json.dumps({**made, "seconds": 1.0, "curve": curve}))
    assert recipes.result(place, job())["curve"] == curve and len(records) == 1
    for other in (
        job(validated={**VALIDATED, "validate_box": "0:80,0:112,0:128"}),
        job({**PHANTOM, "train_weight": 3}),
    ):
        with pytest.raises(SystemExit, match="cosine-seed-1.json: was made with other options or data. Move it away"):
            recipes.result(place, other)
    assert len(records) == 2  # again only for the other weight


def test_phases_end_with_the_network_that_is_scored(recipes, tmp_path, commands):
    pipeline, networks = pipeline_of(volumes={"a": PHANTOM, "b": VALIDATED}), {}
    for name in ("curriculum", "deeper"):
        job = recipes.make_job(name, 1, pipeline, tmp_path, OPTIONS)
        networks[name] = [(model.fov_size_zyx[0], model.deltas_zyx[0], model.depth) for model, _ in job.phases]
        # what was not given would be that of the phase before
        assert all({"fov_size_zyx", "deltas_zyx", "depth"} <= model.model_fields_set for model, _ in job.phases)
        assert sum(train.max_steps * train.num_lanes for _, train in job.phases) == 8000
    assert networks == {"curriculum": [(17, 4, 9), (25, 6, 9), (33, 8, 9)], "deeper": [(33, 8, 4), (33, 8, 9)]}


def test_the_final_weights_are_kept_with_the_network_that_is_scored(recipes, tmp_path, commands):
    job = recipes.make_job("half-fov", 1, pipeline_of(volumes={"a": PHANTOM, "c": VALIDATED}), tmp_path, OPTIONS)
    save(f"{job.folder}/0", fov_size_zyx=(17, 17, 17), deltas_zyx=(4, 4, 4))
    recipes.keep_model(job)
    kept = load_architecture(job.folder)
    assert (kept.fov_size_zyx, kept.deltas_zyx, kept.image_mean) == ((33, 33, 33), (8, 8, 8), 1)
    assert not Path(job.folder, "0").exists()


def test_runs_are_judged_by_a_pipeline_with_their_weights(recipes, tmp_path, monkeypatch):
    def snakemake(path, target):
        run = yaml.safe_load(path.read_text())
        assert (run["run"], run["init"], run["train"]) == ("judge-cosine-seed-1", "cosine-seed-1", {"max_steps": 0})
        for volume, voi in (("a", 1.0), ("b", 2.0)):
            scores = {name: {"voi": voi + add} for name, add in (("foreground", 0.0), ("all", 1.0))}
            base = {"scores": {"foreground": {"voi": voi / 2}}, "covered_fraction": 0.75}
            filled = {"segmentation": "filled", "scores": scores, "covered_fraction": 1.0, "earlier": {"base": base}}
            file = Path(f"results/{run['run']}/evaluation/{volume}.json")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(filled))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(recipes, "snakemake", snakemake)
    volume = {"synthetic": {"shape_zyx": [96, 112, 128]}, "train_box": "none"}
    judge = {"run": "judge", "volumes": {"a": volume, "b": volume}, "train": {"max_steps": 9}}
    Path("judge.yaml").write_text(yaml.safe_dump(judge))
    with pytest.raises(SystemExit, match="was made without keeping its weights"):
        recipes.judged(Path("cosine-seed-1.json"), Path("judge.yaml"))
    save(tmp_path / "cosine-seed-1")
    found = recipes.judged(Path("cosine-seed-1.json"), Path("judge.yaml"))
    assert found == {"voi": 0.75, "covered": 0.75, "voi_all": 2.5}
    header, _, row = recipes.table({"cosine": [run | found for run in runs([0.1, 0.2, 0.3])]})
    assert header.endswith("| VOI where segmented | share segmented | VOI of all voxels |")
    assert row.endswith("| 0.010 | 0.750 | 0.750 | 2.500 |")


def test_the_table_has_the_best_of_the_papers_rates_first_and_pairs_seeds(recipes):
    flat, good = [0.1] * 6, [0.1, 0.2, 0.3, 0.4, 0.5, 0.8]
    results = {
        "paper-low": runs(flat, flat),
        "paper-high": runs(good, [0.2, 0.3, 0.4, 0.5, 0.6, 0.9]),
        "fast": runs([0.6, 0.5, 0.7, 0.8, 0.8, 0.8], [0.4, 0.7, 0.7, 0.7, 0.7, 0.7], seconds=18.0),
        "slow": runs(good, [0.3] * 6),
    }
    header, _, *rows = recipes.table(results)
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert "F1 of paper-high" in header
    assert [row[0] for row in cells] == ["paper-high", "fast", "slow", "paper-low"]
    assert cells[0][1] == "0.600 ± 0.635"  # 0.55 and 0.65; t is 12.7 for two seeds
    # the first curve falls below its target once more and crosses it a quarter of the way from 200 to 300 FOVs
    needed = [
        recipes.fovs_to_reach(run["curve"], target) for run, target in zip(results["fast"], (0.55, 0.65), strict=True)
    ]
    assert needed == pytest.approx([225, 550 / 3])
    assert cells[1][2].startswith("0.90 ± 0.00, 0.38 ±")  # the recalls are half the F1
    assert cells[1][3].startswith("204 ±") and cells[1][4].startswith("0.34 ±") and cells[1][5] == "0.005"
    assert cells[2][3:5] == ["not in 1 of 2", "-"] and cells[3][3] == "not in 2 of 2"


def test_the_end_of_a_run_is_the_last_third_of_its_fovs_whatever_the_number_of_scores(recipes):
    coarse, fine = (runs(np.linspace(0, 1, 12 * n + 1)[1:]) for n in (1, 3))
    for run in (*coarse, *fine):
        assert recipes.at_end([run], "f1") == pytest.approx([5 / 6])
    third = runs([0.1, 0.2, 0.3, 0.4])
    assert recipes.at_end(third, "f1") == pytest.approx([1 / 3])  # not 0.4, the last score


def test_a_single_seed_has_no_interval_and_the_first_recipe_stands_in_for_the_papers(recipes):
    results = {"mine": runs([0.1, 0.2, 0.3]), "other": runs([0.2, 0.4, 0.6])}
    assert recipes.baseline_of(results) == "mine"
    assert recipes.table(results)[-1] == "| other | 0.500 | 0.90, 0.25 | 125 | 0.42 | 0.010 |"
    assert np.isnan(recipes.fovs_to_reach(results["mine"][0]["curve"], 0.5))


@pytest.mark.slow
def test_recipes_are_trained_scored_and_kept(tmp_path):
    volume = {**SMALL_RUN["volumes"]["phantom"], "validate_box": "40:64,0:56,0:72", "segment_box": "none"}
    train = {"permutable_axes": [], "validation_examples": 4}
    config = {**SMALL_RUN, "volumes": {"phantom": volume}, "train": train}

    def table(config, *options):
        (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
        command = [sys.executable, f"{ROOT}/benchmarks/recipes.py", "--config", "run.yaml", *options]
        command += ["--seeds", "1", "--fovs", "16", "--points", "2"]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    tables = [table(config, "--recipes", "deeper", "background") for _ in "12"]
    assert tables[0] == tables[1] and tables[0].count("\n") == 4  # the second time, all results are there
    for recipe in ("deeper", "background"):
        kept = json.loads((tmp_path / f"results/small/recipes/{recipe}-seed-1.json").read_text())
        assert [point["fovs"] for point in kept["curve"]] == [8, 16] and kept["seconds"] > 0
    assert {path.name for path in (tmp_path / "results/small/recipes").glob("records-*") if path.is_dir()} == {
        f"records-{kind}-background-1-from-membranes-8-11-12-from-faces" for kind in ("with", "without")
    }
    judge = {**SMALL_RUN, "run": "judge", "train": {"permutable_axes": []}, "agglomerate": None}
    (tmp_path / "judge.yaml").write_text(yaml.safe_dump(judge))
    options = ["--recipes", "tune-1e-6", "--out", "tuned", "--judge", "judge.yaml"]
    tuned = table({**config, "init": "results/small/recipes/deeper-seed-1"}, *options)
    start, *_, end = json.loads((tmp_path / "tuned/tune-1e-6-seed-1.json").read_text())["curve"]
    assert tuned.count("\n") == 3 and (start["fovs"], end["fovs"]) == (0, 16)
    whole = json.loads((tmp_path / "results/small/recipes/deeper-seed-1.json").read_text())["curve"]
    assert start["loss"] == pytest.approx(whole[-1]["loss"])  # the weights at that end
    assert (tmp_path / "results/judge-tune-1e-6-seed-1/evaluation/phantom.json").exists()
