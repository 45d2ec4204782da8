"""Training runs and measurements of which the answer is known."""

import numpy as np
import pytest

from ffn.io import hdf5
from ffn.studies.config import StudyConfig
from ffn.studies.runs import SCORES, Run
from ffn.training.metrics import COLUMNS

RATES = np.array([1e-4, 2e-4, 4e-4, 8e-4, 16e-4, 32e-4])
WORKERS = (1, 2, 4, 8)
STEPS = np.arange(10, 410, 10)
CONFIG = StudyConfig(workers=WORKERS, learning_rates=tuple(RATES), steps=400, seeds=2, f1_targets=(0.5,), max_nodes=64)


def peaked(workers, exponent, rates=RATES):
    """Return scores that are highest at 3e-4 · workers ^ exponent."""
    return 0.9 - 0.02 * (np.log(rates) - np.log(3e-4 * workers**exponent)) ** 2


def run_of(f1, workers=1, rate=1e-3, seed=1, steps=None):
    """Return a run with this F1, which is also every other score, at every hundredth step."""
    steps = np.arange(1, len(f1) + 1) * 100 if steps is None else steps
    scores = {name: np.array(f1, float) for name in SCORES}
    return Run(workers, rate, seed, steps, scores)


def write_metrics(path, level, seed, steps=STEPS):
    """Write the metrics of a run that learns up to `level`, with noise; return the path."""
    rng = np.random.default_rng(seed)
    values = level * (1 - np.exp(-steps / 60)) + 0.005 * rng.standard_normal(len(steps))
    lines = [",".join(COLUMNS)]
    for step, value in zip(steps, values, strict=True):
        row = dict.fromkeys(COLUMNS, value) | {"step": step}
        lines.append(",".join(str(row[name]) for name in COLUMNS))
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.fixture
def grid(tmp_path):
    """Return files of a grid whose optimum grows as the root of the workers, and of a second seed at the best rates."""
    paths = []
    for workers in WORKERS:
        for rate, level in zip(RATES.tolist(), peaked(workers, 0.5), strict=True):
            name = f"workers-{workers}-rate-{rate!r}-seed-1.csv"
            paths.append(write_metrics(tmp_path / name, level, seed=workers))
        paths.append(write_metrics(tmp_path / f"workers-{workers}-seed-2.csv", 0.9, seed=100 + workers))
    return paths


@pytest.fixture
def measured(tmp_path):
    """Return output files of ``ffn study measure`` for one and two processes."""
    rng = np.random.default_rng(1)
    paths = []
    for processes in (1, 2):
        arrays = {
            "compute_seconds": 0.04 + rng.lognormal(-5, 0.4, (processes, 200)),
            "allreduce_seconds": np.full((processes, 200), 1e-3),
        }
        paths.append(f"{tmp_path}/measure-{processes}.h5")
        hdf5.write_arrays(paths[-1], arrays, {"processes": processes, "fovs_per_step": 4, "num_weights": 50_000})
    return paths
