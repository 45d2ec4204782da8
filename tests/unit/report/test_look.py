"""The first look at image and labels."""

import re

import numpy as np
import pytest
from scipy import ndimage

from ffn.cli import main
from ffn.geometry import Box
from ffn.io.open import open_volume
from ffn.report.look import check

from ..volumes import write

SHAPE = (24, 64, 64)


def bodies(shape=SHAPE):
    """Return bodies around random places, and an image that is dark between them."""
    rng = np.random.default_rng(3)
    seeds = np.zeros(shape, np.uint64)
    seeds.flat[rng.choice(seeds.size, seeds.size // 800, replace=False)] = 1
    places = ndimage.distance_transform_edt(seeds == 0, sampling=(2, 1, 1), return_distances=False, return_indices=True)
    labels = (np.ravel_multi_index(tuple(places), shape) + 1).astype(np.uint64)
    edges = np.abs(np.diff(labels.astype(float), axis=1, append=0)) + np.abs(
        np.diff(labels.astype(float), axis=2, append=0)
    )
    dark = ndimage.gaussian_filter((edges > 0).astype(float), (0, 1, 1))
    return (200 - 120 * dark + rng.normal(0, 5, shape)).clip(1, 255).astype(np.uint8), labels


def verdict(tmp_path, image, labels):
    specs = write(tmp_path / "image.zarr", image), write(tmp_path / "labels.zarr", np.ascontiguousarray(labels))
    with open_volume(specs[0]) as grey, open_volume(specs[1]) as ids:
        return check(grey, ids, Box.from_shape(image.shape))[0]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda labels: labels, ""),
        (lambda labels: labels[::-1], "flipped along z"),
        (lambda labels: labels[:, ::-1, ::-1], "flipped along y, x"),
        (lambda labels: labels.transpose(0, 2, 1), "z, x, y"),
        (lambda labels: np.roll(labels, 2, axis=0), "-2 sections"),
        (lambda labels: np.roll(labels, -2, axis=0), "+2 sections"),
        (lambda labels: np.roll(labels, 17, axis=2), "voxel size"),
    ],
)
def test_what_is_wrong_with_labels_is_named(tmp_path, change, named):
    image, labels = bodies()
    said = verdict(tmp_path, image, change(labels))
    assert named in said and said.startswith("Warning") == bool(named)


def test_bright_membranes_fit_too_and_sparse_labels_are_not_checked(tmp_path):
    image, labels = bodies()
    assert "Warning" not in verdict(tmp_path, 255 - image, labels)
    labels[4:] = 0
    assert "4 of the" in verdict(tmp_path / "sparse", image, labels)


@pytest.mark.parametrize("has_labels", [True, False])
def test_the_page_shows_image_labels_and_membranes(tmp_path, has_labels, caplog):
    image, labels = bodies()
    write(tmp_path / "volumes/cube/raw.zarr", image, size=(40, 10, 10))
    if has_labels:
        write(tmp_path / "volumes/cube/labels.zarr", labels[::-1].copy(), size=(40, 10, 10))
    assert main(["report", str(tmp_path), "--first", "--out", f"{tmp_path}/look.html"]) == 0
    page = (tmp_path / "look.html").read_text()
    assert page.count("<img") == 1 + has_labels
    assert ("flipped along z" in caplog.text) == has_labels
    assert re.findall(r"ffn view ([^ <]+)", page) == [f"{tmp_path}/volumes/cube/raw.zarr"]
    assert "µm" in page
