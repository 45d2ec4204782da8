"""A single process is measured as if it had neighbours."""

import os

import pytest

from ffn.studies.measure import _keep_to_cores
from ffn.training.config import TrainConfig


@pytest.mark.parametrize(
    ("num_workers", "threads", "kept"), [(1, 2, [{3, 5}]), (1, 0, []), (1, 4, []), (2, 2, [])]
)  # all cores where threads follow from them, or where other processes take the rest
def test_a_single_process_keeps_to_as_many_cores_as_threads(num_workers, threads, kept, monkeypatch):
    set_to = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {7, 5, 3})
    monkeypatch.setattr(os, "sched_setaffinity", lambda process, cores: set_to.append(set(cores)))
    _keep_to_cores(TrainConfig(num_workers=num_workers, intra_op_threads=threads))
    assert set_to == kept
