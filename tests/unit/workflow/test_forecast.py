"""Forecasts against what was measured: shared/docs/feasibility.md, README.md, and an AMD EPYC with AVX2."""

import pytest

from ffn.config import ModelConfig, SegmentConfig
from ffn.machine.description import Machine
from ffn.machine.gpu_evidence import Card
from ffn.training.config import TrainConfig
from ffn.workflow import forecast
from ffn.workflow.forecast import Pace, announcement, times, training_fovs
from ffn.workflow.run import load_run

from .runs import GOOD

XEON = Pace(3e11, 2)
XEON_AVX512 = Pace(3e11, 2, "AVX-512")
XEON_AMX = Pace(3e11, 2, "AMX")
EPYC = Pace(1.46e11, 2, "AVX2")


def network(depth, fov=33, delta=8):
    return ModelConfig(depth=depth, fov_size_zyx=(fov,) * 3, deltas_zyx=(delta,) * 3)


def is_about(forecast, measured):
    return measured / 2 < forecast < 2 * measured


@pytest.mark.parametrize(
    ("pace", "depth", "fov", "batch_size", "precision", "kernels", "measured"),
    [
        (XEON, 9, 33, 1, "float32", False, 2.75),
        (XEON, 5, 17, 4, "float32", False, 39.5),
        (XEON_AMX, 9, 33, 1, "auto", True, 8.1),
        (XEON_AMX, 9, 33, 1, "float32", False, 2.95),
        (XEON_AMX, 9, 33, 1, "float32", True, 5.3),
        (XEON_AVX512, 9, 33, 1, "auto", True, 5.5),
        (EPYC, 5, 17, 4, "auto", False, 8.2),
        (EPYC, 5, 17, 4, "auto", True, 37.2),
        (EPYC, 9, 33, 1, "auto", False, 0.275),
        (EPYC, 9, 33, 1, "auto", True, 3.24),
    ],
)
def test_rates_of_training_are_those_measured(pace, depth, fov, batch_size, precision, kernels, measured, monkeypatch):
    monkeypatch.setattr(forecast.kernels, "not_built", lambda library: None if kernels else "gone")
    train = TrainConfig(batch_size=batch_size, precision=precision)
    assert is_about(pace.training_rate(network(depth, fov, fov // 4), train), measured)


@pytest.mark.parametrize(
    ("pace", "depth", "fov", "precision", "kernels", "measured"),
    [
        (XEON_AVX512, 12, 33, "auto", False, 6.7),
        (XEON_AVX512, 9, 33, "auto", True, 24.1),
        (XEON_AMX, 9, 33, "auto", True, 65),
        (XEON_AMX, 12, 33, "bfloat16", True, 54),
        (XEON_AMX, 9, 33, "float32", False, 9.5),
        (XEON_AMX, 9, 33, "float32", True, 23.8),
        (EPYC, 9, 33, "float32", False, 5.13),
    ],
)
def test_rates_of_flood_filling_are_those_measured(pace, depth, fov, precision, kernels, measured, monkeypatch):
    monkeypatch.setattr(forecast, "obstacle", lambda features: None if kernels else "gone")
    assert is_about(pace.flooding_rate(network(depth, fov, fov // 4), SegmentConfig(precision=precision), 1), measured)


@pytest.mark.parametrize(
    ("problem", "options", "features", "times"),
    [
        (None, {}, 32, 2.4),
        (None, {"engine": "openvino"}, 32, 1),
        (None, {"precision": "bfloat16"}, 32, 1),
        (None, {}, 11, 1),
        (None, {"engine": "kernels"}, 11, 2.4),
        ("gone", {}, 32, 1),
    ],
)
def test_our_kernels_count_in_flood_filling_where_they_run(problem, options, features, times, monkeypatch):
    monkeypatch.setattr(forecast, "obstacle", lambda features: problem)
    monkeypatch.setattr(forecast, "SECONDS_PER_FOV", 1e-9)
    model, segment = ModelConfig(features=features), SegmentConfig(**options)
    rates = [pace.flooding_rate(model, segment, 1) for pace in (EPYC, Pace(EPYC.flops, 2))]
    assert rates[0] == pytest.approx(times * rates[1], rel=1e-3)


@pytest.mark.parametrize(
    ("problem", "engine", "features", "times"),
    [
        (None, "auto", 8, 2.2),
        (None, "auto", 7, 0.3),
        (None, "auto", 257, 0.3),
        ("gone", "auto", 32, 0.3),
        (None, "jax", 32, 0.3),
    ],
)
def test_our_kernels_count_in_training_where_they_run(problem, engine, features, times, monkeypatch):
    monkeypatch.setattr(forecast.kernels, "not_built", lambda library: problem)
    monkeypatch.setattr(forecast, "SECONDS_PER_FOV", 1e-9)
    model, train = ModelConfig(features=features), TrainConfig(engine=engine)
    rates = [pace.training_rate(model, train) for pace in (EPYC, Pace(EPYC.flops, 2))]
    assert rates[0] == pytest.approx(times * rates[1], rel=1e-3)


def test_the_whole_of_fib25_took_848_seconds():
    model, voxels = network(12), [250**3]
    fovs = forecast.flooding_fovs(model, voxels)
    assert is_about(fovs, 25_709)
    assert is_about(XEON_AMX.seconds(fovs, XEON_AMX.flooding_rate(model, SegmentConfig(), 1), 1), 848)


def test_a_lane_makes_one_fov_in_a_step():
    assert training_fovs(TrainConfig(num_workers=2, virtual_workers=3, batch_size=4, max_steps=10)) == 240


def test_only_what_is_left_to_do_is_timed():
    run = load_run(GOOD)
    assert times(run, XEON, False, []) == []
    assert times(run, XEON, True, []) == ["training: 20,000 FOVs, less than a minute"]
    (line,) = times(run, XEON, False, [40**3] * 64)
    assert line.startswith("flood filling: about 230,000 FOVs, about ")


@pytest.fixture
def found(monkeypatch):
    """Let a run find a certain machine."""

    def find(**parts):
        monkeypatch.setattr(forecast, "this_machine", lambda: Machine(2, "Xeon", "AVX2", memory_mb=8000, **parts))
        monkeypatch.setattr(forecast, "core_flops", lambda: 1e11)

    return find


def test_a_run_says_what_it_found_and_how_long_it_takes(found):
    found()
    machine, expected = announcement(load_run(GOOD), True, [40**3], cores=2)
    assert machine == "This machine: 2 cores (Xeon, AVX2), no GPU, 8 GB of memory"
    assert expected.startswith(
        "With nothing else running: training: 20,000 FOVs, less than a minute; flood filling: about 3"
    )
    assert announcement(load_run(GOOD), False, [], cores=2) == []


def test_a_run_on_a_cluster_says_that_its_nodes_differ(found):
    found()
    *_, last = announcement(load_run(GOOD), True, [], cores=None)
    assert last.startswith("The jobs run on other nodes, which differ.")


def test_times_with_a_gpu_are_not_promised(found):
    found(cards=(Card("A100", "550", (8, 0)),))
    assert "without its GPU, less with it" in announcement(load_run(GOOD), True, [], cores=2)[1]


def test_fewer_cores_take_longer(found):
    found()
    assert forecast.pace_of(forecast.this_machine(), 1) == Pace(8.5e10, 1, "AVX2")
    assert forecast.pace_of(Machine(2, units="AVX-512", quota=1.5)) == Pace(pytest.approx(1.275e11), 2, "AVX-512")
