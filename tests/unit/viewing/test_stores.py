"""Stores are shown as they are: what each layer is, and where it is served."""

from urllib.request import urlopen

import numpy as np
import pytest
import zarr

from ffn.errors import ExportError
from ffn.geometry import Box
from ffn.io.create import create_volumes
from ffn.io.volume import Placement
from ffn.viewing.config import ViewConfig
from ffn.viewing.server import serve
from ffn.viewing.stores import stores_state
from ffn.viewing.viewer import view_stores

BOX = Box((10, 4, 7), (26, 44, 39))


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


def test_of_a_single_store_nothing_else_is_served(run):
    folder, state = stores_state([f"{run}/volumes/raw.zarr"])
    assert folder == run / "volumes" and state["layers"][0]["source"] == "zarr://{base}/raw.zarr/"


def test_neuroglancer_finds_the_version_of_zarr_itself(tmp_path):
    """Other programs still write version 2."""
    zarr.create_array(tmp_path / "raw.zarr", data=np.ones((4, 5, 6), np.uint8), zarr_format=2)
    _, state = stores_state([f"{tmp_path}/raw.zarr"])
    assert state["layers"][0]["source"] == "zarr://{base}/raw.zarr/"


def test_stores_behind_links_and_above_the_folder_can_be_served(run, monkeypatch):
    (run / "here").mkdir()
    (run / "here/seg.zarr").symlink_to(run / "seg.zarr")
    monkeypatch.chdir(run / "here")
    folder, state = stores_state(["../volumes/raw.zarr", "seg.zarr"])
    with serve(folder) as url:
        for layer in state["layers"]:
            with urlopen(layer["source"].removeprefix("zarr://").format(base=url) + "zarr.json") as answer:
                assert answer.status == 200


def test_what_only_an_export_has_is_refused(run):
    with pytest.raises(ExportError, match="s3://b/a.zarr: is not on this machine, expected NAME.zarr"):
        stores_state(["s3://b/a.zarr"])
    with pytest.raises(ExportError, match="--link, --volume, --corrections: only runs and exports have them"):
        view_stores([f"{run}/seg.zarr"], ViewConfig(link="whole"), pytest.fail)
