"""Which gradients make an update."""

import pytest

from ffn.training.parallel.serving import UpdateRule


def test_all_gradients_of_a_synchronous_update_are_in_the_order_of_workers():
    rule = UpdateRule(3, 3, 0)
    assert [rule.arrive(worker, 0, worker) for worker in (2, 0, 1)] == [None, None, [0, 1, 2]]
    assert (rule.version, rule.dropped, rule.staleness) == (1, 0, {0: 3})


@pytest.mark.parametrize(
    ("max_staleness", "dropped", "staleness"), [(0, 2, {0: 1}), (1, 1, {0: 1, 1: 1}), (None, 0, {0: 1, 1: 1, 2: 1})]
)
def test_gradients_from_older_weights_than_allowed_are_dropped(max_staleness, dropped, staleness):
    rule = UpdateRule(3, 1, max_staleness)
    assert rule.arrive(0, 0, "a") == ["a"]
    taken = rule.arrive(1, 0, "b")
    rule.version = 2
    rule.arrive(2, 0, "c")
    assert (taken is None) == (max_staleness == 0)
    assert (rule.dropped, rule.staleness) == (dropped, staleness)


def test_workers_wait_for_the_update_only_if_every_gradient_must_be_fresh():
    for max_staleness, waiting in ((0, {1}), (1, set()), (None, set())):
        rule = UpdateRule(3, 2, max_staleness)
        rule.arrive(1, 0, "a")
        assert rule.waiting == waiting
        rule.arrive(2, 0, "b")
        assert rule.waiting == set()  # the update is made


def test_fewer_workers_make_an_update_of_fewer_gradients():
    rule = UpdateRule(3, 3, 0)
    rule.workers = 2
    assert [rule.arrive(worker, 0, worker) for worker in (0, 2)] == [None, [0, 2]]


def test_a_worker_that_leaves_completes_an_update_that_waited_for_it():
    rule = UpdateRule(3, 3, 0)
    assert [rule.arrive(worker, 0, worker) for worker in (2, 0)] == [None, None]
    rule.workers = 2
    assert rule.completed() == [0, 2]
    rule.workers = 0
    assert rule.completed() is None
