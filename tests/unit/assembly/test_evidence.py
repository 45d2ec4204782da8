"""The evidence of two sides of a contact that have grown again."""

from dataclasses import replace

import numpy as np
import pytest

from ffn.assembly.config import Agglomeration
from ffn.assembly.evidence import ONE_SIDED, Grown, compare

CONFIG = Agglomeration()


def halves():
    a = np.zeros((4, 6, 10), bool)
    b = a.copy()
    a[1:3, 1:5, :5], b[1:3, 1:5, 5:] = True, True
    return a, b


def evidence(*objects, num_deleted=(0, 0)):
    """What `compare` makes of objects that have grown from the halves."""
    a, b = halves()
    grown = [Grown(mask, 5, 1, lost) for mask, lost in zip(objects, num_deleted, strict=True)]
    return compare([a, b], grown, (1.5, 2.0))


def test_two_halves_of_one_object_agree():
    a, b = halves()
    found = evidence(a | b, a | b)
    assert (found.voxels_a, found.voxels_b, found.radius_a, found.radius_b) == (40, 40, 1.5, 2.0)
    assert (found.tries_a, found.fovs_a, found.tries_b, found.fovs_b) == (1, 5, 1, 5)
    assert (found.recovered_aa, found.recovered_ab, found.recovered_ba, found.recovered_bb) == (1, 1, 1, 1)
    assert (found.agreement, found.iou, found.deleted_a, found.deleted_b, found.lost) == (1, 1, 0, 0, 0)
    assert found.score(CONFIG) == 1.0


def test_two_objects_that_stay_apart_do_not_agree():
    a, b = halves()
    found = evidence(a, b)
    assert (found.recovered_ab, found.recovered_ba, found.agreement) == (0, 0, 0)
    assert found.score(CONFIG) == 0.0


def test_an_object_that_swallows_another_that_never_enters_it_is_weak_evidence():
    a, b = halves()
    for objects in ((a | b, b), (a, a | b)):
        found = evidence(*objects)
        assert found.agreement == 1 and found.iou == 0.5
        assert found.score(CONFIG) == ONE_SIDED < 1
        assert found.score(CONFIG.model_copy(update={"min_crossing": 0})) == 1.0


def test_a_point_is_open_where_a_second_side_would_decide():
    a, b = halves()
    assert evidence(a | b, b).is_open(CONFIG)
    assert not evidence(a | b, a | b).is_open(CONFIG)  # both sides say so
    assert not evidence(a, b).is_open(CONFIG)  # neither does
    assert not replace(evidence(a | b, b), agreement=0.6).is_open(CONFIG)  # not even both would reach the threshold
    assert not replace(evidence(a | b, b), deleted_a=0.5).is_open(CONFIG)


def test_an_object_that_left_its_own_segment_is_no_evidence():
    a, b = halves()
    found = evidence(b, a | b)
    assert found.recovered_aa == 0 and found.agreement == 1
    assert found.score(CONFIG) == 0.0
    assert found.score(CONFIG.model_copy(update={"min_recovered": 0})) == 1.0


def test_an_object_that_lost_much_of_itself_is_no_evidence():
    a, b = halves()
    found = evidence(a | b, a | b, num_deleted=(0, 8))
    assert (found.deleted_a, found.deleted_b) == (0, 0.1)
    assert found.score(CONFIG) == 1.0
    assert found.score(CONFIG.model_copy(update={"max_deleted": 0.09})) == 0.0


def test_agreement_counts_the_smaller_object():
    a, b = halves()
    small = a & (np.arange(10) >= 2)
    found = evidence(small, b | small)
    assert found.agreement == 1.0 and found.iou == pytest.approx(24 / 64)
    assert found.recovered_ba == pytest.approx(0.6) and found.lost == pytest.approx(16 / 80)
