"""What a run makes of which volume."""

import copy
import itertools
import math
import os
import shlex
from pathlib import Path

import numpy as np
import pytest
import zarr
from PIL import Image

from ffn.config import ModelConfig
from ffn.errors import ConfigError
from ffn.io.store_names import tracked_file
from ffn.model.network import weight_shapes
from ffn.model.store import Model, save_model
from ffn.model.tissue import Tissue
from ffn.options import flags
from ffn.training.plan import parse_masks
from ffn.workflow import arguments
from ffn.workflow.pipeline import Pipeline
from ffn.workflow.places import check_sources
from ffn.workflow.resources import resources_of
from ffn.workflow.run import load_run

MODEL = {"depth": 2, "features": 8, "fov_size_zyx": [9, 11, 13], "deltas_zyx": [2, 3, 3]}
SHAPE = [64, 56, 72]
RUN = {
    "run": "small",
    "volumes": {
        "first": {"synthetic": {"shape_zyx": SHAPE}, "train_box": "0:40,0:56,0:72", "evaluate_box": "40:64,0:56,0:72"},
        "second": {"synthetic": {"shape_zyx": SHAPE}, "train_box": "none", "evaluate_box": "none"},
    },
    "model": MODEL,
    "train": {"permutable_axes": []},
    "subvolumes": {"size_zyx": [64, 56, 48], "overlap_zyx": [14, 14, 14]},
}


class Wildcards(dict):
    """Wildcards as Snakemake gives them: attributes that can also be listed."""

    __getattr__ = dict.__getitem__


def pipeline(gpus=0, nodes=1, **sections):
    run = load_run({**RUN, **sections})
    return Pipeline(run, check_sources(run), gpus, nodes)


def test_volumes_are_sorted_by_what_is_made_of_them():
    made = pipeline()
    assert made.trained == made.evaluated == made.skeletonized == ["first"]
    assert made.synthetic == made.segmented == ["first", "second"]
    assert made.foreign == made.agglomerated == made.filled == made.swept == []


@pytest.mark.parametrize(("size", "is_told"), [((10, 10, 10), False), ((40, 40, 40), True), ((30, 4, 4), True)])
@pytest.mark.parametrize("trains", [True, False])
def test_voxels_that_the_network_was_not_trained_on_are_told(tmp_path, size, is_told, trains):
    config = ModelConfig(**MODEL, image_mean=100, image_stddev=20)
    weights = {name: np.zeros(shape, np.float32) for name, shape in weight_shapes(config).items()}
    save_model(tmp_path / "m", Model(config, weights, {}, trained_on=Tissue(((10.0, 10.0, 10.0),))))
    second = {"synthetic": {"shape_zyx": SHAPE, "voxel_size_zyx_nm": size}, "train_box": "none", "evaluate_box": "none"}
    volumes = {**RUN["volumes"], "second": second}
    start = {} if trains else {"init": f"{tmp_path}/m", "train": {"max_steps": 0}}
    assert any("volumes.second: " in line for line in pipeline(volumes=volumes, **start).warnings) == is_told


def test_filling_needs_memory_and_time_for_what_is_around_a_tile():
    """With 100 nm, a tile of 256³ with its halo has 2.0 times as many voxels at 8 nm, and 3.6 times at 4 nm."""
    fill = {"max_distance_nm": 5, "sigma_nm": 0, "block_size_zyx": [8, 16, 999]}
    made = pipeline(fill=fill)
    z, y, _ = made.places["first"].voxel_size_zyx_nm
    outer = 8 + 2 * math.ceil(80 / z), 16 + 2 * math.ceil(80 / y), SHAPE[2]
    found = made.jobs.spec("fill", Wildcards(volume="first"))
    assert found.at_once == math.prod(outer) < math.prod(SHAPE)
    assert found.voxels == math.prod(SHAPE) * math.prod(outer) // (8 * 16 * SHAPE[2])


