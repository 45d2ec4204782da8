"""Files that pages name exist, and configurations that they show are valid."""

import re
from pathlib import Path

import pytest
import yaml

from ffn.workflow.run import load_run

ROOT = Path(__file__).resolve().parents[3]
OF_THEIR_TIME = {ROOT / "CHANGELOG.md", ROOT / "docs/experiments.md"}  # they name files of earlier commits
PAGES = {*ROOT.glob("*.md"), ROOT / "config/README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "ffn").rglob("*.md")}
PATH = re.compile(r"(?<![\w/.])(?:benchmarks|docs|envs|ffn|rules|tests|tools)/[\w./*-]*[\w*]")


@pytest.mark.parametrize("page", sorted(PAGES - OF_THEIR_TIME), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_files_that_a_page_names_exist(page):
    code = " ".join(re.findall(r"`[^`\n]+`", page.read_text()))
    named = {re.sub(r"\b[A-Z]+\b", "*", path) for path in PATH.findall(code)}  # NAME stands for any
    assert [path for path in sorted(named) if not any(ROOT.glob(path))] == []


@pytest.mark.parametrize("page", ["README.md", "docs/own-data.md", "docs/training.md"])
def test_configurations_on_a_page_are_valid(page):
    blocks = re.findall(r"^```yaml\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    whole = [yaml.safe_load(block) for block in blocks if block.startswith("run:") and "…" not in block]
    for configuration in whole:
        load_run({"volumes": {"any": {"synthetic": {}}}, **configuration})
    assert whole
