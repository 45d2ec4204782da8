"""Jobs of a stage: their boxes and names, what they share, need and wait for."""

from pathlib import Path

import numpy as np
import pytest
import zarr

from ffn.workflow.pipeline import resources_of

from .runs import RUN, Wildcards, pipeline

SECTIONS = {
    "volumes": {"phantom": {"synthetic": {"shape_zyx": [64, 48, 80]}}},
    "subvolumes": {"size_zyx": [40, 40, 40], "overlap_zyx": [16, 16, 16]},
    "agglomerate": {"job_size_zyx": [40, 48, 41]},
}


@pytest.mark.parametrize(
    ("stage", "shapes"), [("segment", {(40, 40, 40)}), ("agglomerate", {(40, 48, 41), (24, 48, 39)})]
)
def test_every_box_is_found_by_its_name(stage, shapes):
    boxes = pipeline(**SECTIONS).jobs.boxes(stage, "phantom")
    assert [boxes.named(box.stem) for box in boxes] == list(boxes)
    assert shapes <= {box.shape for box in boxes}


def test_boxes_are_found_without_making_all_and_records_shared_by_name():
    large = {**SECTIONS, "volumes": {"phantom": {"synthetic": {"shape_zyx": [2416] * 3}}}}
    boxes = pipeline(**large).jobs.boxes("segment", "phantom")
    assert len(boxes) == 10**6
    assert boxes.named("z002376-y000024-x002376") == boxes[990_199]
    # Snakemake asks each of thousands of jobs for its inputs and resources; making the names took half of a plan.
    large = {**SECTIONS, "volumes": {"phantom": {"synthetic": {"shape_zyx": [1024] * 3}}}}
    jobs = pipeline(**large).jobs
    specs = [jobs.spec("export_blocks", Wildcards(volume="phantom", step_name="mip1", job=f"{i}-of-9")) for i in (1, 2)]
    assert specs[0].files and specs[0].files is specs[1].files


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


def test_subvolumes_need_memory_for_what_lies_around_them():
    """The FOV has a radius of 4, 5 and 6 voxels; the subvolumes end with the image on all sides but one of x."""
    tiles = {"size_zyx": [64, 56, 48], "overlap_zyx": [14, 14, 14]}
    job = {"volume": "second", "subvolume": "z000000-y000000-x000000", "job": "1-of-1"}
    canvas, box = 72 * 66 * 54, 64 * 56 * 48
    made, cut = (pipeline(subvolumes=tiles, segment={"mirror": mirror}) for mirror in (True, False))
    assert [m.jobs.spec("segment", Wildcards(job)).voxels for m in (made, cut)] == [canvas, box]
    assert [m.jobs.spec("segment_list", Wildcards(job)).at_once for m in (made, cut)] == [canvas, box]
    # FOV radius and deltas are 4, 5, 6 and 2, 3, 3 voxels; the box ends inside the image in x alone, on both sides.
    second = {**RUN["volumes"]["second"], "segment_box": "0:64,0:56,20:50"}
    made = pipeline(volumes={**RUN["volumes"], "second": second})
    job = {"volume": "second", "subvolume": "z000000-y000000-x000020"}
    assert made.jobs.spec("segment", Wildcards(job)).voxels == 72 * 66 * (30 + 2 * (6 + made.run.model.deltas_zyx[2]))


@pytest.mark.parametrize(("canvases", "gpus", "expected"), [(4, 0, 4), ("auto", 0, 1), ("auto", 2, 5)])
def test_a_list_has_as_many_canvases_as_the_machine_fills(canvases, gpus, expected):
    tiles = {"size_zyx": [64, 56, 20], "overlap_zyx": [14, 14, 14]}
    made = pipeline(gpus, subvolumes=tiles, segment={"canvases": canvases}, workflow={"max_jobs_per_stage": 2})
    assert made.jobs.spec("segment_list", Wildcards(volume="second", job="2-of-2")).canvases == expected


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
    made = pipeline(volumes={"large": volume}, workflow={"max_jobs_per_stage": 2})
    assert len(made.jobs.of("ingest", "large", "image"))


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


def earlier(made, stage, job, **wildcards):
    """Return what a job waits for: a share such as ``match 1-of-2``, or what finishes a step, such as ``match``."""
    step, _, share = job.partition(" ")
    if share:
        return made.jobs.spec(f"{stage}_blocks", Wildcards(step_name=step, job=share, **wildcards)).files
    return made.jobs.spec(f"{stage}_{step}", Wildcards(**wildcards)).files


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