def test_training_gets_the_masks_of_the_volumes_that_it_reads(tmp_path):
    mask = tmp_path / "a mask.npy"
    np.save(mask, np.zeros(SHAPE, np.uint8))
    masks = [{"path": str(mask), "invert": True}, {"box": "0:9,0:9,0:9"}]
    volumes = {name: {**RUN["volumes"][name], "masks": masks[:count]} for name, count in (("first", 2), ("second", 1))}
    made = pipeline(volumes=volumes)
    words = shlex.split(arguments.training_volumes(made))
    given = [after for word, after in itertools.pairwise(words) if word == "--masks"]
    assert parse_masks(given) == {"first": made.run.volumes["first"].masks}
    assert made.mask_files(made.learnt_from) == [str(mask)]


def test_targets_are_all_files_of_a_stage():
    made = pipeline(consensus={"enabled": True})
    folder = "results/small/segmentation"
    assert len(made.targets("segment")) == 2 * 2 * 2  # volumes, orders, subvolumes
    assert f"{folder}/second/subvolumes-reversed/z000000-y000000-x000024.zarr/zarr.json" in made.targets("segment")
    assert made.targets("consensus") == [
        f"{folder}/{volume}/consensus.zarr/zarr.json" for volume in ("first", "second")
    ]
    assert made.targets("records") == ["results/small/records/index.json"]
    assert made.targets("merge") == made.targets("select") == made.targets("ingest") == []


def test_the_weights_that_training_starts_from_compete_as_step_0(tmp_path, monkeypatch):
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
    monkeypatch.chdir(tmp_path)
    Path(made.paths.checkpoint("00000120")).mkdir(parents=True)
    made.models.check_checkpoints()  # training keeps no checkpoint of step 0


def test_checkpoints_that_training_did_not_keep_are_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    select = {"checkpoints": 3, "volume": "second", "box": "0:40,0:56,0:72"}
    made = pipeline(train={"max_steps": 120, "checkpoint_steps": 40, "permutable_axes": []}, select=select)
    for step in ("00000060", "00000120"):
        Path(made.paths.checkpoint(step)).mkdir(parents=True)
    candidate = Path(made.paths.of("select", "candidate", step="00000040"))
    candidate.parent.mkdir(parents=True)
    candidate.touch()
    with pytest.raises(ConfigError, match="step-00000080.*step-00000060, step-00000120"):
        made.models.check_checkpoints()
    Path(made.paths.checkpoint("00000080")).mkdir()
    made.models.check_checkpoints()


def test_without_training_the_initial_model_segments(tmp_path):
    (tmp_path / "published.index").touch()
    model = {**MODEL, "image_mean": 128, "image_stddev": 33}
    made = pipeline(init=str(tmp_path / "published"), train={"max_steps": 0, "permutable_axes": []}, model=model)
    assert made.imported == [str(tmp_path / "published")] and made.models.imported_files == [
        f"{tmp_path}/published.index"
    ]
    assert made.models.used == made.models.trained == made.models.initial == "results/small/initial"
    assert made.trained == made.targets("train") == []


@pytest.mark.parametrize("method", ["match", "training"])
def test_published_weights_record_a_reference_image_where_training_matches_to_it(method, tmp_path):
    (tmp_path / "published.index").touch()
    model, volumes = {**MODEL, "image_mean": 128, "image_stddev": 33}, copy.deepcopy(RUN["volumes"])
    for volume in volumes.values():
        volume["normalize"] = method
    np.save(tmp_path / "it is.npy", np.arange(8, dtype=np.uint8).reshape(2, 2, 2))
    reference = {"normalize": {"reference_image": f"{tmp_path}/it is.npy"}}
    made = pipeline(init=str(tmp_path / "published"), model=model, volumes=volumes, **reference)
    assert made.reference_of_initial == (f"{tmp_path}/it is.npy" if method == "match" else None)
    assert arguments.import_flags(made).endswith(
        f"--reference-image '{tmp_path}/it is.npy'" if method == "match" else "--image-stddev 33.0"
    )


