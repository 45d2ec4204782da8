"""The meeting point of `ffn launch`: a key-value store over HTTP, and its clients.

Horovod's C++ client asks with GET, PUT and DELETE for ``/SCOPE/KEY`` and can send no header of ours. But it puts its
server's address in front of every path, so the job's secret travels there: ``/SECRET/SCOPE/KEY``. `Server.gloo_address`
is that address.

Every rank imports this from one file system at once, so it imports little, and only from the standard library.
"""

from __future__ import annotations

import contextlib
import hmac
import http.client
import logging
import threading
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import BaseServer, ThreadingMixIn
from typing import NamedTuple, TypeVar

POLL_SECONDS = 0.05
OF = "?of="  # in a key, before the number of ranks: asks for what all of them have stored
WAIT_SECONDS = 5.0  # that such a request waits for the last rank before it has to be repeated
TIMEOUT_SECONDS = 10.0
REQUEST_SECONDS = 10  # after which a client that says nothing is cut off
WAITING_CONNECTIONS = 1024  # socketserver's 5 would turn away ranks that connect by the thousand

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

    def ask(self, method: str, scope: str, key: str, body: bytes | None = None) -> Answer:
        """Send a request; raise OSError or HTTPException if the server cannot be reached, or is busy."""
        connection = http.client.HTTPConnection(self.address, self.port, timeout=TIMEOUT_SECONDS)
        with contextlib.closing(connection):
            connection.request(method, f"/{self.secret}/{scope}/{key}", body)
            own_address = connection.sock.getsockname()[0]
            answer = connection.getresponse()
            return Answer(answer.read() if answer.status == http.client.OK else None, own_address)


class PatientServer(ThreadingMixIn):
    """A server for thousands of processes at once, in a thread for each connection; strangers may say anything."""

    daemon_threads = True  # the end does not wait for a stranger that says little at a time
    request_queue_size = WAITING_CONNECTIONS

    def handle_error(self, request: object, client_address: object) -> None:
        """Log failed connections for debugging alone."""
        log.debug("connection from %s failed", client_address, exc_info=True)


class RendezvousServer(PatientServer, HTTPServer):
    """Answers requests that begin with the secret, and refuses all others before it reads their body."""

    def __init__(self, address: str, secret: str) -> None:
        super().__init__((address, 0), _Handler)
        self.secret = secret
        self.values: dict[Name, bytes] = {}  # by scope and key
        self._stored = threading.Condition()

    @property
    def port(self) -> int:
        """Where it listens."""
        return self.server_address[1]

    def find(self, name: Name) -> bytes | None:
        """Return a value; for ``?of=N``, the values of N ranks in a scope, joined by spaces; None if not there yet."""
        scope, key = name
        if not key.startswith(OF):
            return self.values.get(name)
        names = [(scope, str(rank)) for rank in range(int(key.removeprefix(OF)))]
        with self._stored:
            if not self._stored.wait_for(lambda: all(each in self.values for each in names), WAIT_SECONDS):
                return None
        return b" ".join(self.values[each] for each in names)

    def store(self, name: Name, value: bytes) -> None:
        """Store a value."""
        with self._stored:
            self.values[name] = value
            self._stored.notify_all()


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
            self.server.values.pop(name, None)
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
        # Horovod adds the port, see `Server.gloo_address`
        return hmac.compare_digest(given.partition(":")[0].encode(), self.server.secret.encode())

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
