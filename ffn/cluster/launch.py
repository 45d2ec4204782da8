"""Start the ranks of one Horovod job without ssh and MPI, on this machine or by the scheduler's own launcher."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import logging
import math
import os
import secrets
import shlex
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ffn.cluster.rank import SECRET, address_of
from ffn.errors import ClusterError
from ffn.machine.processes import GRACE_SECONDS, dying_with_parent, run_together
from ffn.machine.rendezvous import RendezvousServer, serving
from ffn.machine.schedulers import LAUNCHERS, LOCAL
from ffn.options import positive_number

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Launch:
    """How to start a job."""

    num_ranks: int
    ranks_per_node: int | None = None  # at most; None leaves it to the launcher
    launcher: str = "auto"  # one of `LAUNCHERS`, or local
    launcher_options: Sequence[str] = ()
    # Between the failure of a rank and the end of the others; without the launcher local, the launcher decides this.
    grace_seconds: float = GRACE_SECONDS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Start all ranks of one Horovod job without MPI and ssh, on this machine or on the nodes of a job.

    Inside a job of a scheduler, this command runs on the first node and serves as the meeting point of the ranks;
    `srun`, `aprun` or `mpiexec` starts the ranks on all nodes. It is for sites without MPI, or with another one than
    Horovod was built with. Outside of any job, or with --launcher local, all ranks run on this machine. If one fails,
    all end; where the training takes the first gradients (--gradients-per-update), only if it is rank 0.

    example:
      ffn launch -n 8 --ranks-per-node 2 -- ffn train --records records/ --volume … --out model/
    """
    number, seconds = positive_number(int), positive_number(float)
    parser.add_argument("-n", "--num-ranks", type=number, required=True, metavar="INT", help="number of ranks")
    parser.add_argument("--ranks-per-node", type=number, metavar="INT", help="default: the launcher decides")
    names = ["auto", "local", *LAUNCHERS]
    parser.add_argument("--launcher", choices=names, default="auto", help="default: the one of this job's scheduler")
    text = "passed to the launcher, such as '--cpu-bind none'"
    parser.add_argument("--launcher-options", type=shlex.split, default=(), metavar="TEXT", help=text)
    text = "until the other ranks are killed after one has failed, with --launcher local (default: %(default)g)"
    parser.add_argument("--grace-seconds", type=seconds, default=Launch.grace_seconds, metavar="SECONDS", help=text)
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="[--] COMMAND", help="command of each rank")


def run(arguments: argparse.Namespace) -> None:
    """Run the command on all ranks and exit with their exit code."""
    command = arguments.command[arguments.command[:1] == ["--"] :]
    if not command:
        raise ClusterError("launch: found no command, expected one, as in: ffn launch -n 2 -- ffn train …")
    job = Launch(**{field.name: getattr(arguments, field.name) for field in dataclasses.fields(Launch)})
    raise SystemExit(launch(job, command))


def launch(job: Launch, command: Sequence[str]) -> int:
    """Run a command as all ranks of one Horovod job.

    The ranks meet in this process, which must run on a node of the job. It listens at one address: that of the chosen
    interface, or the loopback for ``local``. Every request must begin with a secret of the job, which the ranks get by
    their environment, because command lines are visible to everybody. The traffic is not encrypted.

    Returns 0 if all ranks ended with 0, else the exit code of a rank that failed, as the launcher passes it on.
    """
    name = choose_launcher(os.environ) if job.launcher == "auto" else job.launcher
    if name != "local" and shutil.which(name) is None:
        raise ClusterError(f"--launcher: {name} is not on PATH. Choose another one, or load the site's module")
    address = "127.0.0.1" if name == "local" else own_address()
    secret = secrets.token_urlsafe()
    environment = {**os.environ, SECRET: secret}
    with serving(RendezvousServer(address, secret)) as meeting:
        known = (LOCAL,) if name == "local" else LAUNCHERS[name].variables
        variables = ",".join(variable.rank for variable in known)
        server = [address, str(meeting.port), str(job.num_ranks), variables]
        wrapped = [sys.executable, "-m", "ffn.cluster.rank", *server, *command]
        log.info("starting %d ranks by %s, rendezvous at %s:%d", job.num_ranks, name, address, meeting.port)
        if name == "local":
            environments = [{**environment, LOCAL.rank: str(rank)} for rank in range(job.num_ranks)]
            words, may_lose = [*dying_with_parent(), *wrapped], takes_first_gradients(command)
            return run_together(words, environments, job.grace_seconds, own_groups=True, may_lose=may_lose)
        words = launcher_words(name, job)
        return run_together([*words, *wrapped], [environment])


def takes_first_gradients(command: Sequence[str]) -> bool:
    """Whether rank 0 of a training serves the others and goes on without those that are lost."""
    given = dict(itertools.pairwise(part for word in command for part in word.split("=", 1)))
    return (given.get("--gradients-per-update", "all"), given.get("--max-staleness", "0")) != ("all", "0")


def choose_launcher(environment: Mapping[str, str]) -> str:
    """Return the launcher for the job that this process runs in, ``local`` outside of any job.

    Examples
    --------
    >>> choose_launcher({"SLURM_JOB_ID": "7"}), choose_launcher({})
    ('srun', 'local')
    """
    return next((name for name, launcher in LAUNCHERS.items() if launcher.job_id in environment), "local")


def launcher_words(name: str, job: Launch) -> list[str]:
    """Return the launcher's part of the command that starts all ranks.

    Examples
    --------
    >>> launcher_words("aprun", Launch(8, ranks_per_node=2, launcher_options=["-d", "32"]))
    ['aprun', '-n', '8', '-N', '2', '-d', '32']
    """
    launcher = LAUNCHERS[name]
    words = [name, *launcher.options.format(ranks=job.num_ranks, secret=SECRET).split()]
    if job.ranks_per_node:
        nodes, per_node = math.ceil(job.num_ranks / job.ranks_per_node), min(job.ranks_per_node, job.num_ranks)
        words += launcher.placing.format(nodes=nodes, per_node=per_node).split()
    return [*words, *job.launcher_options]


def own_address() -> str:
    """Return the address at which other nodes reach this one.

    It is that of the interface ``HOROVOD_GLOO_IFACE``, else of the host's name, else of the first interface that is not
    the loopback.
    """
    interface = os.environ.get("HOROVOD_GLOO_IFACE")
    names = [name for _, name in socket.if_nameindex()]
    if interface:
        address = address_of(interface)
        if address is None:
            raise ClusterError(f"HOROVOD_GLOO_IFACE: {interface} has no IPv4 address, expected {' '.join(names)}")
        return address
    with contextlib.suppress(OSError):
        address = socket.gethostbyname(socket.gethostname())
        if not address.startswith("127."):
            return address
    for address in map(address_of, names):
        if address and not address.startswith("127."):
            return address
    raise ClusterError(f"{socket.gethostname()}: found no network but the loopback among {' '.join(names)}")
