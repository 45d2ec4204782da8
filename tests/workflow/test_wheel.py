"""A wheel has all that a run needs, in any folder."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ffn import kernels
from ffn.commands.run import become_snakemake, snakemake_words
from ffn.errors import ConfigError
from ffn.kernels import inference
from ffn.workflow.config_files import ROOT as FILES

from ..small_run import ROOT


@pytest.fixture
def site(tmp_path):
    """Folder with the packages of a wheel of this checkout."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        (tmp_path / "clone" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tmp_path / "clone" / name, follow_symlinks=False)
    made = ["install", "-q", "--no-deps", "--no-build-isolation", "--target", f"{tmp_path}/site", f"{tmp_path}/clone"]
    subprocess.run([sys.executable, "-m", "pip", *made], check=True)
    shutil.rmtree(tmp_path / "clone")
    return tmp_path / "site"


@pytest.mark.slow
def test_a_wheel_plans_the_demo_as_the_checkout_does(site, tmp_path):
    plans = []
    for folder in (ROOT, site):
        variables = {**os.environ, "PYTHONPATH": str(folder)}
        command = [sys.executable, "-m", "ffn", "run", "demo", "-n"]
        done = subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        plans.append(re.findall(r"^(?:rule|localrule) (\S+):", done.stdout + done.stderr, re.MULTILINE))
    assert sorted(plans[0]) == sorted(plans[1]) and "train" in plans[0]  # independent jobs come in any order
    sources = [{file.name for file in (folder / "ffn/kernels").glob("*.[chs]*")} for folder in (ROOT, site)]
    assert sources[0] == sources[1] and "build.sh" in sources[0]


def test_kernels_are_compiled_before_a_run_where_there_are_none(tmp_path, monkeypatch):
    called, started = [], []
    monkeypatch.setattr("ffn.kernels.library_of", lambda purpose: tmp_path / purpose)
    monkeypatch.setattr("ffn.kernels.inference.library_of", lambda purpose: tmp_path / purpose)
    monkeypatch.setattr("shutil.which", lambda name: name)
    monkeypatch.setattr(os, "execv", lambda *_: started.append(len(called)))

    def build(words, **_):
        called.append(Path(words[1]))
        for library in (kernels.library_path(), inference.library_path()):
            library.touch()
        return subprocess.CompletedProcess(words, 0)

    monkeypatch.setattr(subprocess, "run", build)
    for words in (["-n"], ["-np"], [], []):
        become_snakemake(Path("mine.yaml"), words)
    assert started == [0, 0, 1, 1] and called == [ROOT / "ffn/kernels/build.sh"]


def test_kernels_that_do_not_compile_are_tried_once(tmp_path, monkeypatch):
    called = []
    monkeypatch.setattr("ffn.kernels.library_of", lambda purpose: tmp_path / purpose)
    monkeypatch.setattr("ffn.kernels.inference.library_of", lambda purpose: tmp_path / purpose)
    monkeypatch.setattr("shutil.which", lambda name: name)
    monkeypatch.setattr(os, "execv", lambda *_: None)
    failed = subprocess.CompletedProcess([], 1, stderr="c++: error: unrecognized option '-mamx-tile'")
    monkeypatch.setattr(subprocess, "run", lambda *words, **_: called.append(words) or failed)
    for _ in range(2):
        become_snakemake(Path("mine.yaml"), [])
    assert len(called) == 1


def test_profiles_are_found_by_name_unless_a_folder_here_has_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    named = [words[words.index("--profile") + 1] for words in map(words_of, ([], ["--profile=slurm"]))]
    assert named == [str(FILES / "profiles/local"), str(FILES / "profiles/slurm")]
    Path("slurm").mkdir()
    Path("slurm/config.yaml").touch()
    assert words_of(["-n", "--profile", "slurm"])[:3] == ["-n", "--profile", "slurm"]
    with pytest.raises(ConfigError, match="--profile"):
        words_of(["-n", "--profile"])


def words_of(given):
    return snakemake_words(Path("mine.yaml"), given)
