"""What a run makes of which volume."""

import itertools
import json
import math
import os
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ffn.assembly.given import corrections_text
from ffn.config import ModelConfig
from ffn.io.store_names import tracked_file
from ffn.model.store import save_model
from ffn.model.tissue import Tissue
from ffn.options import flags
from ffn.training.plan import parse_masks
from ffn.workflow import arguments

from .runs import RUN, RUN_SHAPE, Wildcards, pipeline, random_model

MODEL = RUN["model"]


@pytest.mark.parametrize(("size", "is_told"), [((10, 10, 10), False), ((40, 40, 40), True), ((30, 4, 4), True)])
@pytest.mark.parametrize("trains", [True, False])
def test_voxels_that_the_network_was_not_trained_on_are_told(tmp_path, size, is_told, trains):
    config = ModelConfig(**MODEL, image_mean=100, image_stddev=20)
    model = replace(random_model(features=8), config=config, trained_on=Tissue(((10.0, 10.0, 10.0),)))
    save_model(tmp_path / "m", model)
    second = {"synthetic": {"shape_zyx": RUN_SHAPE, "voxel_size_zyx_nm": size}}
    volumes = {**RUN["volumes"], "second": {**RUN["volumes"]["second"], **second}}
    start = {} if trains else {"init": f"{tmp_path}/m", "train": {"max_steps": 0}}
    assert any("volumes.second: " in line for line in pipeline(volumes=volumes, **start).warnings) == is_told


def test_filling_needs_memory_and_time_for_what_is_around_a_tile():
    """With 100 nm, a tile of 256³ with its halo has 2.0 times as many voxels at 8 nm, and 3.6 times at 4 nm."""
    fill = {"max_distance_nm": 5, "sigma_nm": 0, "block_size_zyx": [8, 16, 999]}
    made = pipeline(fill=fill)
    z, y, _ = made.places["first"].voxel_size_zyx_nm
    outer = 8 + 2 * math.ceil(80 / z), 16 + 2 * math.ceil(80 / y), RUN_SHAPE[2]
    found = made.jobs.spec("fill", Wildcards(volume="first"))
    assert found.at_once == math.prod(outer) < math.prod(RUN_SHAPE)
    assert found.voxels == math.prod(RUN_SHAPE) * math.prod(outer) // (8 * 16 * RUN_SHAPE[2])


def test_training_gets_the_masks_of_the_volumes_that_it_reads(tmp_path):
    mask = tmp_path / "a mask.npy"
    np.save(mask, np.zeros(RUN_SHAPE, np.uint8))
    masks = [{"path": str(mask), "invert": True}, {"box": "0:9,0:9,0:9"}]
    volumes = {name: {**RUN["volumes"][name], "masks": masks[:count]} for name, count in (("first", 2), ("second", 1))}
    made = pipeline(volumes=volumes)
    words = shlex.split(arguments.training_volumes(made))
    given = [after for word, after in itertools.pairwise(words) if word == "--masks"]
    assert parse_masks(given) == {"first": made.run.volumes["first"].masks}
    assert made.mask_files(made.learnt_from) == [str(mask)]


def test_the_weights_that_training_starts_from_compete_as_step_0(tmp_path):
    (tmp_path / "published.index").touch()
    train = {"max_steps": 120, "checkpoint_steps": 40, "permutable_axes": []}
    select = {"checkpoints": 1, "volume": "second", "box": "0:40,0:56,0:72"}
    made = pipeline(init=str(tmp_path / "published"), train=train, select=select)
    files, text = arguments.checkpoint(made)
    models = {step: (files(Wildcards(step=step)), text(Wildcards(step=step))) for step in made.steps}
    assert models == {
        "00000000": (["results/small/initial/model.yaml"], "results/small/initial --trained results/small/model"),
        "00000120": ([], "results/small/model/checkpoints/step-00000120"),
    }


def test_without_training_the_initial_model_segments(tmp_path):
    (tmp_path / "published.index").touch()
    model = {**MODEL, "image_mean": 128, "image_stddev": 33}
    made = pipeline(init=str(tmp_path / "published"), train={"max_steps": 0, "permutable_axes": []}, model=model)
    assert made.imported == [str(tmp_path / "published")] and made.models.imported_files == [
        f"{tmp_path}/published.index"
    ]
    assert made.models.used == made.models.trained == made.models.initial == "results/small/initial"
    assert made.trained == made.targets("train") == []


def test_initial_weights_bring_the_network_that_memory_and_time_follow_from(tmp_path):
    save_model(tmp_path / "model", random_model(depth=4, features=5))
    model = {name: MODEL[name] for name in ("fov_size_zyx", "deltas_zyx")}
    costed = pipeline(init=str(tmp_path / "model"), model=model).models.costed
    assert (costed.model.depth, costed.model.features, costed.flooding_model.features) == (4, 5, 5)


