"""The meeting point of `ffn launch`: a key-value store over HTTP, its clients, and a relay in each rank.

Horovod's C++ client asks with GET, PUT and DELETE for ``/SCOPE/KEY`` and can send no header of ours. But it puts its
server's address in front of every path, so the job's secret travels there: ``/SECRET/SCOPE/KEY``. `Server.gloo_address`
is that address.

Gloo connects N ranks in full: each stores N - 1 addresses under its own number, one for each of the others, and looks
up all others twice for the one address that is meant for it. That makes 2 N² answers of N addresses, 290 GB for 1024
ranks. So the server also gives a rank its column of this table, once the table is complete, and Horovod asks a relay in
its own process, which answers from that column.

Every rank imports this from one file system at once, so it imports little, and only from the standard library.
"""

from __future__ import annotations

import contextlib
import hmac
import http.client
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import BaseServer
from typing import NamedTuple, TypeVar

POLL_SECONDS = 0.05
OF = "?of="  # in a key, before the number of ranks: asks for what all of them have stored
WAIT_SECONDS = 5.0  # that such a request waits for the last rank before it has to be repeated
TIMEOUT_SECONDS = 10.0
REQUEST_SECONDS = 10  # after which a client that says nothing is cut off
WAITING_CONNECTIONS = 1024  # socketserver's 5 would turn away ranks that connect by the thousand
ANSWER_SECONDS = WAIT_SECONDS + 60  # for a server that sends a thousand ranks their columns at once; our choice
ADDRESS, PORT = "HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"
LOOPBACK = "127.0.0.1"
HOST_KEY = "rank_"  # of the names of hosts, which Gloo looks up but uses for nothing

log = logging.getLogger(__name__)

Name = tuple[str, str]  # scope and key
Served = TypeVar("Served", bound=BaseServer)


class Answer(NamedTuple):
    """An answer of the server."""

    content: bytes | None  # None if it does not have it yet
    own_address: str  # of this machine on the server's network


class Server(NamedTuple):
    """Where the ranks meet, as its clients know it."""

    address: str  # IPv4 address of the first node
    port: int
    secret: str  # first part of every path

    @property
    def gloo_address(self) -> str:
        """The address for Horovod's client.

        The client sends its requests to ``http://`` + address + ``:PORT/SCOPE/KEY``. An address that brings its port
        and the secret therefore makes the path ``/SECRET:PORT/SCOPE/KEY``.
        """
        return f"{self.address}:{self.port}/{self.secret}"

    def ask(
        self, method: str, scope: str, key: str, body: bytes | None = None, timeout: float = TIMEOUT_SECONDS
    ) -> Answer:
        """Send a request; raise OSError or HTTPException if the server cannot be reached, or is busy."""
        connection = http.client.HTTPConnection(self.address, self.port, timeout=timeout)
        try:
            connection.request(method, f"/{self.secret}/{scope}/{key}", body)
            own_address = connection.sock.getsockname()[0]
            answer = connection.getresponse()
            content = answer.read()
            return Answer(content if answer.status == http.client.OK else None, own_address)
        finally:
            connection.close()


