"""A training run of the studies on several processes."""

import pytest

from ffn.training.metrics import read_metrics

from .training_jobs import MODEL, command, succeed


def study(tubes, folder, options, processes):
    """Return the command of a training run of the studies, with two workers."""
    shared = ["--num-workers", str(processes), "--virtual-workers", str(2 // processes)]
    words = command(tubes, folder, [*MODEL, *options, *shared], processes)
    place = words.index("--out")
    del words[place : place + 2]
    start = ["study", "train", "--runs", str(folder), "--out", f"{folder}/metrics.csv", "--"]
    words[words.index("train") : words.index("train") + 1] = start
    return words


@pytest.mark.slow
def test_processes_share_out_the_workers_of_a_run(tubes, needs_horovod, tmp_path):
    for processes in (1, 2):
        succeed(study(tubes, tmp_path / str(processes), ["--max-steps", "6", "--log-steps", "2"], processes))
    one, two = (read_metrics(tmp_path / f"{processes}/metrics.csv") for processes in (1, 2))
    assert [row["f1"] for row in one] == [row["f1"] for row in two] and len(one) == 3


@pytest.mark.slow
def test_a_run_that_diverges_on_several_processes_is_a_result_too(tubes, needs_horovod, tmp_path):
    options = ["--learning-rate", "1e30", "--max-steps", "50", "--log-steps", "1"]
    told = succeed(study(tubes, tmp_path, options, 2))
    assert told.count("not finite in") == 1
    assert 0 < len(read_metrics(tmp_path / "metrics.csv")) < 50
