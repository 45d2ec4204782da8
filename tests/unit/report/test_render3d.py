"""Neurons rendered in 3D."""

import numpy as np

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
    """Return the pixels that are mostly of one colour."""
    color = picture[..., :3].astype(int)
    others = [i for i in range(3) if i != channel]
    return (picture[..., 3] > 128) & (color[..., channel] > 40 + color[..., others].max(axis=-1))


def test_objects_have_their_colours_and_positions():
    picture = render(labels_with((5, "8:12,10:20,2:10"), (9, "8:12,10:20,40:48")), SPACING, {5: RED, 9: GREEN}, 120)
    red, green = where(picture, 0), where(picture, 1)
    assert picture.dtype == np.uint8 and picture.shape[1] == 120
    assert red.sum() > 100 and green.sum() > 100
    assert np.nonzero(red)[1].mean() < np.nonzero(green)[1].mean()  # x runs to the right
    assert picture[0, 0, 3] == 0


def test_near_objects_hide_those_behind_them():
    slab = "0:3,0:30,0:50"  # small z is in front
    alone = where(render(labels_with((5, "4:8,12:18,20:30")), SPACING, {5: RED}, 120), 0).sum()
    both = render(labels_with((5, "4:8,12:18,20:30"), (9, slab)), SPACING, {5: RED, 9: GREEN}, 120)
    assert alone > 50 and where(both, 0).sum() < alone / 2


def test_only_chosen_objects_are_drawn():
    labels = labels_with((5, "8:12,10:20,2:10"), (9, "8:12,10:20,40:48"))
    picture = render(labels, SPACING, {9: GREEN, 77: RED}, 100)
    assert not where(picture, 0).any() and where(picture, 1).any()
    assert not (where(render(labels, SPACING, {}, 100), 1)).any()


def test_the_picture_is_deterministic_and_has_the_width_asked_for():
    labels = labels_with((5, "8:12,10:20,2:10"))
    first, second = (render(labels, SPACING, {5: RED}, 101) for _ in range(2))
    assert np.array_equal(first, second) and first.shape[1] == 101 and SUPERSAMPLING == 2
