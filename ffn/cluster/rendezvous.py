"""The meeting point of `ffn launch`: a key-value store over HTTP for those who know the job's secret.

Horovod's C++ client asks with GET, PUT and DELETE for ``/SCOPE/KEY`` and can send no header of ours. But it puts its
server's address in front of every path, so the secret travels there: ``/SECRET/SCOPE/KEY``. `ffn.cluster.rank.Server`
makes that address.
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
REQUEST_SECONDS = 10  # after which a client that says nothing is cut off
WAITING_CONNECTIONS = 1024  # socketserver's 5 would turn away ranks that connect by the thousand

log = logging.getLogger(__name__)

Place = tuple[str, str]  # scope and key


@contextlib.contextmanager
def rendezvous_server(address: str, secret: str) -> Iterator[RendezvousServer]:
    """Serve the store at one address, at a free port, for the length of a ``with`` block."""
    server = RendezvousServer(address, secret)
    # It checks this often whether to end; a signal before it has ended would change the exit code.
    thread = threading.Thread(target=server.serve_forever, args=(POLL_SECONDS,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class RendezvousServer(ThreadingHTTPServer):
    """Answers requests that begin with the secret, and refuses all others before it reads their body.

    Parameters
    ----------
    address : str
        Where it listens.
    secret : str
        Of letters, digits, ``-`` and ``_``.

    Attributes
    ----------
    values : dict of (str, str) to bytes
        What is stored, by scope and key.
    """

    daemon_threads = True
    request_queue_size = WAITING_CONNECTIONS

    def __init__(self, address: str, secret: str) -> None:
        super().__init__((address, 0), _Handler)
        self.secret = secret
        self.values: dict[Place, bytes] = {}

    @property
    def port(self) -> int:
        """Where it listens."""
        return self.server_address[1]

    def scope(self, name: str) -> dict[str, bytes]:
        """Return the values of a scope by key."""
        return {key: value for (scope, key), value in list(self.values.items()) if scope == name}

    def handle_error(self, request: object, client_address: object) -> None:
        """Log failed requests only for debugging: a stranger may send anything."""
        log.debug("request from %s failed", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: RendezvousServer
    timeout = REQUEST_SECONDS

    def do_GET(self) -> None:
        """Send a value."""
        if place := self._place():
            value = self.server.values.get(place)
            self._answer(HTTPStatus.NOT_FOUND if value is None else HTTPStatus.OK, value or b"")

    def do_PUT(self) -> None:
        """Store a value."""
        if place := self._place():
            self.server.values[place] = self.rfile.read(int(self.headers["Content-Length"]))
            self._answer(HTTPStatus.OK)

    def do_DELETE(self) -> None:
        """Forget a value: a rank does this when all ranks are connected."""
        if place := self._place():
            self.server.values.pop(place, None)
            self._answer(HTTPStatus.OK)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: paths hold the secret."""

    def _place(self) -> Place | None:
        """Return what the path asks for; refuse a request without the secret."""
        match self.path.split("/"):
            case ["", given, scope, key] if self._knows(given):
                return scope, key
        self._answer(HTTPStatus.FORBIDDEN)
        return None

    def _knows(self, given: str) -> bool:
        secret, _, _ = given.partition(":")  # Horovod adds the port, see `ffn.cluster.rank.Server`
        return hmac.compare_digest(secret.encode(), self.server.secret.encode())

    def _answer(self, status: HTTPStatus, value: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(value)))
        self.end_headers()
        self.wfile.write(value)
