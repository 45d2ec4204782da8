"""The `ffn` command: parse, call one stage, print errors a person can act on."""

from __future__ import annotations

import argparse
import importlib
import inspect
import logging
import os
import sys
from typing import NamedTuple

import ffn.machine.own_packages
from ffn import __version__
from ffn.errors import FfnError, without_secrets
from ffn.io.atomic import line_of
from ffn.io.store_names import without_metadata
from ffn.options import Parser
from ffn.workflow.stages import STAGES


class Command(NamedTuple):
    """A subcommand as the overview shows it.

    Its module loads only when it is run. It has ``add_arguments(parser)``, whose docstring is the help, and
    ``run(arguments)``.
    """

    module: str
    summary: str


TOOLS = {
    "new": Command("ffn.commands.new", "write the configuration of a run for your own image and labels"),
    "run": Command("ffn.commands.run", "run the pipeline on a configuration"),
    "launch": Command(
        "ffn.cluster.launch",
        "start the ranks of a training, on this machine or by the scheduler's launcher, without MPI and ssh",
    ),
    "view": Command("ffn.commands.view", "open an export in Neuroglancer, or take a picture of it"),
    "queue": Command("ffn.commands.queue", "list the places where a person's answer is worth most"),
    "correct": Command("ffn.commands.correct", "apply corrections to a finished run"),
    "labels": Command(
        "ffn.commands.labels",
        "write labels of what people confirmed of a run, or empty ones to paint; find faults in labels",
    ),
    "round": Command("ffn.commands.round", "train the network of a run on what people confirmed, and segment again"),
    "doctor": Command(
        "ffn.cluster.doctor", "say whether this site will work: scheduler, launcher, Horovod, file systems, nodes"
    ),
    "study": Command("ffn.commands.study", "study how training scales, and which learning rate it needs"),
    "convert": Command("ffn.commands.convert", "copy a volume of any format to a store or an HDF5 file"),
    "info": Command("ffn.report.describe", "describe a volume, a folder of records, a model or a run"),
}
COMMANDS = {name: Command(stage.module, stage.title) for name, stage in STAGES.items()} | TOOLS

# What `--help` shows of commands with many options; `--help-all` shows the others, too.
FIRST_OPTIONS = {
    "train": "init validate num_workers batch_size max_steps optimizer learning_rate fov_policy precision "
    "validation_steps use_best",
    "segment": "box normalization masks init_segmentation move_threshold effort engine canvases seed_policy "
    "min_segment_um3 second_pass",
    "agglomerate": "box normalization masks min_overlap_voxels min_overlap_depth window_radius_zyx max_fovs "
    "min_recovered max_deleted engine",
}

FROM_FILE = "@FILE stands for the arguments in FILE, one per line, where there are too many for a command line."


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return without_secrets(super().format(record))


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return 0, or 2 after a user's mistake."""
    argv = [without_metadata(word) for word in (sys.argv[1:] if argv is None else argv)]
    level = os.environ.get("FFN_LOG", "INFO").upper()
    known = level in logging.getLevelNamesMapping()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter("%(levelname)s %(message)s"))
    logging.basicConfig(level=level if known else "INFO", handlers=[handler])
    try:
        return _run(argv)
    except FfnError as error:
        print(f"ffn: error: {without_secrets(str(error))}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        return 1
    except KeyboardInterrupt:
        print("ffn: interrupted", file=sys.stderr)
        return 130
    except Exception as error:  # a full disk, a read-only folder, a strange package: not a bug of ours
        if (line := _of_the_system(error)) is None:
            raise
        print(f"ffn: error: {without_secrets(line)}", file=sys.stderr, flush=True)
        return 2


def _of_the_system(error: Exception) -> str | None:
    """Return the line for an error of a disk or of PYTHONPATH; None for a bug."""
    if isinstance(error, ImportError):
        return ffn.machine.own_packages.shadow(error)
    file = getattr(error, "filename", None)
    if line := line_of(error, file or "."):
        return line
    if isinstance(error, FileNotFoundError) and file and not os.path.isdir(os.path.dirname(os.path.abspath(file))):
        return f"{os.path.dirname(file)}: the folder has disappeared, or was moved. Put it back, and run the same again"
    if isinstance(error, OSError):
        return f"{file}: {error.strerror}" if file else str(error)
    return None


def _run(argv: list[str]) -> int:
    name = argv[0] if argv else "--help"
    if name not in COMMANDS:
        name = _overview().parse_args(argv or ["--help"]).command  # prints help, version or an error, and exits
    module = importlib.import_module(COMMANDS[name].module)
    help_text = inspect.getdoc(module.add_arguments)
    parser = Parser(prog=f"ffn {name}", description=help_text, epilog=FROM_FILE, fromfile_prefix_chars="@")
    module.add_arguments(parser)
    if name in FIRST_OPTIONS:
        parser.show_first(set(FIRST_OPTIONS[name].split()))
    module.run(parser.parse_args(argv[1:]))
    return 0


def _overview() -> Parser:
    width = max(map(len, COMMANDS))
    stages = "\n".join(f"  {name:{width}}  {command.summary}" for name, command in COMMANDS.items())
    parser = Parser(
        prog="ffn",
        usage="ffn [--help] [--version] COMMAND …",
        description="From raw electron microscopy to segmented neurons with flood-filling networks.",
        epilog=f"commands ('ffn COMMAND --help' explains the options, with an example):\n{stages}",
    )
    parser.add_argument("--version", action="version", version=f"ffn {__version__}")
    parser.add_argument("command", metavar="COMMAND", choices=list(COMMANDS), help=argparse.SUPPRESS)
    return parser
