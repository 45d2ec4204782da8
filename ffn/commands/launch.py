"""`ffn launch`: start the ranks of a training."""

from __future__ import annotations

import argparse
import shlex

from ffn.cluster.launch import LAUNCHERS, Launch, launch
from ffn.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Start all ranks of one Horovod job without MPI and ssh, on this machine or on the nodes of a job.

    Inside a job of a scheduler, this command runs on the first node and serves as the meeting point of the ranks;
    `srun`, `aprun` or `mpiexec` starts the ranks on all nodes. It is for sites without MPI, or with another one than
    Horovod was built with. Outside of any job, or with --launcher local, all ranks run on this machine. If one fails,
    all end.
    """
    """Declare the options of ``ffn launch``."""
    parser.add_argument("-n", "--num-ranks", type=int, required=True, metavar="INT", help="number of ranks")
    parser.add_argument("--ranks-per-node", type=int, metavar="INT", help="default: the launcher decides")
    names = ["auto", "local", *LAUNCHERS]
    parser.add_argument("--launcher", choices=names, default="auto", help="default: the one of this job's scheduler")
    parser.add_argument(
        "--launcher-options", default="", metavar="TEXT", help="passed to the launcher, such as '--cpu-bind none'"
    )
    parser.add_argument(
        "--interface",
        metavar="NAME",
        help="network on which ranks meet (default: HOROVOD_GLOO_IFACE, or that of the host's name)",
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
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="[--] COMMAND", help="command of each rank")
    parser.set_defaults(function=_run)


def _run(arguments: argparse.Namespace) -> None:
    """Run the command on all ranks and exit with their exit code."""
    command = arguments.command[arguments.command[:1] == ["--"] :]
    if not command:
        raise ConfigError(
            "launch: found no command, expected one after the options, as in: ffn launch -n 2 -- ffn train …"
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