class RendezvousServer(ThreadingHTTPServer):
    """Answers requests that begin with the secret, and refuses all others before it reads their body."""

    daemon_threads = True
    request_queue_size = WAITING_CONNECTIONS

    def __init__(self, address: str, secret: str) -> None:
        super().__init__((address, 0), _Handler)
        self.secret = secret
        self.values: dict[Name, bytes] = {}  # by scope and key
        self._awaited: dict[str, tuple[int, threading.Event]] = {}  # scopes that are asked for as a whole

    @property
    def port(self) -> int:
        """Where it listens."""
        return self.server_address[1]

    def find(self, name: Name) -> bytes | None:
        """Return a value, what all ranks have stored in a scope, or a rank's column; None if it is not there yet.

        All values, for ``?of=N``, are joined by spaces. The column of ``RANK?of=N`` has the addresses that the others
        have stored for a rank, in order.
        """
        scope, key = name
        rank, asks, number = key.partition(OF)
        if not asks:
            return self.values.get(name)
        size = int(number)
        if not self._await(scope, size):
            return None
        rows = [self.values[scope, str(owner)] for owner in range(size)]
        if not rank:
            return b" ".join(rows)
        others = ((owner, row) for owner, row in enumerate(rows) if owner != int(rank))
        return b"".join(row[address_slice(int(rank), owner, len(row), size)] for owner, row in others)

    def store(self, name: Name, value: bytes) -> None:
        """Store a value."""
        self.values[name] = value
        size, complete = self._awaited.get(name[0], (0, None))
        if complete and self._is_complete(name[0], size):
            complete.set()

    def forget(self, name: Name) -> None:
        """Forget a value."""
        self.values.pop(name, None)

    def _await(self, scope: str, size: int) -> bool:
        """Wait for the values of all ranks; return whether all have come in time."""
        _, complete = self._awaited.setdefault(scope, (size, threading.Event()))
        return self._is_complete(scope, size) or complete.wait(WAIT_SECONDS)

    def _is_complete(self, scope: str, size: int) -> bool:
        return all((scope, str(rank)) in self.values for rank in range(size))

    def handle_error(self, request: object, client_address: object) -> None:
        """Log failed requests only for debugging: a stranger may send anything."""
        log.debug("request from %s failed", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: RendezvousServer
    timeout = REQUEST_SECONDS

    def do_GET(self) -> None:
        """Send a value."""
        if name := self._name():
            value = self.server.find(name)
            self._answer(HTTPStatus.NOT_FOUND if value is None else HTTPStatus.OK, value or b"")

    def do_PUT(self) -> None:
        """Store a value."""
        if name := self._name():
            self.server.store(name, self.rfile.read(int(self.headers["Content-Length"])))
            self._answer(HTTPStatus.OK)

    def do_DELETE(self) -> None:
        """Forget a value: a rank does this when all ranks are connected."""
        if name := self._name():
            self.server.forget(name)
            self._answer(HTTPStatus.OK)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: paths hold the secret."""

    def _name(self) -> Name | None:
        """Return scope and key of the path; refuse a request without the secret."""
        match self.path.split("/"):
            case ["", given, scope, key] if self._knows(given):
                return scope, key
        self._answer(HTTPStatus.FORBIDDEN)
        return None

    def _knows(self, given: str) -> bool:
        secret, _, _ = given.partition(":")  # Horovod adds the port, see `Server.gloo_address`
        return hmac.compare_digest(secret.encode(), self.server.secret.encode())

    def _answer(self, status: HTTPStatus, value: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(value)))
        self.end_headers()
        self.wfile.write(value)


@contextlib.contextmanager
def serving(server: Served) -> Iterator[Served]:
    """Let a server answer, from a thread, for the length of a ``with`` block."""
    # It checks this often whether to end; a signal before it has ended would change the exit code.
    thread = threading.Thread(target=server.serve_forever, args=(POLL_SECONDS,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


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
                    column = self._ask("GET", scope, f"{rank}{OF}{size}")
                if column is None:
                    return None
                self._columns[scope] = column
            return self._columns[scope]

    def _ask(self, method: str, scope: str, key: str, body: bytes | None = None) -> bytes | None:
        return self._server.ask(method, scope, key, body, ANSWER_SECONDS).content  # Horovod repeats failures


@contextlib.contextmanager
def relayed() -> Iterator[None]:
    """Let Horovod find its peers through a relay in this process, if it meets them at the server of `ffn launch`.

    Horovod reads the variables when it starts, so it has to start within the ``with`` block.
    """
    place, is_ours, secret = os.environ.get(ADDRESS, "").partition("/")
    if not is_ours:  # that of horovodrun, or none
        yield
        return
    before = {name: os.environ[name] for name in (ADDRESS, PORT)}
    server = Server(place.rpartition(":")[0], int(before[PORT]), secret)
    try:
        with serving(Relay(server, places(os.environ))) as relay:
            own = Server(LOOPBACK, relay.port, secret)
            os.environ.update({ADDRESS: own.gloo_address, PORT: str(relay.port)})
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


def address_slice(rank: int, owner: int, num_bytes: int, size: int) -> slice:
    """Return where the address for `rank` is in the `num_bytes` that `owner` stored: one address for each other rank.

    Examples
    --------
    >>> [address_slice(rank, 1, 20, 3) for rank in (0, 2)]
    [slice(0, 10, None), slice(10, 20, None)]
    """
    length = num_bytes // (size - 1)
    index = rank - (rank > owner)
    return slice(index * length, (index + 1) * length)


def _row(column: bytes, rank: int, owner: int, size: int) -> bytes:
    """Return the row that another rank stored with zeros for all addresses but that for this rank."""
    row = bytearray(len(column))
    # in a column, the owners of the addresses are in order, as the ranks are that a row has addresses for
    row[address_slice(rank, owner, len(column), size)] = column[address_slice(owner, rank, len(column), size)]
    return bytes(row)
