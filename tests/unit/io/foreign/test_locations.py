"""Object stores and web servers, emulated on this machine: public, private, denied, missing."""

import http.server
import os
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import zarr

from ffn.geometry import Box
from ffn.io.foreign.locations import CONTEXT, Location

from ....servers import serving
from .readers import SHAPE, check, refuse, voxels

PLACE = Box.from_shape(SHAPE, (10, 10, 20))
KEY = {"AWS_ACCESS_KEY_ID": "reader", "AWS_SECRET_ACCESS_KEY": "secret"}


class Store(http.server.BaseHTTPRequestHandler):
    """Answers as S3 and Google do: without the right to list a bucket, what is missing is refused, too."""

    folder: Path
    permits = staticmethod(lambda authorization: True)
    missing = 403
    codes: dict = {}  # of files by their names
    asked: list

    def do_GET(self):
        path = unquote(urlsplit(self.path).path)
        path = path.removeprefix("/storage/v1/b").replace("/o/", "/", 1)  # the other way to ask Google
        authorization = self.headers.get("Authorization", "")
        self.asked.append(authorization)
        file = self.folder / path.strip("/")
        is_there, permitted = file.is_file() and "//" not in path, self.permits(authorization)
        code = self.codes.get(file.name, (200 if is_there else self.missing) if permitted else 403)
        content = file.read_bytes() if code == 200 else b""
        self.send_response(code)
        for name, value in {"Content-Length": len(content), "ETag": '"1"', "x-goog-generation": 1}.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    do_HEAD = do_GET

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """The class that answers, with the address of its server; /bucket/raw.zarr holds a volume."""
    folder = tmp_path_factory.mktemp("store")
    zarr.create_array(folder / "bucket/raw.zarr", data=voxels(), chunks=(5, 12, 20), zarr_format=3)
    handler = type("Handler", (Store,), {"folder": folder, "asked": []})
    with serving(handler) as handler.address:
        yield handler


@pytest.fixture
def bucket(store, monkeypatch):
    """The store in place of Amazon and Google, without credentials; it permits everything."""
    store.asked.clear()
    monkeypatch.setattr(store, "permits", staticmethod(lambda authorization: True))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", store.address)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("TENSORSTORE_GCS_HTTP_URL", store.address)
    monkeypatch.setenv("GCE_METADATA_ROOT", "127.0.0.1:9")  # where nobody answers
    return store


@pytest.mark.parametrize("scheme", ["s3", "gs"])
@pytest.mark.parametrize("credentials", [{}, KEY])
def test_a_public_bucket_is_read_without_credentials(bucket, monkeypatch, scheme, credentials):
    for name, value in credentials.items():
        monkeypatch.setenv(name, value)
    check(f"{scheme}://bucket/raw.zarr")
    assert set(bucket.asked) == {""}


@pytest.mark.parametrize(
    "scheme, credentials", [("s3", KEY), ("gs", {"GOOGLE_AUTH_TOKEN_FOR_TESTING": "token"})], ids=["s3", "gs"]
)
def test_a_private_bucket_is_read_with_the_credentials_of_this_machine(bucket, monkeypatch, scheme, credentials):
    monkeypatch.setattr(bucket, "permits", staticmethod(bool))
    for name, value in credentials.items():
        monkeypatch.setenv(name, value)
    check(f"zarr://{scheme}://bucket/raw.zarr")
    assert any(bucket.asked)


@pytest.mark.parametrize("scheme, to_set", [("s3", "AWS_PROFILE"), ("gs", "GOOGLE_APPLICATION_CREDENTIALS")])
def test_a_refusal_says_what_to_set(bucket, monkeypatch, scheme, to_set):
    monkeypatch.setattr(bucket, "permits", staticmethod(lambda authorization: False))
    monkeypatch.setenv("GOOGLE_AUTH_TOKEN_FOR_TESTING", "token")
    refuse(f"{scheme}://bucket/raw.zarr", f"{scheme}://bucket/raw.zarr: ", to_set)


def test_a_signature_stays_behind_the_path(bucket, monkeypatch):
    wanted, asked = bucket.do_GET, []

    def do_get(self):
        asked.append(urlsplit(self.path).query)
        wanted(self)

    monkeypatch.setattr(bucket, "do_GET", do_get)
    check(f"{bucket.address}/bucket/raw.zarr?sig=a%2Fb")
    assert set(asked) == {"sig=a%2Fb"}


