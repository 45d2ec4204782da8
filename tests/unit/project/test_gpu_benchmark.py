"""The benchmark of GPUs floods a cube with JAX and compares the scores with those of another engine, on a CPU too."""

import importlib.util
import sys

import numpy as np
import pytest
from PIL import Image

from ffn.geometry import Box
from ffn.io.create import create_volume
from ffn.io.volume import Placement

from ...stages.conftest import tube_image, write_bright_model

pytest.importorskip("jax")
SHAPE, STARTS = (40, 40, 60), (8, 22)


@pytest.fixture
def benchmark(pytestconfig):
    place = pytestconfig.rootpath / "benchmarks/gpu.py"
    spec = importlib.util.spec_from_file_location("gpu_benchmark", place)
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_benchmark"] = module  # its dataclasses look there
    spec.loader.exec_module(module)
    yield module
    del sys.modules["gpu_benchmark"]


def write_cube(folder):
    """Write slices and labels under the names that FIB-25's have."""
    (folder / "raw").mkdir()
    for z, section in enumerate(tube_image(SHAPE, STARTS)):
        Image.fromarray(section).save(folder / f"raw/{z:04d}.png")
    labels = np.zeros(SHAPE, np.uint64)
    for body, start in enumerate(STARTS, 1):
        labels[start : start + 10, start : start + 10] = body
    with create_volume(f"{folder}/labels_z000-170.h5:stack", np.uint64, Placement(Box.from_shape(SHAPE))) as writer:
        writer.write(writer.box, labels)


@pytest.mark.slow
def test_a_cube_is_flooded_whole_and_in_parts_with_the_scores_of_another_engine(benchmark, tmp_path, monkeypatch):
    write_cube(tmp_path)
    write_bright_model(tmp_path / "model")
    words = ["--model", tmp_path / "model", "--data", tmp_path, "--precision", "float32", "--canvases", "2"]
    words += ["--box", "1:39,0:40,0:60", "--compare", "tensorflow"]
    monkeypatch.setattr(sys, "argv", ["gpu.py", *map(str, words)])
    rows = list(benchmark.flooded(benchmark.parse()))
    assert [(row["engine"], row["boxes"]) for row in rows] == [
        ("jax", 1),
        ("tensorflow", 1),
        ("jax", 2),
        ("tensorflow", 2),
    ]
    assert all(row["worst_difference"] <= 0.01 and row["fovs"] > 50 for row in rows)
    assert all(row["foreground_are"] < 0.05 for row in rows)
