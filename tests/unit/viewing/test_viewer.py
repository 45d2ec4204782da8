"""The viewer: exports and stores, what they lack, and the way of a browser to a secret link."""

import http.client
import stat
from pathlib import Path
from urllib.parse import unquote, urlsplit

import neuroglancer
import numpy as np
import pytest

from ffn.errors import ExportError
from ffn.geometry import Box
from ffn.io.volume import Placement
from ffn.viewing.config import ExportConfig, ViewConfig
from ffn.viewing.export import export
from ffn.viewing.viewer import folder_of_files, open_viewer, page_leading_to, served, stores_state, view, view_stores

from ...volumes import create_volumes

BOX = Box((10, 4, 7), (26, 44, 39))


def test_an_unknown_segment_or_link_is_an_error(tmp_path, all_sources):
    export(all_sources, tmp_path / "out", ExportConfig())
    with pytest.raises(ExportError, match="--segments: 8 "):
        view(tmp_path / "out", ViewConfig(segments=(90, 8)), announce=pytest.fail)
    with pytest.raises(ExportError, match="--link: 'split-03' .*: merge-01.*ffn queue"):
        view(tmp_path / "out", ViewConfig(link="split-03"), announce=pytest.fail)
    listed = tmp_path / "out/truth/segment_properties/info"
    for damage in (lambda: listed.write_text("3"), listed.unlink):
        damage()
        with pytest.raises(ExportError, match=f"{listed}: "):
            view(tmp_path / "out", ViewConfig(segments=(90,)), announce=pytest.fail)


@pytest.fixture
def run(tmp_path):
    """A folder with an image, edges of a part of it, and labels."""
    rng = np.random.default_rng(0)
    part = Box(BOX.start, (20, 44, 39))
    volumes = (
        ("volumes/raw", "0", np.uint8, BOX),
        ("membrane", "edges", np.uint8, part),
        ("seg", "0", np.uint64, part),
    )
    for store, name, dtype, box in volumes:
        (tmp_path / store).parent.mkdir(exist_ok=True)
        with create_volumes(tmp_path / f"{store}.zarr", {name: dtype}, Placement(box, (30.0, 8.0, 10.0))) as writers:
            writers[name].write(box, rng.integers(0, 200, box.shape).astype(dtype))
    return tmp_path


def test_every_store_is_a_layer_of_its_kind(run):
    specs = [f"{run}/volumes/raw.zarr", f"{run}/membrane.zarr/edges", f"{run}/seg.zarr/0"]
    folder, state = stores_state(specs, [7, 9])
    assert folder == run
    kinds = [(layer["name"], layer["type"], layer["source"]) for layer in state["layers"]]
    assert kinds == [
        ("volumes/raw", "image", "zarr://{base}/volumes/raw.zarr/"),
        ("membrane/edges", "image", "zarr://{base}/membrane.zarr/edges/"),
        ("seg", "segmentation", "zarr://{base}/seg.zarr/"),
    ]
    assert state["layers"][2]["segments"] == ["7", "9"]
    assert state["position"] == [23, 24, 15] and state["dimensions"]["z"] == [pytest.approx(30e-9), "m"]


def test_of_a_store_nothing_else_is_served_and_others_are_refused(run):
    folder, state = stores_state([f"{run}/volumes/raw.zarr"])
    assert folder == run / "volumes" and state["layers"][0]["source"] == "zarr://{base}/raw.zarr/"
    with pytest.raises(ExportError, match="s3://b/a.zarr: "):
        stores_state(["s3://b/a.zarr"])
    with pytest.raises(ExportError, match="--link, "):
        view_stores([f"{run}/seg.zarr"], ViewConfig(link="whole"), pytest.fail)


@pytest.fixture
def ask():
    """Function that serves a folder, and one that sends a request as written; returns response and body."""
    open_viewer()

    def serve(folder):
        return urlsplit(served(folder))

    def send(address, path, **headers):
        connection = http.client.HTTPConnection(address.netloc)
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        body = response.read()
        connection.close()
        return response, body

    yield serve, send
    neuroglancer.stop()


def test_stores_behind_links_and_above_the_folder_can_be_served(run, monkeypatch, ask):
    (run / "here").mkdir()
    (run / "here/seg.zarr").symlink_to(run / "seg.zarr")
    monkeypatch.chdir(run / "here")
    folder, state = stores_state(["../volumes/raw.zarr", "seg.zarr"])
    serve, send = ask
    address = serve(folder)
    for layer in state["layers"]:
        path = layer["source"].removeprefix("zarr://").format(base=address.path) + "zarr.json"
        assert send(address, path)[0].status == 200


def test_the_files_of_a_folder_and_nothing_else_for_those_who_know_the_token(tmp_path, ask):
    content, (serve, send) = bytes(range(200)), ask
    (tmp_path / "served/layer").mkdir(parents=True)
    (tmp_path / "served/layer/0.shard").write_bytes(content)
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "served/link").symlink_to(tmp_path / "secret")
    address = serve(tmp_path / "served")
    shard = f"{address.path}/layer/0.shard"
    response, body = send(address, shard, Origin="http://evil.org")
    assert (response.status, body) == (200, content) and "Access-Control-Allow-Origin" not in response.headers
    for header, start, stop in (("bytes=10-19", 10, 20), ("bytes=190-", 190, 200), ("bytes=-5", 195, 200)):
        response, body = send(address, shard, Range=header)
        assert (response.status, body) == (206, content[start:stop])
    for path in ("/layer", "/nothing", "/../secret", "/%2e%2e/secret", "/link", "//etc/passwd"):
        assert send(address, address.path + path)[0].status in (403, 404)
    for token in ("", "/another", address.path[:-1], f"{address.path}x"):
        assert send(address, f"{token}/layer/0.shard")[0].status == 404
    assert len(address.path) > 40


@pytest.mark.parametrize("target", ["/usr/bin/snap", "/snap/chromium/1/chromium"])
def test_a_snap_gets_files_in_the_home(target, tmp_path, monkeypatch):
    """It sees no other folder for temporary files but its own, and no hidden files."""
    monkeypatch.setenv("HOME", str(tmp_path))
    browser = tmp_path / "chromium"
    browser.symlink_to(target)
    assert folder_of_files(str(browser)) == tmp_path
    assert folder_of_files("/usr/bin/chromium-of-a-test") is None
    with page_leading_to("http://x", folder_of_files(str(browser))) as url:
        (page,) = tmp_path.glob("*/view.html")
        assert url == page.as_uri() and not page.parent.name.startswith(".")


def test_only_the_user_can_read_the_link_and_only_for_a_while():
    with page_leading_to("http://127.0.0.1:8000/v/secret/?a=1&b=2") as url:
        page = Path(unquote(urlsplit(url).path))
        assert url.startswith("file:///") and "secret" not in url
        assert "url=http://127.0.0.1:8000/v/secret/?a=1&amp;b=2" in page.read_text()
        assert stat.S_IMODE(page.parent.stat().st_mode) == 0o700
    assert not page.parent.exists()
