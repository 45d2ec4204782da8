"""Stages meet bad input: one line that says what is wrong, exit code 2, no traceback, no output left.

Those of `ffn evaluate` are in tests/unit/evaluation/test_evaluate.py.
"""

from __future__ import annotations

import gzip
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

from ..volumes import write_volume

BOX = Box((0, 0, 0), (12, 20, 24))
TINY = ModelConfig(depth=1, features=2, fov_size_zyx=(3, 5, 5), deltas_zyx=(1, 1, 1), image_mean=128, image_stddev=33)


def save(path, voxels, box=BOX):
    write_volume(path, voxels, Placement(box, (10, 10, 20)))


@pytest.fixture(scope="module")
def material(tmp_path_factory):
    """Good inputs of every kind, and damaged copies of them."""
    folder = tmp_path_factory.mktemp("material")
    rng = np.random.default_rng(0)
    save(folder / "raw.h5:raw", rng.integers(0, 255, BOX.shape).astype(np.uint8))
    save(folder / "labels.h5:labels", np.ones(BOX.shape, np.uint64))
    save(folder / "far.h5:labels", np.ones(BOX.shape, np.uint64), BOX.shift((100, 0, 0)))
    save(folder / "empty.h5:labels", np.zeros(BOX.shape, np.uint64))
    (folder / "truncated.h5").write_bytes((folder / "raw.h5").read_bytes()[:900])
    (folder / "text.h5").write_text("no HDF5")
    (folder / "nothing").mkdir()

    weights = {name: np.zeros(shape, np.float32) for name, shape in weight_shapes(TINY).items()}
    save_model(folder / "model", Model(TINY, weights, {}))
    for name in ("no_weights", "short_weights"):
        shutil.copytree(folder / "model", folder / name)
    (folder / "no_weights/weights.h5").unlink()
    whole = (folder / "short_weights/weights.h5").read_bytes()
    (folder / "short_weights/weights.h5").write_bytes(whole[: len(whole) // 2])

    for command in (
        "partition --labels {m}/labels.h5:labels --lom-radius 2 3 3 --min-label-um3 1e-06 --out {m}/partitions.zarr",
        "coordinates --partitions {m}/partitions.zarr --margin 2 3 3 --out {m}/coordinates.h5",
        "records --coordinates cube={m}/coordinates.h5 --num-shards 2 --max-records 50 --out {m}/records",
    ):
        assert main(command.format(m=folder).split()) == 0
    for name in ("records_flipped", "records_missing", "records_no_index"):
        shutil.copytree(folder / "records", folder / name)
    shard = "coordinates-00001-of-00002.tfrecord.gz"
    raw = bytearray(gzip.decompress((folder / "records" / shard).read_bytes()))
    raw[40] ^= 1
    (folder / "records_flipped" / shard).write_bytes(gzip.compress(bytes(raw)))
    (folder / "records_missing" / shard).unlink()
    (folder / "records_no_index/index.json").unlink()
    return folder


SEGMENT = "segment --image {m}/raw.h5:raw --model {m}/model --out {o}/out.zarr"
PARTITION = "partition --labels {m}/labels.h5:labels --out {o}/out.zarr"
TRAIN = "train --records {m}/records --volume cube={m}/raw.h5:raw,{m}/labels.h5:labels --num-workers 1 --out {o}/model"
SMALL = " --depth 1 --features 2 --fov-size 3 5 5 --deltas 1 1 1 --permutable-axes y"
AGGLOMERATE = "agglomerate --segmentation {m}/labels.h5:labels --image {m}/raw.h5:raw --model {m}/model --out {o}/g.csv"
MERGE = "merge {m}/graph.csv --segmentation {m}/labels.h5:labels --out {o}/merged.zarr"

# What reads a file or options by itself is tested with it, in tests/unit: here are stages that put things together.
CASES = {
    "nothing to ingest": ("ingest {m}/nothing --voxel-size 10 10 10 --out {o}/raw.zarr", "nothing"),
    "missing dataset": ("membrane --image {m}/raw.h5:image --out {o}/membrane.zarr", "'image'"),
    "truncated file": ("membrane --image {m}/truncated.h5:raw --out {o}/membrane.zarr", "truncated.h5"),
    "malformed box": (PARTITION + " --box 0:4,0:4", "0:4,0:4"),
    "box that leaves the volume": (SEGMENT + " --box 0:12,0:20,0:99", "0:12,0:20,0:99"),
    "box without a centre of a FOV": (SEGMENT + " --box 0:1,0:20,0:20 --no-mirror", "0:1,0:20,0:20"),
    "LOM larger than the volume": (PARTITION + " --lom-radius 9 9 9", "9"),
    "unknown command": ("segmentate", "'segmentate'"),
    "unknown option": (SEGMENT + " --speed 9", "--speed"),
    "nothing eligible": (
        "coordinates --partitions {m}/partitions.zarr --margin 6 9 9 --out {o}/c.h5",
        "margin",
    ),
    "flipped bit": (TRAIN.replace("/records", "/records_flipped") + SMALL, "coordinates-00001-of-00002"),
    "missing shard": (TRAIN.replace("/records", "/records_missing") + SMALL, "coordinates-00001-of-00002"),
    "missing index": (TRAIN.replace("/records", "/records_no_index") + SMALL, "index.json"),
    "volume without records": (TRAIN.replace("cube=", "ball=") + SMALL, "cube"),
    "other number of processes": (TRAIN.replace("--num-workers 1", "--num-workers 2") + SMALL, "2"),
    "validation without an object": (
        TRAIN + SMALL + " --validate e={m}/raw.h5:raw,{m}/empty.h5:labels,0:12,0:20,0:24",
        "--validate: ",
    ),
    "best weights without validation": (TRAIN + SMALL + " --use-best", "use_best: "),
    "initial weights that are records": (TRAIN + " --init {m}/records", "records/model.yaml: "),
    "initial weights of another network": (TRAIN + " --init {m}/model --features 9", "--features: .* 9"),
    "labels elsewhere": (TRAIN.replace("{m}/labels", "{m}/far") + SMALL, "far.h5:labels: .* 100:112"),
    "more workers than records": (TRAIN + SMALL + " --virtual-workers 1000000", "num_workers"),
    "model where a file is": (TRAIN.replace("{o}/model", "{m}/raw.h5/model") + SMALL, "raw.h5/model: "),
    "no weights": (SEGMENT.replace("{m}/model", "{m}/no_weights"), "no_weights/weights.h5: "),
    "truncated weights": (SEGMENT.replace("{m}/model", "{m}/short_weights"), "short_weights/weights.h5"),
    "no checkpoint": ("import-checkpoint {m}/model.ckpt --out {o}/model", "model.ckpt.index: "),
    "segmentation without overlaps": (AGGLOMERATE + " --window-radius 3 4 4", "'overlaps'"),
    "size of a job for one file": (AGGLOMERATE + " --job-size 9 9 9", "g.csv .*--job-size"),
    "window in which nothing can move": (AGGLOMERATE + " --window-radius 3 2 4", "window.radius.*2 on axis y"),
    "image that does not cover the segmentation": (
        AGGLOMERATE.replace("{m}/labels.h5:labels", "{m}/far.h5:labels") + " --window-radius 3 4 4",
        "raw.h5:raw: .*0:12.* 100:112",
    ),
    "graph that is none": (MERGE.replace("{m}/graph.csv", "{m}/text.h5"), "text.h5: "),
    "consensus of two places": (
        "consensus {m}/labels.h5:labels {m}/far.h5:labels --out {o}/c.zarr",
        "far.h5:labels: .*100:112",
    ),
    "points that are none": (SEGMENT + " --seed-points {m}/text.h5", "text.h5"),
    "mask that is elsewhere": (SEGMENT + " --masks {m}/far.h5:labels", "masks: .*100:112"),
    "nothing to view": ("view {m}/nothing --no-open", "nothing"),
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
