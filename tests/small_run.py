"""A workflow small enough for every run of the tests: a phantom, a tiny network, two processes, four subvolumes."""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import yaml

from .pauses import Pause

ROOT = Path(__file__).parents[1]

SMALL_RUN = yaml.safe_load((ROOT / ".test/config/config.yaml").read_text())


class Workflow:
    """A folder in which Snakemake runs."""

    def __init__(self, folder: Path, config: dict) -> None:
        self.folder = folder
        self.results = folder / "results" / config["run"]
        folder.mkdir(parents=True, exist_ok=True)
        self.configure(config)

    def configure(self, config: dict) -> None:
        """Write the configuration that the next run reads."""
        (self.folder / "run.yaml").write_text(yaml.safe_dump(config))

    def arguments(self, *arguments: str) -> list[str]:
        """Return Snakemake's arguments with the local profile."""
        places = ["--directory", str(self.folder), "--profile", str(ROOT / "profiles/local")]
        return ["--snakefile", str(ROOT / "Snakefile"), *arguments, *places, "--configfile", f"{self.folder}/run.yaml"]

    def command(self, *arguments: str) -> list[str]:
        """Return the command line of Snakemake."""
        return [sys.executable, "-m", "snakemake", *self.arguments(*arguments)]

    def environment(self) -> dict[str, str]:
        """Return the environment with the tools of this Python first."""
        return {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def fork(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run Snakemake in a fork of one that is already imported, which takes four seconds less."""
        return fork_snakemake(self.arguments(*arguments), self.folder, variables)

    def plan(self, *arguments: str) -> str:
        """Return the output of a dry run, which succeeds."""
        return shown(self.fork("-n", *arguments))

    @contextlib.contextmanager
    def started(self, *arguments: str, pause: Pause) -> Iterator[subprocess.Popen[bytes]]:
        """Run Snakemake, whose jobs stop at `pause`, in a ``with`` block; at its end Snakemake is killed (-9)."""
        with (self.folder / "snakemake.log").open("ab") as log:
            environment = {**self.environment(), **pause.variables()}
            process = subprocess.Popen(
                self.command(*arguments), env=environment, cwd=self.folder, stdout=log, stderr=log
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait()
            pause.resume()

    def succeed(self, *arguments: str) -> str:
        """Run Snakemake to its end, which is a good one, and return its output."""
        done = subprocess.run(
            self.command(*arguments), env=self.environment(), cwd=self.folder, capture_output=True, text=True
        )
        return shown(done)


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def shown(done: subprocess.CompletedProcess[str]) -> str:
    """Return the output of a process; one that failed fails the test and shows it."""
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def fork_snakemake(
    arguments: list[str], folder: Path, variables: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run Snakemake with these arguments in this folder, in a fork of `snakemake_forks`."""
    server = _forks()
    with tempfile.NamedTemporaryFile("r") as log:
        request = {"arguments": arguments, "folder": str(folder), "log": log.name, "variables": variables or {}}
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        code = int(server.stdout.readline())
        return subprocess.CompletedProcess(arguments, code, log.read(), "")


@functools.cache
def _forks() -> subprocess.Popen[str]:
    """Start the process that forks; it ends with this one, whose end closes its standard input."""
    command = [sys.executable, "-m", "tests.snakemake_forks"]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    server = subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "PATH": path}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    atexit.register(server.communicate)
    return server
