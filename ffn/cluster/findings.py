"""The verdicts of `ffn doctor` on the answers of its probes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from ffn.workflow.rank_layout import Layout

Probes = Sequence[dict[str, Any]]
WITHOUT_MPI = ("ffn launch", "horovodrun --gloo")  # launchers that do not start the ranks as a job of MPI
MAX_NAMED = 4  # hosts or packages in one line


class Finding(NamedTuple):
    """One line of the table: what was checked, the verdict, and what was found."""

    name: str
    verdict: Literal["ok", "FAIL", "warn", "skip"]
    text: str


def judge_build(built: dict[str, Any], launcher: str) -> Finding:
    """Judge whether the installed Horovod works with the launcher.

    Parameters
    ----------
    built : dict
        Answer of the probe ``build``.
    launcher : str
        Command that starts the ranks.

    Examples
    --------
    >>> judge_build({"mpi": False, "gloo": True}, "srun --mpi=pmix").verdict
    'FAIL'
    """
    if "error" in built:
        return Finding(
            "horovod", "FAIL", f"cannot be imported ({built['error']}). Run make setup, or see --collective mpi"
        )
    needed, name = ("gloo" if launcher.startswith(WITHOUT_MPI) else "mpi"), _name(launcher)
    can = " and ".join(name for name in ("mpi", "gloo") if built[name]) or "nothing"
    if built[needed]:
        return Finding("horovod", "ok", f"built with {can}, {name} needs {needed}")
    text = f"built without {needed}, so {name} would start single processes instead of one job"
    of_mpi = " with the site's MPI loaded, or use 'ffn launch' as the profile's launcher"
    return Finding("horovod", "FAIL", f"{text}. Run make setup{of_mpi if needed == 'mpi' else ''}")


def judge_gpu(probe: dict[str, Any], num_wanted: int) -> Finding:
    """Judge whether JAX or TensorFlow sees the GPUs of this machine.

    Parameters
    ----------
    probe : dict
        Answer of the probe ``gpu``.
    num_wanted : int
        GPUs that the profile asks for.

    Examples
    --------
    >>> judge_gpu({"seen": 0, "has_card": False, "why": "no NVIDIA card here"}, num_wanted=0)
    Finding(name='gpu', verdict='ok', text='TensorFlow sees none: no NVIDIA card here')
    """
    by_jax = f"JAX sees {probe['jax']}, " if probe.get("jax") else ""
    if probe["seen"]:
        return Finding("gpu", "ok", f"{by_jax}TensorFlow sees {probe['seen']}")
    is_missed = not by_jax and (probe["has_card"] or num_wanted > 0)
    return Finding("gpu", "warn" if is_missed else "ok", f"{by_jax}TensorFlow sees none: {probe['why']}")


def judge_library(found: dict[str, Any], launcher: str) -> Finding:
    """Judge whether mpi4py works with the launcher; `found` is the answer of the probe ``library``.

    Examples
    --------
    >>> judge_library({"version": "4.1.2", "mpi": "Open MPI v4.1.4"}, "srun --mpi=pmix").text
    'mpi4py 4.1.2 uses Open MPI v4.1.4'
    """
    if "error" in found:
        text = f"cannot be imported ({found['error']}). Load the site's MPI, or install mpi4py with it"
        return Finding("mpi4py", "FAIL", text)
    if launcher.startswith(WITHOUT_MPI):
        text = f"{_name(launcher)} starts no job of MPI. Give the profile a launcher that does, such as srun or mpiexec"
        return Finding("mpi4py", "FAIL", text)
    return Finding("mpi4py", "ok", f"mpi4py {found['version']} uses {found['mpi']}")


def judge_nodes(probes: Probes, layout: Layout, memory_mb: int) -> list[Finding]:
    """Judge the nodes and whether they share a file system.

    Parameters
    ----------
    probes : sequence of dict
        Answers of the probe ``node``.
    layout : Layout
        Expected processes and nodes.
    memory_mb : int
        Memory that training needs on each node.
    """
    hosts = sorted({probe["host"] for probe in probes})
    findings = [_judge_count(probes, hosts, layout)]
    if probes:
        findings += [_judge_shared(probes, layout.ranks), _judge_writing(probes), _judge_python(probes)]
        findings += [_judge_cores(probes, layout.depth), _judge_memory(probes, memory_mb), _judge_scratch(probes)]
    return findings


def judge_job(probes: Probes, num_ranks: int) -> Finding:
    """Judge whether all processes were joined into one job.

    Examples
    --------
    >>> judge_job([{"rank": 0, "size": 1}, {"rank": 0, "size": 1}], 2).text[:34]
    '2 jobs of 1 instead of one job of '
    """
    sizes = sorted({probe["size"] for probe in probes})
    ranks = sorted(probe["rank"] for probe in probes)
    if ranks == list(range(num_ranks)) and sizes == [num_ranks]:
        return Finding("one job", "ok", f"{num_ranks} processes join")
    if not probes:
        return Finding("one job", "FAIL", "no process started. Look at the launcher's output above")
    jobs = ranks.count(0)
    text = f"{jobs} jobs of {sizes[0]} instead of one job of {num_ranks}"
    return Finding(
        "one job", "FAIL", f"{text}: the launcher uses another kind of MPI than they do (srun --mpi=list shows them)"
    )


def _name(launcher: str) -> str:
    return " ".join(launcher.split()[: 2 if launcher.startswith("ffn ") else 1])


def _judge_count(probes: Probes, hosts: list[str], layout: Layout) -> Finding:
    where = f"on {len(hosts)} nodes ({' '.join(hosts[:MAX_NAMED])}{' …' if len(hosts) > MAX_NAMED else ''})"
    most = max(Counter(probe["host"] for probe in probes).values(), default=0)
    if len(probes) == layout.ranks and len(hosts) == layout.nodes and most <= layout.per_node:
        return Finding("processes", "ok", f"{layout.ranks} {where}")
    text = f"{len(probes)} started {where}, expected {layout.ranks} on {layout.nodes}"
    if most > layout.per_node:
        text += f", at most {layout.per_node} on each, not {most}"
    return Finding("processes", "FAIL", f"{text}. Correct launcher, ranks_per_node or the job's tasks in the profile")


def _judge_shared(probes: Probes, num_ranks: int) -> Finding:
    blind = _hosts(probe for probe in probes if not probe["sees_marker"])
    if blind:
        return Finding("shared folder", "FAIL", f"not visible on {blind}. Put the run on a shared file system")
    partly = _hosts(probe for probe in probes if probe.get("seen", num_ranks) < min(num_ranks, len(_writers(probes))))
    if partly:
        return Finding("shared folder", "FAIL", f"other nodes' files are not visible on {partly}. Raise latency-wait")
    slowest = max(probe.get("waited", 0.0) for probe in probes)
    return Finding("shared folder", "ok", f"every node sees the files of all nodes after {slowest:.1f} s")


def _judge_writing(probes: Probes) -> Finding:
    failed = [probe for probe in probes if "write_error" in probe]
    if failed:
        return Finding("writing", "FAIL", f"fails on {_hosts(failed)} ({failed[0]['write_error']})")
    if not _writers(probes):
        return Finding("writing", "skip", "no node sees the folder")
    return Finding("writing", "ok", "works on every node that sees the folder")


def _judge_python(probes: Probes) -> Finding:
    first = probes[0]
    for probe in probes[1:]:
        if probe["python"] != first["python"]:
            text = f"{first['host']} has {first['python']}, {probe['host']} {probe['python']}"
            return Finding("python", "FAIL", f"{text}. Use one environment on a shared file system")
        here, there = first["packages"], probe["packages"]
        differing = sorted(name for name in here | there if here.get(name) != there.get(name))
        if differing:
            named = ", ".join(f"{n} {here.get(n)} and {there.get(n)}" for n in differing[:MAX_NAMED])
            return Finding("python", "FAIL", f"{first['host']} and {probe['host']} differ in packages: {named}")
    return Finding("python", "ok", f"{first['python']} with the same {len(first['packages'])} packages everywhere")


def _judge_cores(probes: Probes, depth: int) -> Finding:
    least = min(probes, key=lambda probe: probe["cores"])
    text = f"each process may use {least['cores']} on {least['host']}"
    if least["cores"] >= depth:
        return Finding("cores", "ok", text)
    return Finding("cores", "warn", f"{text}, expected {depth}. Correct the launcher or cores_per_node")


def _judge_memory(probes: Probes, memory_mb: int) -> Finding:
    least = min(probes, key=lambda probe: probe["memory_mb"])
    text = f"{least['memory_mb']} MB on {least['host']}, training needs {memory_mb} MB"
    return Finding("memory", "ok" if least["memory_mb"] >= memory_mb else "warn", text)


def _judge_scratch(probes: Probes) -> Finding:
    failed = [probe for probe in probes if "scratch_error" in probe]
    if failed:
        return Finding("scratch", "warn", f"{failed[0]['scratch']} on {_hosts(failed)}: {failed[0]['scratch_error']}")
    least = min(probes, key=lambda probe: probe["scratch_mb"])
    return Finding("scratch", "ok", f"{least['scratch']} with {least['scratch_mb']} MB free on {least['host']}")


def _writers(probes: Probes) -> list[dict[str, Any]]:
    return [probe for probe in probes if "seen" in probe]


def _hosts(probes: Any) -> str:
    return " ".join(sorted({probe["host"] for probe in probes}))
