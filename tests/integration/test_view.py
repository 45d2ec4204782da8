"""`ffn view` as a user runs it: a picture with coloured neurons in every panel, and a clean end."""

import base64
import functools
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ffn.assembly.given import read_corrections
from ffn.geometry import Box
from ffn.io.volume import Placement
from ffn.viewing.config import ExportConfig
from ffn.viewing.export import export
from ffn.viewing.inputs import Sources

from ..browser import CONTROL, browser_at, press
from ..volumes import write_volume

SIZE = (800, 600)
NUM_TUBES = 3
SPECK = 5  # a segment too small for a mesh
ROOT = Path(__file__).parents[2]
BOX = Box((10, 35, 57), (10 + 40, 35 + 96, 57 + 128))


def bent_tubes():
    """Three neurites along x through the centre of the volume, one voxel apart."""
    z, y, x = np.indices(BOX.shape)
    labels = np.zeros(BOX.shape, np.uint64)
    for i in range(NUM_TUBES):
        centre = 26 + 22 * i + 4 * np.sin(x / 20)
        labels[((y - centre) / 10) ** 2 + ((z - 20) / 12) ** 2 < 1] = 1000 + 7 * i
    labels[:3, :3, :3] = SPECK
    return labels


@pytest.fixture(scope="module")
def export_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("view")
    labels = bent_tubes()
    noise = np.random.default_rng(0).integers(0, 30, BOX.shape)
    image = (80 + 90 * (labels > 0) + noise).astype(np.uint8)
    placement = Placement(BOX, (20.0, 10.0, 10.0))
    for name, voxels in (("raw", image), ("seg", labels)):
        write_volume(f"{folder}/{name}.h5:data", voxels, placement)
    sources = Sources(f"{folder}/raw.h5:data", f"{folder}/seg.h5:data")
    export(sources, folder / "run/precomputed/tubes", ExportConfig())
    return folder / "run"