def test_fine_tuning_gets_what_the_configuration_says(tmp_path):
    def flags_of(**sections):
        (tmp_path / "published.index").touch()
        made = pipeline(init=str(tmp_path / "published"), **sections)
        return made.models.flags, flags(made.run.train, defaults=made.models.train_defaults)

    fov = "--fov-size 9 11 13 --deltas 2 3 3"
    model, train = flags_of()
    assert model == f"--depth 2 --features 8 {fov}" and train == "--permutable-axes"
    bare = {name: MODEL[name] for name in ("fov_size_zyx", "deltas_zyx")}
    given = {"learning_rate": 0.001, "warmup_steps": 0, "use_best": False, "permutable_axes": []}
    model, train = flags_of(model={**bare, "depth": 9, "image_mean": 128}, train=given)
    assert model == f"--depth 9 {fov} --image-mean 128.0"
    assert train == "--learning-rate 0.001 --warmup-steps 0 --permutable-axes --no-use-best"


def test_a_validation_box_that_was_cut_is_mentioned(tmp_path):
    (tmp_path / "published.index").touch()
    made = pipeline(init=str(tmp_path / "published"))
    assert made.validated == ["first"] and made.trained == ["first"]
    (warning,) = made.warnings
    assert all(said in warning for said in ("volumes.first", "0:40,0:56,56:72", "0:40,0:56,0:56"))


@pytest.mark.parametrize("box", ["0:64,0:56,0:72", "40:64,0:56,0:72"])
def test_scores_on_training_data_are_warned_of(box):
    volume = {**RUN["volumes"]["first"], "evaluate_box": box}
    warnings = pipeline(volumes={"first": volume}).warnings
    assert [warning.partition(":")[0] for warning in warnings] == (["volumes.first"] if box.startswith("0") else [])


def test_scores_on_what_another_volume_of_the_image_trains_on_are_warned_of(tmp_path):
    for name, dtype in (("raw", np.uint8), ("labels", np.uint32)):
        np.save(tmp_path / f"{name}.npy", np.ones((64, 56, 72), dtype))
    files = {"image": f"{tmp_path}/raw.npy", "labels": f"{tmp_path}/labels.npy", "voxel_size_zyx_nm": [10, 10, 10]}
    first = {**files, "train_box": "0:40,0:56,0:72", "segment_box": "none", "labels_offset_zyx": [0, 0, 0]}
    second = {**first, "train_box": "none", "segment_box": "all"}
    (warning,) = pipeline(volumes={"first": first, "second": second}).warnings
    assert warning.startswith("volumes.second: ") and "volumes.first" in warning
    assert not pipeline(volumes={"first": first, "second": {**second, "evaluate_box": "40:64,0:56,0:72"}}).warnings


@pytest.mark.parametrize("image", ["slices", "slices/*.png", "raw.npy"])
def test_sources_that_have_changed_since_are_noticed(tmp_path, monkeypatch, image):
    monkeypatch.chdir(tmp_path)
    Path("slices").mkdir()
    for z in range(20):
        Image.fromarray(np.full((24, 32), z, np.uint8)).save(f"slices/{z}.png")
    np.save("raw.npy", np.zeros((20, 24, 32), np.uint8))
    np.save("labels.npy", np.ones((20, 24, 32), np.uint32))
    volume = {"image": image, "labels": "labels.npy", "voxel_size_zyx_nm": [30, 8, 8], "train_box": "none"}
    published = {"init": "published", "train": {"max_steps": 0, "permutable_axes": []}}
    Path("published.index").touch()
    made = pipeline(volumes={"cube": volume}, model={**MODEL, "image_mean": 128, "image_stddev": 33}, **published)
    assert not made.warnings
    for key in ("image", "labels"):
        file = Path(tracked_file(made.paths.of("ingest", key, volume="cube")))
        file.parent.mkdir(parents=True)
        file.touch()
    assert not made.warnings
    while os.stat("labels.npy").st_ctime <= file.stat().st_ctime:  # of a clock that ticks every few ms
        os.utime("labels.npy", (0, 0))  # as an older file that takes its place
    assert [warning.partition(": ")[0] for warning in made.warnings] == ["volumes.cube.labels"]
    os.utime("raw.npy" if image == "raw.npy" else "slices/7.png", (2**32, 2**32))
    assert [warning.rpartition(" ")[2] for warning in made.warnings] == ["ingest", "ingest_labels"]


def test_corrections_that_a_run_would_undo_are_warned_of(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    applied = Path(pipeline().paths.corrections("first"))
    applied.parent.mkdir(parents=True)
    applied.write_text(corrections_text([]))
    merged = Path(tracked_file(pipeline().paths.of("merge", volume="first")))
    merged.parent.mkdir(parents=True)
    merged.write_text("{}")
    assert not pipeline(agglomerate={"enabled": True}).warnings  # ffn correct -n has applied nothing
    merged.write_text(json.dumps({"inputs": {"corrections": str(applied)}}))
    (warning,) = pipeline(agglomerate={"enabled": True}).warnings
    assert warning.startswith("volumes.first.corrections: ") and str(applied) in warning
    volumes = {**RUN["volumes"], "first": {**RUN["volumes"]["first"], "corrections": str(applied)}}
    assert not pipeline(agglomerate={"enabled": True}, volumes=volumes).warnings
