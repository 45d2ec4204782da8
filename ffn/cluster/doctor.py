"""Check before the first long job whether a site works."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import re
import secrets
import shlex
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml

from ffn import kernels
from ffn.cluster.batch import PRIVATE, is_answering, require_commands, scheduler_of
from ffn.config import ModelConfig
from ffn.errors import ClusterError, TrainError
from ffn.io.atomic import unreadable
from ffn.kernels import inference
from ffn.machine.gpu import cards, jax_gpus, why_no_gpu
from ffn.machine.limits import cores_here, cpu_name, memory_mb, usable_cores
from ffn.machine.schedulers import Scheduler, slurm
from ffn.model.network import num_weights
from ffn.options import positive_number
from ffn.training.config import Collective
from ffn.training.parallel.joining import joined
from ffn.training.parallel.process_group import JoinedGroup
from ffn.workflow.config_files import ROOT
from ffn.workflow.rank_layout import Layout, layout_of

PATIENCE = 600.0  # for all ranks to start, join and answer; our choice

MARK = "FFN-PROBE"  # launchers mix the lines of processes, but cut none of less than 1000 characters
MEETING_SECONDS = 300  # until all processes have loaded TensorFlow from a busy file system
ROUNDS = 20  # of exchanges to time; our choice

Probe = dict[str, Any]
Verdict = Literal["ok", "FAIL", "warn", "skip"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Site:
    """The parts of a profile that `ffn doctor` needs."""

    layout: Layout  # ranks of the check, and their launcher
    scheduler: Scheduler | None = None  # None for a workstation
    num_gpus: int = 0  # of a node, that training asks for

    @property
    def is_inside_job(self) -> bool:
        """Whether this process runs in a job of the scheduler, or there is no scheduler."""
        return self.scheduler is None or self.scheduler.JOB_ID in os.environ


class Finding(NamedTuple):
    """One line of the table: name of the check, verdict, details."""

    name: str
    verdict: Verdict
    text: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Check before the first long job whether this site works: one line per check, exit code 1 if one fails.

    On a login node it checks the commands of the scheduler and the launcher. Inside a job, which may be an interactive
    one, it describes the machine, checks all nodes and joins the ranks, in a minute or two.

    example:
      ffn doctor --profile slurm --nodes 2
    """
    text = "a profile's folder, or its name in profiles/ (default: %(default)s)"
    parser.add_argument("--profile", default="local", help=text)
    text = "number of nodes to check (default: %(default)s)"
    parser.add_argument("--nodes", type=positive_number(int), default=2, metavar="INT", help=text)
    text = "where runs will be written (default: %(default)s)"
    parser.add_argument("--folder", type=Path, default="results", help=text)
    text = "library that joins the processes, as train.collective (default: %(default)s)"
    parser.add_argument("--collective", choices=("horovod", "mpi"), default="horovod", help=text)


def run(arguments: argparse.Namespace) -> None:
    """Print the table; exit with 1 if anything fails."""
    findings = examine(read_site(arguments.profile, arguments.nodes), arguments.folder, arguments.collective)
    failed = sum(finding.verdict == "FAIL" for finding in findings)
    verdict = f"{failed} of {len(findings)} checks failed" if failed else "no check failed"
    sys.stdout.write(f"{table(findings)}\n{verdict}\n")
    raise SystemExit(1 if failed else 0)


def read_site(profile: str, num_nodes: int) -> Site:
    """Read a profile: a folder with ``config.yaml``, or the name of one of this software's."""
    folders = (Path(profile), ROOT / "profiles" / profile)
    folder = next((f for f in folders if (f / "config.yaml").is_file()), None)
    if folder is None:
        found = " ".join(sorted(path.parent.name for path in ROOT.glob("profiles/*/config.yaml")))
        raise ClusterError(f"--profile: no {profile}/config.yaml, expected the folder of a profile or one of {found}")
    with unreadable(folder / "config.yaml", "options of Snakemake, a mapping in YAML", ClusterError):
        values = dict(yaml.safe_load((folder / "config.yaml").read_text()))
    train = (values.get("set-resources") or {}).get("train") or {}
    if "executor" not in values:
        return Site(layout_of(2, train, usable_cores()))
    if "launcher" not in train:
        raise ClusterError(f"{folder}/config.yaml: set-resources: train has no launcher, a cluster needs one")
    per_node = layout_of(1, train, 1).ranks_per_node
    layout = layout_of(num_nodes * per_node, {"ranks_per_node": 1} | train, 1)
    is_plugin = values["executor"] == slurm.name
    scheduler = slurm if is_plugin else scheduler_of(str(values.get("cluster-generic-submit-cmd", "")))
    return Site(layout, scheduler, int(train.get("gpu", (values.get("resources") or {}).get("gpu", 0))))


