"""The verdicts of `ffn doctor` on the answers of its probes."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from ffn.workflow.rank_layout import Layout

Probe = dict[str, Any]
Probes = Sequence[Probe]
WITHOUT_MPI = ("ffn launch", "horovodrun --gloo")  # launchers that do not start the ranks as a job of MPI


class Finding(NamedTuple):
    """One line of the table: name of the check, verdict, details."""

    name: str
    verdict: Literal["ok", "FAIL", "warn", "skip"]
    text: str


def judge_build(built: Probe, launcher: Sequence[str]) -> Finding:
    """Judge whether the installed Horovod works with the launcher.

    Examples
    --------
    >>> judge_build({"mpi": False, "gloo": True}, ["srun", "--mpi=pmix"]).verdict
    'FAIL'
    """
    if "error" in built:
        text = f"cannot be imported ({built['error']}). Run make setup, or see --collective mpi"
        return Finding("horovod", "FAIL", text)
    needed = "gloo" if shlex.join(launcher).startswith(WITHOUT_MPI) else "mpi"
    if built[needed]:
        return Finding("horovod", "ok", f"built with {needed}, which {launcher[0]} needs")
    text = f"built without {needed}, so {launcher[0]} would start single processes. Load the site's MPI and run "
    return Finding("horovod", "FAIL", f"{text}make setup, or use 'ffn launch' as the profile's launcher")


def judge_library(found: Probe, launcher: Sequence[str]) -> Finding:
    """Judge whether mpi4py works with the launcher."""
    if "error" in found:
        text = f"cannot be imported ({found['error']}). Load the site's MPI, or install mpi4py with it"
        return Finding("mpi4py", "FAIL", text)
    if shlex.join(launcher).startswith(WITHOUT_MPI):
        text = f"{launcher[0]} starts no job of MPI. Give the profile a launcher that does, such as srun or mpiexec"
        return Finding("mpi4py", "FAIL", text)
    return Finding("mpi4py", "ok", f"mpi4py {found['version']} uses {found['mpi']}")


def judge_gpu(probe: Probe, num_wanted: int) -> Finding:
    """Judge whether JAX or TensorFlow sees GPUs, if the profile asks for some."""
    seen = max(probe["seen"], probe["jax"])
    text = f"JAX sees {probe['jax']}, TensorFlow {probe['seen']}"
    return Finding("gpu", "ok" if seen or not num_wanted else "warn", f"{text}. {probe['why']}".rstrip(". "))


def judge_nodes(probes: Probes, layout: Layout, memory_mb: int) -> list[Finding]:
    """Judge the nodes, and whether they share a file system.

    Parameters
    ----------
    probes : sequence of dict
        Answers of the probe ``node``.
    layout : Layout
        Expected processes and nodes.
    memory_mb : int
        Memory that training needs on each node.
    """
    findings = [_judge_count(probes, layout)]
    if not probes:
        return findings
    first = probes[0]

    def judge(name: str, verdict: Literal["FAIL", "warn"], fails: Callable[[Probe], bool], text: str) -> None:
        hosts = sorted({probe["host"] for probe in probes if fails(probe)})
        findings.append(Finding(name, verdict, f"{' '.join(hosts)}: {text}") if hosts else Finding(name, "ok", ""))

    seen = min(layout.ranks, sum("seen" in probe for probe in probes))
    judge("shared folder", "FAIL", lambda p: not p["sees_marker"], "not visible. Put the run on a shared file system")
    judge("latency", "FAIL", lambda p: p.get("seen", seen) < seen, "files of other nodes are late. Raise latency-wait")
    reasons = " ".join({probe["write_error"] for probe in probes if "write_error" in probe})
    judge("writing", "FAIL", lambda p: "write_error" in p, reasons)
    one = "not that of the first node. Use one environment on a shared file system"
    judge("python", "FAIL", lambda p: p["python"] != first["python"], f"another Python, {one}")
    judge("packages", "FAIL", lambda p: p["packages"] != first["packages"], f"other packages, {one}")
    cores = f"fewer than {layout.depth} for each process. Correct the launcher or cores_per_node"
    judge("cores", "warn", lambda p: p["cores"] < layout.depth, cores)
    judge("memory", "warn", lambda p: p["memory_mb"] < memory_mb, f"less than training needs, {memory_mb} MB")
    findings.append(Finding("scratch", "ok", f"{first['scratch']} on {first['host']}"))
    return findings


def judge_job(probes: Probes, num_ranks: int) -> Finding:
    """Judge whether all processes were joined into one job.

    Examples
    --------
    >>> judge_job([{"rank": 0, "size": 1}, {"rank": 0, "size": 1}], 2).verdict
    'FAIL'
    """
    if sorted((probe["rank"], probe["size"]) for probe in probes) == [(rank, num_ranks) for rank in range(num_ranks)]:
        return Finding("one job", "ok", f"{num_ranks} processes join")
    if not probes:
        return Finding("one job", "FAIL", "no process started. Look at the launcher's output above")
    text = f"{sum(probe['rank'] == 0 for probe in probes)} jobs instead of one of {num_ranks} processes"
    return Finding("one job", "FAIL", f"{text}: the launcher uses another kind of MPI (srun --mpi=list shows them)")


def _judge_count(probes: Probes, layout: Layout) -> Finding:
    of_host = Counter(probe["host"] for probe in probes)
    text = f"{len(probes)} on {len(of_host)} nodes ({' '.join(sorted(of_host)[:4])})"
    most = max(of_host.values(), default=0)
    if (len(probes), len(of_host)) == (layout.ranks, layout.nodes) and most <= layout.per_node:
        return Finding("processes", "ok", text)
    text += f", expected {layout.ranks} on {layout.nodes}, at most {layout.per_node} on each"
    return Finding("processes", "FAIL", f"{text}. Correct launcher, ranks_per_node or the job's tasks in the profile")
