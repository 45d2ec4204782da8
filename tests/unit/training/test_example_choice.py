"""Examples of kinds that the network knows are taken less often."""

import numpy as np
import pytest

from ffn.training.data.examples import Example
from ffn.training.example_choice import ExampleChoice


def make_example(share):
    labels = np.where(np.arange(100).reshape(4, 5, 5) < 100 * share, np.float32(0.95), np.float32(0.05))
    return Example(labels, labels, np.ones_like(labels), ())


SMALL, MIDDLE, LARGE, OTHER = map(make_example, (0, 0.55, 1, 0.35))
HALF_RIGHT, MOSTLY_RIGHT, RIGHT = (1, 1, 97, 1), (3, 1, 95, 1), (10, 0, 90, 0)  # F1 0.5, 0.75, 1


def num_taken(choice, *examples):
    return [sum(choice.takes(example) for _ in range(20)) for example in examples]


def test_kinds_with_few_errors_are_taken_less_often_but_never_left_out():
    choice = ExampleChoice(0.25)
    for example, score in ((SMALL, HALF_RIGHT), (MIDDLE, MOSTLY_RIGHT), (LARGE, RIGHT)):
        choice.learn(example, np.array(score))
    assert num_taken(choice, SMALL, MIDDLE, LARGE, OTHER) == [20, 10, 5, 20]
    for _ in range(30):
        choice.learn(SMALL, np.array(RIGHT))
    assert num_taken(choice, SMALL, MIDDLE) == [5, 20]


@pytest.mark.parametrize(("least_share", "score"), [(None, HALF_RIGHT), (0.25, RIGHT), (0.25, (0, 0, 100, 0))])
def test_all_are_taken_without_a_share_or_without_errors(least_share, score):
    choice = ExampleChoice(least_share)
    choice.learn(LARGE, np.array(RIGHT))
    choice.learn(SMALL, np.array(score))
    assert num_taken(choice, SMALL, LARGE) == [20, 20]
