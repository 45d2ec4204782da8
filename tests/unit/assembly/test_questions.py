"""Questions about pairs of segments: what they are worth, and what one answer settles and teaches."""

from dataclasses import replace

import numpy as np
import pytest

from ffn.assembly.contacts import Contact
from ffn.assembly.merge_graph import Evidence, MergeEdge
from ffn.assembly.questions import PRIOR, Pairs, ask, gather

NO_CLAIMS, NOT_JUDGED = np.empty((0, 6), np.int64), [*PRIOR].index("not_judged")
SIZES = {1: 100, 2: 50, 3: 30, 4: 400, 5: 70}


def edge(a, b, crossing, z=1):
    evidence = Evidence(90, 80, 4.5, 3.5, 1, 2, 30, 40, 0.9, crossing, crossing, 0.7, 0.8, 0.5, 0.0, 0.0, 0.1)
    return MergeEdge.of(Contact(a, b, (z, 2, 3), 130.25, 40, 500), evidence, crossing)


def made(same):
    """Pairs with given probabilities, of which nothing else is known."""
    ids = np.array(sorted(same), np.uint64).reshape(-1, 2)
    pairs = Pairs(ids, np.zeros((len(ids), len(PRIOR))), np.zeros((len(ids), 3), np.int64))
    return pairs, np.array([same[pair] for pair in sorted(same)])


def asked(same, answers=(), objects=()):
    pairs, values = made(same)
    questions, forest = ask(pairs, values, dict(answers), dict(objects), SIZES)
    return {tuple(pairs.ids[q.row].tolist()): q for q in questions}, forest


def test_a_question_is_worth_what_is_wrong_of_the_smaller_side():
    found, forest = asked({(1, 2): 0.9, (2, 3): 0.8, (3, 4): 0.4, (4, 5): 0.1}, objects={1: 1, 2: 1, 3: 1})
    worths = {pair: (q.joined, round(q.worth, 6)) for pair, q in found.items()}
    assert worths == {
        (3, 4): (False, 0.4 * 30),  # 1, 2 and 3 are one object, but only 3 touches 4
        (1, 2): (True, pytest.approx(0.1 * 80)),
        (4, 5): (False, 0.1 * 70),
        (2, 3): (True, pytest.approx(0.2 * 30)),
    }
    assert list(found) == list(worths)
    assert forest.side(1, 2) == [1] and forest.side(2, 1) == [2, 3] and forest.side(3, 4) == [1, 2, 3]


def test_of_the_contacts_of_two_objects_one_is_asked_about():
    same = {(1, 2): 0.9, (1, 4): 0.2, (2, 4): 0.4, (2, 3): 0.8}
    objects = {1: 1, 2: 1}
    assert set(asked(same, objects=objects)[0]) == {(1, 2), (2, 4), (2, 3)}
    assert set(asked(same, {(1, 4): False}, objects)[0]) == {(1, 2), (2, 3)}
    assert set(asked(same, {(1, 4): True, (1, 2): True}, objects)[0]) == {(2, 3)}


def test_a_ring_does_not_hang_on_one_link():
    same = {(1, 2): 0.9, (2, 3): 0.8, (1, 3): 0.7, (3, 5): 0.9}
    found, _ = asked(same, objects={1: 1, 2: 1, 3: 1, 5: 1})
    assert {pair: q.single for pair, q in found.items()} == {(1, 2): False, (2, 3): False, (3, 5): True}


def test_what_was_parted_is_parted():
    """The weakest link goes, and what is left of the object is asked about as such."""
    same = {(1, 2): 0.9, (2, 3): 0.8, (3, 5): 0.9}
    found, forest = asked(same, {(1, 5): False}, {1: 1, 2: 1, 3: 1, 5: 1})
    assert forest.root(1) == forest.root(2) != forest.root(3) == forest.root(5)
    assert set(found) == {(1, 2), (3, 5)}


def test_evidence_and_claims_tell_how_likely_a_pair_is_one_neuron():
    edges = [edge(1, 2, 0.9), edge(1, 2, 0.1, z=9), edge(2, 3, 0.0)]
    claims = np.array(
        [[1, 2, 0, 0, 0, 9], [1, 4, 8, 0, 0, 60], [1, 4, 16, 0, 0, 70], [3, 4, 0, 0, 0, 1], [3, 9, 0, 0, 0, 5]]
    )
    pairs = gather(edges, claims, SIZES)
    assert pairs.ids.tolist() == [[1, 2], [1, 4], [2, 3], [3, 4]]  # 9 is no segment
    assert pairs.place_zyx[:2].tolist() == [[1, 2, 3], [16, 0, 0]]
    joined, deep, apart, shallow = pairs.probabilities({})
    assert joined > 0.8 > 0.2 > apart and deep > shallow


def test_a_pair_with_a_side_that_was_spared_is_not_judged_and_order_does_not_matter():
    one = edge(1, 2, 0.9)
    spared = replace(one, evidence=replace(one.evidence, tries_b=0))
    turned = replace(one, evidence=replace(one.evidence, recovered_ab=0.1))
    other = replace(one, evidence=replace(one.evidence, recovered_ba=0.1))
    assert [bool(gather([each], NO_CLAIMS, SIZES).columns[0, NOT_JUDGED]) for each in (one, spared)] == [False, True]
    assert np.array_equal(*(gather([each], NO_CLAIMS, SIZES).columns for each in (turned, other)))


def test_answers_change_what_is_expected_of_others():
    claims = np.array([[1, b, 0, 0, 0, 20] for b in range(2, 30)])
    pairs = gather([], claims, dict.fromkeys(range(1, 30), 100))
    before = pairs.probabilities({})
    for answer in (False, True):
        after = pairs.probabilities({(1, b): answer for b in range(2, 10)} | {(3, 77): True})
        assert ((after > before) == answer).all()
    assert pairs.probabilities({(1, b): True for b in range(2, 20)})[-1] > 0.7
