"""The pictures of one volume."""

import shutil

import pytest

from ffn.report import volume_pictures
from ffn.report.run_folder import read_volumes
from ffn.report.volume_pictures import close_ups, open_volumes, slices


@pytest.fixture
def volumes(run):
    """The volumes of the run, open."""
    (files,) = read_volumes(run)
    with open_volumes(files) as opened:
        yield opened


def test_every_plane_shows_image_truth_segmentation_and_baseline(volumes):
    rows = slices(volumes)
    assert [row["plane"].name for row in rows] == ["xy", "xz", "yz"]
    assert all([p.title for p in row["pictures"]] == ["image", "truth", "FFN", "watershed"] for row in rows)
    assert rows[0]["extent"].startswith("0.18 × 0.16")


def test_of_a_large_volume_only_the_middle_is_read(run, monkeypatch):
    (files,) = read_volumes(run)
    with open_volumes(files) as whole:
        limit = whole.box.num_voxels // 8
    monkeypatch.setattr(volume_pictures, "MAX_DRAWN_VOXELS", limit)
    looked = []
    real = volume_pictures.tabulate
    monkeypatch.setattr(volume_pictures, "tabulate", lambda *args: looked.append(args[2].num_voxels) or real(*args))
    with open_volumes(files) as opened:
        assert opened.box == whole.box and whole.box.contains(opened.drawn)
        assert 0 < opened.drawn.num_voxels <= limit and max(looked) <= limit
        assert all(opened.drawn.contains(row["plane"].box) for row in slices(opened))


def test_segments_get_the_colours_of_their_bodies(volumes):
    bodies = volumes.color_ids["FFN"]
    assert bodies[100] == bodies[900] == 1 and bodies[200] == 2 and volumes.color_ids["truth"] == {}


def test_only_the_worst_errors_of_each_kind_get_a_close_up(volumes, monkeypatch):
    monkeypatch.setattr(volume_pictures, "NUM_CLOSE_UPS", 1)
    place = list(volumes.box.start)
    errors = [
        {"name": name, "kind": name[:5], "position_zyx": place, "truth_ids": [1], "segment_ids": [100, 900]}
        for name in ("split-01", "split-02", "merge-01")
    ]
    found = close_ups(volumes, errors)
    assert list(found) == ["split-01", "merge-01"]
    assert all([p.title for p in row] == ["image", "truth", "FFN"] for row in found.values())


def test_a_run_without_image_has_no_pictures(copied):
    shutil.rmtree(copied / "volumes/cube/raw.zarr")
    with open_volumes(read_volumes(copied)[0]) as opened:
        assert opened is None
