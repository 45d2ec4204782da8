"""Stages meet bad input: one line that says what is wrong, exit code 2, no traceback, no output left."""

from __future__ import annotations

import re
import shutil

import numpy as np
import pytest

from ffn.cli import main
from ffn.config import ModelConfig
from ffn.geometry import Box
from ffn.io.volume import Placement
from ffn.model.network import weight_shapes
from ffn.model.store import Model, save_model

from ..training_records import write_shards
from ..volumes import write_volume

BOX = Box((0, 0, 0), (12, 20, 24))
TINY = ModelConfig(depth=1, features=2, fov_size_zyx=(3, 5, 5), deltas_zyx=(1, 1, 1), image_mean=128, image_stddev=33)


def save(path, voxels, box=BOX):
    write_volume(path, voxels, Placement(box, (10, 10, 20)))


@pytest.fixture(scope="module")
def material(tmp_path_factory):
    """Good inputs of every kind, and damaged copies of them."""
    folder = tmp_path_factory.mktemp("material")
    save(folder / "raw.h5:raw", np.arange(BOX.num_voxels).reshape(BOX.shape).astype(np.uint8))
    save(folder / "labels.h5:labels", np.ones(BOX.shape, np.uint64))
    save(folder / "far.h5:labels", np.ones(BOX.shape, np.uint64), BOX.shift((100, 0, 0)))
    (folder / "truncated.h5").write_bytes((folder / "raw.h5").read_bytes()[:900])
    write_shards(folder / "records", [(6, 10, 12)] * 4, (2, 2), "cube")
    weights = {name: np.zeros(shape, np.float32) for name, shape in weight_shapes(TINY).items()}
    save_model(folder / "model", Model(TINY, weights, {}))
    shutil.copytree(folder / "model", folder / "no_weights")
    (folder / "no_weights/weights.h5").unlink()
    return folder


SEGMENT = "segment --image {m}/raw.h5:raw --model {m}/model --out {o}/out.zarr"
TRAIN = "train --records {m}/records --volume cube={m}/raw.h5:raw,{m}/labels.h5:labels --num-workers 1 --out {o}/model"
SMALL = " --depth 1 --features 2 --fov-size 3 5 5 --deltas 1 1 1 --permutable-axes y"
AGGLOMERATE = "agglomerate --segmentation {m}/labels.h5:labels --image {m}/raw.h5:raw --model {m}/model --out {o}/g.csv"

# What reads a file or options by itself is tested with it, in tests/unit: here are stages that put things together.
CASES = {
    "truncated file": ("membrane --image {m}/truncated.h5:raw --out {o}/membrane.zarr", "truncated.h5"),
    "other number of processes": (TRAIN.replace("--num-workers 1", "--num-workers 2") + SMALL, "2"),
    "model where a file is": (TRAIN.replace("{o}/model", "{m}/raw.h5/model") + SMALL, "raw.h5/model: "),
    "model of others": (TRAIN.replace("{o}/model", "{m}/model") + SMALL, "/model: holds .model.yaml."),
    "no weights": (SEGMENT.replace("{m}/model", "{m}/no_weights"), "no_weights/weights.h5: "),
    "segmentation without overlaps": (AGGLOMERATE + " --window-radius 3 4 4", "'overlaps'"),
    "size of a job for one file": (AGGLOMERATE + " --job-size 9 9 9", "g.csv .*--job-size"),
    "window in which nothing can move": (AGGLOMERATE + " --window-radius 3 2 4", "window.radius.*2 on axis y"),
    "image that does not cover the segmentation": (
        AGGLOMERATE.replace("{m}/labels.h5:labels", "{m}/far.h5:labels") + " --window-radius 3 4 4",
        "raw.h5:raw: .*0:12.* 100:112",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input(case, material, tmp_path, capfd):
    arguments, message = CASES[case]
    try:
        code = main(arguments.format(m=material, o=tmp_path).split())
    except SystemExit as stop:  # argparse ends the program itself
        code = stop.code
    errors = capfd.readouterr().err
    complaint = [line for line in errors.splitlines() if "error:" in line]
    assert code == 2
    assert len(complaint) == 1 and re.search(message, complaint[0]), errors
    assert "Traceback" not in errors
    files = [path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock"]
    assert [path for path in files if ".jobs" not in str(path)] == [], "but logs, from which the same command resumes"
