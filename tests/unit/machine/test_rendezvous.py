"""The meeting point of ranks, as Horovod's client asks it."""

import contextlib
import http.client
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from ffn.machine import rendezvous
from ffn.machine.rendezvous import RendezvousServer, serving

SECRET = "a-Secret_1"


def answer_of(host, method, path, body=None):
    """Return status and body."""
    connection = http.client.HTTPConnection(host)
    connection.request(method, path, body)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content


@pytest.fixture
def ask():
    """Send a request to a meeting point where key 0 of the scope global is known; returns status and body."""
    with serving(RendezvousServer("127.0.0.1", SECRET)) as server:
        server.values["global", "0"] = b"known"

        def send(method, path, body=None):
            return answer_of(f"127.0.0.1:{server.port}", method, path, body)

        send.server = server
        yield send


@pytest.mark.parametrize("prefix", ["", "/", "/another", f"/{SECRET}x", f"/{SECRET[:-1]}"])
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "HEAD", "POST"])
def test_a_stranger_reads_and_changes_nothing(ask, method, prefix):
    status, body = ask(method, f"{prefix}/global/0", b"planted" if method in ("PUT", "POST") else None)
    assert status in (403, 501) and b"known" not in body
    assert ask.server.values == {("global", "0"): b"known"}


@pytest.mark.parametrize("path", ["", "/", f"/{SECRET}", f"/{SECRET}/global", f"/{SECRET}/global/0/more"])
def test_other_paths_are_refused(ask, path):
    assert ask("GET", path)[0] == 403


def test_silent_connections_hold_up_nobody(ask):
    with contextlib.ExitStack() as held:
        for _ in range(50):  # one after another, each would be waited for
            held.enter_context(socket.create_connection(ask.server.server_address))
        begin = time.monotonic()
        assert ask("GET", f"/{SECRET}/global/0") == (200, b"known")
    assert time.monotonic() - begin < rendezvous.REQUEST_SECONDS


def test_it_listens_at_one_address_only(ask):
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", ask.server.port))


def test_nonsense_leaves_it_running_and_nothing_behind(ask, capfd):
    for request in (
        b"nonsense\r\n\r\n",
        f"PUT /{SECRET}/a/b HTTP/1.0\r\n\r\n".encode(),
        b"GET /\xff/global/0 HTTP/1.0\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", ask.server.port)) as client:
            client.sendall(request)
    assert ask("GET", f"/{SECRET}/global/0") == (200, b"known")
    assert capfd.readouterr() == ("", "")


def test_the_values_of_all_ranks_are_sent_when_the_last_one_has_come(ask, monkeypatch):
    monkeypatch.setattr(rendezvous, "WAIT_SECONDS", 0.01)
    assert ask("GET", f"/{SECRET}/global/?of=2")[0] == 404
    monkeypatch.undo()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ask, "GET", f"/{SECRET}/global/?of=2")
        assert ask("PUT", f"/{SECRET}/global/1", b"too")[0] == 200
        assert waiting.result() == (200, b"known too")
    assert ask("DELETE", f"/{SECRET}/global/1")[0] == 200 and ask("GET", f"/{SECRET}/global/1")[0] == 404
