"""The whole workflow on a small phantom: everything is made, nothing is made twice, every stage is a target."""

import json
import re
import shutil

import h5py
import numpy as np
import pytest
import yaml

from ffn.io.open import open_volume

from ..small_run import ROOT, SMALL_RUN, Workflow, fork_snakemake, shown
from .stubbed import jobs_of

STAGES = (
    "synth membrane partition coordinates records train normalize segment reconcile agglomerate merge fill sweep "
    "skeletonize evaluate export"
).split()


def test_everything_is_made(finished):
    results = finished.results
    scores = json.loads((results / "evaluation/phantom.json").read_text())
    assert {"foreground", "all", "cremi"} <= scores["scores"].keys()
    assert 0 < scores["covered_fraction"] <= 1
    assert scores["baseline"]["scores"]["all"]["voi"] > 0
    assert len(list((results / "segmentation/phantom/subvolumes").glob("*.zarr"))) == 4
    state = json.loads((results / "precomputed/phantom/neuroglancer.json").read_text())
    shown = {layer["name"] for layer in state["layers"]}
    assert {"image", "segmentation", "truth", "supervoxels"} <= shown
    assert "<html" in (results / "report.html").read_text().lower()
    assert yaml.safe_load((results / "config.yaml").read_text())["rng_seed"] == 3
    assert list(results.rglob(".*tmp*")) == []


def test_a_run_ends_with_its_scores_whether_or_not_they_can_be_shown(finished):
    names = [path.name.split("-depth")[0] for path in (finished.results / "machine").iterdir()]
    assert names == ["inference-auto-float32"]
    logs = [log for stage in ("segment", "agglomerate") for log in (finished.results / "logs" / stage).rglob("*.log")]
    taken = {re.search(r"auto: (?:openvino|kernels) \w+", log.read_text())[0] for log in logs}
    assert len(logs) > 4 and len(taken) == 1
    said = (finished.folder / "output.txt").read_text()
    assert "40:64,0:56,0:72" in said and "results/small/report.html" in said
    assert re.search(r"\S*ffn view results/small$", said, re.M)
    assert "Nothing to be done" in finished.plan("--resources", "gpu=1")


@pytest.mark.slow
def test_a_run_whose_summary_fails_has_not_failed(tmp_path):
    workflow = Workflow(tmp_path, SMALL_RUN)
    scores = workflow.results / "evaluation/phantom.json"
    scores.parent.mkdir(parents=True)
    scores.write_text("{")
    assert "phantom.json: " in shown(workflow.fork("synth_all"))


def test_the_best_checkpoint_is_used(tmp_path):
    """Planned before anything is trained: which checkpoints there will be follows from the configuration."""
    volume = {**SMALL_RUN["volumes"]["phantom"], "evaluate_box": "52:64,0:56,0:72"}
    chosen = {"checkpoints": 2, "box": "40:52,0:56,0:72"}
    config = {**SMALL_RUN, "volumes": {"phantom": volume}, "select": chosen}
    output = Workflow(tmp_path, config).plan("-p", "segment_all")
    assert {"checkpoint_model", "checkpoint_segment", "checkpoint_evaluate", "select"} <= jobs_of(output)
    assert "step-00000100" in output and "step-00000120" in output and "step-00000080" not in output
    assert "--model results/small/selected" in output and "step-00000000" not in output
    assert output.count("--box=40:52,0:56,0:72") == 4


def test_no_shell_line_grows_with_the_volume(tmp_path):
    """Many subvolumes and contact boxes; the limit of a single argument of a program is 128 KiB on Linux."""
    volume = {"synthetic": {"shape_zyx": [98, 98, 98]}, "train_box": "0:40,0:56,0:72", "evaluate_box": "all"}
    sections = {
        "volumes": {"phantom": volume},
        "subvolumes": {"size_zyx": [35, 35, 35], "overlap_zyx": [14, 14, 14]},
        "agglomerate": {"enabled": True, "job_size_zyx": [25, 25, 25]},
    }
    workflow = Workflow(tmp_path, {**SMALL_RUN, **sections})
    output = workflow.plan("-p")
    assert set(re.findall(r"^(\w+) +64$", output, re.MULTILINE)) == {"segment", "agglomerate"}
    lines = re.findall(r"^Shell command: (.*)", output, re.MULTILINE)
    assert max(map(len, lines)) < 2000
    lists = {word for line in lines for word in line.split() if word.startswith("@")}
    assert len(lists) == 2 and all(word.startswith("@results/small/lists/") for word in lists)
    assert not workflow.results.exists()  # a dry run writes nothing