@pytest.fixture
def start():
    """Function that starts ``ffn view``; what still runs at the end of the test is killed."""
    processes = []

    def started(*arguments, **options):
        command = [sys.executable, "-m", "ffn", "view", *map(str, arguments)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        # a shell that runs the tests in the background has its children ignore Ctrl-C
        heed = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        processes.append(subprocess.Popen(command, preexec_fn=heed, **pipes, **options))
        return processes[-1]

    yield started
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture
def nginx(export_dir, tmp_path):
    """Serve the export with nginx as docs/viewing.md tells, and return its address."""
    if shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin") is None:
        pytest.skip("no nginx; Debian's package is called nginx-light")
    with socket.socket() as reserved:  # so that no other program gets the port before nginx
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        documented = re.search(r"```nginx\n(.*?)```", (ROOT / "docs/viewing.md").read_text(), re.DOTALL).group(1)
        server = documented.replace("listen 80;", f"listen 127.0.0.1:{port} reuseport;")
        server = server.replace("/data/results/demo/precomputed/phantom", str(export_dir / "precomputed/tubes"))
        assert f":{port} " in server and str(export_dir) in server
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        temporary = "".join(f"{kind}_temp_path {tmp_path}/{kind};" for kind in kinds)
        configuration = f"daemon off; master_process off; pid {tmp_path}/pid; error_log stderr; events {{}}"
        (tmp_path / "nginx.conf").write_text(f"{configuration} http {{ access_log off; {temporary}\n{server} }}")
        command = [shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin"), "-c", tmp_path / "nginx.conf"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE)
        try:
            wait_for_port(port, process)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.communicate()


def wait_for_port(port, process):
    while True:
        assert process.poll() is None, process.stderr.read()
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.05)


@pytest.mark.slow
def test_nginx_serves_the_same_folder_and_segments_without_mesh_keep_no_screenshot_waiting(
    start, nginx, export_dir, tmp_path, panel_colours
):
    """Every layer is on, and the speck that is too small for a mesh is selected with the tubes. These are coloured."""
    folder = export_dir / "precomputed/tubes"
    request = urllib.request.Request(f"{nginx}/segmentation/info", headers={"Range": "bytes=2-5"})
    with urllib.request.urlopen(request) as response:
        assert response.status == 206
        assert response.headers["Access-Control-Allow-Origin"] == "*"
        assert response.read() == (folder / "segmentation/info").read_bytes()[2:6]
    with pytest.raises(urllib.error.HTTPError, match="404") as missing:
        urllib.request.urlopen(f"{nginx}/segmentation/nothing")
    with missing.value as answer:
        assert answer.headers["Access-Control-Allow-Origin"] == "*"
    state = json.loads((folder / "neuroglancer.json").read_text())
    for layer in state["layers"]:
        layer["visible"] = True
    (folder / "links/everything.json").write_text(json.dumps(state))
    ids = [SPECK, *(1000 + 7 * i for i in range(NUM_TUBES))]
    arguments = ("--link", "everything", "--segments", *ids, "--size", *SIZE, "--data-url", nginx)
    process = start(export_dir, "--screenshot", tmp_path / "a.png", *arguments)
    assert (*process.communicate(), process.returncode) == ("", "", 0)
    with Image.open(tmp_path / "a.png") as image:
        assert image.size == SIZE
    for name, colours in panel_colours(tmp_path / "a.png").items():
        # The section y lies within one tube; all others cross several.
        assert len(colours) >= (1 if name == "xz" else 2), f"panel {name} shows only the hues {colours}"


def test_the_link_works_until_the_viewer_is_told_to_stop(start, export_dir):
    process = start(export_dir, "--no-open")
    link = process.stdout.readline().strip()
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/v/\w+/", link)
    with urllib.request.urlopen(link) as page:
        assert b"neuroglancer" in page.read().lower()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")


@pytest.mark.slow
def test_a_line_drawn_in_a_browser_joins_two_objects_until_it_is_taken_back(start, export_dir, tmp_path):
    """In the file, and in the picture."""
    corrections = tmp_path / "corrections.csv"
    link = start(export_dir, "--corrections", corrections, "--no-open").stdout.readline().strip()
    with browser_at(link, tmp_path / "profile") as send:
        while not drawn(corrections):  # a page that still loads takes no clicks
            for x, y in ((150, 250), (250, 330)):
                for event in ("mouseMoved", "mousePressed", "mouseReleased"):
                    mouse = {"type": event, "x": x, "y": y, "modifiers": CONTROL, "button": "left", "clickCount": 1}
                    send("Input.dispatchMouseEvent", mouse)
                time.sleep(0.3)
        line = drawn(corrections)[0]
        assert line.action == "join" and line.a_zyx[0] == line.b_zyx[0] == (BOX.start[0] + BOX.stop[0]) // 2
        assert all(a != b for a, b in zip(line.a_zyx[1:], line.b_zyx[1:], strict=True))
        while difference(send, (230, 300), (320, 300)) > 10:
            time.sleep(0.2)
        while drawn(corrections):  # clicks may have drawn a second line, or half of it
            press(send, "u")
            time.sleep(0.3)
        while difference(send, (230, 300), (320, 300)) < 15:
            time.sleep(0.2)


def difference(send, *places_yx):
    """Return how much the colours of a page differ around two places."""
    with Image.open(io.BytesIO(base64.b64decode(send("Page.captureScreenshot", {})["result"]["data"]))) as picture:
        pixels = np.asarray(picture.convert("RGB"), float)
    one, other = (pixels[y - 9 : y + 9, x - 40 : x + 40].mean((0, 1)) for y, x in places_yx)
    return abs(one - other).max()


def drawn(path):
    return read_corrections(path) if path.exists() else []


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="no setpriv, part of util-linux")
def test_the_browser_finds_the_link_where_other_users_do_not_see_it(start, export_dir, tmp_path):
    """Browsers note their command line. The one that takes a picture then waits, and ends with a killed viewer."""
    noted = tmp_path / "arguments"
    for name, then in (("chromium", "exec sleep 600"), ("xdg-open", "exit")):
        script = tmp_path / name
        script.write_text(f'#!/bin/sh\necho "$$ $@" > {noted}.new && mv {noted}.new {noted}\n{then}\n')
        script.chmod(0o755)
    variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "DISPLAY": ":9", "BROWSER": f"{tmp_path}/xdg-open %s"}
    for arguments, end in ((["--screenshot", tmp_path / "a.png"], signal.SIGKILL), ([], signal.SIGTERM)):
        process = start(export_dir, *arguments, env={**os.environ, **variables})
        while not noted.exists():
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.05)
        pid, *words = noted.read_text().split()
        [page] = [word for word in words if word.startswith("file://")]
        assert "http://" not in noted.read_text()
        link = re.search(r"url=(http://127\.0\.0\.1:\d+/v/\w+/)", Path(page.removeprefix("file://")).read_text())
        with urllib.request.urlopen(link[1]) as answer:
            assert answer.status == 200
        noted.unlink()
        process.send_signal(end)
        assert process.wait() == (0 if end == signal.SIGTERM else -end)
        while is_running(int(pid)):  # for ever, if the browser outlives the viewer
            time.sleep(0.05)


def test_without_a_browser_a_screenshot_is_one_line(start, export_dir, tmp_path):
    environment = {**os.environ, "PATH": str(tmp_path)}
    process = start(export_dir, "--screenshot", tmp_path / "a.png", env=environment)
    _, errors = process.communicate()
    assert process.returncode == 2
    assert "--screenshot: no Chromium" in errors and errors.count("\n") == 1
    assert not (tmp_path / "a.png").exists()


def test_a_port_in_use_is_one_line(start, export_dir):
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        process = start(export_dir, "--no-open", "--port", port)
        _, errors = process.communicate()
    assert process.returncode == 2
    assert f"--port: {port} " in errors and errors.count("\n") == 1


def is_running(pid):
    """Whether a process lives; one that only waits for its parent to notice its end does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
