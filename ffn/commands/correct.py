"""`ffn correct`: apply corrections to a finished run."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import yaml

from ffn.commands.queue import queue_inputs
from ffn.commands.run import become_snakemake
from ffn.errors import ConfigError
from ffn.workflow.paths import RunPaths
from ffn.workflow.run import RunConfig
from ffn.workflow.stages import STAGES, rules_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Apply corrections to a finished run: its merge, and what follows from it, are made again.

    Nothing is flooded but the windows of cuts. The files, of any number of people, are all that counts, so an earlier
    correction that is in none of them is undone. Two that contradict each other are named, and nothing is done. What
    follows the files goes to Snakemake: -n shows the plan, for which the corrections are copied into the run.

    example:
      ffn correct results/demo corrections.csv
    """
    parser.add_argument("--volume", metavar="NAME", help="volume of the run; default: its only one")
    parser.add_argument("run_folder", metavar="RUN", help="folder of a run with agglomerate.enabled")
    parser.add_argument("corrections", nargs="+", metavar="FILE.csv", help="files of 'ffn view RUN'")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="…", help="options of Snakemake")


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    folder = Path(os.path.abspath(arguments.run_folder))  # results/ may be a link to another disk
    config = corrected(folder, arguments.volume, arguments.corrections)
    os.chdir(folder.parents[1])  # where the workflow makes results/<run>
    become_snakemake(config, [*arguments.words, "--allowed-rules", *rules_after_agglomeration()])


def rules_after_agglomeration() -> list[str]:
    """Return the rules that corrections can repeat, whatever else has changed since."""
    names = list(STAGES)
    later = [name for name in names[names.index("cut") :] if name != "learn-affinities"]
    return ["all", *(rule for name in later for rule in rules_of(name))]


def corrected(folder: Path, volume: str | None, paths: list[str]) -> Path:
    """Copy the corrections of several files into the folder of a run, and return its configuration with them."""
    from ffn.assembly.given import corrections_text, read_corrections
    from ffn.io import atomic
    from ffn.viewing.queue import read_answers

    inputs = queue_inputs(str(folder), volume, ())
    with inputs.open_base() as base:
        read_answers(paths, base)  # names contradictions
    values = recorded_run(folder).as_written()
    copy = Path(RunPaths(folder).corrections(inputs.export.name))
    atomic.write_text(copy, corrections_text(dict.fromkeys(each for path in paths for each in read_corrections(path))))
    values["volumes"][inputs.export.name]["corrections"] = str(copy.relative_to(folder.parents[1]))
    path = folder / "corrected.yaml"
    atomic.write_text(path, yaml.safe_dump(values, sort_keys=False))
    return path


def recorded_run(folder: Path) -> RunConfig:
    """Read the configuration of a run that lies where the workflow makes it."""
    run = RunPaths(folder).read_config()
    assert run is not None
    if folder.parts[-2:] != ("results", run.run):
        raise ConfigError(f"{folder}: is not results/{run.run}, where its workflow works. Move it back")
    return run
