"""The tiling benchmark tells right unions from those that merge truth."""

import importlib.util

import numpy as np
import pytest

from ffn.config import ReconcileConfig
from ffn.geometry import Box
from ffn.io.create import create_volume
from ffn.io.open import open_volume
from ffn.io.volume import Placement

BOX = Box((0, 0, 0), (8, 10, 30))
TILES = [Box((0, 0, 0), (8, 10, 18)), Box((0, 0, 12), (8, 10, 30))]


@pytest.fixture
def benchmark(pytestconfig):
    place = pytestconfig.rootpath / "benchmarks/tiling.py"
    spec = importlib.util.spec_from_file_location("tiling_benchmark", place)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write(path, voxels, box):
    with create_volume(f"{path}:segmentation", np.uint64, Placement(box)) as writer:
        writer.write(box, voxels)
    return f"{path}:segmentation"


def test_unions_are_judged_by_the_bodies_of_both_sides(benchmark, tmp_path):
    labels = np.zeros(BOX.shape, np.uint64)
    labels[:, :4], labels[:, 5:9] = 3, 4
    truth = np.where(labels == 4, 40, labels)
    truth[:, 5:9, 15:] = 50  # the second segment goes over into another body in the middle of the overlap
    truth[:, :4, :2] = 0
    specs = [write(tmp_path / f"{box.stem}.h5", labels[box.slices()], box) for box in TILES]
    with open_volume(write(tmp_path / "truth.h5", truth, BOX)) as volume:
        config = ReconcileConfig(min_overlap_voxels=50)
        assert benchmark.count_unions(specs, volume, config) == (2, 2, 1)


def test_unions_without_truth_are_not_judged(benchmark, tmp_path):
    labels = np.ones(BOX.shape, np.uint64)
    specs = [write(tmp_path / f"{box.stem}.h5", labels[box.slices()], box) for box in TILES]
    truth = np.zeros(BOX.shape, np.uint64)
    truth[0, :, :9] = 7
    with open_volume(write(tmp_path / "truth.h5", truth, BOX)) as volume:
        assert benchmark.count_unions(specs, volume, ReconcileConfig(min_overlap_voxels=50)) == (1, 0, 0)
