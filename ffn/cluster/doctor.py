"""Check before the first long job whether a site works."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import logging
import os
import secrets
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ffn import kernels
from ffn.cluster.batch import is_answering, run_command
from ffn.cluster.findings import Finding, judge_build, judge_gpu, judge_job, judge_library, judge_nodes
from ffn.cluster.job_script import PRIVATE, exports, warn_of_secrets, write_private
from ffn.cluster.probe import MARKER, answers
from ffn.cluster.site import LOG, Site, commands_of, read_site
from ffn.config import ModelConfig
from ffn.io import atomic
from ffn.kernels import inference
from ffn.machine.cpu import cpu_flags, cpu_name
from ffn.machine.gpu import cards
from ffn.machine.limits import cores_here
from ffn.machine.limits import memory_mb as memory_here
from ffn.machine.schedulers import Scheduler
from ffn.options import positive_number
from ffn.workflow.needs import memory_mb

RESULT = "findings.json"
PROBE = (sys.executable, "-m", "ffn.cluster.probe")
LATENCY_SECONDS = 60.0  # until a file must be visible on the other nodes; the profiles' latency-wait
UNITS = {"amx_bf16": "AMX", "avx512f": "AVX-512", "avx2": "AVX2"}  # by the flag of the CPU, fastest first

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Check:
    """How to check a site."""

    folder: Path  # where runs will be; all nodes must share it
    submit: bool = False  # a job, if this process is not inside one
    timeout: float = 600.0  # seconds, for each command and for the submitted job with its time in the queue
    result: Path | None = None  # JSON file for the findings, in addition to the table
    collective: str = "horovod"  # or mpi


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Check before the first long job whether this site works: one line per check, exit code 1 if one fails.

    On a login node it checks the scheduler's commands and Horovod or mpi4py; with --submit it also submits a job of a
    few minutes, which describes its machine and checks all nodes. Inside a job it checks the nodes of that job.
    """
    text = "a profile's folder, or its name in profiles/ (default: %(default)s)"
    parser.add_argument("--profile", default="local", help=text)
    text = "number of nodes to check (default: %(default)s)"
    parser.add_argument("--nodes", type=positive_number(int), default=2, metavar="INT", help=text)
    parser.add_argument("--submit", action="store_true", help="submit a job that checks the nodes")
    text = "where runs will be written (default: %(default)s)"
    parser.add_argument("--folder", type=Path, default="results", help=text)
    text = "limit for the queue and for each step (default: %(default)g)"
    parser.add_argument("--timeout", type=positive_number(float), default=Check.timeout, metavar="SECONDS", help=text)
    text = "library that joins the processes, as train.collective (default: %(default)s)"
    parser.add_argument("--collective", choices=("horovod", "mpi"), default=Check.collective, help=text)
    parser.add_argument("--result", type=Path, metavar="FILE", help="also write the findings as JSON")
    parser.set_defaults(function=_run)


def _run(arguments: argparse.Namespace) -> None:
    """Print the table; exit with 1 if anything fails."""
    check = Check(**{field.name: getattr(arguments, field.name) for field in dataclasses.fields(Check)})
    findings = examine(read_site(arguments.profile, arguments.nodes), check)
    failed = sum(finding.verdict == "FAIL" for finding in findings)
    verdict = f"{failed} of {len(findings)} checks failed" if failed else "no check failed"
    sys.stdout.write(f"{table(findings)}\n{verdict}\n")
    raise SystemExit(1 if failed else 0)


def examine(site: Site, check: Check) -> list[Finding]:
    """Check all that can be checked from here, in order of dependence; skip checks that depend on a failed one."""
    findings = [*_commands(site), _collective(site, check), _writing(check.folder)]
    if any(finding.verdict == "FAIL" for finding in findings):
        findings.append(Finding("nodes", "skip", "fix the above first"))
    elif site.is_inside_job:
        findings += [_machine(), *_gpu(site, check), *_nodes(site, check)]
    elif check.submit:
        findings += _submitted(site, check)
    else:
        findings.append(Finding("nodes", "skip", "add --submit, or run this inside a job"))
    if check.result:
        atomic.write_json(check.result, [finding._asdict() for finding in findings])
    return findings


def table(findings: list[Finding]) -> str:
    """Return the findings as lines with verdict, name and text."""
    width = max(len(finding.name) for finding in findings)
    return "\n".join(f"{finding.verdict:4}  {finding.name:{width}}  {finding.text}" for finding in findings)


def _commands(site: Site) -> list[Finding]:
    findings = []
    if site.scheduler is not None:
        findings.append(_scheduler(site.scheduler))
    launcher = (site.layout.words or ["ffn"])[0]
    if shutil.which(launcher) is None:
        text = f"{launcher} is not on PATH, but has to start the ranks. Load the site's module or take another profile"
        return [*findings, Finding("launcher", "FAIL", text)]
    return [*findings, Finding("launcher", "ok", site.layout.command or "none, for a single process")]


def _scheduler(scheduler: Scheduler) -> Finding:
    commands = commands_of(scheduler)
    missing = [name for name in commands if shutil.which(name) is None]
    if missing:
        text = f"not on PATH: {' '.join(missing)}. Use a login node of that scheduler, or load the site's module"
        return Finding("scheduler", "FAIL", text)
    if not is_answering(scheduler):
        return Finding("scheduler", "FAIL", f"{commands[1]} got no answer about the queue. Is the scheduler running?")
    return Finding("scheduler", "ok", " ".join(commands))


