"""One rank of `ffn launch`: get its place from the server, then become the command.

A scheduler's launcher runs this as ``python -m ffn.cluster.rank SERVER TIMEOUT VARIABLES COMMAND…``, with the job's
secret in the environment. Thousands of these start at once from one file system, so it imports little.
"""

from __future__ import annotations

import fcntl
import http.client
import os
import random
import socket
import struct
import sys
import time
from collections.abc import Sequence

from ffn.machine.rendezvous.client import Server

HOSTS = "ffn-hosts"  # scope of the server in which ranks register their hosts
SLOTS = "ffn-slots"  # scope in which ranks find their places
SECRET = "FFN_LAUNCH_SECRET"  # variable with the first part of every path that the server answers
FIRST_POLL_SECONDS = 0.1
LAST_POLL_SECONDS = 5.0  # a server on one core answers a few hundred requests per second
LOG_LEVEL = "HOROVOD_LOG_LEVEL"
SIOCGIFADDR = 0x8915  # Linux: IPv4 address of an interface


def main(arguments: Sequence[str]) -> None:
    """Find the place of this rank and replace this process with the command."""
    address, timeout, variables, *command = arguments
    rank = _rank(variables.split(","))
    server = Server.parse(address, _secret())
    own_address, slot = rendezvous(server, rank, float(timeout))
    environment = rank_environment(server, interface_of(own_address), slot)
    if rank == 0 and LOG_LEVEL in environment:
        sys.stderr.write(f"ffn launch: {LOG_LEVEL} is info, because with more Horovod logs the job's secret\n")
    try:
        os.execvpe(command[0], list(command), {**os.environ, **environment})
    except OSError as reason:
        sys.exit(f"ffn launch: {command[0]} cannot be started on {socket.gethostname()}: {reason.strerror}")


def rendezvous(server: Server, rank: int, timeout: float) -> tuple[str, str]:
    """Tell the server where this rank runs, and wait until all ranks have done so.

    Returns this machine's address on the server's network, and the rank's place: ``rank,size,local rank,local size,
    cross rank,cross size,host``.
    """
    deadline = time.monotonic() + timeout
    registered, own_address, pause = None, "", FIRST_POLL_SECONDS
    while time.monotonic() < deadline:
        try:
            if registered is None:
                registered = server.ask("PUT", HOSTS, str(rank), socket.gethostname().encode())
            slot, own_address = server.ask("GET", SLOTS, str(rank))
            if slot is not None:
                return own_address, slot.decode()
        except (OSError, http.client.HTTPException):
            pass  # the server is not reachable yet, or busy with thousands of other ranks
        time.sleep(pause * random.uniform(0.5, 1))
        pause = min(1.5 * pause, LAST_POLL_SECONDS)
    sys.exit(f"ffn launch: rank {rank} on {socket.gethostname()}: {_missing(server, registered is not None, timeout)}")


def rank_environment(server: Server, interface: str, slot: str) -> dict[str, str]:
    """Return the variables from which Horovod learns its place and, with Gloo, its peers.

    Examples
    --------
    >>> variables = rank_environment(Server("10.0.0.1", 4000, "x7"), "ib0", "3,4,1,2,1,2,n2")
    >>> variables["HOROVOD_CROSS_RANK"], variables["HOROVOD_GLOO_RENDEZVOUS_ADDR"]
    ('1', '10.0.0.1:4000/x7')
    """
    reveals = os.environ.get(LOG_LEVEL, "").lower() in ("trace", "debug")  # it logs its server's address
    places = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "HOSTNAME")
    return {
        **{f"HOROVOD_{name}": value for name, value in zip(places, slot.split(","), strict=True)},
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": server.gloo_address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(server.port),
        "HOROVOD_GLOO_IFACE": interface,
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        **({LOG_LEVEL: "info"} if reveals else {}),
        "NCCL_SOCKET_IFNAME": os.environ.get("NCCL_SOCKET_IFNAME", interface),
    }


def address_of(interface: str) -> str | None:
    """Return the IPv4 address of a network interface, None if there is none.

    Examples
    --------
    >>> address_of("lo")
    '127.0.0.1'
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, struct.pack("256s", interface[:15].encode()))
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


def interface_of(address: str) -> str:
    """Return the network interface with an IPv4 address.

    Examples
    --------
    >>> interface_of("127.0.0.1")
    'lo'
    """
    for _, name in socket.if_nameindex():
        if address_of(name) == address:
            return name
    sys.exit(f"ffn launch: no network interface of {socket.gethostname()} has the address {address}")


def _rank(variables: Sequence[str]) -> int:
    for name in variables:
        if name in os.environ:
            return int(os.environ[name])
    sys.exit(
        f"ffn launch: none of {', '.join(variables)} is set on {socket.gethostname()}, so another launcher started "
        "this rank. Choose another --launcher"
    )


def _secret() -> str:
    if secret := os.environ.get(SECRET):
        return secret
    sys.exit(
        f"ffn launch: {SECRET} is not set on {socket.gethostname()}, but the launcher has to pass on the environment. "
        f"Tell it to by --launcher-options, for Slurm '--export=ALL', for Open MPI '-x {SECRET}'"
    )


def _missing(server: Server, is_registered: bool, timeout: float) -> str:
    where = f"{server.address}:{server.port}"
    if is_registered:
        return (
            f"not all ranks reached {where} within {timeout:.0f} s. See the errors of other ranks, or raise --timeout"
        )
    return f"could not reach the first node, {where}, in {timeout:.0f} s. Name another network with --interface"


if __name__ == "__main__":
    main(sys.argv[1:])
