"""`ffn info`: describe a file or folder of the pipeline."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe a volume, coordinates, records, a model, scores, an export or a run."""
    parser.add_argument("path", metavar="PATH", help="volume (FILE.h5:DATASET, URL, …), or any file or folder of a run")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--check", action="store_true", help="also read everything and compare checksums")
    parser.set_defaults(function=_run)


def _run(arguments: argparse.Namespace) -> None:
    import json

    from ffn.report.describe import describe, render

    description = describe(arguments.path, arguments.check)
    print(json.dumps(description, indent=1) if arguments.json else render(description))
