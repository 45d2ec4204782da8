"""One rank of `ffn launch`: learn its place from the server, then become the command.

A scheduler's launcher runs this as ``python -m ffn.cluster.rank ADDRESS PORT RANKS VARIABLES COMMAND…``, with
the job's secret in the environment. Thousands of these start at once from one file system, so it imports little.
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
from collections import Counter
from collections.abc import Sequence

from ffn.machine.rendezvous import OF, Server

HOSTS = "ffn-hosts"  # scope of the server in which ranks register their hosts
SECRET = "FFN_LAUNCH_SECRET"  # variable with the first part of every path that the server answers
START_SECONDS = 600  # within which all ranks must have started
PAUSE_SECONDS = 2.0  # at most, between attempts to reach the server
SIOCGIFADDR = 0x8915  # Linux: IPv4 address of an interface


def main(arguments: Sequence[str]) -> None:
    """Find the place of this rank and replace this process with the command."""
    address, port, size, variables, *command = arguments
    rank = _rank(variables.split(","))
    if rank >= int(size):
        sys.exit(f"ffn launch: the launcher started rank {rank}, but -n is {size}. See --launcher-options")
    server = Server(address, int(port), _secret())
    hosts, own_address = meet(server, rank, int(size))
    environment = rank_environment(server, interface_of(own_address), places(hosts, rank))
    if rank == 0:
        nodes = ", ".join(f"{host} {number}" for host, number in Counter(hosts).items())
        sys.stderr.write(f"ffn launch: ranks by node: {nodes}\n")
    try:
        os.execvpe(command[0], list(command), {**os.environ, **environment})
    except OSError as reason:
        sys.exit(f"ffn launch: {command[0]} cannot be started on {socket.gethostname()}: {reason.strerror}")


def meet(server: Server, rank: int, size: int) -> tuple[list[str], str]:
    """Tell the server where this rank runs, and wait until all ranks have done so.

    Returns the host of every rank, and this machine's address on the server's network.
    """
    deadline = time.monotonic() + START_SECONDS
    own_host, is_registered = socket.gethostname(), False
    while time.monotonic() < deadline:
        try:
            if not is_registered:
                server.ask("PUT", HOSTS, str(rank), own_host.encode())
                is_registered = True
            hosts, own_address = server.ask("GET", HOSTS, f"{OF}{size}")
            if hosts is not None:
                return hosts.decode().split(), own_address
        except (OSError, http.client.HTTPException):
            # The server is not reachable yet, or busy with thousands of other ranks.
            time.sleep(PAUSE_SECONDS * random.uniform(0.1, 1))
    where = f"{server.address}:{server.port}"
    found = f"could not reach the first node, {where}, in {START_SECONDS} s. Name another network, HOROVOD_GLOO_IFACE"
    if is_registered:
        found = f"not all ranks reached {where} in {START_SECONDS} s. See the errors of other ranks"
    sys.exit(f"ffn launch: rank {rank} on {own_host}: {found}")


def places(hosts: Sequence[str], rank: int) -> dict[str, str]:
    """Return the place of a rank in Horovod's terms: among all, on its host, and among those of the same local rank.

    Examples
    --------
    >>> places(["a", "b", "a"], 2)["LOCAL_RANK"], places(["a", "b", "a"], 1)["CROSS_RANK"]
    ('1', '1')
    """
    local = [hosts[:other].count(host) for other, host in enumerate(hosts)]
    numbers = {
        "RANK": rank,
        "SIZE": len(hosts),
        "LOCAL_RANK": local[rank],
        "LOCAL_SIZE": hosts.count(hosts[rank]),
        "CROSS_RANK": local[:rank].count(local[rank]),
        "CROSS_SIZE": local.count(local[rank]),
    }
    return {"HOSTNAME": hosts[rank], **{name: str(number) for name, number in numbers.items()}}


def rank_environment(server: Server, interface: str, place: dict[str, str]) -> dict[str, str]:
    """Return the variables from which Horovod learns its place and, with Gloo, its peers.

    Examples
    --------
    >>> variables = rank_environment(Server("10.0.0.1", 4000, "x7"), "ib0", places(["n1", "n2"], 1))
    >>> variables["HOROVOD_CROSS_RANK"], variables["HOROVOD_GLOO_RENDEZVOUS_ADDR"]
    ('1', '10.0.0.1:4000/x7')
    """
    return {
        **{f"HOROVOD_{name}": value for name, value in place.items()},
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": server.gloo_address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(server.port),
        "HOROVOD_GLOO_IFACE": interface,
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
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


if __name__ == "__main__":
    main(sys.argv[1:])
