"""Measured throughput, and the network that is fitted to it."""

import numpy as np
import pytest

from ffn.errors import EvaluationError
from ffn.io import hdf5
from ffn.studies.config import StudyConfig
from ffn.studies.scaling import read_measurement, study_scaling


def test_throughput_counts_all_processes_and_the_allreduce(measured):
    found = read_measurement(measured[1])
    assert (found.processes, found.fovs_per_step, found.num_weights) == (2, 4, 50_000)
    step = found.compute_seconds.mean() + 1e-3
    assert found.fovs_per_second == pytest.approx(2 * 4 / step)


def test_a_file_that_is_no_measurement_is_refused(tmp_path):
    hdf5.write_arrays(f"{tmp_path}/a.h5", {"compute_seconds": np.ones((1, 3))}, {"processes": 1, "fovs_per_step": 1})
    with pytest.raises(EvaluationError, match="a.h5: has no num_weights, expected output of 'ffn study measure'"):
        read_measurement(f"{tmp_path}/a.h5")


def test_one_process_has_no_network_to_measure(measured, tmp_path):
    config = StudyConfig(network="measured", processes=(1,))
    with pytest.raises(
        EvaluationError, match=r"study.network: measured, but study.processes is \(1,\), expected a num"
    ):
        study_scaling(measured[:1], f"{tmp_path}/scaling.json", config)
