"""Labels of a part of the image, in a file that does not say where they lie: the configuration does."""

import re

import numpy as np
import pytest

from ffn.geometry import Box
from ffn.io.open import open_volume

from ..small_run import SMALL_RUN, Workflow

LABELLED = Box.parse("20:50,4:44,10:60")


@pytest.fixture
def workflow(tmp_path):
    """The small run on an image of a folder, whose labels cover only `LABELLED`."""
    rng = np.random.default_rng(7)
    labels = np.ones(LABELLED.shape, np.uint64)
    labels[:, 20:] = 2
    labels[0, 0, 0] = 3
    np.save(tmp_path / "image.npy", rng.integers(1, 255, (64, 56, 72), np.uint8))
    np.save(tmp_path / "labels.npy", labels)
    volume = {"image": "image.npy", "labels": "labels.npy", "voxel_size_zyx_nm": [30, 8, 8]}
    volume |= {"labels_offset_zyx": list(LABELLED.start), "evaluate_box": "42:50,4:44,10:60"}
    volume["train_box"] = "20:42,4:44,10:60"
    return Workflow(tmp_path, {**SMALL_RUN, "volumes": {"cube": volume}, "partition": {"min_size": 1}})


def test_every_stage_is_planned_in_coordinates_of_the_full_volume(workflow):
    plan = workflow.plan("-p")
    assert "ffn ingest labels.npy --voxel-size 30.0 8.0 8.0 --offset 20 4 10 --kind labels" in plan
    assert "ffn ingest image.npy --voxel-size 30.0 8.0 8.0 --kind image" in plan
    for stage, box in (("partition", "20:42,4:44,10:60"), ("evaluate", "42:50,4:44,10:60")):
        assert re.findall(rf"ffn {stage} .*--box=(\S+)", plan) == [box]


def test_labels_are_brought_in_at_their_place_and_partitioned_there(workflow):
    workflow.succeed("ingest_all", "partition_all")
    volumes = workflow.results / "volumes/cube"
    with open_volume(volumes / "raw.zarr") as image, open_volume(volumes / "labels.zarr") as labels:
        assert image.box == Box.from_shape((64, 56, 72)) and labels.box == LABELLED
        assert labels.read(Box.around(LABELLED.start)).item() == 3
    with open_volume(workflow.results / "partitions/cube.zarr") as partitions:
        assert partitions.box == Box.parse("20:42,4:44,10:60")
        assert (partitions.read() != 255).any()
