"""The coverage benchmark drops voxels of low POM, and fills what is left."""

import importlib.util

import numpy as np
import pytest

from ffn.geometry import Box
from ffn.io.create import create_volume, create_volumes
from ffn.io.volume import Placement

BOX = Box((0, 0, 0), (4, 10, 30))
TILES = [Box((0, 0, 0), (4, 10, 18)), Box((0, 0, 12), (4, 10, 30))]
SIZE = (10.0, 10.0, 10.0)


@pytest.fixture
def benchmark(pytestconfig):
    spec = importlib.util.spec_from_file_location(
        "coverage_benchmark", pytestconfig.rootpath / "benchmarks/coverage.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write(path, voxels):
    with create_volume(str(path), voxels.dtype, Placement(BOX, SIZE)) as writer:
        writer.write(BOX, voxels)
    return str(path)


def test_voxels_of_low_pom_are_dropped_and_filled(benchmark, tmp_path, capsys):
    truth = np.ones(BOX.shape, np.uint64)
    truth[:, 5:] = 2
    wrong = truth.copy()
    wrong[:, 5, :] = 1  # along the border, where the POM is low
    for box, pom in zip(TILES, (255, 200), strict=True):  # where both have a voxel, the larger one counts
        probability = np.full(BOX.shape, pom, np.uint8)
        probability[:, 5] = 160
        with create_volumes(tmp_path / f"{box.stem}.h5", {"probability": np.uint8}, Placement(box, SIZE)) as writers:
            writers["probability"].write(box, probability[box.slices()])
    files = [str(path) for path in sorted(tmp_path.glob("*.h5"))]
    words = ["--segmentation", write(tmp_path / "wrong.zarr", wrong), "--truth", write(tmp_path / "truth.zarr", truth)]
    image = write(tmp_path / "raw.zarr", np.full(BOX.shape, 100, np.uint8))
    benchmark.main([*files, *words, "--image", image, "--max-distance", "20", "--thresholds", "0", "0.7", "0.8"])
    rows = [[float(word) for word in line.split()] for line in capsys.readouterr().out.splitlines()[1:]]
    assert [row[:2] for row in rows] == [[0, 1], [0.7, 0.9], [0.8, 0.54]]
    assert rows[0][2] > 0.2 and rows[1][2] == rows[2][2] == 0
    assert rows[0][4] == rows[0][2] > rows[1][4] > 0  # a flat image says nothing about the border
