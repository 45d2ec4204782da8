"""The loopback server: whole files, ranges, nothing for strangers, and nothing outside of its folder."""

import http.client
import socket
import urllib.error
import urllib.request
from urllib.parse import urlsplit

import pytest

from ffn.errors import ExportError
from ffn.viewing.server import serve

CONTENT = bytes(range(200))
ORIGIN = "http://127.0.0.1:8000"


@pytest.fixture
def ask(tmp_path):
    """Send a request as written, by a client that leaves the path alone; returns response and body."""
    (tmp_path / "served/layer").mkdir(parents=True)
    (tmp_path / "served/layer/0.shard").write_bytes(CONTENT)
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "served/link").symlink_to(tmp_path / "secret")
    with serve(tmp_path / "served", viewer_port=8000) as url:
        address = urlsplit(url)
        connection = http.client.HTTPConnection(address.netloc)

        def send(path="/layer/0.shard", method="GET", token=address.path, **headers):
            connection.request(method, token + path, headers=headers)
            response = connection.getresponse()
            return response, response.read()

        send.token = address.path
        yield send
        connection.close()


@pytest.mark.parametrize("origin", [ORIGIN, "http://localhost:8000"])
def test_whole_files_for_the_pages_of_the_viewer_by_any_name(ask, origin):
    response, body = ask(Origin=origin)
    assert (response.status, body) == (200, CONTENT)
    assert response.headers.get_all("Access-Control-Allow-Origin") == [origin]
    assert response.headers["Vary"] == "Origin"
    assert response.headers["Referrer-Policy"] == "no-referrer"


@pytest.mark.parametrize("origin", ["http://127.0.0.1:8001", "https://localhost:8000", "http://evil.org:8000", "null"])
def test_other_pages_may_not_read(ask, origin):
    assert "Access-Control-Allow-Origin" not in ask(Origin=origin)[0].headers


@pytest.mark.parametrize(
    ("header", "expected"),
    [("bytes=10-19", (10, 20)), ("bytes=190-", (190, 200)), ("bytes=-5", (195, 200)), ("bytes=150-999", (150, 200))],
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


def test_head_and_the_question_before_ranges_send_no_body(ask):
    response, body = ask(method="HEAD")
    assert (response.status, response.headers["Content-Length"], body) == (200, "200", b"")
    response, _ = ask(method="HEAD", Range="bytes=0-9")
    assert (response.status, response.headers["Content-Length"]) == (206, "10")
    assert ask()[1] == CONTENT
    response, _ = ask(method="OPTIONS", Origin=ORIGIN)
    assert response.status == 204
    assert "Range" in response.headers["Access-Control-Allow-Headers"]


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_who_does_not_know_the_token_gets_nothing(ask, method):
    assert len(ask.token) > 40
    for token in ("", "/", "/another", ask.token[:-1], f"{ask.token}x", "/%ff", "//["):
        response, body = ask(method=method, token=token)
        assert (response.status, body) == (403, b"")


@pytest.mark.parametrize("host", ["evil.org", "evil.org:80", "127.0.0.1.evil.org", "127.0.0.1@evil.org", "[", ""])
def test_a_domain_that_suddenly_resolves_to_this_machine_gets_nothing(ask, host):
    response, body = ask(Host=host)
    assert (response.status, body) == (403, b"")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:9001", "localhost:9001", "LOCALHOST"])
def test_a_forwarded_port_may_have_another_number(ask, host):
    assert ask(Host=host)[1] == CONTENT


def test_the_log_and_pages_without_a_viewer_tell_nothing(tmp_path, ask, caplog):
    with serve(tmp_path) as url, pytest.raises(urllib.error.HTTPError, match="404") as missing:
        urllib.request.urlopen(urllib.request.Request(f"{url}/nothing", headers={"Origin": ORIGIN}))
    assert "Access-Control-Allow-Origin" not in missing.value.headers
    missing.value.close()
    caplog.set_level("DEBUG")
    ask()
    ask(method="NO")
    assert "/layer/0.shard" in caplog.text and ask.token.strip("/") not in caplog.text


@pytest.mark.parametrize(
    "path", ["/", "/layer", "/../secret", "/%2e%2e/secret", "/link", "//etc/passwd", "/a%00b", "/" + "x" * 5000]
)
def test_nothing_else_is_served(ask, path):
    response, body = ask(path)
    assert (response.status, body) == (404, b"")


def test_a_client_that_goes_away_does_not_end_the_server(ask, tmp_path, capfd):
    with serve(tmp_path / "served") as url:
        address = urlsplit(url)
        for request in (f"GET {address.path}/layer/0.shard HTTP/1.1\r\n".encode(), b"nonsense\r\n\r\n"):
            with socket.create_connection((address.hostname, address.port)) as client:
                client.sendall(request)
        connection = http.client.HTTPConnection(address.netloc)
        connection.request("GET", f"{address.path}/layer/0.shard")
        assert connection.getresponse().read() == CONTENT
        connection.close()
    assert "Traceback" not in capfd.readouterr().err


def test_a_port_in_use_is_one_line(tmp_path):
    with serve(tmp_path) as url:
        port = urlsplit(url).port
        with pytest.raises(ExportError, match=f"--port: 127.0.0.1:{port} "), serve(tmp_path, port):
            pytest.fail("two servers on one port")