@pytest.mark.parametrize("spec", ["http://127.0.0.1:9/raw.zarr", "dvid://host/uuid/grayscale"])
def test_an_address_that_cannot_be_reached_is_named(monkeypatch, spec):
    monkeypatch.setitem(CONTEXT, "http_request_retries", {"max_retries": 0})
    refuse(spec, f"{spec}: cannot be read")


MUTE = """
import logging, sys
from ffn.errors import VolumeError
from ffn.io.foreign import locations

logging.basicConfig()
locations.PATIENCE_S, locations.SILENCE_S = 0.2, 1
locations.CONTEXT["http_request_retries"] = {"max_retries": 0}
try:
    locations.open_folder(sys.argv[1])
except VolumeError as error:
    print(error)
"""


def test_a_server_that_never_answers_is_named_and_given_up():
    """In a process of its own, for TensorStore takes the limit once, at its first request."""
    with socket.create_server(("127.0.0.1", 0)) as server:  # the system accepts, and nobody answers
        spec = f"http://127.0.0.1:{server.getsockname()[1]}/raw.zarr"
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TENSORSTORE_CURL")}
        command = [sys.executable, "-c", MUTE, spec]
        done = subprocess.run(command, env=inherited, capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith(f"{spec}: ") and done.stdout.count("\n") == 1
    assert done.stderr.startswith("WARNING") and done.stderr.count("\n") == 1 and spec in done.stderr


@pytest.mark.parametrize(
    "spec, address, driver",
    [
        ("gs://bucket/raw", "gs://bucket/raw", "auto"),
        ("precomputed://gs://bucket/raw", "gs://bucket/raw", "neuroglancer_precomputed"),
        ("gs://bucket/raw/|neuroglancer-precomputed:", "gs://bucket/raw/", "neuroglancer_precomputed"),
        ("n5://raw.n5", "raw.n5", "n5"),
        ("odd|name.zarr", "odd|name.zarr", "auto"),
    ],
)
def test_addresses_of_neuroglancer_are_understood(spec, address, driver):
    assert Location.parse(spec) == Location(spec, address, driver)


@pytest.fixture
def cremi(tmp_path):
    """A local volume whose place is in its metadata."""
    array = zarr.create_array(tmp_path / "bucket/cremi.zarr", data=voxels(), chunks=(5, 12, 20), zarr_format=2)
    array.attrs.update(resolution=[40, 4, 4], offset=[400, 40, 80])
    return tmp_path / "bucket/cremi.zarr"


@pytest.mark.parametrize(("name", "content"), [(".zattrs", "{ broken"), ("info", "[]"), ("attributes.json", "")])
def test_damaged_metadata_do_not_pass_for_missing_ones(cremi, name, content):
    check(cremi, box=PLACE)
    (cremi / name).write_text(content)
    refuse(cremi, f"{cremi / name}: cannot be read (")


@pytest.mark.parametrize("code", [403, 500, 503])
def test_metadata_that_a_server_does_not_give_do_not_pass_for_missing_ones(bucket, cremi, monkeypatch, code):
    """It says of other files that they are missing."""
    for kind in ("http", "s3"):
        monkeypatch.setitem(CONTEXT, f"{kind}_request_retries", {"max_retries": 0})
    monkeypatch.setattr(bucket, "folder", cremi.parent.parent)
    monkeypatch.setattr(bucket, "missing", 404)
    address = f"{bucket.address}/bucket/cremi.zarr"
    for spec in (address, "s3://bucket/cremi.zarr", "gs://bucket/cremi.zarr"):
        check(spec, box=PLACE)
    monkeypatch.setattr(bucket, "codes", {".zattrs": code})
    for spec in (address, "s3://bucket/cremi.zarr", "gs://bucket/cremi.zarr"):
        refuse(spec, "bucket/cremi.zarr/.zattrs: cannot be read (", str(code) if spec == address else "")


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_a_volume_at_the_root_of_a_bucket_is_read(bucket, monkeypatch, scheme):
    monkeypatch.setattr(bucket, "folder", bucket.folder / "bucket")
    check(f"{scheme}://raw.zarr")
    check(f"{scheme}://raw.zarr/")
