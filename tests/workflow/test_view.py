"""`ffn view` on what the workflow made: a complete picture, with coloured neurons in every panel."""

import json
import subprocess
import sys

from PIL import Image

SIZE = (800, 600)


def ffn(*arguments):
    command = [sys.executable, "-m", "ffn", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_run_can_be_looked_at(finished, tmp_path, panel_colours):
    ffn("view", finished.results, "--screenshot", tmp_path / "a.png", "--size", *SIZE)
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.size == SIZE
    assert panel_colours(tmp_path / "a.png")["3d"], "no neuron in the 3D panel"


def test_a_store_of_a_run_is_shown_as_it_is(finished, tmp_path, panel_colours):
    stores = ["volumes/phantom/raw.zarr", "segmentation/phantom/segmentation.zarr"]
    paths = [finished.results / store for store in stores]
    ffn("view", *paths, "--screenshot", tmp_path / "a.png", "--size", *SIZE)
    assert all(panel_colours(tmp_path / "a.png")[panel] for panel in ("xy", "xz", "yz"))


def test_every_link_is_a_state_of_the_run(finished):
    folder = finished.results / "precomputed/phantom"
    whole = json.loads((folder / "neuroglancer.json").read_text())
    links = {path.stem: json.loads(path.read_text()) for path in (folder / "links").glob("*.json")}
    assert links["whole"] == whole
    errors = json.loads((finished.results / "evaluation/phantom.json").read_text())["errors"]
    for kind in ("split", "merge"):
        expected = [error["position_zyx"] for error in errors if error["kind"] == kind]
        found = [links[name]["position"] for name in sorted(links) if name.startswith(kind)]
        assert [[int(n) for n in position[::-1]] for position in found] == expected[:10]
