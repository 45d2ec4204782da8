"""The studies: optima and exponents against what was put in, files in and out, mistakes told in one line."""

import json
import math

import numpy as np
import pytest

from ffn.cli import main
from ffn.errors import ConfigError, EvaluationError
from ffn.io import hdf5
from ffn.options import flags, from_arguments
from ffn.studies.best import BestRuns
from ffn.studies.config import StudyConfig
from ffn.studies.curves import mean_curves
from ffn.studies.efficiency import _figure as draw_costs
from ffn.studies.efficiency import costs_to_reach, steps_to_reach
from ffn.studies.learning_rate import best_rate, score_grid
from ffn.studies.optima import Optimum, find_optimum, fit_power_law, with_uncertainty
from ffn.studies.pages import COLOURS
from ffn.studies.runs import SCORES, Run, read_runs
from ffn.training.monitoring.metrics import COLUMNS, smoothed

RATES = np.array([1e-4, 2e-4, 4e-4, 8e-4, 16e-4, 32e-4])
WORKERS = (1, 2, 4, 8)
STEPS = np.arange(10, 410, 10)
CONFIG = StudyConfig(workers=WORKERS, learning_rates=tuple(RATES), steps=400, log_steps=10, seeds=2, f1_targets=(0.5,))


def peaked(workers, exponent, rates=RATES):
    """Scores that are highest at 3e-4 · workers ^ exponent."""
    return 0.9 - 0.02 * (np.log(rates) - np.log(3e-4 * workers**exponent)) ** 2


def run_of(f1, workers=1, rate=1e-3, seed=1, steps=None):
    steps = np.arange(1, len(f1) + 1) * 100 if steps is None else steps
    scores = {name: np.array(f1, float) for name in SCORES}
    return Run(workers, rate, seed, steps, steps * 0.01, scores, scores)


def write_metrics(path, level, seed, steps=STEPS):
    """A run that learns up to `level`, with noise."""
    rng = np.random.default_rng(seed)
    values = level * (1 - np.exp(-steps / 60)) + 0.005 * rng.standard_normal(len(steps))
    lines = [",".join(COLUMNS)]
    for step, value in zip(steps, values, strict=True):
        row = dict.fromkeys(COLUMNS, value) | {"step": step, "seconds": step * 0.05}
        lines.append(",".join(str(row[name]) for name in COLUMNS))
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.fixture
def grid(tmp_path):
    """Files of a whole grid whose optimum grows with the root of the workers, and of a second seed of the best."""
    paths = []
    for workers in WORKERS:
        for rate, level in zip(RATES.tolist(), peaked(workers, 0.5), strict=True):
            name = f"workers-{workers}-rate-{rate!r}-seed-1.csv"
            paths.append(write_metrics(tmp_path / name, level, seed=workers))
        paths.append(write_metrics(tmp_path / f"workers-{workers}-seed-2.csv", 0.9, seed=100 + workers))
    return paths


@pytest.fixture
def measured(tmp_path):
    """Files of ``ffn study measure`` with one and two processes."""
    rng = np.random.default_rng(1)
    sizes = np.array([1e3, 1e5, 1e6])
    paths = []
    for processes in (1, 2):
        arrays = {
            "compute_seconds": 0.04 + rng.lognormal(-5, 0.4, (processes, 200)),
            "allreduce_seconds": np.full((processes, 200), 1e-3),
            "message_bytes": sizes.astype(np.int64),
            "message_seconds": np.repeat((1e-4 + sizes / 1e9)[:, None], 5, axis=1),
        }
        paths.append(f"{tmp_path}/measure-{processes}.h5")
        hdf5.write_arrays(paths[-1], arrays, {"processes": processes, "fovs_per_step": 4, "num_weights": 50_000})
    return paths


