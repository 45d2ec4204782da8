"""`ffn doctor`: check whether a site works."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Check before the first long job whether this site works: one line per check, exit code 1 if one fails.

    On a login node it checks the scheduler's commands and Horovod or mpi4py; with --submit it also submits a job of a
    few minutes, which describes its machine and checks all nodes. Inside a job it checks the nodes of that job.
    """
    parser.add_argument(
        "--profile", default="local", help="a profile's folder, or its name in profiles/ (default: %(default)s)"
    )
    parser.add_argument(
        "--nodes", type=int, default=2, metavar="INT", help="number of nodes to check (default: %(default)s)"
    )
    parser.add_argument("--submit", action="store_true", help="submit a job that checks the nodes")
    parser.add_argument("--folder", default="results", help="where runs will be written (default: %(default)s)")
    parser.add_argument(
        "--timeout",
        type=float,
        default=600,
        metavar="SECONDS",
        help="limit for the queue and for each step (default: %(default)g)",
    )
    parser.add_argument(
        "--collective",
        choices=("horovod", "mpi"),
        default="horovod",
        help="library that joins the processes, as train.collective (default: %(default)s)",
    )
    parser.add_argument("--result", metavar="FILE", help="also write the findings as JSON")
    parser.set_defaults(function=_run)


def _run(arguments: argparse.Namespace) -> None:
    """Print the table; exit with 1 if anything fails."""
    from ffn.cluster.doctor import Check, examine, table
    from ffn.cluster.site import read_site

    result = Path(arguments.result) if arguments.result else None
    folder, collective = Path(arguments.folder), arguments.collective
    check = Check(folder, arguments.submit, arguments.timeout, result, collective)
    findings = examine(read_site(arguments.profile, arguments.nodes), check)
    failed = sum(finding.verdict == "FAIL" for finding in findings)
    verdict = f"{failed} of {len(findings)} checks failed" if failed else "no check failed"
    sys.stdout.write(f"{table(findings)}\n{verdict}\n")
    raise SystemExit(1 if failed else 0)
