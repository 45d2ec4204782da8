"""What the pages say of the repository is so."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
CHANGELOG = ROOT / "CHANGELOG.md"  # tells of files of its time
PAGES = [*ROOT.glob("*.md"), ROOT / "config/README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "ffn").rglob("*.md")]
KERNELS = [*(ROOT / "ffn/kernels").rglob("*"), *(ROOT / "tests/kernels").rglob("*")]
CPP = [file for file in KERNELS if file.suffix in (".h", ".cc")]  # of Python, ruff says it
TO_BE_WRITTEN = {"ffn/machine/schedulers/lsf.py"}  # by who follows a recipe
PATH = re.compile(r"(?<![\w/.])(?:benchmarks|docs|envs|ffn|rules|tests)/[\w./*-]*[\w*]")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_prose_has_at_most_120_columns(page):
    no_prose = r"^ *```.*?^ *```$|^ *\|.*?$|\(http[^)]*\)"  # code, tables, addresses
    prose = re.sub(no_prose, "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert [line for line in prose.splitlines() if len(line) > 120] == []


@pytest.mark.parametrize("source", CPP, ids=lambda source: source.relative_to(ROOT).as_posix())
def test_sources_in_cpp_have_at_most_120_columns(source):
    assert [line for line in source.read_text().splitlines() if len(line) > 120] == []


@pytest.mark.parametrize("page", sorted({*PAGES} - {CHANGELOG}), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_files_that_a_page_names_exist(page):
    code = " ".join(re.findall(r"`[^`\n]+`", page.read_text()))
    named = {re.sub(r"\b[A-Z]+\b", "*", path) for path in PATH.findall(code)}  # NAME stands for any
    assert [path for path in sorted(named - TO_BE_WRITTEN) if not any(ROOT.glob(path))] == []