def test_the_parabola_finds_an_optimum_between_the_rates():
    optimum = find_optimum(RATES, peaked(2, 0.5), 0.0, np.random.default_rng(0))
    assert optimum.rate == pytest.approx(3e-4 * math.sqrt(2), rel=1e-6)
    assert optimum.best_tried == 4e-4 and not optimum.at_edge
    assert optimum.log_stddev == pytest.approx(math.log(2) / math.sqrt(12))  # of the grid alone


def test_noise_and_divergence_widen_and_do_not_break():
    scores = peaked(1, 0.5)
    scores[-2:] = np.nan
    noisy = find_optimum(RATES, scores, 0.01, np.random.default_rng(0))
    assert noisy.log_stddev > 1.2 * math.log(2) / math.sqrt(12)
    assert find_optimum(RATES, -RATES, 0.0, np.random.default_rng(0)).at_edge
    alike = np.full(len(RATES), np.nan)
    alike[2:4] = 0.7
    lone = find_optimum(RATES, alike, 0.0, np.random.default_rng(0))
    assert lone.best_tried == RATES[2] and RATES[2] <= lone.rate <= RATES[3] and not lone.at_edge


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0])
def test_the_exponent_is_found_within_its_uncertainty(exponent):
    rng, workers = np.random.default_rng(7), np.array([1, 2, 4, 8, 16])
    rates = np.geomspace(5e-5, 2e-2, 12)
    pulls = []
    for _ in range(30):
        optima = [
            find_optimum(rates, peaked(n, exponent, rates) + 0.002 * rng.standard_normal(12), 0.002, rng)
            for n in workers
        ]
        law = fit_power_law(workers, optima)
        pulls.append((law.exponent - exponent) / law.stddev)
    assert np.mean(np.abs(pulls) < 1) >= 0.6  # a standard deviation should hold two of three
    assert np.std(pulls) > 0.2  # and is not many times too wide


def test_scatter_around_the_line_counts():
    tight = [Optimum(rate, 0.05, rate, False) for rate in (1e-4, 2e-4, 4e-4, 8e-4)]
    bent = [Optimum(rate, 0.05, rate, False) for rate in (1e-4, 3e-4, 3e-4, 9e-4)]
    exact, loose = (fit_power_law(np.array(WORKERS), optima) for optima in (tight, bent))
    assert exact.exponent == pytest.approx(1.0) and exact.rate == pytest.approx(1e-4)
    assert loose.stddev > 3 * exact.stddev


def test_optima_at_the_edge_are_left_out():
    optima = [Optimum(rate, 0.1, rate, rate < 2e-4) for rate in (1e-4, 2e-4, 4e-4, 8e-4)]
    assert fit_power_law(np.array(WORKERS), optima).num_optima == 3
    assert fit_power_law(np.array(WORKERS[:3]), optima[:3]) is None


@pytest.mark.parametrize(
    ("value", "stddev", "text"),
    [(0.512, 0.096, "0.5 ± 0.1"), (0.512, 0.094, "0.51 ± 0.09"), (123.4, 20.0, "120 ± 20"), (-0.04, 0.3, "0.0 ± 0.3")],
)
def test_no_more_digits_than_are_known(value, stddev, text):
    assert with_uncertainty(value, stddev) == text


def test_a_target_is_reached_when_it_is_kept():
    assert steps_to_reach(run_of([0.6, 0.2, 0.5, 0.7]), 0.5, 400) == 300  # the first value was luck
    assert math.isnan(steps_to_reach(run_of([0.6, 0.7, 0.4]), 0.5, 300))
    assert steps_to_reach(run_of([0.6, 0.7]), 0.5, 200) == 100
    assert math.isnan(steps_to_reach(run_of([]), 0.5, 0))
    assert steps_to_reach(run_of([0.2, 0.6, np.nan]), 0.5, 300) == 200  # no walk ended at the end
    assert math.isnan(steps_to_reach(run_of([0.6, 0.7]), 0.5, 300))  # diverged


