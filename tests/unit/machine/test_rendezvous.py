"""The meeting point of ranks, as Horovod's client asks it, with and without the relay of each rank."""

import contextlib
import http.client
import os
import socket
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from ffn.machine import rendezvous
from ffn.machine.rendezvous import RendezvousServer, Server, relayed, serving

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


SIZE = 9
NAMES = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "HOSTNAME")
REQUESTS = Counter()


class Counting(RendezvousServer):
    """A server that counts requests."""

    def find(self, place):
        REQUESTS["GET"] += 1
        return super().find(place)

    def store(self, place, value):
        REQUESTS["PUT"] += 1
        super().store(place, value)


class Horovod:
    """Looks for the addresses of its peers as Horovod's client with Gloo does."""

    def __init__(self, variables):
        address, port = (variables[f"HOROVOD_GLOO_RENDEZVOUS_{name}"] for name in ("ADDR", "PORT"))
        self.url = f"http://{address}:{port}"

    def ask(self, method, path, body=None):
        host, _, rest = f"{self.url}/{path}".removeprefix("http://").partition("/")
        status, content = answer_of(host, method, f"/{rest}", body)
        return content if status == 200 else None

    def wait_for(self, path):
        while (value := self.ask("GET", path)) is None:
            pass
        return value

    def connect(self, scope, rank, size):
        """Return the addresses to which this rank connects, by rank."""
        self.ask("PUT", f"{scope}/rank_{rank}", b"host")
        for other in range(rank):
            self.ask("GET", f"{scope}/rank_{other}")
        self.ask("PUT", f"{scope}/{rank}", b"".join(address(rank, other) for other in range(size) if other != rank))
        found = {}
        for other in set(range(size)) - {rank}:
            self.wait_for(f"{scope}/{other}")
            addresses = self.ask("GET", f"{scope}/{other}")
            length, index = len(addresses) // (size - 1), rank - (rank > other)
            found[other] = addresses[index * length : (index + 1) * length]
        return found


def address(owner, other):
    return f"<{owner:03d} for {other:03d}>".encode()


def variables(server, rank, size=SIZE):
    place = dict(zip(NAMES, map(str, (rank, size, rank, size, 0, 1, "n1")), strict=True))
    meeting = {"GLOO_RENDEZVOUS_ADDR": server.gloo_address, "GLOO_RENDEZVOUS_PORT": str(server.port)}
    return {f"HOROVOD_{name}": value for name, value in {**place, **meeting}.items()}


@pytest.fixture
def server():
    REQUESTS.clear()
    meeting = Counting("127.0.0.1", "x7")
    with serving(meeting):
        yield Server("127.0.0.1", meeting.port, "x7")


@pytest.fixture
def relays(server, monkeypatch):
    """One client of Horovod for each rank, each behind its own relay."""
    clients, stacks = [], []
    for rank in range(SIZE):
        monkeypatch.setattr(os, "environ", variables(server, rank))
        stacks.append(relayed())
        stacks[-1].__enter__()
        clients.append(Horovod(os.environ))
    yield clients
    for stack in stacks:
        stack.__exit__(None, None, None)


def test_every_rank_finds_the_addresses_meant_for_it_by_a_few_requests(relays):
    for scope in ("global", "local_n1"):
        REQUESTS.clear()
        with ThreadPoolExecutor(SIZE) as pool:
            found = list(pool.map(lambda rank, scope=scope: relays[rank].connect(scope, rank, SIZE), range(SIZE)))
        for rank, addresses in enumerate(found):
            assert addresses == {other: address(other, rank) for other in range(SIZE) if other != rank}
        assert REQUESTS == {"PUT": SIZE, "GET": SIZE}


def test_a_scope_of_unknown_size_is_passed_on(relays):
    relays[0].ask("PUT", "global_process_set_1/0", b"known")
    assert relays[1].ask("GET", "global_process_set_1/0") == b"known"
    assert relays[1].ask("GET", "global_process_set_1/1") is None
    relays[0].ask("DELETE", "global_process_set_1/0")
    assert relays[1].ask("GET", "global_process_set_1/0") is None


def test_a_rank_gets_nothing_before_the_last_one_has_come(relays, monkeypatch):
    monkeypatch.setattr(rendezvous, "WAIT_SECONDS", 0.01)
    for rank in range(SIZE - 1):
        relays[rank].ask("PUT", f"global/{rank}", bytes(8 * (SIZE - 1)))
    assert relays[0].ask("GET", "global/1") is None
    relays[-1].ask("PUT", f"global/{SIZE - 1}", bytes(8 * (SIZE - 1)))
    assert len(relays[0].ask("GET", "global/1")) == 8 * (SIZE - 1)


def test_only_launches_use_the_relay(server, monkeypatch):
    before = variables(server, 0)
    monkeypatch.setattr(os, "environ", dict(before))
    with relayed():
        assert os.environ != before and os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"].startswith("127.0.0.1:")
        assert os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"] != str(server.port)
    assert os.environ == before
    before = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1", "HOROVOD_GLOO_RENDEZVOUS_PORT": "4000"}
    for given in ({}, before):
        monkeypatch.setattr(os, "environ", dict(given))
        with relayed():
            assert os.environ == given