def _collective(site: Site, check: Check) -> Finding:
    """Check the library that joins the processes."""
    probe, judge = {"horovod": ("build", judge_build), "mpi": ("library", judge_library)}[check.collective]
    found = _answers([*PROBE, probe], check.timeout)
    return judge(found[0] if found else {"error": "Python crashed"}, site.layout.words or ["ffn", "launch"])


def _machine() -> Finding:
    """Describe this machine, on which jobs run."""
    flags, gpus = cpu_flags(), cards()
    units = next((name for flag, name in UNITS.items() if flag in flags), "no AVX2")
    missing = [kernels.not_built(kernels.library_path()), inference.obstacle(ModelConfig().features)]
    text = f"{cores_here()} cores ({cpu_name()}, {units}), {len(gpus)} GPUs, {memory_here() / 1000:.0f} GB of memory"
    if gpus or not any(missing):
        return Finding("machine", "ok", text)
    return Finding("machine", "warn", f"{text}; our kernels are missing: {'; '.join(filter(None, missing))}")


def _gpu(site: Site, check: Check) -> list[Finding]:
    """Check the GPUs of this machine, on which jobs run."""
    wanted = int((site.resources or {}).get("gpu", 0))
    return [judge_gpu(answer, wanted) for answer in _answers([*PROBE, "gpu"], check.timeout)]


def _writing(folder: Path) -> Finding:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as reason:
        return Finding("folder", "FAIL", f"{folder} is not writable here ({reason.strerror}). Choose another --folder")
    return Finding("folder", "ok", f"{folder} is writable here")


def _nodes(site: Site, check: Check) -> list[Finding]:
    """Check from every node, then join the ranks; skip that if the nodes failed."""
    layout = site.layout
    probe = [*shlex.split(layout.command), *PROBE]
    with _marked(check.folder) as place:
        look = [*probe, "node", str(place), str(layout.ranks), f"{LATENCY_SECONDS:g}"]
        findings = judge_nodes(_answers(look, check.timeout), layout, layout.per_node * memory_mb("train"))
    if any(finding.verdict == "FAIL" for finding in findings):
        return [*findings, Finding("one job", "skip", "fix the above first")]
    return [*findings, judge_job(_answers([*probe, check.collective], check.timeout), layout.ranks)]


def _submitted(site: Site, check: Check) -> list[Finding]:
    """Submit a job that checks from inside, and wait for its findings."""
    assert site.scheduler is not None
    warn_of_secrets()
    with _marked(check.folder) as place:
        script, result = place / "job.sh", place / RESULT
        _write_script(script, result, site, check)
        command = site.submit_command(str(script))
        done = run_command(command)
        job = site.scheduler.job_id(done.stdout) if done.returncode == 0 else None
        if job is None:
            said = " ".join((done.stderr or done.stdout).split())
            return [Finding("job", "FAIL", f"the scheduler refused {shlex.join(command)}: {said}")]
        log.info("submitted %s, waiting for its findings", job)
        try:
            has_ended = _appears(result, check.timeout)
        except KeyboardInterrupt:
            run_command(site.scheduler.cancel_command([job]))
            raise
        if not has_ended:
            run_command(site.scheduler.cancel_command([job]))
            text = f"{job}: no findings in {check.timeout:.0f} s, so it was cancelled. Raise --timeout, look at {LOG}"
            return [Finding("job", "FAIL", text)]
        found = [Finding(**values) for values in json.loads(result.read_text())]
    if all(finding.name != "job" for finding in found):
        Path(LOG).unlink(missing_ok=True)
    here = {"scheduler", "launcher", "horovod", "mpi4py", "folder"}  # checked before
    return [finding for finding in found if finding.name not in here or finding.verdict == "FAIL"]


def _appears(path: Path, timeout: float) -> bool:
    """Wait for a file; return whether it has appeared."""
    deadline = time.monotonic() + timeout
    while not path.exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(1)
    return True


def _write_script(script: Path, result: Path, site: Site, check: Check) -> None:
    """Write the job that runs this command inside; if it ends early, it writes a finding that says so."""
    inside = [sys.executable, "-m", "ffn", "doctor", "--profile", str(Path(site.name).resolve())]
    inside += ["--result", str(result), "--folder", str(check.folder.absolute()), "--nodes", str(site.layout.nodes)]
    inside += ["--collective", check.collective, "--timeout", f"{check.timeout:g}"]
    ended = json.dumps([Finding("job", "FAIL", f"ended without findings. Look at {LOG}")._asdict()])
    place = shlex.quote(str(result))
    lines = ["#!/bin/bash", *exports(), f"cd {shlex.quote(os.getcwd())}", shlex.join(inside)]
    lines += [f"[[ -e {place} ]] || {{ echo {shlex.quote(ended)} > {place}.tmp && mv {place}.tmp {place}; }}"]
    write_private(script, "\n".join(lines) + "\n")


@contextlib.contextmanager
def _marked(folder: Path) -> Iterator[Path]:
    """Make a folder with a file that all nodes should see; remove it afterwards."""
    place = folder.absolute() / f".ffn-doctor-{secrets.token_hex(4)}"
    place.mkdir(PRIVATE)
    atomic.write_text(place / MARKER, "seen")
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _answers(command: list[str], timeout: float) -> list[dict[str, Any]]:
    """Run a command and return the answers of its probes; without any, log its output."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout)
        output = done.stdout
    except subprocess.TimeoutExpired as late:
        output = f"{(late.stdout or b'').decode(errors='replace')}\n{command[0]}: still running after {timeout:.0f} s"
    found = answers(output)
    if not found:
        log.warning("%s\n%s", shlex.join(command), output.strip())
    return found
