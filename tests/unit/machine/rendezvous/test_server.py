"""The meeting point of ranks: it serves those who know the job's secret, as Horovod's client asks, and nobody else."""

import http.client
import socket

import pytest

from ffn.machine.rendezvous.client import Server
from ffn.machine.rendezvous.server import rendezvous_server

SECRET = "a-Secret_1"


@pytest.fixture
def ask():
    """Send a request to a meeting point where key 0 of the scope global is known; returns status and body."""
    with rendezvous_server("127.0.0.1", SECRET) as server:
        server.values["global", "0"] = b"known"

        def send(method, path, body=None):
            connection = http.client.HTTPConnection("127.0.0.1", server.port)
            connection.request(method, path, body)
            answer = connection.getresponse()
            content = answer.read()
            connection.close()
            return answer.status, content

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


def test_values_are_stored_found_and_forgotten(ask):
    assert ask("GET", f"/{SECRET}/local_n1/3") == (404, b"")
    assert ask("PUT", f"/{SECRET}/local_n1/3", b"\0address") == (200, b"")
    assert ask("GET", f"/{SECRET}/local_n1/3") == (200, b"\0address")
    assert ask("DELETE", f"/{SECRET}/local_n1/3") == (200, b"")
    assert ask("GET", f"/{SECRET}/local_n1/3") == (404, b"")


def test_the_address_brings_the_secret_into_the_paths_of_horovods_client(ask):
    server = Server("127.0.0.1", ask.server.port, SECRET)
    url = f"http://{server.gloo_address}:{server.port}/global/0"  # as the client puts it together
    assert ask("GET", url.removeprefix(f"http://127.0.0.1:{server.port}")) == (200, b"known")


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