def test_costs_are_relative_to_the_fewest_workers_that_reach_the_target():
    never, slow, fast = ([0.1] * 8, [0.1] * 7 + [0.6], [0.1, 0.6] + [0.6] * 6)
    runs = {n: [run_of(f1, n, seed=seed) for seed in (1, 2)] for n, f1 in ((1, never), (2, slow), (4, fast))}
    cost = costs_to_reach(BestRuns(runs, {}, {1: 1.0, 2: 1.0, 4: 1.2}, "aries"), 0.5)
    assert cost["workers"] == [2, 4] and cost["steps"] == [800, 200]
    assert cost["relative_time"] == pytest.approx([1.0, 0.25 * 1.2])
    assert cost["relative_fovs"] == pytest.approx([1.0, 0.5])
    assert cost["relative_time_stddev"] == [0.0, 0.0]
    assert cost["failed"] == {1: 2}


def test_curves_are_means_over_the_steps_that_all_runs_have():
    runs = [run_of([0.2, 0.4, 0.6]), run_of([0.4, 0.6], seed=2)]
    curves = mean_curves(runs, step_seconds=3.6)
    assert curves["step"].tolist() == [100, 200]
    np.testing.assert_allclose(curves["seconds"], [360, 720])
    np.testing.assert_allclose(curves["f1"], [0.3, 0.5])
    np.testing.assert_allclose(curves["f1_stddev"], math.sqrt(0.02))


def test_a_diverged_run_is_a_result_and_a_missing_one_is_not(grid, tmp_path):
    short = tmp_path / f"workers-8-rate-{float(RATES[-1])!r}-seed-1.csv"
    write_metrics(short, 0.5, 1, STEPS[:0])
    runs = read_runs(grid, 0.9)
    scores, noise = score_grid(runs, "f1", CONFIG)
    assert np.isnan(scores[3, -1]) and np.isfinite(scores[:3]).all()
    assert ((noise > 0) & (noise < 0.01)).all()
    with pytest.raises(EvaluationError, match="no run of 2 workers at rate 0.0001"):
        score_grid([run for run in runs if (run.workers, run.rate) != (2, 1e-4)], "f1", CONFIG)


def test_a_row_in_which_no_walk_ended_is_no_divergence():
    run = run_of([0.5, 0.6, np.nan])
    assert run.at("f1", 300) == run.at("f1", 200) == 0.6 and run.at("f1", 100) == 0.5
    assert math.isnan(run.at("f1", 400)) and math.isnan(run_of([np.nan]).at("f1", 100))


def test_the_noise_of_the_last_score_is_how_it_varies_between_curves():
    rng, factor = np.random.default_rng(4), 0.9
    found = []
    for _ in range(500):
        raw = 0.001 * np.arange(80) + 0.02 * rng.standard_normal(80)  # rising
        run = run_of(raw)._replace(smoothed={"f1": smoothed(raw, factor)})
        found.append((run.smoothed["f1"][-1], run.noise("f1", factor)))
    last, noise = np.array(found).T
    assert np.sqrt(np.mean(noise**2)) == pytest.approx(0.02 * math.sqrt(0.1 / 1.9), rel=0.03)
    assert np.std(last) == pytest.approx(0.02 * math.sqrt(0.1 / 1.9), rel=0.1)
    assert math.isnan(run_of([0.5, np.nan, 0.6, 0.7]).noise("f1", factor))  # two differences are too few


def test_as_many_targets_as_one_likes_can_be_drawn():
    targets = np.linspace(0.1, 0.5, len(COLOURS) + 1).tolist()
    runs = {1: [run_of([0.6] * 2, seed=seed) for seed in (1, 2)]}
    best = BestRuns(runs, {}, {1: 1.0}, "aries")
    assert len(draw_costs({target: costs_to_reach(best, target) for target in targets}, [1]).axes) == 2