def examine(site: Site, folder: Path, collective: str) -> list[Finding]:
    """Check all that can be checked from here, in order of dependence; skip checks that depend on a failed one."""
    findings = _commands(site)
    if _failed(findings):
        findings.append(Finding("nodes", "skip", "fix the above first"))
    elif site.is_inside_job:
        findings += [_machine(), *_nodes(site, folder, collective)]
    else:
        findings.append(Finding("nodes", "skip", f"run the same inside a job of {site.layout.nodes} nodes"))
    return findings


def table(findings: Sequence[Finding]) -> str:
    """Return the findings as lines with verdict, name and text."""
    width = max(len(finding.name) for finding in findings)
    return "\n".join(f"{finding.verdict:4}  {finding.name:{width}}  {finding.text}" for finding in findings)


def _failed(findings: Sequence[Finding]) -> bool:
    return any(finding.verdict == "FAIL" for finding in findings)


def _commands(site: Site) -> list[Finding]:
    findings = [] if site.scheduler is None else [_scheduler(site.scheduler)]
    launcher = (shlex.split(site.layout.command) or ["ffn"])[0]
    if shutil.which(launcher) is None:
        text = f"{launcher} is not on PATH, but has to start the ranks. Load the site's module or take another profile"
        return [*findings, Finding("launcher", "FAIL", text)]
    return [*findings, Finding("launcher", "ok", site.layout.command or "none, for a single process")]


def _scheduler(scheduler: Scheduler) -> Finding:
    try:
        require_commands(scheduler)
    except ClusterError as error:
        return Finding("scheduler", "FAIL", str(error))
    submit, ask, cancel = scheduler.commands
    if not is_answering(scheduler):
        return Finding("scheduler", "FAIL", f"{ask} got no answer about the queue. Is the scheduler running?")
    return Finding("scheduler", "ok", f"{submit} {ask} {cancel}")


def _machine() -> Finding:
    """Describe this machine, on which jobs run."""
    gpus = cards()
    missing = [kernels.not_built(kernels.library_path()), inference.obstacle(ModelConfig().features)]
    text = f"{cores_here()} cores ({cpu_name()}), {len(gpus)} GPUs, {memory_mb() / 1000:.0f} GB of memory"
    if gpus or not any(missing):
        return Finding("machine", "ok", text)
    return Finding("machine", "warn", f"{text}; our kernels are missing: {'; '.join(filter(None, missing))}")


def _nodes(site: Site, folder: Path, collective: str) -> list[Finding]:
    """Start the ranks on all nodes; judge the nodes, and whether the ranks join."""
    with _own_folder(folder) as place:
        probes = _answers([collective, str(place)], shlex.split(site.layout.command))
    findings = judge_nodes([probe for probe in probes if "host" in probe], site.layout, site.num_gpus)
    if _failed(findings):
        return [*findings, Finding("one job", "skip", "fix the above first")]
    probes = [probe for probe in probes if "host" not in probe]
    return [*findings, judge_job(probes, site.layout.ranks), *_exchange(probes)]


def judge_nodes(probes: Sequence[Probe], layout: Layout, num_gpus: int = 0) -> list[Finding]:
    """Judge the nodes by the answers of all processes, if GPUs are wanted also by those."""
    findings = [_judge_count(probes, layout)]
    if not probes:
        return findings

    def judge(name: str, verdict: Verdict, faults: Mapping[str, str]) -> None:
        text = "; ".join(f"{host}: {fault}" for host, fault in sorted(faults.items()))
        findings.append(Finding(name, verdict if faults else "ok", text))

    shared = "Put the run on a file system that all nodes share and may write to"
    judge("shared folder", "FAIL", {p["host"]: f"{p['refused']}. {shared}" for p in probes if "refused" in p})
    cores = f"fewer than {layout.depth} cores for each process. Correct the launcher or cores_per_node"
    judge("cores", "warn", {p["host"]: cores for p in probes if p["cores"] < layout.depth})
    if num_gpus:
        seeing_none = [p for p in probes if not p["jax"] + p["tensorflow"]]
        judge("gpu", "warn", {p["host"]: f"JAX sees none, TensorFlow sees none. {p['why']}" for p in seeing_none})
    return findings


def _judge_count(probes: Sequence[Probe], layout: Layout) -> Finding:
    of_host = Counter(probe["host"] for probe in probes)
    text = f"{len(probes)} on {len(of_host)} nodes ({' '.join(sorted(of_host)[:4])})"
    most = max(of_host.values(), default=0)
    if (len(probes), len(of_host)) == (layout.ranks, layout.nodes) and most <= layout.per_node:
        return Finding("processes", "ok", text)
    text += f", expected {layout.ranks} on {layout.nodes}, at most {layout.per_node} on each"
    return Finding("processes", "FAIL", f"{text}. Correct launcher, ranks_per_node or the job's tasks in the profile")


