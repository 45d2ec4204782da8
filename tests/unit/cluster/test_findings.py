"""The verdicts on what the probes found."""

import pytest

from ffn.cluster.findings import judge_build, judge_gpu, judge_job, judge_library, judge_nodes
from ffn.workflow.rank_layout import Layout

LAYOUT = Layout(4, 2, 32)


def probes(hosts="aabb", **changes):
    """Return the answer of a good node for each host; `changes` apply to the last one."""
    good = {"sees_marker": True, "seen": 4, "waited": 0.1, "python": "3", "packages": {"tqdm": "1"}, "cores": 16}
    good |= {"memory_mb": 9, "scratch": "/t", "scratch_mb": 1}
    answers = [{"host": host, **good} for host in hosts]
    answers[-1] |= changes
    return answers


def verdicts(found):
    return {finding.name: finding.verdict for finding in judge_nodes(found, LAYOUT, 9)}


def text(found, name):
    return next(finding.text for finding in judge_nodes(found, LAYOUT, 9) if finding.name == name)


def test_a_good_site_passes():
    assert set(verdicts(probes()).values()) == {"ok"}


@pytest.mark.parametrize(("hosts", "verdict"), [("aabb", "ok"), ("aaab", "FAIL"), ("aaaa", "FAIL"), ("aab", "FAIL")])
def test_unevenly_spread_or_missing_ranks_fail(hosts, verdict):
    assert verdicts(probes(hosts))["processes"] == verdict


@pytest.mark.parametrize(
    ("changes", "name", "verdict", "message"),
    [
        ({"sees_marker": False}, "shared folder", "FAIL", "not visible on b. Put the run on a shared file system"),
        ({"seen": 2}, "shared folder", "FAIL", "other nodes' files are not visible on b. Raise latency-wait"),
        ({"write_error": "Read-only file system"}, "writing", "FAIL", "fails on b (Read-only file system)"),
        ({"python": "2"}, "python", "FAIL", "a has 3, b 2. Use one environment"),
        ({"packages": {}}, "python", "FAIL", "a and b differ in packages: tqdm 1 and None"),
        ({"cores": 8}, "cores", "warn", "each process may use 8 on b, expected 16"),
        ({"memory_mb": 5}, "memory", "warn", "5 MB on b, training needs 9 MB"),
        ({"scratch_error": "full"}, "scratch", "warn", "/t on b: full"),
    ],
)
def test_a_node_with_a_fault_is_named(changes, name, verdict, message):
    found = probes(**changes)
    assert verdicts(found)[name] == verdict
    assert text(found, name).startswith(message)


def test_no_answer_is_a_failure():
    assert verdicts([]) == {"processes": "FAIL"}
    assert judge_job([], 2).verdict == "FAIL"


@pytest.mark.parametrize(("ranks", "verdict"), [([0, 1], "ok"), ([0, 0], "FAIL"), ([0], "FAIL")])
def test_all_processes_are_one_job(ranks, verdict):
    assert judge_job([{"rank": rank, "size": 2} for rank in ranks], 2).verdict == verdict


@pytest.mark.parametrize(
    ("built", "launcher", "text"),
    [
        ({"mpi": True, "gloo": True}, "srun --mpi=pmix", "built with mpi and gloo, srun needs mpi"),
        ({"mpi": False, "gloo": True}, "ffn launch -n 2", "built with gloo, ffn launch needs gloo"),
        ({"mpi": True, "gloo": False}, "horovodrun --gloo", "built without gloo, so horovodrun would start single"),
        ({"error": "no libmpi.so"}, "srun", "cannot be imported (no libmpi.so). Run make setup"),
    ],
)
def test_horovod_needs_what_the_launcher_speaks(built, launcher, text):
    assert judge_build(built, launcher).text.startswith(text)


@pytest.mark.parametrize(
    ("probe", "num_wanted", "verdict", "message"),
    [
        ({"seen": 4}, 4, "ok", "TensorFlow sees 4"),
        ({"seen": 4, "jax": 4}, 4, "ok", "JAX sees 4, TensorFlow sees 4"),
        ({"seen": 0, "jax": 1, "has_card": True, "why": "no"}, 1, "ok", "JAX sees 1, TensorFlow sees none: no"),
        ({"seen": 0, "has_card": False, "why": "no card"}, 0, "ok", "TensorFlow sees none: no card"),
        ({"seen": 0, "has_card": False, "why": "no card"}, 4, "warn", "TensorFlow sees none: no card"),
        ({"seen": 0, "has_card": True, "why": "no driver"}, 0, "warn", "TensorFlow sees none: no driver"),
    ],
)
def test_a_gpu_that_is_not_seen_is_a_warning_where_there_should_be_one(probe, num_wanted, verdict, message):
    assert judge_gpu(probe, num_wanted) == ("gpu", verdict, message)


@pytest.mark.parametrize(
    ("found", "launcher", "verdict", "text"),
    [
        ({"version": "4", "mpi": "MPICH"}, "srun --mpi=pmix", "ok", "mpi4py 4 uses MPICH"),
        (
            {"version": "4", "mpi": "MPICH"},
            "ffn launch -n 2",
            "FAIL",
            "ffn launch starts no job of MPI. Give the profile",
        ),
        ({"error": "no libmpi.so"}, "srun", "FAIL", "cannot be imported (no libmpi.so). Load the site's MPI"),
    ],
)
def test_mpi4py_needs_a_launcher_of_mpi(found, launcher, verdict, text):
    judged = judge_library(found, launcher)
    assert (judged.name, judged.verdict) == ("mpi4py", verdict) and judged.text.startswith(text)