def test_error_bars_of_costs_stay_on_the_logarithmic_axis():
    cost = {"workers": [1, 2], "relative_time": [1.0, 0.5], "relative_time_stddev": [0.0, 2.0]}
    cost |= {"relative_fovs": [1.0, 1.0], "relative_fovs_stddev": [0.0, 4.0]}
    for panel, ends in zip(draw_costs({0.5: cost}, [1, 2]).axes, ([0.1, 2.5], [0.2, 5.0]), strict=True):
        bars = panel.containers[0].lines[2][0].get_segments()
        assert bars[1][:, 1] == pytest.approx(ends)  # five times less, five times more


@pytest.mark.parametrize("steps", ["0", "19"])
def test_a_measurement_of_too_few_steps_is_refused_before_it_starts(steps, capsys):
    options = ["--records", "nowhere", "--volume", "a=r,l", "--out", "nowhere.h5", "--measured-steps", steps]
    assert main(["study", "measure", *options]) == 2
    assert f"--measured-steps: found '{steps}', input should be greater than or equal to 20" in capsys.readouterr().err


def test_all_studies_from_files(grid, measured, tmp_path, capsys):
    options = flags(CONFIG).split()
    scaling, rates = f"{tmp_path}/scaling.json", f"{tmp_path}/rates.json"
    tried = [path for path in grid if "-rate-" in path]
    assert main(["study", "scaling", *measured, *options, "--out", scaling]) == 0
    assert main(["study", "learning-rate", *tried, *options, "--out", rates]) == 0
    for kind in ("curves", "efficiency"):
        given = ["--rates", rates, "--scaling", scaling, "--out", f"{tmp_path}/{kind}.json"]
        assert main(["study", kind, *grid, *options, *given]) == 0
    found = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    law = found["rates"]["accuracy"]["power_law"]
    assert abs(law["exponent"] - 0.5) < 2 * law["stddev"]
    assert best_rate(rates, 4) == pytest.approx(8e-4)
    assert found["scaling"]["measured"][0]["efficiency"] == 1 and found["scaling"]["nodes"][-1] == 2048
    assert found["scaling"]["paper"]["model"]["fovs_per_second"][0] == pytest.approx(0.72, rel=1e-4)
    assert found["scaling"]["network"]["constant"] == 0 < found["scaling"]["measured_network"]["constant"]
    assert found["efficiency"]["targets"]["0.5"]["workers"] == list(WORKERS)
    assert len(found["curves"]["curves"]["8"]["f1"]) == len(STEPS)
    for name, study in found.items():
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        page = (tmp_path / f"{name}.html").read_text()
        assert "<svg" in page and all(word in page for word in study["statements"][0].split()[:3])


def test_mistakes_are_told(grid, measured, tmp_path):
    with pytest.raises(EvaluationError, match="the name says nothing"):
        read_runs([f"{tmp_path}/metrics.csv"], 0.9)
    with pytest.raises(EvaluationError, match="no such file"):
        read_runs([f"{tmp_path}/workers-1-seed-9.csv"], 0.9)
    (tmp_path / "workers-1-seed-8.csv").write_text("step,f1,seconds\n5,0.5,1.0\n")
    with pytest.raises(EvaluationError, match="workers-1-seed-8.csv: has no column accuracy"):
        read_runs([f"{tmp_path}/workers-1-seed-8.csv"], 0.9)
    with pytest.raises(EvaluationError, match="has no best rates"):
        best_rate(measured[0], 4)
    assert main(["study", "scaling", measured[0], "--network", "measured", "--out", f"{tmp_path}/s.json"]) == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"workers": (4, 2)}, r"workers: \(4, 2\) must ascend"),
        ({"max_nodes": 8}, r"max_nodes: 8 is less than the most workers \(16\)"),
        ({"grid_seeds": 4}, r"grid_seeds: 4 is more than seeds \(3\)"),
    ],
)
def test_configurations_that_make_no_sense(changes, message):
    class Given:
        pass

    given = Given()
    vars(given).update(changes)
    with pytest.raises(ConfigError, match=message):
        from_arguments(StudyConfig, given)