def test_initial_weights_bring_the_network_that_memory_and_time_follow_from(tmp_path):
    own = ModelConfig(**{**MODEL, "depth": 4, "features": 5}, image_mean=0, image_stddev=1)
    weights = {name: np.zeros(shape, np.float32) for name, shape in weight_shapes(own).items()}
    save_model(tmp_path / "model", Model(own, weights, {}))
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
    later = file.stat().st_mtime + 60
    os.utime("labels.npy", (later, later))
    assert [warning.partition(": ")[0] for warning in made.warnings] == ["volumes.cube.labels"]
    os.utime("raw.npy" if image == "raw.npy" else "slices/7.png", (later, later))
    assert [warning.rpartition(" ")[2] for warning in made.warnings] == ["ingest", "ingest_labels"]


def test_more_boxes_than_jobs_go_to_lists():
    sections = {"agglomerate": {"enabled": True, "job_size_zyx": [64, 56, 9]}, "consensus": {"enabled": True}}
    made = pipeline(**sections, workflow={"max_jobs_per_stage": 3})
    folder = "results/small/agglomeration/second/graphs"
    assert made.watched("agglomerate", volume="second") == [f"{folder}.jobs/write/{n}-of-3.json" for n in (1, 2, 3)]
    assert len(made.files("agglomerate", volume="second")) == 8, "what the jobs make"
    assert made.watched("segment") == made.files("segment"), "two subvolumes, each a job"
    assert len(made.targets("agglomerate")) == 2 * 3
    lists = [Wildcards(volume="second", job=f"{number}-of-3") for number in (1, 2, 3)]
    listed = [made.jobs.spec("agglomerate_list", wildcards).voxels for wildcards in lists]
    assert [found // (64 * 56 * 9) for found in listed] == [2, 3, 3]
    made = pipeline(**sections, workflow={"max_jobs_per_stage": 1})
    (record,) = made.watched("segment", volume="second", order="-reversed")
    assert record == "results/small/segmentation/second/subvolumes-reversed.jobs/write/1-of-1.json"


def test_lists_have_a_subvolume_for_each_canvas():
    tiles = {"size_zyx": [64, 56, 20], "overlap_zyx": [14, 14, 14]}
    numbers = {}
    for canvases in ("auto", 1, 4, 64):
        made = pipeline(subvolumes=tiles, segment={"canvases": canvases})
        assert len(made.files("segment", volume="second")) == 10
        lists = [
            made.jobs.spec("segment_list", Wildcards(volume="second", job=j)) for j in made.jobs.of("segment", "second")
        ]
        numbers[canvases] = [spec.voxels // spec.at_once for spec in lists]
    assert numbers == {"auto": [], 1: [], 4: [5, 5], 64: [10]}
    made = pipeline(subvolumes=tiles, segment={"canvases": 4}, workflow={"max_jobs_per_stage": 1})
    assert made.jobs.of("segment", "second") == ["1-of-1"]


def test_lists_are_so_short_that_their_jobs_take_an_hour(tmp_path, monkeypatch):
    """Also on a machine without the GPUs that the run began with."""
    monkeypatch.chdir(tmp_path)

    def made(gpus=0):
        tiles = {"size_zyx": [200, 200, 200], "overlap_zyx": [50, 50, 50]}
        few = {"max_jobs_per_stage": 1, "max_hours_per_job": 1}
        sections = {"subvolumes": tiles, "workflow": few, "segment": {"canvases": 1}, "agglomerate": {"enabled": True}}
        return pipeline(gpus, volumes={"large": {"synthetic": {"shape_zyx": [600, 900, 1500]}}}, **sections)

    def asked(made, stage, job, threads):
        rule = f"{stage}_{'list' if stage in ('segment', 'agglomerate') else 'blocks'}"
        job = Wildcards(volume="large", order="", job=job, step_name="mip0" if stage == "export" else "write")
        return resources_of(made, rule)["runtime"](job, threads=threads, attempt=1)

    cpu, numbers = made(), {}
    for stage in ("segment", "agglomerate", "evaluate", "export"):
        jobs = cpu.jobs.of(stage, "large")
        numbers[stage] = len(jobs)
        assert 30 < asked(cpu, stage, jobs[-1], 1 if stage in ("evaluate", "export") else 8) <= 60
    assert min(numbers.values()) > 1
    on_gpus = made(gpus=1)
    assert len(on_gpus.jobs.of("segment", "large")) != numbers["segment"], "a FOV of a tiny network waits for the host"
    on_gpus.jobs.keep_plan()
    assert made().jobs.of("segment", "large") == on_gpus.jobs.of("segment", "large")


def test_lists_fill_gpus_and_a_run_keeps_to_what_it_began_with(tmp_path, monkeypatch):
    """Ten subvolumes in each of two volumes."""
    monkeypatch.chdir(tmp_path)
    tiles = {"size_zyx": [64, 56, 20], "overlap_zyx": [14, 14, 14]}

    def made(gpus, nodes=1, **segment):
        return pipeline(gpus, nodes, subvolumes=tiles, segment=segment)

    def lists(*arguments, **segment):
        return len(made(*arguments, **segment).jobs.of("segment", "second"))

    assert [lists(gpus) for gpus in (0, 1, 3, 6, 11)] == [0, 1, 1, 3, 0]
    assert lists(3, 2) == 3 and lists(3, 9) == 0 == lists(1, canvases=1) == lists(1, engine="openvino")
    assert len(pipeline(3, subvolumes=tiles, consensus={"enabled": True}).jobs.of("segment", "second")) == 1
    first = Path(made(0).files("segment", volume="second")[0])
    first.parent.mkdir(parents=True)
    first.touch()
    assert lists(6) == 0, "as it began: a job for each subvolume"
    first.unlink()
    begun = made(6, engine="jax")
    begun.jobs.keep_plan()
    assert [lists(gpus) for gpus in (0, 1, 3)] == [3, 3, 3]
    made(1, canvases=5).jobs.keep_plan()
    assert lists(3) == 2


def test_subvolumes_need_memory_for_what_is_mirrored_around_them():
    """The FOV has a radius of 4, 5 and 6 voxels; the subvolumes end with the image on all sides but one of x."""
    tiles = {"size_zyx": [64, 56, 48], "overlap_zyx": [14, 14, 14]}
    job = {"volume": "second", "subvolume": "z000000-y000000-x000000", "job": "1-of-1"}
    canvas, box = 72 * 66 * 54, 64 * 56 * 48
    made, cut = (pipeline(subvolumes=tiles, segment={"mirror": mirror}) for mirror in (True, False))
    assert [m.jobs.spec("segment", Wildcards(job)).voxels for m in (made, cut)] == [canvas, box]
    assert [m.jobs.spec("segment_list", Wildcards(job)).at_once for m in (made, cut)] == [canvas, box]


def test_subvolumes_need_memory_for_what_goes_on_around_the_box():
    """FOV radius and deltas are 4, 5, 6 and 2, 3, 3 voxels; the box ends inside the image in x alone, on both sides."""
    second = {**RUN["volumes"]["second"], "segment_box": "0:64,0:56,20:50"}
    made = pipeline(volumes={**RUN["volumes"], "second": second})
    job = {"volume": "second", "subvolume": "z000000-y000000-x000020"}
    assert made.jobs.spec("segment", Wildcards(job)).voxels == 72 * 66 * (30 + 2 * (6 + made.run.model.deltas_zyx[2]))


@pytest.mark.parametrize(("canvases", "gpus", "expected"), [(4, 0, 4), ("auto", 0, 1), ("auto", 2, 5)])
def test_a_list_has_as_many_canvases_as_the_machine_fills(canvases, gpus, expected):
    tiles = {"size_zyx": [64, 56, 20], "overlap_zyx": [14, 14, 14]}
    made = pipeline(gpus, subvolumes=tiles, segment={"canvases": canvases}, workflow={"max_jobs_per_stage": 2})
    assert made.jobs.spec("segment_list", Wildcards(volume="second", job="2-of-2")).canvases == expected


def test_the_blocks_of_a_large_volume_are_shared_among_jobs():
    """Shards of the distance to membranes have 512 x 256 x 256 voxels."""
    volumes = {"large": {"synthetic": {"shape_zyx": [600, 600, 600]}}, "small": RUN["volumes"]["first"]}
    made = pipeline(volumes=volumes, workflow={"max_jobs_per_stage": 7})
    assert made.jobs.of("membrane", "large") == [f"{number}-of-7" for number in range(1, 8)]
    (record, *_) = made.jobs.records("membrane", "large")
    assert record == "results/small/membrane/large.zarr.jobs/write/1-of-7.json"
    assert made.jobs.of("evaluate", "large") == [f"{number}-of-7" for number in range(1, 8)]
    assert made.jobs.records("evaluate", "large")[0] == "results/small/evaluation/large.json.jobs/write/1-of-7.json"
    assert made.jobs.of("membrane", "small") == made.jobs.of("evaluate", "small") == []
    assert len(pipeline(volumes=volumes).jobs.of("membrane", "large")) == 18
    assert len(pipeline(volumes=volumes).jobs.of("partition", "large")) == 8
    (record, *_) = made.jobs.records("partition", "large", step="sizes")
    assert record == "results/small/partitions/large.zarr.jobs/sizes/1-of-7.json"


def test_skeletons_need_memory_for_a_block():
    """Of 256 thinned voxels at most, 40 nm apart: 1300 voxels of 10 nm are two blocks of 163."""
    synthetic = {"shape_zyx": [100, 1300, 100], "voxel_size_zyx_nm": [10, 10, 10]}
    jobs = pipeline(volumes={"large": {"synthetic": synthetic}}).jobs
    assert jobs.of("skeletonize", "large") == ["1-of-2", "2-of-2"]
    share = jobs.spec("skeletonize_blocks", Wildcards(volume="large", job="2-of-2", step_name="write"))
    assert (share.at_once, share.voxels) == (25 * 163 * 25, 100 * 650 * 100)


def test_an_image_that_stays_where_it_is_needs_no_jobs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    volume = {"image": f"{tmp_path}/raw.zarr", "labels": f"{tmp_path}/labels.zarr", "voxel_size_zyx_nm": [30, 8, 8]}
    for kind in ("image", "labels"):
        array = zarr.create_array(volume[kind], shape=(600, 600, 600), chunks=(64, 64, 64), dtype=np.uint8)
        array[0, 0, 0] = 1
    jobs = {}
    for copy_image in ("auto", "always"):
        made = pipeline(volumes={"large": {**volume, "copy_image": copy_image}}, workflow={"max_jobs_per_stage": 2})
        jobs[copy_image] = [len(made.jobs.of("ingest", "large", kind)) for kind in ("image", "labels")]
    assert jobs == {"auto": [0, 2], "always": [2, 2]}
    (tmp_path / "results/small/volumes/large/raw.zarr/0").mkdir(parents=True)
    assert len(
        pipeline(volumes={"large": volume}, workflow={"max_jobs_per_stage": 2}).jobs.of("ingest", "large", "image")
    )


def test_jobs_wait_for_the_step_before_theirs(tmp_path):
    volumes = {"large": {"synthetic": {"shape_zyx": [300, 300, 600]}}}
    made = pipeline(volumes=volumes, workflow={"max_jobs_per_stage": 2}, agglomerate={"enabled": True})

    def before(stage, job, **wildcards):
        found = earlier(made, stage, job, volume="large", **wildcards)
        return [path.removeprefix("results/small/segmentation/large/") for path in found]

    both = ["{}/1-of-2.json", "{}/2-of-2.json"]
    for job, names in {
        "tiling": [],
        "match 2-of-2": ["tiling/tables.json"],
        "match": [name.format("match") for name in both],
        "label 1-of-2": ["match/tables.json"],
        "label": [name.format("label") for name in both],
        "write 2-of-2": ["label/tables.json"],
    }.items():
        folder = "segmentation-reversed.zarr.jobs"
        assert before("reconcile", job, order="-reversed") == [f"{folder}/{name}" for name in names]
    assert before("merge", "write 1-of-2") == ["agglomerated.zarr.jobs/mapping/tables.json"]
    assert before("merge", "mapping") == []
    volumes["large"]["nuclei"] = f"{tmp_path}/nuclei.npy"
    np.save(volumes["large"]["nuclei"], np.zeros((300, 300, 600), np.uint64))
    made = pipeline(volumes=volumes, workflow={"max_jobs_per_stage": 2}, agglomerate={"enabled": True})
    for job, names in {
        "nuclei 2-of-2": [],
        "nuclei": [name.format("nuclei") for name in both],
        "mapping": ["nuclei/tables.json"],
        "write 1-of-2": ["mapping/tables.json"],
    }.items():
        assert before("merge", job) == [f"agglomerated.zarr.jobs/{name}" for name in names]


def earlier(made, stage, job, **wildcards):
    """Return what a job waits for: a share such as ``match 1-of-2``, or what finishes a step, such as ``match``."""
    step, _, share = job.partition(" ")
    if share:
        return made.jobs.spec(f"{stage}_blocks", Wildcards(step_name=step, job=share, **wildcards)).files
    return made.jobs.spec(f"{stage}_{step}", Wildcards(**wildcards)).files


def test_jobs_of_a_sweep_of_a_small_box_look_for_nuclei_in_the_whole_volume(tmp_path):
    np.save(tmp_path / "nuclei.npy", np.zeros((300, 300, 600), np.uint64))
    volume = {"synthetic": {"shape_zyx": [300, 300, 600]}, "evaluate_box": "0:40,0:48,0:80"}
    numbers = {}
    for nuclei in (None, f"{tmp_path}/nuclei.npy"):
        volumes = {"large": {**volume, "nuclei": nuclei}}
        made = pipeline(volumes=volumes, workflow={"max_jobs_per_stage": 2}, agglomerate={"enabled": True})
        large = Wildcards(volume="large")
        numbers[bool(nuclei)] = made.jobs.spec("sweep", large).voxels
        assert made.is_shared("sweep") == bool(nuclei)
        assert made.jobs.spec("sweep", large).option == ("--step write" if nuclei else "")
    assert numbers == {False: 40 * 48 * 80, True: 300 * 300 * 600 // 2}

    def names(paths):
        return [path.removeprefix("results/small/agglomeration/large/sweep.json.jobs/") for path in paths]

    assert names(made.jobs.records("sweep", "large")) == ["write/1-of-1.json"]
    for job, found in {
        "nuclei 2-of-2": [],
        "nuclei": ["nuclei/1-of-2.json", "nuclei/2-of-2.json"],
        "write 1-of-1": ["nuclei/tables.json"],
    }.items():
        assert names(earlier(made, "sweep", job, volume="large")) == found


def test_a_mip_of_an_export_waits_for_the_finer_one_and_small_ones_have_no_jobs():
    volumes = {"large": {"synthetic": {"shape_zyx": [300, 700, 600]}}}  # 2 x 3 x 3 shards of labels
    made = pipeline(volumes=volumes, workflow={"max_jobs_per_stage": 3})
    folder = "results/small/precomputed/large/neuroglancer.json.jobs"
    for job, names in {
        "plan": [],
        "mip0 3-of-3": ["plan/tables"],
        "mip1 2-of-2": [f"mip0/{number}-of-3" for number in (1, 2, 3)],
        "coarse": ["mip1/1-of-2", "mip1/2-of-2"],
        "pieces 1-of-3": ["coarse/tables"],
        "pieces": [f"pieces/{number}-of-3" for number in (1, 2, 3)],
        "write 3-of-3": ["pieces/tables"],
    }.items():
        assert earlier(made, "export", job, volume="large") == [f"{folder}/{name}.json" for name in names]
    assert made.jobs.records("export", "large", step="mip2") == []
