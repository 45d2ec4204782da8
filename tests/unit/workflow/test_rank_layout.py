"""Processes on nodes, and the launch line of every profile."""

import re

import pytest

from ffn.errors import ConfigError
from ffn.training.config import TrainConfig
from ffn.workflow.rank_layout import Layout, layout_of, possible_here


@pytest.mark.parametrize(
    ("ranks", "ranks_per_node", "cores", "nodes", "per_node", "depth"),
    [
        (1, 1, 64, 1, 1, 64),
        (2, 1, 64, 2, 1, 64),
        (2, 4, 32, 1, 2, 16),
        (6, 4, 32, 2, 3, 10),
        (5, 4, 32, 2, 3, 10),
        (1024, 1, 64, 1024, 1, 64),
        (4, 4, 2, 1, 4, 1),
    ],
)
def test_ranks_are_spread_evenly(ranks, ranks_per_node, cores, nodes, per_node, depth):
    layout = Layout(ranks, ranks_per_node, cores)
    assert (layout.nodes, layout.per_node, layout.depth) == (nodes, per_node, depth)
    assert layout.per_node <= ranks_per_node and layout.nodes * layout.per_node >= ranks


@pytest.mark.parametrize(
    ("launcher", "command"),
    [
        ("aprun -n {ranks} -N {per_node} -d {depth} -j 1 -cc depth", "aprun -n 6 -N 3 -d 10 -j 1 -cc depth"),
        ("mpiexec -n {ranks} --ppn {per_node} --depth {depth}", "mpiexec -n 6 --ppn 3 --depth 10"),
        ("srun -N {nodes} -n {ranks} -c {depth}", "srun -N 2 -n 6 -c 10"),
        ("horovodrun --gloo -np {ranks}", "horovodrun --gloo -np 6"),
    ],
)
def test_launch_line_is_derived(launcher, command):
    assert Layout(6, 4, 32, launcher).command == command


def test_one_machine_needs_no_launcher_and_figures_may_be_text():
    assert Layout(1, 1, 64, "aprun -n {ranks}").command == ""
    layout = layout_of(4, {}, cores=10)
    assert (layout.nodes, layout.depth, layout.command) == (1, 2, "ffn launch --num-ranks 4 --launcher local --")
    assert layout_of(4, {"ranks_per_node": "2", "cores_per_node": 8, "launcher": "x {depth}"}, 1).command == "x 4"
    with pytest.raises(ConfigError, match="'tasks'"):
        _ = Layout(2, 1, 1, "srun -n {tasks}").command


@pytest.mark.parametrize("value", ["0", "many", "-1", "1.5"])
def test_figures_are_positive_numbers(value):
    with pytest.raises(ConfigError, match=f"ranks_per_node: '{value}'"):
        layout_of(2, {"ranks_per_node": value}, 1)


@pytest.mark.parametrize("launcher", ["x {ranks", "x ranks}", "sh -c 'x {ranks}", "x {ranks[0]}"])
def test_braces_and_quotes_that_cannot_be_read_are_named(launcher):
    with pytest.raises(ConfigError, match=rf"^launcher: .*{re.escape(launcher)}"):
        _ = Layout(2, 1, 1, launcher).command


@pytest.mark.parametrize(
    ("site", "collective", "processes"), [({}, "horovod", 1), ({"launcher": "srun"}, "horovod", 3), ({}, "mpi", 3)]
)
def test_without_horovod_one_process_computes_all_workers(site, collective, processes, monkeypatch):
    train = TrainConfig(num_workers=3, virtual_workers=2, collective=collective)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    made = possible_here(train, site)
    assert (made.num_workers, made.num_lanes) == (processes, train.num_lanes)
