"""The `ffn` command: parse, call one stage, print errors a person can act on."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import re
import sys
from typing import Any, NamedTuple, NoReturn

from ffn import __version__
from ffn.errors import FfnError


class Parser(argparse.ArgumentParser):
    """Parser whose complaints are one line; it takes ``-5:18,…`` and ``-1e-05`` for values, not for options."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
        self._negative_number_matcher = re.compile(r"-\.?\d")  # as in Python 3.14; before, whole numbers alone

    def format_help(self) -> str:
        """Say on top only what a command needs; what it can do besides is listed below."""
        needed = [word for action in self._actions if action.required for word in _words(action)]
        self.usage = self.usage or " ".join([self.prog, *needed, "[OPTION …]"])
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        """Print the complaint and where help is; exit with 2."""
        print(f"{self.prog}: error: {message}. See '{self.prog} --help'", file=sys.stderr)
        raise SystemExit(2)


def _words(action: argparse.Action) -> list[str]:
    """Name and values of an argument as a user types them."""
    values = action.metavar if isinstance(action.metavar, tuple) else (action.metavar or action.dest.upper(),)
    more = ["…"] if action.nargs in ("+", argparse.PARSER) else []
    return [*action.option_strings[-1:], *values, *more]


class Command(NamedTuple):
    """A subcommand as the overview shows it; its module ``ffn.commands.<name>`` loads only when it is run."""

    summary: str
    example: str


COMMANDS = {
    "synth": Command(
        "make a synthetic EM volume with labels",
        "ffn synth --shape 96 128 160 --out-image raw.h5:raw --out-labels labels.h5:labels",
    ),
    "ingest": Command(
        "bring images or labels of any supported format into the project's format",
        "ffn ingest 'stack/*.png' --voxel-size 10 10 10 --out raw.h5:raw",
    ),
    "membrane": Command(
        "detect membranes: edges and the distance to them",
        "ffn membrane --image raw.h5:raw --out membrane.h5",
    ),
    "partition": Command(
        "sort labelled voxels by the share of their neighbourhood that is the same object",
        "ffn partition --labels labels.h5:labels --lom-radius 24 24 24 --out partitions.h5:partitions",
    ),
    "coordinates": Command(
        "list the voxels that training may start from",
        "ffn coordinates --partitions partitions.h5:partitions --membrane membrane.h5 --out coordinates.h5",
    ),
    "records": Command(
        "write balanced, shuffled, sharded TFRecord files of coordinates",
        "ffn records --coordinates fib25=coordinates.h5 --num-shards 16 --out records/",
    ),
    "import-checkpoint": Command(
        "turn a published TensorFlow 1 FFN checkpoint into a model folder",
        "ffn import-checkpoint model.ckpt-27465036 --out model/",
    ),
    "train": Command(
        "train an FFN, on one process or under ffn launch, srun, mpirun, aprun",
        "ffn launch -n 2 -- ffn train --records records/ --volume demo=raw.h5:raw,labels.h5:labels --out model/",
    ),
    "launch": Command(
        "start the ranks of a training, on this machine or by the scheduler's launcher, without MPI and ssh",
        "ffn launch -n 8 --ranks-per-node 2 -- ffn train --records records/ --volume … --out model/",
    ),
    "segment": Command(
        "flood-fill one box of an image",
        "ffn segment --image raw.h5:raw --model model/ --box 0:128,0:128,0:128 --out seg.h5:segmentation",
    ),
    "reconcile": Command(
        "join overlapping subvolumes into one volume with global ids",
        "ffn reconcile subvolumes/*.h5 --out segmentation.h5:segmentation",
    ),
    "consensus": Command(
        "split two segmentations wherever they disagree",
        "ffn consensus forward.h5:segmentation reversed.h5:segmentation --out consensus.h5:segmentation",
    ),
    "agglomerate": Command(
        "score which touching segments are one object",
        "ffn agglomerate --segmentation seg.h5:segmentation --image raw.h5:raw --model MODEL_DIR --out graph.csv",
    ),
    "merge": Command(
        "join the segments that a merge graph joins",
        "ffn merge graph.csv --segmentation seg.h5:segmentation --out agglomerated.h5:segmentation",
    ),
    "fill": Command(
        "give unsegmented voxels to the segments around them",
        "ffn fill --segmentation seg.h5:segmentation --image raw.h5:raw --max-distance 10 --out filled.h5:segmentation",
    ),
    "skeletonize": Command(
        "find the centre lines of the truth's bodies, for the run length",
        "ffn skeletonize --labels labels.h5:labels --out skeletons.h5",
    ),
    "evaluate": Command(
        "score a segmentation against the truth: ARE, VOI, coverage, run length, worst errors",
        "ffn evaluate --segmentation seg.h5:segmentation --truth labels.h5:labels --image raw.h5:raw --out scores.json",
    ),
    "sweep": Command(
        "score a merge graph at every threshold",
        "ffn sweep graph.csv --segmentation seg.h5:segmentation --truth labels.h5:labels --out sweep.json",
    ),
    "select": Command(
        "choose the best of several checkpoints by their scores on a validation box",
        "ffn select --candidate 500=a/,a.json --candidate 1000=b/,b.json --out best/",
    ),
    "export": Command(
        "write Neuroglancer volumes and meshes",
        "ffn export --image raw.h5:raw --segmentation seg.h5:segmentation --out precomputed/",
    ),
    "view": Command(
        "open an export in Neuroglancer, or take a picture of it",
        "ffn view results/demo --screenshot neurons.png",
    ),
    "report": Command(
        "write one HTML page: slices, curves, scores, cost of the stages",
        "ffn report results/demo --out results/demo/report.html",
    ),
    "doctor": Command(
        "say whether this site will work: scheduler, launcher, Horovod, file systems, nodes",
        "ffn doctor --profile slurm --nodes 2 --submit",
    ),
    "study": Command(
        "study how training scales, and which learning rate it needs",
        "ffn study scaling measure-1.h5 measure-2.h5 --out scaling.json",
    ),
    "info": Command(
        "describe a volume, a folder of records, a model or a run",
        "ffn info --json raw.h5:raw",
    ),
}