def judge_job(probes: Sequence[Probe], num_ranks: int) -> Finding:
    """Judge whether all processes were joined into one job.

    Examples
    --------
    >>> apart = {"rank": 0, "size": 1, "library": "Horovod with gloo"}
    >>> judge_job([apart, apart], 2).verdict
    'FAIL'
    """
    if not probes:
        return Finding("one job", "FAIL", "no process joined. Look at the launcher's output above")
    if errors := [probe["error"] for probe in probes if "error" in probe]:
        return Finding("one job", "FAIL", errors[0])
    library = probes[0]["library"]
    if sorted((probe["rank"], probe["size"]) for probe in probes) == [(rank, num_ranks) for rank in range(num_ranks)]:
        return Finding("one job", "ok", f"{num_ranks} processes join by {library}")
    text = f"{sum(probe['rank'] == 0 for probe in probes)} jobs instead of one of {num_ranks} processes"
    cause = f"the launcher does not start what this needs: {library}"
    return Finding("one job", "FAIL", f"{text}: {cause}. See srun --mpi=list, or use 'ffn launch' as the launcher")


def _exchange(probes: Sequence[Probe]) -> list[Finding]:
    """Show what a step of training spends on its exchange, as rank 0 has timed it."""
    told = [f"{probe['exact_ms']} ms, {probe['allreduce_ms']} ms by" for probe in probes if probe.get("rank") == 0]
    return [Finding("exchange", "ok", f"{text} allreduce (train.exact_sums: false)") for text in told]


@contextlib.contextmanager
def _own_folder(folder: Path) -> Iterator[Path]:
    """Make a folder that all nodes should see; remove it afterwards."""
    place = folder.absolute() / f".ffn-doctor-{secrets.token_hex(4)}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        place.mkdir(PRIVATE)
    except OSError as reason:
        raise ClusterError(f"--folder: {folder} is not writable ({reason.strerror}). Choose another one") from None
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _answers(arguments: Sequence[str], launcher: Sequence[str]) -> list[Probe]:
    """Start the probes and return their answers; log their output if none tells of joining."""
    command = [*launcher, sys.executable, "-m", "ffn.cluster.doctor", *arguments]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE)
        output = done.stdout
    except subprocess.TimeoutExpired as late:
        output = f"{(late.stdout or b'').decode(errors='replace')}\n{command[0]}: still running after {PATIENCE:.0f} s"
    found = answers(output)
    if all("host" in answer for answer in found):
        log.warning("%s\n%s", shlex.join(command), output.strip())
    return found


def node(folder: str) -> dict[str, Any]:
    """Describe what this process has of its node: cores, GPUs, and whether it may write to a folder."""
    import tensorflow as tf

    seen, host = len(tf.config.list_physical_devices("GPU")), socket.gethostname()
    gpus = {"tensorflow": seen, "jax": len(jax_gpus()), "why": "" if seen else why_no_gpu()}
    found: dict[str, Any] = {"host": host, "cores": usable_cores(), **gpus}
    try:
        Path(folder, f"{host}-{os.getpid()}").touch()
    except OSError as reason:
        found["refused"] = reason.strerror
    return found


def join(collective: Collective) -> dict[str, Any]:
    """Return this process's place in the job and the times of exchanges, or why the library cannot be imported."""
    os.environ.setdefault("HOROVOD_GLOO_TIMEOUT_SECONDS", str(MEETING_SECONDS))
    try:
        with joined(collective, MEETING_SECONDS) as group:
            return {"rank": group.rank, "size": group.size, "library": group.library, **_exchange_ms(group)}
    except TrainError as reason:
        return {"error": str(reason)}


def _exchange_ms(group: JoinedGroup) -> dict[str, float]:
    """Add gradients of the default network in both ways, in turn; return the median times."""
    import tensorflow as tf

    gradient = tf.ones(num_weights(ModelConfig()))
    ways = {"exact_ms": lambda: group.total(gradient[None]), "allreduce_ms": lambda: group.allreduce(gradient)}
    graphs = {name: tf.function(way, autograph=False) for name, way in ways.items()}
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(ROUNDS + 1):
        for name, graph in graphs.items():
            started = time.perf_counter()
            graph()
            times[name].append(1000 * (time.perf_counter() - started))
    return {name: round(statistics.median(each[1:]), 2) for name, each in times.items()}  # the first one compiles


def answers(output: str) -> list[dict[str, Any]]:
    r"""Return the answers in the output of a job's processes.

    Examples
    --------
    >>> answers('loading\n0: FFN-PROBE {"rank": 0}\n')
    [{'rank': 0}]
    """
    return [json.JSONDecoder().raw_decode(output, found.end())[0] for found in re.finditer(rf"{MARK} (?=\{{)", output)]


def tell(answer: dict[str, Any]) -> None:
    """Print an answer, in one piece."""
    os.write(1, f"{MARK} {json.dumps(answer)}\n".encode())


if __name__ == "__main__":
    tell(node(sys.argv[2]))
    tell(join("mpi" if sys.argv[1] == "mpi" else "horovod"))
