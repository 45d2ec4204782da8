"""Files that pages name exist, configurations that they show are valid, and the demo is what they say."""

import re
from pathlib import Path

import pytest
import yaml
from snakemake.utils import update_config

from ffn.model.store import load_model
from ffn.workflow.pipeline import Pipeline
from ffn.workflow.places import check_sources
from ffn.workflow.run import load_run

ROOT = Path(__file__).resolve().parents[3]
OF_THEIR_TIME = {ROOT / "CHANGELOG.md", ROOT / "docs/experiments.md"}  # they name files of earlier commits
PAGES = {*ROOT.glob("*.md"), ROOT / "config/README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "ffn").rglob("*.md")}
PATH = re.compile(r"(?<![\w/.])(?:benchmarks|docs|envs|ffn|rules|tests|tools)/[\w./*-]*[\w*]")
TEST = re.compile(r"^def (test_\w+)\(", re.MULTILINE)


@pytest.mark.parametrize("page", sorted(PAGES - OF_THEIR_TIME), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_files_that_a_page_names_exist(page):
    code = " ".join(re.findall(r"`[^`\n]+`", page.read_text()))
    named = {re.sub(r"\b[A-Z]+\b", "*", path) for path in PATH.findall(code)}  # NAME stands for any
    assert [path for path in sorted(named) if not any(ROOT.glob(path))] == []


def test_tests_that_the_table_of_faults_names_exist():
    there = {name for file in (ROOT / "tests").rglob("test_*.py") for name in TEST.findall(file.read_text())}
    named = re.findall(r"`(test_\w+)`", (ROOT / "docs/faults.md").read_text())
    assert named and set(named) <= there


@pytest.mark.parametrize("page", ["docs/own-data.md", "docs/training.md"])
def test_configurations_on_a_page_are_valid(page):
    blocks = re.findall(r"^```yaml\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    whole = [yaml.safe_load(block) for block in blocks if block.startswith("run:") and "…" not in block]
    for configuration in whole:
        load_run({"volumes": {"any": {"synthetic": {}}}, **configuration})
    assert whole


WEIGHTS = Path("config/demo-weights")


def configuration(*names):
    merged = {}
    for name in names:
        update_config(merged, yaml.safe_load(Path(name).read_text()))
    return load_run(merged)


def phantoms(run):
    made = Pipeline(run, check_sources(run))
    return [(made.seed_of(name), run.volumes[name].synthetic) for name in made.synthetic]


def test_the_weights_of_the_demo_are_small_fit_it_and_come_from_other_phantoms(pytestconfig, monkeypatch):
    monkeypatch.chdir(pytestconfig.rootpath)
    model, demo = load_model(WEIGHTS), configuration("config.yaml")
    size = {"image_mean", "image_stddev"}
    assert demo.init == str(WEIGHTS)
    assert model.config.model_dump(exclude=size) == demo.model.model_dump(exclude=size)
    assert model.provenance["stage"] == "train"
    assert sum(file.stat().st_size for file in WEIGHTS.iterdir()) < 2**20
    others = configuration("config/demo-weights.yaml")
    assert not set(seed for seed, _ in phantoms(demo)) & set(seed for seed, _ in phantoms(others))
    for of_demo in demo.volumes.values():
        for other in others.volumes.values():
            same = {"shape_zyx"}
            assert of_demo.synthetic.model_dump(exclude=same) == other.synthetic.model_dump(exclude=same)
