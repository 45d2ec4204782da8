"""Boxes of the jobs of a volume by their names."""

import pytest

from .test_pipeline import Wildcards, pipeline

SECTIONS = {
    "volumes": {"phantom": {"synthetic": {"shape_zyx": [64, 48, 80]}}},
    "subvolumes": {"size_zyx": [40, 40, 40], "overlap_zyx": [16, 16, 16]},
    "agglomerate": {"job_size_zyx": [40, 48, 41]},
}


@pytest.mark.parametrize(
    ("stage", "shapes"), [("segment", {(40, 40, 40)}), ("agglomerate", {(40, 48, 41), (24, 48, 39)})]
)
def test_every_box_is_found_by_its_name(stage, shapes):
    boxes = pipeline(**SECTIONS).jobs.boxes(stage, "phantom")
    assert list(boxes) == [box.stem for box in boxes.grid] and len(boxes) == len(set(boxes))
    assert [boxes[name] for name in boxes] == list(boxes.grid)
    assert shapes <= {box.shape for box in boxes.values()}


@pytest.mark.parametrize("name", ["z000024-y000008-x000041", "z24", "z000024-y000008-x000040.h5"])
def test_other_names_are_none_of_them(name):
    boxes = pipeline(**SECTIONS).jobs.boxes("segment", "phantom")
    assert "z000024-y000008-x000040" in boxes and name not in boxes


def test_a_million_boxes_are_not_made_to_find_one():
    large = {**SECTIONS, "volumes": {"phantom": {"synthetic": {"shape_zyx": [2416] * 3}}}}
    boxes = pipeline(**large).jobs.boxes("segment", "phantom")
    assert len(boxes) == 10**6
    assert boxes["z002376-y000024-x002376"] == boxes.grid[990_199]


def test_jobs_that_wait_for_the_same_records_share_their_names():
    """Snakemake asks each of thousands of jobs for its inputs and resources; making the names took half of a plan."""
    large = {**SECTIONS, "volumes": {"phantom": {"synthetic": {"shape_zyx": [1024] * 3}}}}
    jobs = pipeline(**large).jobs
    specs = [jobs.spec("export_blocks", Wildcards(volume="phantom", step_name="mip1", job=f"{i}-of-9")) for i in (1, 2)]
    assert specs[0].files and specs[0].files is specs[1].files
