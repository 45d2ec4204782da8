"""Memory and time of jobs, as Snakemake asks for them."""

import pytest

from ffn.assembly.config import Agglomeration
from ffn.config import ModelConfig
from ffn.workflow.needs import agglomerating_mb, flooding_mb, flooding_minutes, minutes
from ffn.workflow.resources import by_attempt, resources_of

from .test_pipeline import Wildcards, pipeline


def test_a_repeated_job_gets_twice_as_much():
    assert [by_attempt(1000)(None, threads=2, attempt=attempt) for attempt in (1, 2, 3)] == [1000, 2000, 4000]


def asked(made, rule, attempt=1, **wildcards):
    needs = resources_of(made, rule)
    return [needs[name](Wildcards(wildcards), threads=2, attempt=attempt) for name in ("mem_mb", "runtime")]


def test_jobs_ask_for_what_follows_from_their_box():
    made = pipeline()
    voxels = made.places["second"].segment_box.num_voxels
    assert asked(made, "export", volume="second")[1] == minutes("export", voxels, 2)
    job, model = {"volume": "second", "order": "", "job": "1-of-1"}, made.run.model
    spec = pipeline(segment={"canvases": 2}).jobs.spec("segment_list", Wildcards(job))
    assert spec.canvases == 2 and asked(pipeline(segment={"canvases": 2}), "segment_list", 2, **job) == [
        2 * flooding_mb(spec.at_once, model, 2),
        2 * flooding_minutes(spec.voxels, model, 2),
    ]


@pytest.mark.parametrize(("engine", "gpus", "on_gpu"), [("auto", 2, True), ("openvino", 2, False), ("jax", 0, False)])
def test_floods_ask_for_the_time_of_a_gpu_where_they_take_one(engine, gpus, on_gpu):
    made = pipeline(gpus=gpus, segment={"engine": engine}, volumes={"second": {"synthetic": {"shape_zyx": [512] * 3}}})
    job = {"volume": "second", "order": "", "job": "1-of-1"}
    voxels, model = made.jobs.spec("segment_list", Wildcards(job)).voxels, made.models.costed.flooding_model
    assert asked(made, "segment_list", **job)[1] == flooding_minutes(voxels, model, 2, on_gpu)


def test_agglomeration_depends_on_the_windows_at_once():
    config = Agglomeration(window_radius_zyx=(40, 41, 42), mirror=False)
    of = {gpus: agglomerating_mb(config, ModelConfig(), gpus) for gpus in (0, 2)}
    several = config.model_copy(update={"canvases": 7})
    assert of[0] < agglomerating_mb(several, ModelConfig(), 2) < of[2]
    assert agglomerating_mb(several.model_copy(update={"mirror": True}), ModelConfig(), 2) > of[0]
