"""The verdicts on what the probes found."""

import pytest

from ffn.cluster.findings import judge_build, judge_gpu, judge_job, judge_library, judge_nodes
from ffn.workflow.rank_layout import Layout

SRUN, LAUNCH = ["srun", "--mpi=pmix"], ["ffn", "launch", "-n", "2"]


def judged(hosts="aabb", **changes):
    """Judge a good answer for each host; `changes` apply to the last one."""
    good = {
        "sees_marker": True,
        "seen": 4,
        "python": "3",
        "packages": "f0",
        "cores": 16,
        "memory_mb": 9,
        "scratch": "/t",
    }
    answers = [{"host": host, **good} for host in hosts]
    answers[-1] |= changes
    return {finding.name: finding for finding in judge_nodes(answers, Layout(4, 2, 32), 9)}


@pytest.mark.parametrize(("hosts", "verdict"), [("aabb", "ok"), ("aaab", "FAIL"), ("aaaa", "FAIL"), ("aab", "FAIL")])
def test_unevenly_spread_or_missing_ranks_fail(hosts, verdict):
    found = judged(hosts)
    assert found.pop("processes").verdict == verdict
    assert {finding.verdict for finding in found.values()} == {"ok"}


@pytest.mark.parametrize(
    ("changes", "name", "verdict"),
    [
        ({"sees_marker": False}, "shared folder", "FAIL"),
        ({"seen": 2}, "latency", "FAIL"),
        ({"write_error": "Read-only file system"}, "writing", "FAIL"),
        ({"python": "2"}, "python", "FAIL"),
        ({"packages": "f1"}, "packages", "FAIL"),
        ({"cores": 8}, "cores", "warn"),
        ({"memory_mb": 5}, "memory", "warn"),
    ],
)
def test_a_node_with_a_fault_is_named(changes, name, verdict):
    found = judged(**changes)
    assert found[name].verdict == verdict and found[name].text.startswith("b: ")
    assert changes.get("write_error", "") in found[name].text


def test_no_answer_is_a_failure():
    assert [finding.verdict for finding in judge_nodes([], Layout(4, 2, 32), 9)] == ["FAIL"]


@pytest.mark.parametrize(("ranks", "verdict"), [([1, 0], "ok"), ([0, 0], "FAIL"), ([0], "FAIL"), ([], "FAIL")])
def test_all_processes_are_one_job(ranks, verdict):
    assert judge_job([{"rank": rank, "size": 2} for rank in ranks], 2).verdict == verdict


@pytest.mark.parametrize(
    ("built", "launcher", "verdict"),
    [
        ({"mpi": True, "gloo": True}, SRUN, "ok"),
        ({"mpi": False, "gloo": True}, LAUNCH, "ok"),
        ({"mpi": True, "gloo": False}, ["horovodrun", "--gloo"], "FAIL"),
        ({"error": "no libmpi.so"}, SRUN, "FAIL"),
    ],
)
def test_horovod_needs_what_the_launcher_speaks(built, launcher, verdict):
    finding = judge_build(built, launcher)
    assert finding.verdict == verdict and built.get("error", "") in finding.text


@pytest.mark.parametrize(
    ("found", "launcher", "verdict"),
    [
        ({"version": "4", "mpi": "MPICH"}, SRUN, "ok"),
        ({"version": "4", "mpi": "MPICH"}, LAUNCH, "FAIL"),
        ({"error": "no libmpi.so"}, SRUN, "FAIL"),
    ],
)
def test_mpi4py_needs_a_launcher_of_mpi(found, launcher, verdict):
    assert judge_library(found, launcher).verdict == verdict


@pytest.mark.parametrize(
    ("seen", "jax", "num_wanted", "verdict"), [(4, 0, 4, "ok"), (0, 1, 1, "ok"), (0, 0, 0, "ok"), (0, 0, 4, "warn")]
)
def test_gpus_that_the_profile_asks_for_are_seen(seen, jax, num_wanted, verdict):
    finding = judge_gpu({"seen": seen, "jax": jax, "why": "no driver"}, num_wanted)
    assert finding.verdict == verdict and "no driver" in finding.text
