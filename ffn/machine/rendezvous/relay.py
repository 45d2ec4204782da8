"""A relay between Horovod in one process and the meeting point of `ffn launch`.

Horovod asks the relay, over the loopback, for everything that Gloo looks up of the other ranks. The relay answers from
this rank's column of the table of addresses, for which it asks the server once: a job of N ranks sends the server a
few requests for each rank, not 2 N², and the answers have N² addresses in all, not 2 N³.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping

from ffn.machine.rendezvous.client import Server
from ffn.machine.rendezvous.server import COLUMN, COLUMN_SECONDS, Name, RendezvousServer, address_slice, serving

ADDRESS, PORT = "HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"
LOOPBACK = "127.0.0.1"
ANSWER_SECONDS = COLUMN_SECONDS + 60  # for a server that sends a thousand ranks their columns at once; our choice
HOST_KEY = "rank_"  # of the names of hosts, which Gloo looks up but uses for nothing


@contextlib.contextmanager
def relayed() -> Iterator[None]:
    """Let Horovod find its peers through a relay in this process, if it meets them at the server of `ffn launch`.

    Horovod reads the variables when it starts, so it has to start within the ``with`` block.
    """
    server = Server.of_gloo_address(os.environ.get(ADDRESS, ""))
    if server is None:
        yield
        return
    before = {name: os.environ[name] for name in (ADDRESS, PORT)}
    relay = Relay(server, places(os.environ))
    try:
        with serving(relay):
            os.environ.update(
                {ADDRESS: Server(LOOPBACK, relay.port, server.secret).gloo_address, PORT: str(relay.port)}
            )
            yield
    finally:
        os.environ.update(before)


def places(environment: Mapping[str, str]) -> dict[str, tuple[int, int]]:
    """Return rank and number of ranks in the scopes that Horovod uses, from the variables that tell it its place.

    Examples
    --------
    >>> names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "HOSTNAME")
    >>> places({f"HOROVOD_{name}": value for name, value in zip(names, ["3", "4", "1", "2", "1", "2", "n2"])})
    {'global': (3, 4), 'local_n2': (1, 2), 'cross_1': (1, 2)}
    """

    def place(kind: str) -> tuple[int, int]:
        return int(environment[f"HOROVOD_{kind}RANK"]), int(environment[f"HOROVOD_{kind}SIZE"])

    host, local_rank = environment["HOROVOD_HOSTNAME"], environment["HOROVOD_LOCAL_RANK"]
    return {"global": place(""), f"local_{host}": place("LOCAL_"), f"cross_{local_rank}": place("CROSS_")}


class Relay(RendezvousServer):
    """Answers Horovod in this process; `places` are rank and number of ranks by scope, other scopes are passed on."""

    def __init__(self, server: Server, places: Mapping[str, tuple[int, int]]) -> None:
        super().__init__(LOOPBACK, server.secret)
        self._server = server
        self._places = places
        self._columns: dict[str, bytes] = {}
        self._asking = threading.Lock()

    def find(self, name: Name) -> bytes | None:
        """Return a value, None if it is not there yet."""
        scope, key = name
        if key.startswith(HOST_KEY):
            return self.values.get(name)
        if scope not in self._places:
            return self._ask("GET", scope, key)
        rank, size = self._places[scope]
        column = self._own_column(scope, rank, size)
        return column and _row(column, rank, int(key), size)

    def store(self, name: Name, value: bytes) -> None:
        """Pass a value on."""
        if name[1].startswith(HOST_KEY):
            self.values[name] = value
        else:
            self._ask("PUT", *name, value)

    def forget(self, name: Name) -> None:
        """Pass on that a value is no longer needed."""
        self._ask("DELETE", *name)

    def _own_column(self, scope: str, rank: int, size: int) -> bytes | None:
        """Return this rank's column, None if some ranks are still missing."""
        with self._asking:
            if scope not in self._columns:
                column = None
                with contextlib.suppress(TimeoutError):  # the server is busy; Horovod asks again until its own limit
                    column = self._ask("GET", scope, f"{rank}{COLUMN}{size}")
                if column is None:
                    return None
                self._columns[scope] = column
            return self._columns[scope]

    def _ask(self, method: str, scope: str, key: str, body: bytes | None = None) -> bytes | None:
        return self._server.ask(method, scope, key, body, ANSWER_SECONDS).content  # Horovod repeats failures


def _row(column: bytes, rank: int, owner: int, size: int) -> bytes:
    """Return the row that another rank stored with zeros for all addresses but that for this rank."""
    row = bytearray(len(column))
    # in a column, the owners of the addresses are in order, as the ranks are that a row has addresses for
    row[address_slice(rank, owner, len(column), size)] = column[address_slice(owner, rank, len(column), size)]
    return bytes(row)
