"""Boxes of the jobs of a volume by their names."""

import pytest

from ffn.workflow.job_boxes import contact_boxes, subvolume_boxes
from ffn.workflow.places import check_sources
from ffn.workflow.run import load_run

RUN = load_run(
    {
        "volumes": {"phantom": {"synthetic": {"shape_zyx": [64, 48, 80]}}},
        "model": {"depth": 2, "features": 8, "fov_size_zyx": [9, 11, 13], "deltas_zyx": [2, 3, 3]},
        "train": {"permutable_axes": []},
        "subvolumes": {"size_zyx": [40, 40, 40], "overlap_zyx": [16, 16, 16]},
        "agglomerate": {"job_size_zyx": [40, 48, 41]},
    }
)
PLACE = check_sources(RUN)["phantom"]


@pytest.mark.parametrize(
    ("of", "shapes"), [(subvolume_boxes, {(40, 40, 40)}), (contact_boxes, {(40, 48, 41), (24, 48, 39)})]
)
def test_every_box_is_found_by_its_name(of, shapes):
    boxes = of(RUN, PLACE)
    assert list(boxes) == [box.stem for box in boxes.grid] and len(boxes) == len(set(boxes))
    assert [boxes[name] for name in boxes] == list(boxes.grid)
    assert shapes <= {box.shape for box in boxes.values()}


@pytest.mark.parametrize("name", ["z000024-y000008-x000041", "z24", "z000024-y000008-x000040.h5"])
def test_other_names_are_none_of_them(name):
    boxes = subvolume_boxes(RUN, PLACE)
    assert "z000024-y000008-x000040" in boxes and name not in boxes


def test_a_million_boxes_are_not_made_to_find_one():
    large = load_run({**RUN.model_dump(), "volumes": {"phantom": {"synthetic": {"shape_zyx": [2416] * 3}}}})
    boxes = subvolume_boxes(large, check_sources(large)["phantom"])
    assert len(boxes) == 10**6
    assert boxes["z002376-y000024-x002376"] == boxes.grid[990_199]
