"""Write an HTML page about a run (pictures, curves, scores, cost of each stage), or print its scores."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN_DIR", help="folder of the run, such as results/demo")
    parser.add_argument("--out", metavar="FILE.html", help="page to write (default: RUN_DIR/report.html)")
    parser.add_argument("--summary", action="store_true", help="print the scores and how to see more, write nothing")


def run(arguments: argparse.Namespace) -> None:
    out = arguments.out or str(Path(arguments.run) / "report.html")
    if arguments.summary:
        from ffn.report.score_table import format_summary

        print(format_summary(arguments.run, out))
        return
    from ffn.report.page import report

    report(arguments.run, out)
