"""Start all ranks of one Horovod job without MPI and without ssh: on this machine, or on the nodes of a job.

Inside a job of a scheduler, on its first node, it holds the meeting point of the ranks, which `srun`, `aprun` or
`mpiexec` start on all nodes: for sites whose MPI is not the one that Horovod was built with, or that have none. Outside
of any job, or with --launcher local, the ranks run on this machine. The first one that fails ends all.
"""

from __future__ import annotations

import argparse
import shlex

from ffn.cluster.launch import LAUNCHERS, Launch, launch
from ffn.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``ffn launch``."""
    parser.add_argument("-n", "--num-ranks", type=int, required=True, metavar="INT", help="processes of the job")
    parser.add_argument("--ranks-per-node", type=int, metavar="INT", help="default: as the launcher does it")
    names = ["auto", "local", *LAUNCHERS]
    parser.add_argument(
        "--launcher", choices=names, default="auto", help="default: that of the scheduler, in whose job this runs"
    )
    parser.add_argument(
        "--launcher-options", default="", metavar="TEXT", help="passed on to it, as in '--cpu-bind none'"
    )
    parser.add_argument(
        "--interface",
        metavar="NAME",
        help="network by which ranks meet (default: HOROVOD_GLOO_IFACE, or the host name's)",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=Launch.timeout,
        metavar="SECONDS",
        help="until all ranks must have started (default: %(default)g)",
    )
    parser.add_argument(
        "--grace-seconds",
        type=float,
        default=Launch.grace_seconds,
        metavar="SECONDS",
        help="until the other ranks are killed after one has failed, with --launcher local (default: %(default)g)",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="[--] COMMAND", help="what each rank runs")


def run(arguments: argparse.Namespace) -> None:
    """Run the command and exit as its ranks did."""
    command = arguments.command[arguments.command[:1] == ["--"] :]
    if not command:
        raise ConfigError(
            "launch: no command given, expected one behind the options, as in: ffn launch -n 2 -- ffn train …"
        )
    if arguments.num_ranks < 1:
        raise ConfigError(f"--num-ranks: {arguments.num_ranks}, expected at least 1")
    if arguments.ranks_per_node is not None and arguments.ranks_per_node < 1:
        raise ConfigError(f"--ranks-per-node: {arguments.ranks_per_node}, expected at least 1")
    if not arguments.grace_seconds >= 0:
        raise ConfigError(f"--grace-seconds: {arguments.grace_seconds:g}, expected at least 0")
    try:
        options = shlex.split(arguments.launcher_options)
    except ValueError as reason:
        raise ConfigError(f"--launcher-options: {arguments.launcher_options!r} cannot be split ({reason})") from None
    job = Launch(
        arguments.num_ranks,
        arguments.ranks_per_node,
        arguments.launcher,
        options,
        arguments.interface,
        arguments.timeout,
        arguments.grace_seconds,
    )
    raise SystemExit(launch(job, command))
