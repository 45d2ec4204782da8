import numpy as np

from ffn.evaluation.thinning import read_thinned, step_for
from ffn.geometry import Box
from ffn.report.render3d import SUPERSAMPLING, render

RED, GREEN = np.array([0.9, 0.1, 0.1]), np.array([0.1, 0.9, 0.1])
SPACING = np.array([20.0, 10.0, 10.0])


def labels_with(*boxes):
    labels = np.zeros((20, 30, 50), np.uint64)
    for value, text in boxes:
        labels[Box.parse(text).slices()] = value
    return labels


def where(picture, channel):
    """Pixels of mostly one colour."""
    color = picture[..., :3].astype(int)
    others = [i for i in range(3) if i != channel]
    return (picture[..., 3] > 128) & (color[..., channel] > 40 + color[..., others].max(axis=-1))


def test_objects_have_their_colours_and_places():
    picture = render(labels_with((5, "8:12,10:20,2:10"), (9, "8:12,10:20,40:48")), SPACING, {5: RED, 9: GREEN}, 120)
    red, green = where(picture, 0), where(picture, 1)
    assert picture.dtype == np.uint8 and picture.shape[1] == 120
    assert red.sum() > 100 and green.sum() > 100
    assert np.nonzero(red)[1].mean() < np.nonzero(green)[1].mean()  # x runs to the right
    assert picture[0, 0, 3] == 0


def test_what_is_nearer_hides_what_is_behind():
    slab = "0:3,0:30,0:50"  # small z is in front
    alone = where(render(labels_with((5, "4:8,12:18,20:30")), SPACING, {5: RED}, 120), 0).sum()
    both = render(labels_with((5, "4:8,12:18,20:30"), (9, slab)), SPACING, {5: RED, 9: GREEN}, 120)
    assert alone > 50 and where(both, 0).sum() < alone / 2


def test_only_what_is_wanted_is_drawn():
    labels = labels_with((5, "8:12,10:20,2:10"), (9, "8:12,10:20,40:48"))
    picture = render(labels, SPACING, {9: GREEN, 77: RED}, 100)
    assert not where(picture, 0).any() and where(picture, 1).any()
    assert not (where(render(labels, SPACING, {}, 100), 1)).any()


def test_the_picture_is_the_same_every_time_and_even():
    labels = labels_with((5, "8:12,10:20,2:10"))
    first, second = (render(labels, SPACING, {5: RED}, 101) for _ in range(2))
    assert np.array_equal(first, second) and first.shape[1] == 101 and SUPERSAMPLING == 2


class Labels:
    """A volume in memory."""

    def __init__(self, voxels, start):
        self.voxels, self.box, self.dtype = voxels, Box.from_shape(voxels.shape, start), voxels.dtype

    def read(self, box):
        return self.voxels[box.slices(self.box.start)]


def test_thinning_takes_the_middle_voxel_whatever_the_blocks(monkeypatch):
    rng = np.random.default_rng(0)
    volume = Labels(rng.integers(0, 99, (11, 23, 30)).astype(np.uint64), (3, -5, 8))
    expected = volume.voxels[1::3, 2::5, 0::1]
    assert np.array_equal(read_thinned(volume, volume.box, (3, 5, 1)), expected)
    monkeypatch.setattr("ffn.evaluation.thinning.BLOCK", 6)
    assert np.array_equal(read_thinned(volume, volume.box, (3, 5, 1)), expected)
    assert step_for(40, (30.0, 10.0, 90.0)) == (1, 4, 1)
