"""Another workflow may use this one as a module, and keeps its own rules."""

import re

import pytest
import yaml

from ..small_run import ROOT, SMALL_RUN, fork_snakemake, shown

OUTER = f"""
configfile: "run.yaml"

module ffn:
    snakefile: "{ROOT}/Snakefile"
    config: config

use rule * from ffn as ffn_*

use rule train from ffn as ffn_train with:
    conda: "mine.yaml"

rule evaluate:
    output: "mine.txt"
    shell: "echo mine > {{output}}"

for rule in workflow.rules:
    print(f"environment of {{rule.name}}: {{rule.conda_env}}")
"""


@pytest.fixture
def outer(tmp_path):
    (tmp_path / "Snakefile").write_text(OUTER)
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(SMALL_RUN))

    return lambda *arguments: shown(fork_snakemake(["--cores", "1", "--printshellcmds", *arguments], tmp_path))


def test_a_rule_of_the_same_name_stays_the_outer_workflows(outer, tmp_path):
    outer("evaluate")
    assert (tmp_path / "mine.txt").read_text() == "mine\n"
    assert not (tmp_path / "results").exists()


def test_the_outer_workflow_keeps_names_of_files_and_environments(outer):
    output = outer("-n", "ffn_reconcile_all")
    assert "ffn reconcile results/small/segmentation/phantom/subvolumes/z000000-y000000-x000000.zarr results" in output
    output = outer("-n", "ffn_train_all")
    assert re.findall(r"ffn_(?:train|records): (\S+)", output) == ["../envs/ffn.yaml", "mine.yaml"]
