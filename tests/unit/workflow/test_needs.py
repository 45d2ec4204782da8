"""Memory, time and other resources follow size, threads and network."""

import pytest

from ffn.assembly.config import Agglomeration
from ffn.config import ModelConfig
from ffn.training.config import TrainConfig
from ffn.workflow.needs import (
    agglomerating_mb,
    flooding_mb,
    flooding_minutes,
    fov_flops,
    memory_mb,
    minutes,
    training_mb,
)
from ffn.workflow.pipeline import by_attempt, memory, resources_of

from .runs import Wildcards, pipeline


def test_measured_jobs_fit():
    """max_rss of FIB-25's jobs (250³, subvolumes of 149³, blocks of 128³)."""
    measured = {
        ("segment", 149**3, 1): 1459,
        ("agglomerate", 0, 2): 784,
        ("membrane", 0, 1): 301,
        ("partition", 0, 2): 285,
        ("reconcile", 0, 1): 446,
        ("fill", 312**3, 1): 1597,  # a tile of 256³ at 8 nm with its halo, a fifth of it gaps
        ("evaluate", 170 * 250 * 250, 1): 886,
        ("export", 0, 2): 390,
    }
    for (stage, voxels, threads), megabytes in measured.items():
        assert megabytes < memory_mb(stage, voxels, threads) < 8 * megabytes, stage


def network(depth=9, features=32, fov=33, delta=8):
    return ModelConfig(depth=depth, features=features, fov_size_zyx=(fov,) * 3, deltas_zyx=(delta,) * 3)


def test_measured_trainings_fit():
    """Peak memory of `ffn train` on two cores with AVX2, MB; what a setting adds is compared, the start differs."""
    start, start_asked = 640, memory_mb("train")
    measured = [
        (network(), {}, 893),
        (network(), {"batch_size": 4}, 1432),
        (network(), {"batch_size": 8}, 1742),
        (network(), {"virtual_workers": 4}, 932),
        (network(depth=12), {"batch_size": 2}, 1172),
        (network(features=16), {"batch_size": 4}, 1109),
        (network(depth=5, fov=17, delta=4), {}, 679),
        (network(depth=5, fov=17, delta=4), {"batch_size": 16}, 1086),
        (network(depth=5, fov=17, delta=4), {"virtual_workers": 16}, 730),
    ]
    assert start < start_asked
    for model, options, megabytes in measured:
        added = training_mb(model, TrainConfig(**options)) - start_asked
        assert 0.7 * (megabytes - start) < added < 2.5 * (megabytes - start), options
        assert megabytes < start_asked + added < 5 * megabytes, options


def test_the_processes_on_a_node_keep_small_volumes_together():
    alone = training_mb(network(), TrainConfig())
    assert training_mb(network(), TrainConfig(), 4) == 4 * alone
    assert training_mb(network(), TrainConfig(), 4, [10**6, 10**6]) == 4 * (alone + 24)
    assert training_mb(network(), TrainConfig(), 4, [360**3]) == pytest.approx(
        4 * (alone + 537), abs=4
    )  # 420 MB of uint8 and uint64
    assert training_mb(network(), TrainConfig(), 4, [10**10]) == 4 * alone


def test_canvases_need_memory_and_convolutions_time():
    """64 canvases of 256³ are 4.3 GB."""
    assert flooding_mb(256**3, network(), 64) - flooding_mb(256**3, network(), 1) > 63 * 4 * 256**3 / 1e6
    assert memory_mb("segment", 256**3) < flooding_mb(256**3, network(), 1) < 1.02 * memory_mb("segment", 256**3)
    model = ModelConfig(depth=12, features=32, fov_size_zyx=(33, 33, 33), deltas_zyx=(8, 8, 8))
    assert 45e9 < fov_flops(model) < 50e9
    # Measured on two cores without AMX: 9 FOVs/s, so 149³ voxels take 12 minutes.
    assert 12 < flooding_minutes(149**3, model, threads=2) < 90
    deeper = model.model_copy(update={"depth": 24})
    assert flooding_minutes(512**3, deeper) > 1.9 * flooding_minutes(512**3, model)


def test_time_is_shared_by_threads_and_doubled_for_a_repeated_job():
    assert minutes("export", 10**9, threads=8) < minutes("export", 10**9) / 4
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


def test_records_take_more_memory_without_a_limit():
    made, limited = (pipeline(records={"max_records": most}) for most in (None, 1000))
    assert limited.most_records == 1000 and made.most_records >= made.trained_voxels
    megabytes = [memory("records", each.most_records)({}, threads=1, attempt=1) for each in (made, limited)]
    assert megabytes[0] - megabytes[1] > 30 * made.trained_voxels / 1e6  # 34 bytes for each of 3 million, measured


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