@pytest.mark.parametrize("stage", ["normalize", "export"])
def test_every_stage_is_a_target(stage, tmp_path):
    output = Workflow(tmp_path, SMALL_RUN).plan(f"{stage}_all")
    rules = {*STAGES[: STAGES.index(stage) + 1], f"{stage}_all"}
    assert rules - {"sweep", "evaluate", "skeletonize"} <= jobs_of(output) <= rules  # which no export waits for


@pytest.mark.slow
def test_a_run_that_begins_where_there_is_a_gpu_floods_in_lists_and_goes_on_anywhere(finished, tmp_path):
    """Of both orders of seeds, whose consensus is agglomerated."""
    shutil.copytree(finished.folder, tmp_path / "gpu")
    shutil.rmtree(tmp_path / "gpu/results/small/segmentation")
    workflow = Workflow(tmp_path / "gpu", {**SMALL_RUN, "consensus": {"enabled": True, "min_fragment_um3": 2e-05}})
    shown(workflow.fork("ingest_all", "--resources", "gpu=1"))  # floods nothing, so nothing is decided
    assert "segment_list" not in workflow.plan("merge_all")
    output = shown(workflow.fork("merge_all", "--resources", "gpu=1"))
    assert output.count("rule segment_list:") == 2
    assert "Nothing to be done" in workflow.plan("merge_all")
    subvolumes = "segmentation/phantom/subvolumes"
    for path in sorted((finished.results / subvolumes).glob("*.zarr")):
        np.testing.assert_array_equal(voxels(path), voxels(workflow.results / subvolumes / path.name))
    folder = workflow.results / "segmentation/phantom"
    whole, parts = voxels(folder / "segmentation.zarr"), voxels(folder / "consensus.zarr")
    for fragment in np.unique(parts[parts > 0]).tolist():
        assert len(np.unique(whole[parts == fragment])) == 1
    mapping = (workflow.results / "agglomeration/phantom/mapping.csv").read_text()
    assert mapping.startswith("base_id,group_id")


def voxels(path):
    with open_volume(path) as volume:
        return volume.read()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"trian": {}}, "trian"),
        ({"modules": ["gcc/12"]}, "modules: "),
        ({"volumes": {"cube": {"image": "nowhere/*.png", "labels": "nowhere.h5"}}}, "volumes.cube"),
    ],
)
def test_bad_configuration_stops_before_anything_runs(change, named, tmp_path):
    workflow = Workflow(tmp_path, {**SMALL_RUN, **change})
    done = workflow.fork()
    said = done.stdout + done.stderr
    assert done.returncode != 0 and named in said
    assert "Traceback" not in said and ".smk" not in said
    assert not workflow.results.exists()


def test_results_that_are_no_folder_stop_a_run(tmp_path):
    workflow = Workflow(tmp_path, SMALL_RUN)
    (tmp_path / "results").symlink_to("gone")
    done = workflow.fork("synth_all")
    assert done.returncode != 0 and "Traceback" not in done.stdout
    assert "results/small: " in done.stdout


def test_more_subvolumes_than_jobs_are_lists(tmp_path):
    agglomerate = {**SMALL_RUN["agglomerate"], "job_size_zyx": [64, 56, 30]}
    config = {**SMALL_RUN, "agglomerate": agglomerate, "workflow": {"max_jobs_per_stage": 2}}
    output = Workflow(tmp_path, config).plan("-p")
    assert {"segment_list", "agglomerate_list", "merge", "export"} <= jobs_of(output)
    assert not {"segment", "agglomerate"} & jobs_of(output)
    folder = r"results/small/segmentation/phantom/subvolumes"
    cut = "--size 64 35 48 --overlap 14 14 14 --job [12]-of-2"
    out = rf"--job-record {folder}.jobs/write/[12]-of-2.json --out {folder}/"
    assert len(re.findall(rf"ffn segment .*--box=0:64,0:56,0:72 .*{cut} {out} ", output)) == 2
    assert len(re.findall(r"ffn agglomerate .* --job-size 64 56 30 --job [12]-of-2 .* --out \S+/graphs/ ", output)) == 2


