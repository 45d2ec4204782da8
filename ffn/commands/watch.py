"""`ffn watch`: show what the jobs of a run are doing."""

from __future__ import annotations

import argparse

from ffn.options import whole_number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Show what the jobs of a run are doing, until Ctrl-C: stage, volume, progress, rate, time left.

    It reads the run's logs, so it works from any computer that sees the folder, also for a run on a cluster.
    """
    parser.add_argument("run_folder", metavar="RUN", help="folder of a run, such as results/demo")
    parser.add_argument(
        "--interval", type=whole_number, default=5, metavar="SECONDS", help="between looks (default: 5)"
    )
    parser.add_argument("--once", action="store_true", help="print the present state and exit")
    parser.set_defaults(function=_run)


def _run(arguments: argparse.Namespace) -> None:
    from ffn.report.watch import watch

    watch(arguments.run_folder, arguments.interval, arguments.once)
