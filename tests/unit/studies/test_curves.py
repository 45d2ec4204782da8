"""Training curves over seeds."""

import math

import numpy as np

from ffn.studies.curves import mean_curves

from .conftest import run_of


def test_curves_are_means_over_the_steps_that_all_runs_have():
    runs = [run_of([0.2, 0.4, 0.6]), run_of([0.4, 0.6], seed=2)]
    curves = mean_curves(runs, step_seconds=3.6)
    assert curves["step"].tolist() == [100, 200]
    np.testing.assert_allclose(curves["seconds"], [360, 720])
    np.testing.assert_allclose(curves["f1"], [0.3, 0.5])
    np.testing.assert_allclose(curves["f1_stddev"], math.sqrt(0.02))
