"""The evidence of growing both sides of a contact, and where they are grown from."""

import numpy as np
import pytest

from ffn.assembly.resegment import Evidence, choose_seed, compare
from ffn.config import AgglomerateConfig
from ffn.geometry import Box


def halves():
    a = np.zeros((4, 6, 10), bool)
    b = a.copy()
    a[1:3, 1:5, :5], b[1:3, 1:5, 5:] = True, True
    return a, b


def test_two_halves_of_one_object_agree():
    a, b = halves()
    evidence = compare([a, b], [a | b, a | b], [5, 6])
    assert evidence == Evidence(5, 6, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0)
    assert evidence.score(AgglomerateConfig()) == 1.0


def test_two_objects_that_stay_apart_do_not_agree():
    a, b = halves()
    evidence = compare([a, b], [a, b], [5, 6])
    assert (evidence.recovered_ab, evidence.recovered_ba, evidence.agreement) == (0, 0, 0)
    assert evidence.score(AgglomerateConfig()) == 0.0


def test_an_object_that_left_its_own_segment_is_no_evidence():
    a, b = halves()
    evidence = compare([a, b], [b, b], [5, 6])
    assert evidence.recovered_aa == 0 and evidence.agreement == 1
    assert evidence.score(AgglomerateConfig()) == 0.0
    assert evidence.score(AgglomerateConfig(min_recovered=0)) == 1.0


def test_agreement_counts_the_smaller_object():
    a, b = halves()
    small = a & (np.arange(10) >= 2)
    evidence = compare([a, b], [small, b | small], [5, 6])
    assert evidence.agreement == 1.0 and evidence.iou == pytest.approx(24 / 64)
    assert evidence.recovered_ba == pytest.approx(0.6) and evidence.deleted == pytest.approx(16 / 80)


def test_sides_that_did_not_grow_score_zero():
    a, b = halves()
    nothing = np.zeros_like(a)
    assert compare([a, b], [nothing, nothing], [0, 0]).score(AgglomerateConfig(min_recovered=0, min_crossing=0)) == 0


def test_the_seed_lies_deep_inside_its_side_and_near_the_contact():
    side = np.zeros((9, 9, 40), bool)
    side[1:8, 1:8, :] = True
    reach = Box((2, 2, 3), (7, 7, 37))
    z, y, x = choose_seed(side, (4, 4, 20), reach, (1.0, 1.0, 1.0))
    assert (z, y, x) == (4, 4, 20)
    assert choose_seed(side, (4, 4, 39), reach, (1.0, 1.0, 1.0)) == (4, 4, 36)
    assert choose_seed(np.zeros_like(side), (4, 4, 20), reach, (1.0, 1.0, 1.0)) is None
    assert choose_seed(side, (4, 4, 20), Box((2, 2, 3), (2, 7, 37)), (1.0, 1.0, 1.0)) is None


def test_depth_is_measured_in_the_smallest_side():
    side = np.zeros((7, 21, 21), bool)
    side[1:6, 3:18, 3:18] = True  # 5 sections, each as thick as 3 voxels
    assert choose_seed(side, (3, 10, 10), Box.from_shape(side.shape), (3.0, 1.0, 1.0)) == (3, 10, 10)
