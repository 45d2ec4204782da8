"""Random streams are independent of each other."""

from ffn.training.data.lanes import generator


def test_streams_of_different_purpose_or_position_differ():
    draws = {generator(1, "example", 2).random(), generator(1, "example", 2, 0).random()}
    draws |= {generator(1, "lane order", 2).random(), generator(2, "example", 2).random()}
    assert len(draws) == 4
    assert generator(1, "example", 2).random() in draws
