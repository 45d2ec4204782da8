"""Statistics by which an image, a mask and sections are told from labels."""

import numpy as np
import pytest

from ffn.io.foreign.arrays import ArrayVolume
from ffn.io.label_statistics import doubts_about_image, doubts_about_labels

RNG = np.random.default_rng(0)
CELLS = np.kron(RNG.permutation(np.arange(1, 65)).reshape(4, 4, 4), np.ones((5, 8, 9), int))
CELLS[:, ::8] = 0
IMAGE = RNG.normal(120, 20, CELLS.shape).clip(1, 255).astype(np.uint8)
SECTIONS = np.where(CELLS, CELLS + 100 * np.arange(len(CELLS))[:, None, None], 0)
IGNORING = np.where(CELLS == 7, 2**64 - 1, CELLS.astype(np.uint64))


def doubts(voxels, ask=doubts_about_labels):
    return " ".join(ask(ArrayVolume("v", voxels, start_zyx=(7, 8, 9))))


@pytest.mark.parametrize("radius", [(2, 128, 128), (2, 9, 9)])
@pytest.mark.parametrize(
    ("voxels", "said"),
    [
        (CELLS, None),
        (IGNORING, None),
        (CELLS[:1], None),
        (0 * CELLS, None),
        (SECTIONS, "100 %"),
        ((CELLS > 0).astype(np.uint8) * 255, "mask"),
        (np.where(CELLS, 1, -1), "mask"),
        (IMAGE, "1.0 voxels"),
    ],
)
def test_labels_that_cannot_train_in_3d_are_doubted(monkeypatch, radius, voxels, said):
    monkeypatch.setattr("ffn.io.label_statistics.RADIUS", radius)
    assert (said in doubts(voxels)) if said else (doubts(voxels) == "")


def test_an_image_with_the_runs_of_labels_is_doubted():
    assert doubts(IMAGE, doubts_about_image) == ""
    assert "65 values" in doubts(CELLS.astype(np.uint8), doubts_about_image)
    padded = np.where(np.arange(36) < 30, 0, IMAGE)
    assert doubts(padded, doubts_about_image) == ""
