"""Pictures of slices."""

import numpy as np

from ffn.contingency import count_pairs
from ffn.evaluation.bodies import best_bodies
from ffn.geometry import Box
from ffn.report import pictures


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


def test_colours_are_stable_and_differ():
    ids = np.array([0, 1, 2, 3, 2**63], np.uint64)
    first = pictures.colors(ids)
    assert np.array_equal(first, pictures.colors(ids)) and not first[0].any()
    assert min(np.abs(a - b).max() for i, a in enumerate(first) for b in first[:i]) > 0.1


def test_planes_keep_the_proportions_of_nanometres():
    xy, xz, yz = pictures.planes(Box.parse("10:30,0:40,0:80"), (40.0, 10.0, 20.0))
    assert (xy.size_pixels, xz.size_pixels, yz.size_pixels) == ((120, 480), (240, 480), (240, 120))
    assert (str(xy.box), str(yz.box)) == ("20:21,0:40,0:80", "10:30,0:40,40:41")
