"""The meeting point of `ffn launch`: a key-value store over HTTP for those who know the job's secret.

Horovod's C++ client asks with GET, PUT and DELETE for ``/SCOPE/KEY`` and can send no header of ours. But it puts its
server's address in front of every path, so the secret travels there: ``/SECRET/SCOPE/KEY``. `client.Server` makes that
address.

Gloo connects N ranks in full: each stores N - 1 addresses under its own number, one for each of the others, and looks
up all others twice for the one address that is meant for it. That makes 2 N² answers of N addresses, 290 GB for 1024
ranks. So the server also gives a rank its column of this table, once the table is complete: ``GET …/SCOPE/RANK?of=N``.
A relay in every rank asks for it, see `relay`.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import threading
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

POLL_SECONDS = 0.05
COLUMN = "?of="  # between a rank and the number of ranks, when a rank asks for its column
COLUMN_SECONDS = 5.0  # that a rank waits for its column before it has to ask again
REQUEST_SECONDS = 10  # after which a client that says nothing is cut off
WAITING_CONNECTIONS = 1024  # socketserver's 5 would turn away ranks that connect by the thousand

log = logging.getLogger(__name__)

Name = tuple[str, str]  # scope and key


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


@contextlib.contextmanager
def serving(server: RendezvousServer) -> Iterator[None]:
    """Let a server answer, from a thread, for the length of a ``with`` block."""
    # It checks this often whether to end; a signal before it has ended would change the exit code.
    thread = threading.Thread(target=server.serve_forever, args=(POLL_SECONDS,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def rendezvous_server(address: str, secret: str) -> Iterator[RendezvousServer]:
    """Serve the store at one address, at a free port, for the length of a ``with`` block."""
    server = RendezvousServer(address, secret)
    with serving(server):
        yield server


class RendezvousServer(ThreadingHTTPServer):
    """Answers requests that begin with the secret, and refuses all others before it reads their body."""

    daemon_threads = True
    request_queue_size = WAITING_CONNECTIONS

    def __init__(self, address: str, secret: str) -> None:
        super().__init__((address, 0), _Handler)
        self.secret = secret
        self.values: dict[Name, bytes] = {}  # by scope and key
        self._awaited: dict[str, tuple[int, threading.Event]] = {}  # scopes that columns are asked of

    @property
    def port(self) -> int:
        """Where it listens."""
        return self.server_address[1]

    def scope(self, name: str) -> dict[str, bytes]:
        """Return the values of a scope by key."""
        return {key: value for (scope, key), value in list(self.values.items()) if scope == name}

    def find(self, name: Name) -> bytes | None:
        """Return a value, or a rank's column of the addresses in a scope; None if it is not there yet."""
        scope, key = name
        rank, asks, size = key.partition(COLUMN)
        return self._column(scope, int(rank), int(size)) if asks else self.values.get(name)

    def store(self, name: Name, value: bytes) -> None:
        """Store a value."""
        self.values[name] = value
        size, complete = self._awaited.get(name[0], (0, None))
        if complete and self._is_complete(name[0], size):
            complete.set()

    def forget(self, name: Name) -> None:
        """Forget a value."""
        self.values.pop(name, None)

    def _column(self, scope: str, rank: int, size: int) -> bytes | None:
        """Return the addresses that the others have stored for a rank, in order; None if some have not come in time."""
        _, complete = self._awaited.setdefault(scope, (size, threading.Event()))
        if not self._is_complete(scope, size) and not complete.wait(COLUMN_SECONDS):
            return None
        rows = {other: self.values[scope, str(other)] for other in range(size) if other != rank}
        return b"".join(row[address_slice(rank, other, len(row), size)] for other, row in rows.items())

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
        secret, _, _ = given.partition(":")  # Horovod adds the port, see `client.Server`
        return hmac.compare_digest(secret.encode(), self.server.secret.encode())

    def _answer(self, status: HTTPStatus, value: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(value)))
        self.end_headers()
        self.wfile.write(value)
