"""Pictures of slices and of volumes."""

import shutil

import numpy as np
import pytest

from ffn.contingency import count_pairs
from ffn.evaluation.errors import best_bodies
from ffn.geometry import Box
from ffn.report import pictures
from ffn.report.pictures import close_up, open_volumes, slices
from ffn.report.run_folder import read_volumes


def test_a_segment_has_the_colour_of_its_body():
    truth = np.repeat([1, 2, 0], [30, 10, 20]).astype(np.uint64)
    segments = np.repeat([70, 0, 80, 80], [25, 5, 10, 20]).astype(np.uint64)
    bodies = best_bodies(count_pairs(truth, segments))
    assert bodies == {70: 1, 80: 2}
    gray = np.full((1, 60, 3), 0.5)
    body_colors = pictures.overlay(gray, truth.reshape(1, 60))[0]
    shown = pictures.overlay(gray, segments.reshape(1, 60), bodies)[0]
    assert np.allclose(shown[[5, 35]], body_colors[[5, 35]])
    assert np.allclose(shown[27], 0.5)  # unsegmented stays gray
    assert not np.allclose(shown[5], shown[35])


def test_colours_are_stable_and_planes_keep_the_proportions_of_nanometres():
    ids = np.array([0, 1, 2, 3, 2**63], np.uint64)
    first = pictures.colors(ids)
    assert np.array_equal(first, pictures.colors(ids)) and not first[0].any()
    assert min(np.abs(a - b).max() for i, a in enumerate(first) for b in first[:i]) > 0.1
    xy, xz, yz = pictures.planes(Box.parse("10:30,0:40,0:80"), (40.0, 10.0, 20.0))
    assert (xy.size_pixels, xz.size_pixels, yz.size_pixels) == ((120, 480), (240, 480), (240, 120))
    assert (str(xy.box), str(yz.box)) == ("20:21,0:40,0:80", "10:30,0:40,40:41")


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
    monkeypatch.setattr(pictures, "MAX_DRAWN_VOXELS", limit)
    looked = []
    real = pictures.tabulate
    monkeypatch.setattr(pictures, "tabulate", lambda *args: looked.append(args[2].num_voxels) or real(*args))
    with open_volumes(files) as opened:
        assert opened.box == whole.box and whole.box.contains(opened.drawn)
        assert 0 < opened.drawn.num_voxels <= limit and max(looked) <= limit
        assert all(opened.drawn.contains(row["plane"].box) for row in slices(opened))


def test_a_close_up_is_in_a_plane_with_both_ends_of_the_gap(volumes, monkeypatch):
    monkeypatch.setattr(pictures, "data_uri", lambda picture: picture.shape[:2])
    z, y, x = volumes.box.start
    error = {
        "name": "split-01",
        "kind": "split",
        "position_zyx": [z, y, x],
        "truth_ids": [1],
        "segment_ids": [100, 900],
    }
    sizes = {(427, 480): [z, y, x + 1], (480, 180): [z + 1, y, x], (480, 160): [z + 2, y + 3, x]}
    for size, other in sizes.items():
        row = close_up(volumes, {**error, "other_zyx": other})
        assert [picture.title for picture in row] == ["image", "truth", "FFN"]
        assert {picture.uri for picture in row} == {size}


def test_a_run_without_image_has_no_pictures(copied):
    shutil.rmtree(copied / "volumes/cube/raw.zarr")
    with open_volumes(read_volumes(copied)[0]) as opened:
        assert opened is None