FROM_FILE = "@FILE stands for the arguments in FILE, one a line, where they are too many for a command line."


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return 0, or 2 after a user's mistake."""
    argv = sys.argv[1:] if argv is None else argv
    level = os.environ.get("FFN_LOG", "INFO").upper()
    known = level in logging.getLevelNamesMapping()
    logging.basicConfig(level=level if known else "INFO", format="%(levelname)s %(message)s", stream=sys.stderr)
    try:
        return _run(argv)
    except FfnError as error:
        print(f"ffn: error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        return 1
    except OSError as error:  # a full disk, a folder that may not be written to: nothing of ours to debug
        where = f"{error.filename}: " if error.filename else ""
        reason = "No space left on device" if "No space left" in str(error) else error.strerror or error
        print(f"ffn: error: {where}{reason}. Nothing was left half-written", file=sys.stderr, flush=True)
        if "errno = " in str(error):  # HDF5 could not flush: its clean-up at exit would print tracebacks and crash
            os._exit(2)
        return 2
    except KeyboardInterrupt:
        print("ffn: interrupted", file=sys.stderr)
        return 130


def _run(argv: list[str]) -> int:
    name = argv[0] if argv else "--help"
    if name not in COMMANDS:
        name = _overview().parse_args(argv or ["--help"]).command  # prints help or version, or complains, and exits
    command = COMMANDS[name]
    module = importlib.import_module("ffn.commands." + name.replace("-", "_"))
    parser = Parser(
        prog=f"ffn {name}",
        description=f"{(module.__doc__ or '').strip()}\n\nexample:\n  {command.example}",
        epilog=FROM_FILE,
        fromfile_prefix_chars="@",
    )
    module.add_arguments(parser)
    module.run(parser.parse_args(argv[1:]))
    return 0


def _overview() -> Parser:
    width = max(map(len, COMMANDS))
    stages = "\n".join(f"  {name:{width}}  {c.summary}\n  {'':{width}}  $ {c.example}" for name, c in COMMANDS.items())
    parser = Parser(
        prog="ffn",
        usage="ffn [--help] [--version] COMMAND …",
        description="From raw electron microscopy to segmented neurons with flood-filling networks.",
        epilog=f"commands ('ffn COMMAND --help' explains the options):\n{stages}",
    )
    parser.add_argument("--version", action="version", version=f"ffn {__version__}")
    parser.add_argument("command", metavar="COMMAND", choices=list(COMMANDS), help=argparse.SUPPRESS)
    return parser
