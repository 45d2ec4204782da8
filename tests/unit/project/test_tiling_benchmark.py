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


def test_a_finished_volume_is_compared_as_it_is(benchmark, tmp_path, capsys):
    truth = np.ones(BOX.shape, np.uint64)
    truth[:, 5:] = 2
    cut = np.where(np.arange(30) < 15, truth, truth + np.uint64(2))  # bodies in halves: one bit
    whole, tiled = write(tmp_path / "whole.h5", truth, BOX), f"{tmp_path}/tiled.zarr"
    with create_volume(tiled, np.uint64, Placement(BOX)) as writer:
        writer.write(BOX, cut)
    benchmark.main(["--tiled", tiled, "--whole", whole, "--truth", whole])
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert [row[:6] for row in rows] == [
        ["tiled", ":", "whole", "1.0000", "1.0000", "0.0000"],
        ["whole", ":", "truth", "0.0000", "0.0000", "0.0000"],
        ["tiled", ":", "truth", "1.0000", "1.0000", "0.0000"],
    ]
    with pytest.raises(SystemExit):
        benchmark.main(["part.h5", "--tiled", tiled, "--whole", whole, "--truth", whole])


def test_subvolumes_are_reconciled_and_their_unions_counted(benchmark, tmp_path, capsys):
    labels = np.ones(BOX.shape, np.uint64)
    specs = [write(tmp_path / f"{box.stem}.h5", labels[box.slices()], box) for box in TILES]
    whole = write(tmp_path / "whole.h5", labels, BOX)
    benchmark.main([*specs, "--whole", whole, "--truth", whole, "--min-component-size", "50"])
    assert capsys.readouterr().out.splitlines()[-1].startswith("unions: 1; of them with ground truth on both sides: 1")
