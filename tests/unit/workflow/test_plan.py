"""What a person reads first of a plan."""

import pytest

from ffn.workflow.pipeline import MOST_VOLUMES, Pipeline, plan_lines
from ffn.workflow.places import check_sources
from ffn.workflow.run import load_run

from .runs import GOOD, PHANTOM


def pipeline(*sizes):
    synthetic = [{**PHANTOM["synthetic"], "voxel_size_zyx_nm": size} for size in sizes]
    run = load_run({**GOOD, "volumes": {f"v{i}": {**PHANTOM, "synthetic": each} for i, each in enumerate(synthetic)}})
    return Pipeline(run, check_sources(run))


def test_a_plan_begins_with_a_few_lines_on_stages_and_volumes():
    lines = plan_lines(pipeline(*[[10.0, 10.0, 10.0]] * (MOST_VOLUMES + 3)))
    assert len(lines) <= 10 and "train" in lines[0] and "µm" in lines[1]


@pytest.mark.parametrize(
    ("size", "is_doubted"), [([50.0, 4.0, 4.0], False), ([4.0, 4.0, 50.0], True), ([50_000.0, 4000.0, 4000.0], True)]
)
def test_voxels_that_cannot_be_meant_are_doubted(size, is_doubted):
    found = [each for each in pipeline(size).warnings if each.startswith("volumes.v0.voxel_size_zyx_nm")]
    assert bool(found) == is_doubted
