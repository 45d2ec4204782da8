"""A workflow small enough for every CI run: a phantom, a tiny network, two processes, several subvolumes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]

SMALL_RUN = {
    "run": "small",
    "rng_seed": 3,
    "volumes": {
        "phantom": {
            "synthetic": {"shape_zyx": [64, 56, 72]},
            "train_box": "0:40,0:56,0:72",
            "evaluate_box": "40:64,0:56,0:72",
        }
    },
    "model": {"depth": 2, "features": 8, "fov_size_zyx": [9, 11, 13], "deltas_zyx": [2, 3, 3]},
    "partition": {"min_size": 100},
    "records": {"num_shards": 3, "max_records": 2000},
    "train": {
        "num_workers": 2,
        "batch_size": 4,
        "max_steps": 120,
        "learning_rate": 0.005,
        "checkpoint_steps": 40,
        "log_steps": 20,
        "permutable_axes": [],
    },
    "subvolumes": {"size_zyx": [64, 56, 48], "overlap_zyx": [14, 14, 14]},
    "segment": {"min_segment_size": 50},
    "agglomerate": {"enabled": True, "min_overlap_voxels": 20},
    "fill": {"max_distance": 3},
}


class Workflow:
    """Snakemake in a folder of its own."""

    def __init__(self, folder: Path, config: dict) -> None:
        self.folder = folder
        self.results = folder / "results" / config["run"]
        folder.mkdir(parents=True, exist_ok=True)
        self.configure(config)

    def configure(self, config: dict) -> None:
        """Write the configuration that the next run reads."""
        (self.folder / "run.yaml").write_text(yaml.safe_dump(config))

    def command(self, *arguments: str) -> list[str]:
        """Return the command line of Snakemake with the local profile."""
        snakemake = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile"), *arguments]
        places = ["--directory", str(self.folder), "--profile", str(ROOT / "profiles/local")]
        return [*snakemake, *places, "--configfile", str(self.folder / "run.yaml")]

    def environment(self) -> dict[str, str]:
        """Return the environment with the tools of this Python first."""
        return {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run Snakemake to its end."""
        return subprocess.run(
            self.command(*arguments),
            env=self.environment(),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=3000,
        )

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start Snakemake and return."""
        return subprocess.Popen(
            self.command(*arguments),
            env=self.environment(),
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def succeed(self, *arguments: str) -> str:
        """Run Snakemake, show its output where it fails, return its output."""
        done = self.run(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Workflow:
    """The whole small run, undisturbed; tests read it and must not change it."""
    workflow = Workflow(tmp_path_factory.mktemp("undisturbed"), SMALL_RUN)
    workflow.succeed()
    return workflow
