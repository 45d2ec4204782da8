"""Count and time what the meeting point of `ffn launch` answers while the ranks of a job connect, without any job.

Ranks are emulated: they store what Gloo stores (an address of 136 bytes for each other rank) and look up what Gloo
looks up for one full mesh, through `ffn.machine.rendezvous.relay` without its loopback, or with ``--direct`` as
Horovod's client does by itself. The time is the processor time of the server, which bounds how fast a job can start;
wall time includes the emulated ranks, which share this machine's cores.

  python benchmarks/rendezvous.py --ranks 64 128 256 512
  python benchmarks/rendezvous.py --ranks 64 128 --direct
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection

from ffn.machine.rendezvous.client import Server
from ffn.machine.rendezvous.relay import Relay
from ffn.machine.rendezvous.server import Name, RendezvousServer, serving

ADDRESS_BYTES = 136  # of gloo::transport::tcp::Address on Linux
SCOPE, SECRET = "global", "benchmark"


class CountingServer(RendezvousServer):
    """Counts what it answers."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1", SECRET)
        self.requests = self.bytes = 0
        self._counting = threading.Lock()

    def find(self, name: Name) -> bytes | None:
        """Return a value."""
        value = super().find(name)
        self._count(value or b"")
        return value

    def store(self, name: Name, value: bytes) -> None:
        """Store a value."""
        self._count(value)
        super().store(name, value)

    def _count(self, value: bytes) -> None:
        with self._counting:
            self.requests += 1
            self.bytes += len(value)


def serve(channel: Connection) -> None:
    """Serve until told to stop; answer with requests, bytes and processor seconds."""
    server = CountingServer()
    with serving(server):
        channel.send(server.port)
        begin = time.process_time()
        channel.recv()
        channel.send((server.requests, server.bytes, time.process_time() - begin))


def look_up(port: int, ranks: range, size: int, direct: bool, stored: threading.Barrier) -> None:
    """Be some of the ranks, each in a thread."""
    with ThreadPoolExecutor(len(ranks)) as pool:
        list(pool.map(lambda rank: connect(Server("127.0.0.1", port, SECRET), rank, size, direct, stored), ranks))


def connect(server: Server, rank: int, size: int, direct: bool, stored: threading.Barrier) -> None:
    """Store one rank's addresses, then look up those of the others twice, as Horovod's store does: wait, then get."""
    relay = None if direct else Relay(server, {SCOPE: (rank, size)})

    def find(key: str) -> bytes | None:
        return relay.find((SCOPE, key)) if relay else server.ask("GET", SCOPE, key).content

    for key, value in own_values(rank, size):
        if relay:
            relay.store((SCOPE, key), value)
        else:
            server.ask("PUT", SCOPE, key, value)
    for other in range(rank):
        find(f"rank_{other}")
    if direct:
        stored.wait()  # otherwise they would poll every 10 ms, which only adds requests
    for other in set(range(size)) - {rank}:
        while find(str(other)) is None:
            time.sleep(0.01)
        find(str(other))
    if relay:
        relay.server_close()


def own_values(rank: int, size: int) -> Iterator[tuple[str, bytes]]:
    """Return what a rank stores."""
    yield f"rank_{rank}", b"nid00001"
    yield str(rank), os.urandom(ADDRESS_BYTES) * (size - 1)


def measure(size: int, direct: bool, processes: int) -> tuple[int, int, float, float]:
    """Return requests, bytes, the server's processor seconds and wall seconds."""
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.Process(target=serve, args=(theirs,))
    server.start()
    port = ours.recv()
    begin = time.monotonic()
    stored = multiprocessing.Barrier(size)
    shares = [range(size * i // processes, size * (i + 1) // processes) for i in range(processes)]
    arguments = [(port, share, size, direct, stored) for share in shares]
    clients = [multiprocessing.Process(target=look_up, args=each) for each in arguments]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    wall = time.monotonic() - begin
    ours.send(None)
    requests, num_bytes, processor = ours.recv()
    server.join()
    return requests, num_bytes, processor, wall


def main() -> None:
    """Print one row for each number of ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[64, 128, 256, 512])
    parser.add_argument("--direct", action="store_true", help="as Horovod's client asks, without relays")
    parser.add_argument("--processes", type=int, default=4, help="that emulate ranks (default: 4)")
    arguments = parser.parse_args()
    print(f"{'ranks':>5} {'requests':>9} {'MB':>9} {'server s':>9} {'wall s':>7}")
    for size in arguments.ranks:
        requests, num_bytes, processor, wall = measure(size, arguments.direct, arguments.processes)
        print(f"{size:5} {requests:9} {num_bytes / 1e6:9.1f} {processor:9.2f} {wall:7.1f}", flush=True)


if __name__ == "__main__":
    main()
