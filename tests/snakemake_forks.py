"""Snakemake, imported once: each request is answered by a fork.

Starting Snakemake takes ten times as long as planning a small run. Forks of a process with nothing but imports save
that time and share no state but what the parser makes of each Snakefile, which depends on nothing but the text.

Each line of standard input is a request, as JSON: `arguments` of Snakemake, the `folder` to run in, the `log` for all
its output, and `variables` of the environment. Each line of standard output is the exit code.

Snakemake silently drops parameters that are not of built-in types, so that their changes rerun nothing. Here they are
errors.
"""

from __future__ import annotations

import gc
import hashlib
import importlib
import json
import os
import pickle
import sys
import tempfile
from pathlib import Path
from typing import Any

import snakemake.cli
import snakemake.dag
import snakemake.scheduling.job_scheduler
import snakemake.workflow  # noqa: F401
from snakemake.exceptions import WorkflowError
from snakemake.jobs import Job

import ffn.workflow.pipeline
import ffn.workflow.snakemake_patches  # noqa: F401

# The stages whose inputs are checked when a run is planned: imported by each fork, they take 0.32 of 0.51 s of a plan.
CHECKING = ("ffn.assembly.given", "ffn.evaluation.evaluate", "ffn.inference.segment", "ffn.training.train")
BUILTIN = (str, int, float, bool, type(None))


def is_builtin(value: object) -> bool:
    """Whether a parameter and all that it holds is of a built-in type."""
    if isinstance(value, dict):
        return all(map(is_builtin, [*value, *value.values()]))
    if isinstance(value, list | tuple):
        return all(map(is_builtin, value))
    return isinstance(value, BUILTIN)


def require_builtin(job: Job) -> Any:
    """Return the parameters of a job that Snakemake tracks, if it can."""
    tracked = TRACKED.fget(job)
    wrong = [value for value in tracked if not is_builtin(value)]
    if wrong:
        raise WorkflowError(f"rule {job.rule.name}: parameter {wrong[0]!r} is not of a built-in type")
    return tracked


TRACKED = Job.non_derived_params
Job.non_derived_params = property(require_builtin)


def share_parsed(folder: Path) -> None:
    """Let Snakemake keep what it parses in this folder, and take it from there."""
    parse = snakemake.workflow.parse

    def parse_once(path: Any, workflow: Any, linemap: dict[int, int], rulecount: int) -> tuple[str, int]:
        with workflow.sourcecache.open(path) as file:
            source = f"{path.get_path_or_uri(secret_free=True)} {rulecount} {file.read()}"
        parsed = folder / hashlib.sha256(source.encode()).hexdigest()
        if not parsed.exists():
            result = parse(path, workflow, linemap, rulecount=rulecount)
            parsed.write_bytes(pickle.dumps((result, linemap)))
        result, lines = pickle.loads(parsed.read_bytes())
        linemap.update(lines)
        return result

    snakemake.workflow.parse = parse_once


def become_snakemake(arguments: list[str], folder: str, log: str, variables: dict[str, str]) -> None:
    """Run Snakemake in this process and end it."""
    os.environ.update(variables)
    os.chdir(folder)
    sys.argv[1:] = arguments
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    code: object = 1
    try:
        snakemake.cli.main(arguments)
    except SystemExit as end:
        code = end.code
        if isinstance(code, str):
            print(code)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


def main() -> None:
    """Answer requests until standard input ends."""
    import smart_open  # noqa: F401  Snakemake imports it when it parses: most of what takes time

    for name in CHECKING:
        importlib.import_module(name)

    snakemake.cli.get_argument_parser()  # loads the plugins
    gc.freeze()  # no fork looks through what was imported
    with tempfile.TemporaryDirectory() as folder:
        share_parsed(Path(folder))
        for line in sys.stdin:
            child = os.fork()
            if child == 0:
                become_snakemake(**json.loads(line))
            _, status = os.waitpid(child, 0)
            print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
