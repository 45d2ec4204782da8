"""Another workflow may use this one as a module, also one in a repository, and keeps its own rules."""

import re
import shutil
import subprocess
import sys

import pytest
import yaml

from ffn.machine.processes import take_lock

from ..small_run import ROOT, SMALL_RUN, fork_snakemake, shown

OUTER = f"""
configfile: "run.yaml"

module ffn:
    snakefile: "{ROOT}/Snakefile"
    config: config

use rule * from ffn as ffn_*

use rule train from ffn as ffn_train with:
    conda: "mine.yaml"

onstart:
    print("the outer workflow starts")

rule evaluate:
    output: "mine.txt"
    shell: "echo mine > {{output}}"

for rule in workflow.rules:
    print(f"environment of {{rule.name}}: {{rule.conda_env}}")
"""
# As snakedeploy 0.17 lays a workflow out: `config` and `profiles` are copied, and this is workflow/Snakefile.
HOSTED = """
configfile: "config/config.yaml"

module ffn_pipeline:
    snakefile: gitfile("{repository}", path="workflow/Snakefile", tag="v1")
    config: config

use rule * from ffn_pipeline
"""


@pytest.fixture
def outer(tmp_path):
    (tmp_path / "Snakefile").write_text(OUTER)
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(SMALL_RUN))

    return lambda *arguments: shown(fork_snakemake(["--cores", "1", "--printshellcmds", *arguments], tmp_path))


def test_rules_and_environments_of_the_outer_workflow_stay(outer, tmp_path):
    output = outer("evaluate")
    assert (tmp_path / "mine.txt").read_text() == "mine\n"
    assert not (tmp_path / "results").exists()
    assert re.findall(r"ffn_(?:train|records): (\S+)", output) == ["../envs/ffn.yaml", "mine.yaml"]


@pytest.mark.slow
def test_a_module_locks_the_run_and_lists_its_files(outer, tmp_path):
    assert "the outer workflow starts" in outer("ffn_synth_all")
    root = tmp_path / "results/small"
    assert yaml.safe_load((root / "config.yaml").read_text())["rng_seed"] == SMALL_RUN["rng_seed"]
    (listed,) = re.findall(r"ffn reconcile @(\S+)", outer("-n", "ffn_reconcile_all"))
    assert len((tmp_path / listed).read_text().split()) == 4
    with take_lock(root), pytest.raises(AssertionError, match="works on it"):
        outer("--forcerun", "ffn_synth", "--until", "ffn_synth")


@pytest.fixture(scope="module")
def deployed(tmp_path_factory):
    """Folder as of snakedeploy, whose workflow is in a repository."""
    folder, repository = (tmp_path_factory.mktemp(name) for name in ("deployed", "repository"))
    listed = subprocess.run(["git", "ls-files", "-z", "workflow"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, repository / name, follow_symlinks=False)
    author = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in (["init", "-q"], ["add", "."], [*author, "commit", "-qm", "all"], ["tag", "v1"]):
        subprocess.run(["git", *words], cwd=repository, check=True)
    for name in ("config", "profiles"):
        shutil.copytree(ROOT / name, folder / name)
    (folder / "workflow").mkdir()
    (folder / "workflow/Snakefile").write_text(HOSTED.format(repository=repository))
    return folder


def test_a_hosted_module_plans_all_jobs(deployed):
    hosted = shown(fork_snakemake(["--cores", "2", "-n", "--profile", "profiles/local"], deployed))
    own = shown(fork_snakemake(["--cores", "2", "-n", "--directory", str(deployed)], ROOT))
    jobs = [re.findall(r"^(?:local)?rule (\S+):", output, re.MULTILINE) for output in (hosted, own)]
    assert sorted(jobs[0]) == sorted(jobs[1]) and "train" in jobs[0]


@pytest.mark.slow
def test_without_the_package_a_line_says_what_to_install(deployed):
    hide = "import sys; sys.modules['ffn'] = None; sys.argv[0] = 'snakemake'; from snakemake.cli import main; main()"
    command = [sys.executable, "-c", hide, "--cores", "2", "-n"]
    done = subprocess.run(command, cwd=deployed, capture_output=True, text=True)
    assert done.returncode == 1
    (line,) = (line for line in done.stderr.splitlines() if "pip install" in line)
    assert "ffn-pipeline[" in line and "Traceback" not in done.stderr
