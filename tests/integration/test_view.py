"""`ffn view` as a user runs it: a picture with coloured neurons in every panel, and a clean end."""

import colorsys
import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request

import numpy as np
import pytest
from PIL import Image

from ffn.config import ExportConfig
from ffn.geometry import Box
from ffn.viewing.export import Sources, export
from ffn.viewing.screenshot import BROWSERS
from ffn.volume import Placement, create_volume

SIZE = (800, 600)
NUM_TUBES = 3
BOX = Box((10, 35, 57), (10 + 40, 35 + 96, 57 + 128))

needs_browser = pytest.mark.skipif(
    not any(map(shutil.which, BROWSERS)), reason="no Chromium; Debian's package is called chromium"
)


def bent_tubes():
    """Three neurites along x through the centre of the volume, one voxel apart."""
    z, y, x = np.indices(BOX.shape)
    labels = np.zeros(BOX.shape, np.uint64)
    for i in range(NUM_TUBES):
        centre = 26 + 22 * i + 4 * np.sin(x / 20)
        labels[((y - centre) / 10) ** 2 + ((z - 20) / 12) ** 2 < 1] = 1000 + 7 * i
    return labels


@pytest.fixture(scope="module")
def export_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("view")
    labels = bent_tubes()
    noise = np.random.default_rng(0).integers(0, 30, BOX.shape)
    image = (80 + 90 * (labels > 0) + noise).astype(np.uint8)
    placement = Placement(BOX, (20.0, 10.0, 10.0))
    for name, voxels in (("raw", image), ("seg", labels)):
        with create_volume(f"{folder}/{name}.h5:data", voxels.dtype, placement) as writer:
            writer.write(BOX, voxels)
    sources = Sources(f"{folder}/raw.h5:data", f"{folder}/seg.h5:data")
    export(sources, folder / "run/precomputed/tubes", ExportConfig())
    return folder / "run"


def start(*arguments, **options):
    command = [sys.executable, "-m", "ffn", "view", *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # a shell that runs the tests in the background has its children ignore Ctrl-C
    heed = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    return subprocess.Popen(command, preexec_fn=heed, **pipes, **options)


def segment_colours(panel):
    """Hues, in twelve classes, that colour at least half a percent of a panel."""
    pixels = np.asarray(panel.convert("RGB")).reshape(-1, 3) / 255
    saturated = pixels[np.ptp(pixels, axis=1) > 0.25]
    hues = [int(12 * colorsys.rgb_to_hsv(*pixel)[0] + 0.5) % 12 for pixel in saturated]
    return {hue for hue in range(12) if hues.count(hue) > len(pixels) / 200}


@needs_browser
def test_a_screenshot_shows_coloured_neurons_in_2d_and_in_3d(export_dir, tmp_path):
    ids = [1000 + 7 * i for i in range(NUM_TUBES)]
    picture = tmp_path / "neurons.png"
    process = start(export_dir, "--screenshot", picture, "--size", *SIZE, "--segments", *ids)
    output, errors = process.communicate(timeout=200)
    assert (process.returncode, output, errors) == (0, "", "")
    with Image.open(picture) as image:
        assert image.size == SIZE
        width, height = SIZE
        for name, corner in {"xy": (0, 0), "xz": (1, 0), "3d": (0, 1), "yz": (1, 1)}.items():
            x, y = corner[0] * width // 2, corner[1] * height // 2
            colours = segment_colours(image.crop((x, y, x + width // 2, y + height // 2)))
            # The section y lies within one tube; all others cross several.
            assert len(colours) >= (1 if name == "xz" else 2), f"panel {name} shows only the hues {colours}"


def test_the_link_works_until_the_viewer_is_told_to_stop(export_dir):
    for stop in (signal.SIGINT, signal.SIGTERM):
        process = start(export_dir, "--no-open")
        link = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/v/\w+/", link)
        with urllib.request.urlopen(link, timeout=20) as page:
            assert b"neuroglancer" in page.read().lower()
        process.send_signal(stop)
        _, errors = process.communicate(timeout=20)
        assert (process.returncode, errors) == (0, "")


def test_without_a_browser_a_screenshot_is_one_line(export_dir, tmp_path):
    environment = {**os.environ, "PATH": str(tmp_path)}
    process = start(export_dir, "--screenshot", tmp_path / "a.png", env=environment)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert errors.startswith("ffn: error: --screenshot: no Chromium found") and errors.count("\n") == 1
    assert not (tmp_path / "a.png").exists()
