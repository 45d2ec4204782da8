"""`ffn view` on what the workflow made: a complete picture, with coloured neurons in every panel."""

import subprocess
import sys

SIZE = (800, 600)


def ffn(*arguments):
    command = [sys.executable, "-m", "ffn", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_store_of_a_run_is_shown_as_it_is(finished, tmp_path, panel_colours):
    stores = ["volumes/phantom/raw.zarr", "segmentation/phantom/segmentation.zarr"]
    paths = [finished.results / store for store in stores]
    ffn("view", *paths, "--screenshot", tmp_path / "a.png", "--size", *SIZE)
    assert all(panel_colours(tmp_path / "a.png")[panel] for panel in ("xy", "xz", "yz"))
