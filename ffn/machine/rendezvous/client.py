"""A client of the meeting point of `ffn launch`.

Every rank imports this from one file system at once, so it imports little, and only from the standard library.
"""

from __future__ import annotations

import http.client
from typing import NamedTuple

TIMEOUT_SECONDS = 10.0


class Answer(NamedTuple):
    """An answer of the server."""

    content: bytes | None  # None if it does not have it yet
    own_address: str  # of this machine on the server's network


class Server(NamedTuple):
    """Where the ranks meet."""

    address: str  # IPv4 address of the first node
    port: int
    secret: str  # first part of every path

    @classmethod
    def parse(cls, text: str, secret: str) -> Server:
        """Read ``ADDRESS:PORT``."""
        address, _, port = text.rpartition(":")
        return cls(address, int(port), secret)

    @property
    def gloo_address(self) -> str:
        """The address for Horovod's client.

        The client sends its requests to ``http://`` + address + ``:PORT/SCOPE/KEY``. An address that brings its port
        and the secret therefore makes the path ``/SECRET:PORT/SCOPE/KEY``.
        """
        return f"{self.address}:{self.port}/{self.secret}"

    @classmethod
    def of_gloo_address(cls, text: str) -> Server | None:
        """Read `gloo_address`; None if it is that of another server, such as horovodrun's."""
        address, slash, secret = text.partition("/")
        return cls.parse(address, secret) if slash else None

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