def test_lint():
    shown(fork_snakemake(["--lint", "text"], ROOT))


def test_a_large_volume_is_worked_on_by_several_jobs_and_then_finished(tmp_path):
    with h5py.File(tmp_path / "large.h5", "w") as file:
        for name, dtype in {"image": "u1", "labels": "u8"}.items():
            file.create_dataset(name, shape=(600, 56, 600), dtype=dtype, chunks=(64, 56, 64))
    sources = {name: f"{tmp_path}/large.h5:{name}" for name in ("image", "labels")}
    volumes = {"large": {**sources, "voxel_size_zyx_nm": [16, 8, 8]}}
    config = {**SMALL_RUN, "volumes": volumes, "workflow": {"max_jobs_per_stage": 2}, "consensus": {"enabled": True}}
    config["subvolumes"] = {"size_zyx": [400, 56, 600], "overlap_zyx": [14, 14, 14]}
    config["agglomerate"] = {"enabled": True, "job_size_zyx": [600, 56, 600]}
    output = Workflow(tmp_path / "run", config).plan("-p", "coordinates_all", "sweep_all", "export_all")
    steps = {
        "partition": ["sizes"],
        "reconcile": ["tiling", "match", "label"],
        "consensus": ["count"],
        "merge": ["mapping"],
        "fill": ["compete"],
        "export": ["plan", "mip0", "coarse", "pieces"],
    }
    in_one = {"tiling", "mapping", "plan", "coarse"}
    before = ("ingest", "membrane", "partition", "coordinates")
    for stage in (*before, "reconcile", "consensus", "merge", "sweep", "fill", "skeletonize", "evaluate", "export"):
        lines = [line for line in output.splitlines() if f"ffn {stage} " in line]
        made = [
            tuple("".join(re.findall(rf" --{option} (\S+) ", line)) for option in ("step", "job")) for line in lines
        ]
        own = steps.get(stage, [])
        parts = [(step, share) for step in own if step not in in_one for share in ("1-of-2", "2-of-2")]
        parts += [(step, "") for step in own if step != "mip0"]  # whose parts need no joining
        parts += [("", "1-of-2"), ("", "2-of-2"), ("write" if own else "", "")]
        twice = stage in ("ingest", "reconcile")  # image and labels; both orders of seeds
        assert sorted(made) == sorted(parts * (1 + twice)), stage


STUDY = {"workers": [2], "learning_rates": [0.001, 0.004, 0.016], "steps": 30, "seeds": 2}
STUDY |= {"depth": 1, "features": 4, "measured_steps": 20, "processes": [2]}
BOTH = {"study_train", "study_train_best", "study_measure", "study_learning_rate", "study_scaling"}


def test_a_study_is_a_target_and_no_part_of_the_pipeline(tmp_path):
    workflow = Workflow(tmp_path, {**SMALL_RUN, "study": STUDY})
    rules = jobs_of(workflow.plan("study_curves"))
    assert {rule for rule in rules if rule.startswith("study_")} == {"study_curves", *BOTH}
    assert "train" not in rules
    assert not {rule for rule in jobs_of(workflow.plan()) if rule.startswith("study_")}


@pytest.mark.slow
def test_all_studies_run(finished, tmp_path):
    shutil.copytree(finished.folder, tmp_path / "studies")
    train = {**SMALL_RUN["train"], "engine": "jax"}  # begins in a fifth of the time
    workflow = Workflow(tmp_path / "studies", {**SMALL_RUN, "train": train, "study": STUDY})
    shown(workflow.fork("study_curves"))
    studies = workflow.results / "studies"
    rates = json.loads((studies / "learning_rate.json").read_text())["best_rates"]
    assert set(rates) == {"2"}
    assert (studies / f"runs/workers-2-rate-{rates['2']!r}-seed-4/model.yaml").is_file()  # a further seed of the best
    scaling = json.loads((studies / "scaling.json").read_text())
    assert set(scaling["measured"]) == {"2"}
    curves = json.loads((studies / "curves.json").read_text())["curves"]
    assert curves["2"]["step"] == list(range(1, 31))
    assert "Nothing to be" in workflow.plan("study_curves")
