"""The loopback server: whole files, ranges, CORS, and nothing outside of its folder."""

import http.client
import socket
from urllib.parse import urlsplit

import pytest

from ffn.errors import ExportError
from ffn.viewing.server import parse_range, serve

CONTENT = bytes(range(200))


@pytest.fixture
def ask(tmp_path):
    """Send a request as written, by a client that leaves the path alone; returns response and body."""
    (tmp_path / "served/layer").mkdir(parents=True)
    (tmp_path / "served/layer/0.shard").write_bytes(CONTENT)
    (tmp_path / "served/empty").write_bytes(b"")
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "served/link").symlink_to(tmp_path / "secret")
    with serve(tmp_path / "served") as url:
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=10)

        def send(path="/layer/0.shard", method="GET", **headers):
            connection.request(method, path, headers=headers)
            response = connection.getresponse()
            return response, response.read()

        yield send
        connection.close()


def test_whole_files_with_cors(ask):
    response, body = ask()
    assert (response.status, body) == (200, CONTENT)
    assert response.headers["Access-Control-Allow-Origin"] == "*"
    assert response.headers["Accept-Ranges"] == "bytes"
    assert response.headers["Content-Encoding"] is None


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("bytes=10-19", (10, 20)),
        ("bytes=190-", (190, 200)),
        ("bytes=-5", (195, 200)),
        ("bytes=150-999", (150, 200)),
    ],
)
def test_ranges(ask, header, expected):
    start, stop = expected
    response, body = ask(Range=header)
    assert (response.status, body) == (206, CONTENT[start:stop])
    assert response.headers["Content-Range"] == f"bytes {start}-{stop - 1}/200"
    assert "Content-Range" in response.headers["Access-Control-Expose-Headers"]


@pytest.mark.parametrize("header", ["bytes=200-", "bytes=500-600", "bytes=-0"])
def test_a_range_outside_is_refused_with_the_size(ask, header):
    response, body = ask(Range=header)
    assert (response.status, body, response.headers["Content-Range"]) == (416, b"", "bytes */200")


@pytest.mark.parametrize("header", ["bytes=0-1,5-6", "bytes=-", "bytes=9-2", "lines=1-2", "bytes=a-b"])
def test_ranges_that_make_no_sense_are_ignored(ask, header):
    response, body = ask(Range=header)
    assert (response.status, body) == (200, CONTENT)


def test_head_sends_no_body_and_keeps_the_connection(ask):
    response, body = ask(method="HEAD")
    assert (response.status, response.headers["Content-Length"], body) == (200, "200", b"")
    response, _ = ask(method="HEAD", Range="bytes=0-9")
    assert (response.status, response.headers["Content-Length"]) == (206, "10")
    assert ask()[1] == CONTENT


def test_the_question_before_a_range_request_of_another_origin(ask):
    response, _ = ask(method="OPTIONS", Origin="http://127.0.0.1:1")
    assert response.status == 204
    assert "Range" in response.headers["Access-Control-Allow-Headers"]


def test_an_empty_file(ask):
    assert ask("/empty")[0].status == 200
    assert ask("/empty", Range="bytes=0-9")[0].status == 416


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/layer",
        "/nothing",
        "/../secret",
        "/%2e%2e/secret",
        "/layer/../../secret",
        "/link",
        "//etc/passwd",
        "/a%00b",
        "/" + "x" * 5000,
    ],
)
def test_nothing_else_is_served(ask, path):
    response, body = ask(path)
    assert (response.status, body) == (404, b"")


def test_a_client_that_goes_away_does_not_end_the_server(ask, tmp_path, capfd):
    with serve(tmp_path / "served") as url:
        address = urlsplit(url)
        for request in (b"GET /layer/0.shard HTTP/1.1\r\n", b"nonsense\r\n\r\n"):
            with socket.create_connection((address.hostname, address.port)) as client:
                client.sendall(request)
        connection = http.client.HTTPConnection(address.netloc, timeout=10)
        connection.request("GET", "/layer/0.shard")
        assert connection.getresponse().read() == CONTENT
        connection.close()
    assert "Traceback" not in capfd.readouterr().err


def test_a_port_in_use_is_one_line(tmp_path):
    with serve(tmp_path) as url:
        port = urlsplit(url).port
        with pytest.raises(ExportError, match=f"--port: 127.0.0.1:{port} is not available .* Choose another"):
            with serve(tmp_path, port):
                pytest.fail("two servers on one port")


def test_ranges_of_nothing():
    assert parse_range(None, 10) is None
    assert parse_range("bytes=3-3", 10) == (3, 4)
    assert parse_range("bytes=-20", 10) == (0, 10)
