"""Say whether this site will work, before the first long job: one line for each thing, exit code 1 if one fails.

On a login node the scheduler's commands and Horovod are looked at; with --submit a job of a few minutes looks from the
nodes as well. Inside a job of the scheduler this command uses that.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``ffn doctor``."""
    parser.add_argument("--profile", default="local", help="folder, or name in profiles/ (default: %(default)s)")
    parser.add_argument("--nodes", type=int, default=2, metavar="INT", help="of the check (default: %(default)s)")
    parser.add_argument("--submit", action="store_true", help="look from the nodes, too, by a job in the queue")
    parser.add_argument("--folder", default="results", help="where runs will be (default: %(default)s)")
    parser.add_argument(
        "--latency",
        type=float,
        default=60,
        metavar="SECONDS",
        help="until a node sees another's file (default: %(default)g)",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=600,
        metavar="SECONDS",
        help="for the queue and each step (default: %(default)g)",
    )
    parser.add_argument("--result", metavar="FILE", help="write what was found as JSON, too")


def run(arguments: argparse.Namespace) -> None:
    """Print the table; exit with 1 if anything fails."""
    from ffn.cluster.doctor import Check, examine, table
    from ffn.cluster.site import read_site

    result = Path(arguments.result) if arguments.result else None
    check = Check(Path(arguments.folder), arguments.submit, arguments.latency, arguments.timeout, result)
    findings = examine(read_site(arguments.profile, arguments.nodes), check)
    failed = sum(finding.verdict == "FAIL" for finding in findings)
    verdict = f"{failed} of {len(findings)} checks failed" if failed else "this site works, as far as was looked"
    sys.stdout.write(f"{table(findings)}\n{verdict}\n")
    raise SystemExit(1 if failed else 0)
