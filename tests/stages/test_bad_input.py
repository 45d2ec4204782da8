"""Stages meet bad input: one line that says what is wrong, exit code 2, no traceback, no output left.

Those of `ffn evaluate` are in tests/unit/evaluation/test_evaluate.py.
"""

from __future__ import annotations

import gzip
import re
import shutil

import numpy as np
import pytest
from PIL import Image

from ffn.cli import main
from ffn.config import ModelConfig
from ffn.geometry import Box
from ffn.io.volume import Placement
from ffn.model.network import weight_shapes
from ffn.model.store import Model, save_model

from ..volumes import create_volume

BOX = Box((0, 0, 0), (12, 20, 24))
TINY = ModelConfig(depth=1, features=2, fov_size_zyx=(3, 5, 5), deltas_zyx=(1, 1, 1), image_mean=128, image_stddev=33)


def save(path, voxels, box=BOX):
    with create_volume(str(path), voxels.dtype, Placement(box, (10, 10, 20))) as writer:
        writer.write(box, voxels)


def slices(folder, names, shape=(20, 24), mode="L"):
    folder.mkdir()
    for name in names:
        Image.fromarray(np.full((*shape, 3) if mode == "RGB" else shape, 120, np.uint8), mode=None).save(folder / name)


@pytest.fixture(scope="module")
def material(tmp_path_factory):
    """Good inputs of every kind, and damaged copies of them."""
    folder = tmp_path_factory.mktemp("material")
    rng = np.random.default_rng(0)
    save(folder / "raw.h5:raw", rng.integers(0, 255, BOX.shape).astype(np.uint8))
    save(folder / "float.h5:raw", rng.random(BOX.shape).astype(np.float32))
    save(folder / "labels.h5:labels", np.ones(BOX.shape, np.uint64))
    save(folder / "far.h5:labels", np.ones(BOX.shape, np.uint64), BOX.shift((100, 0, 0)))
    save(folder / "empty.h5:labels", np.zeros(BOX.shape, np.uint64))
    (folder / "truncated.h5").write_bytes((folder / "raw.h5").read_bytes()[:900])
    (folder / "text.h5").write_text("no HDF5")

    slices(folder / "stack", ["s1.png", "s2.png", "s3.png"])
    slices(folder / "gap", ["s1.png", "s2.png", "s4.png"])
    slices(folder / "colour", ["s1.png", "s2.png"], mode="RGB")
    slices(folder / "unequal", ["s1.png", "s2.png"])
    Image.fromarray(np.zeros((20, 25), np.uint8)).save(folder / "unequal/s3.png")
    slices(folder / "broken", ["s1.png", "s2.png"])
    (folder / "broken/s2.png").write_bytes((folder / "broken/s2.png").read_bytes()[:40])
    (folder / "nothing").mkdir()

    weights = {name: np.zeros(shape, np.float32) for name, shape in weight_shapes(TINY).items()}
    save_model(folder / "model", Model(TINY, weights, {}))
    for name in ("no_weights", "other_weights", "bad_yaml", "even_fov", "short_weights"):
        shutil.copytree(folder / "model", folder / name)
    (folder / "no_weights/weights.h5").unlink()
    changed = {name: array + 1 for name, array in weights.items()}
    save_model(folder / "changed", Model(TINY, changed, {}))
    shutil.copy(folder / "changed/weights.h5", folder / "other_weights/weights.h5")
    (folder / "bad_yaml/model.yaml").write_text("model: [")
    text = (folder / "model/model.yaml").read_text()
    (folder / "even_fov/model.yaml").write_text(text.replace("- 3\n", "- 4\n", 1))
    whole = (folder / "short_weights/weights.h5").read_bytes()
    (folder / "short_weights/weights.h5").write_bytes(whole[: len(whole) // 2])

    for command in (
        "partition --labels {m}/labels.h5:labels --lom-radius 2 3 3 --min-size 1 --out {m}/partitions.h5:partitions",
        "coordinates --partitions {m}/partitions.h5:partitions --margin 2 3 3 --out {m}/coordinates.h5",
        "records --coordinates cube={m}/coordinates.h5 --num-shards 2 --max-records 50 --processes 1 --out {m}/records",
    ):
        assert main(command.format(m=folder).split()) == 0
    for name in ("records_flipped", "records_short", "records_missing", "records_no_index"):
        shutil.copytree(folder / "records", folder / name)
    shard = "coordinates-00001-of-00002.tfrecord.gz"
    raw = bytearray(gzip.decompress((folder / "records" / shard).read_bytes()))
    raw[40] ^= 1
    (folder / "records_flipped" / shard).write_bytes(gzip.compress(bytes(raw)))
    (folder / "records_short" / shard).write_bytes((folder / "records" / shard).read_bytes()[:60])
    (folder / "records_missing" / shard).unlink()
    (folder / "records_no_index/index.json").unlink()
    return folder


SEGMENT = "segment --image {m}/raw.h5:raw --model {m}/model --out {o}/out.h5:segmentation"
PARTITION = "partition --labels {m}/labels.h5:labels --out {o}/out.h5:partitions"
RECORDS = "records --coordinates a={m}/coordinates.h5 --out {o}/records"
TRAIN = "train --records {m}/records --volume cube={m}/raw.h5:raw,{m}/labels.h5:labels --num-workers 1 --out {o}/model"
SMALL = " --depth 1 --features 2 --fov-size 3 5 5 --deltas 1 1 1 --permutable-axes y"
VALIDATED = TRAIN + SMALL + " --validate cube={m}/raw.h5:raw,{m}/labels.h5:labels,0:12,0:20,0:24"

AGGLOMERATE = "agglomerate --segmentation {m}/labels.h5:labels --image {m}/raw.h5:raw --model {m}/model --out {o}/g.csv"
MERGE = "merge {m}/graph.csv --segmentation {m}/labels.h5:labels --out {o}/merged.h5:segmentation"

CASES = {
    # ingest
    "missing source": ("ingest {m}/nowhere --voxel-size 10 10 10 --out {o}/raw.h5:raw", "nowhere"),
    "empty folder": ("ingest {m}/nothing --voxel-size 10 10 10 --out {o}/raw.h5:raw", "nothing"),
    "gap in the numbering": ("ingest {m}/gap --voxel-size 10 10 10 --out {o}/raw.h5:raw", "s[24].png"),
    "colour slices": ("ingest {m}/colour --voxel-size 10 10 10 --out {o}/raw.h5:raw", "s1.png"),
    "slices of unequal size": ("ingest {m}/unequal --voxel-size 10 10 10 --out {o}/raw.h5:raw", "s3.png"),
    "truncated slice": ("ingest {m}/broken --voxel-size 10 10 10 --out {o}/raw.h5:raw", "s2.png"),
    "no voxel size": ("ingest {m}/stack --out {o}/raw.h5:raw", "voxel-size"),
    "voxel size of zero": (
        "ingest {m}/stack --voxel-size 0 10 10 --out {o}/raw.h5:raw",
        "voxel-size.*greater than 0",
    ),
    "output without dataset": ("ingest {m}/stack --voxel-size 10 10 10 --out {o}/raw.h5", "DATASET"),
    "box outside": (
        "ingest {m}/stack --voxel-size 10 10 10 --box 0:9,0:5,0:5 --out {o}/raw.h5:raw",
        "0:9,0:5,0:5",
    ),
    # volumes
    "missing file": ("membrane --image {m}/nowhere.h5:raw --out {o}/membrane.h5", "nowhere.h5: no such file"),
    "missing dataset": (
        "membrane --image {m}/raw.h5:image --out {o}/membrane.h5",
        "expected dataset 'image', found .'raw'",
    ),
    "truncated file": ("membrane --image {m}/truncated.h5:raw --out {o}/membrane.h5", "truncated.h5"),
    "not HDF5": ("membrane --image {m}/text.h5:raw --out {o}/membrane.h5", "text.h5: cannot be read as HDF5"),
    "labels that are no integers": (
        "partition --labels {m}/float.h5:raw --out {o}/out.h5:partitions",
        "float32",
    ),
    # boxes
    "malformed box": (PARTITION + " --box 0:4,0:4", "'0:4,0:4' is not a box"),
    "empty box": (PARTITION + " --box 4:4,0:4,0:4", "4:4,0:4,0:4"),
    "box that leaves the volume": (SEGMENT + " --box 0:12,0:20,0:99", "0:12,0:20,0:99"),
    "box smaller than the FOV": (SEGMENT + " --box 0:2,0:20,0:20", "smaller than one FOV"),
    "LOM larger than the volume": (PARTITION + " --lom-radius 9 9 9", "9"),
    # options
    "unknown command": ("segmentate", "invalid choice: 'segmentate'"),
    "unknown option": (SEGMENT + " --speed 9", "--speed"),
    "threshold above 1": (SEGMENT + " --move-threshold 1.5", "--move-threshold: found '1.5'"),
    "engine that does not exist": (SEGMENT + " --engine onnx", "--engine: found 'onnx'"),
    "two numbers of three": (PARTITION + " --lom-radius 2 3", "--lom-radius"),
    "thresholds in disorder": (PARTITION + " --thresholds 0.5 0.1", "ascending"),
    # records
    "coordinates missing": ("records --coordinates a={m}/nowhere.h5 --out {o}/records", "nowhere.h5"),
    "no shards": (RECORDS + " --num-shards 0", "--num-shards: found '0'"),
    "syntax of a weight": (RECORDS + " --weight 2", "--weight: found '2', expected NAME=WEIGHT"),
    "nothing eligible": (
        "coordinates --partitions {m}/partitions.h5:partitions --margin 6 9 9 --out {o}/c.h5",
        "margin",
    ),
    "flipped bit": (TRAIN.replace("/records", "/records_flipped") + SMALL, "coordinates-00001-of-00002"),
    "truncated shard": (TRAIN.replace("/records", "/records_short") + SMALL, "coordinates-00001-of-00002"),
    "missing shard": (TRAIN.replace("/records", "/records_missing") + SMALL, "coordinates-00001-of-00002"),
    "missing index": (TRAIN.replace("/records", "/records_no_index") + SMALL, "index.json"),
    # train
    "volume without records": (TRAIN.replace("cube=", "ball=") + SMALL, "cube"),
    "other number of processes": (TRAIN.replace("--num-workers 1", "--num-workers 2") + SMALL, "2"),
    "even FOV": (TRAIN + " --fov-size 33 32 33", "32 on axis y is even"),
    "deltas of half the FOV": (
        TRAIN + " --fov-size 9 9 9 --deltas 4 5 4",
        "5 on axis y is not less than half",
    ),
    "syntax of a validation": (TRAIN + SMALL + " --validate cube={m}/raw.h5:raw,{m}/labels.h5:labels", "NAME=IMAGE,"),
    "validation without an object": (
        TRAIN + SMALL + " --validate e={m}/raw.h5:raw,{m}/empty.h5:labels,0:12,0:20,0:24",
        "--validate: no patch .* is centred on an object",
    ),
    "best weights without validation": (TRAIN + SMALL + " --use-best", "use_best: found true without a validation"),
    "best weights, never validated": (VALIDATED + " --use-best --validation-steps 0", "without a validation"),
    "initial weights that are records": (TRAIN + " --init {m}/records", "records/model.yaml: no such file"),
    "initial weights of another network": (
        TRAIN + " --init {m}/model --features 9",
        "--features: found 9, expected",
    ),
    "moves that the policy does not make": (
        TRAIN + " --fov-moves 2",
        "fov_moves: found 2, expected 1 for fov_policy fixed",
    ),
    "moves that leave the volume": (
        TRAIN + SMALL + " --fov-policy max_pred --fov-moves 3",
        "leaves the volume .* margin of .5, 6, 6. or more",
    ),
    "labels elsewhere": (TRAIN.replace("{m}/labels", "{m}/far") + SMALL, "far.h5:labels: the labels cover 100:112"),
    "more workers than records": (TRAIN + SMALL + " --virtual-workers 1000000", "expected at least num_workers"),
    "levels beyond a byte": (TRAIN + " --qsgd-levels 128", "--qsgd-levels: found '128'"),
    "rate that is no number": (TRAIN + " --learning-rate nan", "--learning-rate: found 'nan', .* finite"),
    "axis that does not exist": (TRAIN + " --permutable-axes y w", "--permutable-axes: found 'w'"),
    "model where a file is": (
        TRAIN.replace("{o}/model", "{m}/raw.h5/model") + SMALL,
        "raw.h5/model: cannot be locked .*Not a directory",
    ),
    # model
    "no model": (SEGMENT.replace("{m}/model", "{m}/nothing"), "model.yaml: no such file"),
    "no weights": (SEGMENT.replace("{m}/model", "{m}/no_weights"), "weights.h5: no such file"),
    "weights of another model": (SEGMENT.replace("{m}/model", "{m}/other_weights"), "checksum differs"),
    "truncated weights": (SEGMENT.replace("{m}/model", "{m}/short_weights"), "short_weights/weights.h5"),
    "model.yaml is no YAML": (
        SEGMENT.replace("{m}/model", "{m}/bad_yaml"),
        "bad_yaml/model.yaml: is not YAML",
    ),
    "model with an even FOV": (SEGMENT.replace("{m}/model", "{m}/even_fov"), "4 on axis z is even"),
    "no checkpoint": ("import-checkpoint {m}/model.ckpt --out {o}/model", "model.ckpt.index: no such file"),
    # assembly, viewing
    "subvolume that is no segmentation": (
        "reconcile {m}/float.h5:raw --out {o}/out.h5:segmentation",
        "float32",
    ),
    "segmentation without overlaps": (AGGLOMERATE + " --window-radius 3 4 4", "has no table 'overlaps'"),
    "size of a job that is 0": (AGGLOMERATE + " --job-size 0 9 9", "--job-size: found '0'"),
    "size of a job for one file": (AGGLOMERATE + " --job-size 9 9 9", "g.csv is a file, --job-size and --job need"),
    "window in which nothing can move": (AGGLOMERATE + " --window-radius 3 2 4", "window.radius.*2 on axis y"),
    "image that does not cover the segmentation": (
        AGGLOMERATE.replace("{m}/labels.h5:labels", "{m}/far.h5:labels") + " --window-radius 3 4 4",
        "raw.h5:raw: covers 0:12.* expected all of the segmentation 100:112",
    ),
    "graph that is none": (MERGE.replace("{m}/graph.csv", "{m}/text.h5"), "text.h5: starts with 'no HDF5'"),
    "graph that is missing": (MERGE.replace("{m}/graph.csv", "{m}/nowhere.csv"), "nowhere.csv: no such file"),
    "threshold of a merge above 1": (MERGE + " --threshold 2", "--threshold: found '2'"),
    "consensus of two places": (
        "consensus {m}/labels.h5:labels {m}/far.h5:labels --out {o}/c.h5:segmentation",
        "far.h5:labels: covers 100:112",
    ),
    "points that are none": (
        SEGMENT + " --seed-policy points --seed-points {m}/text.h5",
        "text.h5",
    ),
    "points without the policy": (SEGMENT + " --seed-points 1,2,3", "seed_policy|seed-policy"),
    "mask that is elsewhere": (SEGMENT + " --masks {m}/far.h5:labels", "the mask covers 100:112"),
    "nothing to view": ("view {m}/nothing --no-open", "nothing"),
    "nothing to describe": ("info {m}/nowhere", "nowhere"),
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
    left = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock"]
    assert left == []
