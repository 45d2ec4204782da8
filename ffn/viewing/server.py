"""Serve a folder on the loopback interface to one Neuroglancer, with the byte ranges that it needs.

Every user of this machine and every web page in its browsers can connect. So each address begins with a random token,
and CORS lets only the viewer's pages read the answers. The header ``Host`` must name this machine: it does not if the
domain of a web page suddenly resolves to this address (DNS rebinding).
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ffn.errors import ExportError
from ffn.machine.rendezvous import serving

logger = logging.getLogger(__name__)

HOST = "127.0.0.1"
HOST_NAMES = (HOST, "localhost")
HEADERS = {
    "Accept-Ranges": "bytes",
    "Cache-Control": "no-cache",
    "Content-Type": "application/octet-stream",
    "Referrer-Policy": "no-referrer",
    "Vary": "Origin",
    "Access-Control-Allow-Methods": "GET, HEAD, OPTIONS",
    "Access-Control-Allow-Headers": "Range",
    "Access-Control-Expose-Headers": "Accept-Ranges, Content-Length, Content-Range",
}
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


@contextlib.contextmanager
def serve(folder: Path, port: int = 0, viewer_port: int | None = None) -> Iterator[str]:
    """Serve `folder` in the background for a ``with`` block; yield its secret URL, without a trailing slash.

    Port 0 is a free one. Besides programs, only pages of this machine's `viewer_port` may read the files.
    """
    token = secrets.token_urlsafe()
    origins = [] if viewer_port is None else [f"http://{name}:{viewer_port}" for name in HOST_NAMES]
    try:
        server = _Server((HOST, port), partial(_Handler, folder.resolve(), token, origins))
    except OSError as reason:
        raise port_error(port, reason) from None
    with serving(server):
        yield f"http://{HOST}:{server.server_address[1]}/{token}"


def port_error(port: int, reason: OSError) -> ExportError:
    """Return the error for a port that cannot be listened on."""
    return ExportError(f"--port: {HOST}:{port} is not available ({reason.strerror}). Choose another one, or 0 for any")


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Log failed requests for debugging only: browsers drop connections all the time."""
        logger.debug("request from %s failed", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # keeps connections open; a volume takes thousands of small requests
    timeout = 60

    def __init__(self, root: Path, token: str, origins: Sequence[str], *args: object) -> None:
        self._root = root
        self._token = token
        self._origins = origins
        super().__init__(*args)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        """Send a file or a part of it."""
        self._respond(with_body=True)

    def do_HEAD(self) -> None:
        """Send the headers of a GET."""
        self._respond(with_body=False)

    def do_OPTIONS(self) -> None:
        """Answer a CORS preflight request."""
        self._send_head(HTTPStatus.FORBIDDEN if self._asked() is None else HTTPStatus.NO_CONTENT)

    def log_message(self, format: str, *args: object) -> None:
        """Log requests for debugging, without the token: people send logs along when they ask for help."""
        logger.debug("%s", (format % args).replace(self._token, "…"))

    def _respond(self, with_body: bool) -> None:
        asked = self._asked()
        path = None if asked is None else self._find(asked)
        if path is None:
            self._send_head(HTTPStatus.FORBIDDEN if asked is None else HTTPStatus.NOT_FOUND)
            return
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            wanted = parse_range(self.headers.get("Range"), size)
            start, stop = wanted or (0, size)
            if wanted is None:
                self._send_head(HTTPStatus.OK, size)
            elif start < stop:
                self._send_head(HTTPStatus.PARTIAL_CONTENT, stop - start, f"bytes {start}-{stop - 1}/{size}")
            else:
                self._send_head(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, 0, f"bytes */{size}")
            if with_body and start < stop:
                self.connection.sendfile(file, start, stop - start)

    def _asked(self) -> str | None:
        """Return the requested path behind the token; None if the request must not be answered."""
        try:
            host, path = urlsplit(f"//{self.headers['Host']}").hostname, urlsplit(self.path).path
        except ValueError:
            return None
        _, _, path = path.partition("/")
        token, _, asked = path.partition("/")
        is_allowed = host in HOST_NAMES and hmac.compare_digest(token.encode(), self._token.encode())
        return f"/{asked}" if is_allowed else None

    def _find(self, asked: str) -> Path | None:
        """Return the requested file; None if it does not exist or lies outside the folder."""
        try:
            path = (self._root / unquote(asked).lstrip("/")).resolve()
            return path if path.is_relative_to(self._root) and path.is_file() else None
        except (OSError, ValueError):  # a null byte, a name that is too long
            return None

    def _send_head(self, status: HTTPStatus, length: int = 0, content_range: str | None = None) -> None:
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        if (origin := self.headers["Origin"]) in self._origins:
            self.send_header("Access-Control-Allow-Origin", origin)
        if content_range is not None:
            self.send_header("Content-Range", content_range)
        if status != HTTPStatus.NO_CONTENT:
            self.send_header("Content-Length", str(length))
        self.end_headers()


def parse_range(header: str | None, size: int) -> tuple[int, int] | None:
    """Return the half-open byte range to send, empty if it lies outside the file.

    None means the whole file: there is no header, or it is malformed or has several ranges, which HTTP allows a server
    to ignore.

    >>> parse_range("bytes=2-4", 10), parse_range("bytes=-3", 10), parse_range("bytes=12-", 10)
    ((2, 5), (7, 10), (10, 10))
    """
    match = _RANGE.fullmatch(header or "")
    if match is None or match.groups() == ("", ""):
        return None
    first, last = match.groups()
    if not first:
        return max(0, size - int(last)), size
    if last and int(last) < int(first):
        return None
    return min(int(first), size), min(int(last) + 1 if last else size, size)
