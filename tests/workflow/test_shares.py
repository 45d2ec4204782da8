"""A large volume that several jobs share: a finished run has nothing to do, and a change repeats what depends on it."""

import os
import re
import stat
import sys
from pathlib import Path

import pytest

from ..small_run import SMALL_RUN, Workflow, fork_snakemake, shown

CONFIG = {
    **SMALL_RUN,
    "volumes": {"large": {"synthetic": {"shape_zyx": [300, 300, 600]}}},
    "subvolumes": {"size_zyx": [300, 300, 150], "overlap_zyx": [14, 14, 14]},
    "workflow": {"max_jobs_per_stage": 2},
    "agglomerate": {"enabled": True, "job_size_zyx": [100, 300, 600]},
    "fill": {"max_distance_nm": 50},
}
TARGETS = ("fill_all", "sweep_all", "export_all", "evaluate_all")


@pytest.fixture
def stubbed(tmp_path):
    """A function that calls Snakemake with a stand-in for `ffn`, and a workflow."""
    executable = tmp_path / "bin/ffn"
    executable.parent.mkdir()
    executable.write_text(f'#!/bin/sh\nexec {sys.executable} -SE {Path(__file__).with_name("stub_ffn.py")} "$@"\n')
    executable.chmod(executable.stat().st_mode | stat.S_IXUSR)
    workflow = Workflow(tmp_path, CONFIG)
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    return workflow, lambda *words: shown(
        fork_snakemake(workflow.arguments(*TARGETS, *words), workflow.folder, {"PATH": path})
    )


def planned(output):
    return set(re.findall(r"^(\w+) +\d+$", output.rpartition("Job stats:")[2], re.MULTILINE)) - {"total"}


def test_a_finished_run_has_nothing_to_do_and_a_change_repeats_what_depends_on_it(stubbed):
    workflow, snakemake = stubbed
    made = snakemake()
    assert {"reconcile_tiling", "reconcile_match", "merge_mapping", "fill_blocks", "export_coarse"} <= planned(made)
    assert "Nothing to be done" in snakemake("-n")
    workflow.configure({**CONFIG, "fill": {"max_distance_nm": 60}})
    after = planned(snakemake("-n", "--quiet", "reason"))
    assert {"fill_blocks", "fill", "export_blocks", "evaluate_blocks", "evaluate"} <= after
    assert not {"merge", "merge_mapping", "reconcile", "sweep_blocks", "segment_list"} & after
    workflow.configure({**CONFIG, "merge": {"threshold": 0.9}})
    after = planned(snakemake("-n", "--quiet", "reason"))
    assert {"merge_mapping", "merge_blocks", "merge", "fill"} <= after and not {"reconcile", "sweep"} & after
