"""Snakemake with a batch profile, on the emulated commands of its scheduler."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ..small_run import ROOT

SHIMS = Path(__file__).parent / "shims"
# Shorter waits than in production; `--cores` is that of the machine which stands for a node.
QUICK = ["--seconds-between-status-checks", "1", "--latency-wait", "20", "--cores", "2"]


class Site:
    """A folder to run in, with the profile polaris as a clean clone has it, and the shims' state."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "shims"
        self.state.mkdir(parents=True)
        (folder / "polaris").symlink_to(ROOT / "polaris")

    def command(self, *arguments: str) -> list[str]:
        """Return the command line of Snakemake."""
        return [sys.executable, "-m", "snakemake", *arguments, *QUICK, "--profile", "polaris"]

    def environment(self) -> dict[str, str]:
        """Return the environment of a user who has these commands and is impatient."""
        folders = [str(SHIMS), str(Path(sys.executable).parent), os.environ["PATH"]]
        return {
            **os.environ,
            "PATH": ":".join(folders),
            "PYTHONPATH": str(ROOT),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "FFN_SHIMS": str(self.state),
            "FFN_QUEUE_SECONDS": "1",
            "FFN_LOST_SECONDS": "2",
            "FFN_ACCOUNT": "brains",
        }

    def run(self, *arguments: str) -> str:
        """Run Snakemake to its end and return its output."""
        done = subprocess.run(
            self.command(*arguments),
            cwd=self.folder,
            env=self.environment(),
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr + self.logs()
        return done.stdout + done.stderr

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start Snakemake in a new process group, as a shell does."""
        null = subprocess.DEVNULL
        return subprocess.Popen(
            self.command(*arguments),
            cwd=self.folder,
            env=self.environment(),
            stdout=null,
            stderr=null,
            start_new_session=True,
        )

    def logs(self) -> str:
        """Return what the jobs have printed."""
        return "".join(path.read_text() for path in self.folder.rglob(".snakemake/cluster/*.log"))

    def transcript(self, *names: str) -> list[str]:
        """Return the recorded commands of these names, paths shortened to the last part."""
        lines = (self.state / "transcript").read_text().splitlines()
        folder = f"{self.folder / '.snakemake/cluster'}/"
        return [line.replace(folder, "") for line in lines if line.split()[0] in names]
