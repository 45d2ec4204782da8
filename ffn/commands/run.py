"""`ffn run`: run Snakemake on a configuration, in any folder, also without a checkout."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

from ffn.errors import ClusterError, ConfigError
from ffn.workflow.config_files import ROOT

DEMO = "demo"
DRY_RUN = re.compile(r"-[a-zA-Z]*n[a-zA-Z]*|--dry-?run")  # or among short options, as in -np


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Run the pipeline on a configuration: 'snakemake --profile profiles/local --configfile CONFIG' from any folder.

    Results go to results/ in this folder. What follows CONFIG goes to Snakemake: -n shows the plan, STAGE_all, such as
    membrane_all, stops after a stage, --profile takes another profile of this software, or a folder.

    example:
      ffn run mine.yaml -n
    """
    parser.add_argument("config", metavar="CONFIG", help=f"configuration of a run, or {DEMO}: a small synthetic volume")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="…", help="targets and options of Snakemake")


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    config = ROOT / "config.yaml" if arguments.config == DEMO else Path(arguments.config)
    if not config.is_file():
        raise ConfigError(f"{config}: no such file, expected a configuration. 'ffn new {config}' writes one")
    become_snakemake(config, arguments.words)


def become_snakemake(config: Path, words: list[str]) -> NoReturn:
    """Run Snakemake on a configuration, in place of this process."""
    if importlib.util.find_spec("snakemake") is None:
        raise ClusterError("ffn run: there is no Snakemake here, expected it. pip install 'ffn-pipeline[workflow]'")
    if not any(map(DRY_RUN.fullmatch, words)):
        _build_kernels()
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "snakemake", *snakemake_words(config, words)])


def _build_kernels() -> None:
    """Compile the kernels for CPUs if there are none, for this environment, if it has a compiler."""
    from ffn import kernels
    from ffn.kernels import inference

    libraries = inference.library_path(), kernels.library_path()
    is_possible = shutil.which("c++") and os.access(libraries[0].parent, os.W_OK)
    failed = libraries[1].with_suffix(".failed")
    if all(library.exists() for library in libraries) or failed.exists() or not is_possible:
        return
    print("ffn run: compiles the kernels for CPUs, once for this environment (about a minute)", file=sys.stderr)
    script = Path(kernels.__file__).with_name("build.sh")
    done = subprocess.run(["bash", script, sys.executable], capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        print(f"ffn run: they were not built, so CPUs take longer ({reason})", file=sys.stderr)
        with contextlib.suppress(OSError):  # a full disk: the next run tries again
            failed.write_text(done.stderr)
            print(f"ffn run: {failed} says why. Remove it to try again", file=sys.stderr)


def snakemake_words(config: Path, words: list[str]) -> list[str]:
    """Return the arguments of Snakemake for a configuration; targets come first, as ``--configfile`` takes several."""
    words = [word for given in words for word in (given.split("=", 1) if given.startswith("--profile=") else [given])]
    if "--profile" not in words:
        words = [*words, "--profile", "local"]
    if (at := words.index("--profile") + 1) == len(words):
        raise ConfigError("--profile: has no name, expected a profile or a folder")
    known = ROOT / "profiles" / words[at]
    if known.is_dir() and not Path(words[at], "config.yaml").is_file():
        words[at] = str(known)
    return [*words, "--snakefile", str(ROOT / "workflow/Snakefile"), "--configfile", str(config)]
