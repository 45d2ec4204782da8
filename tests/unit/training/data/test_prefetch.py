"""The prefetcher serves every lane in order."""

import pytest

from ffn.errors import RecordError
from ffn.training.walk import DEPTH, Prefetcher


def test_each_lane_gets_its_examples_in_order_and_errors_are_raised():
    def make(lane, position):
        if (lane, position) == (4, 9):
            raise RecordError("a: bad record")
        return lane, position

    with Prefetcher(make, {3: 0, 4: 7}) as prefetcher:
        assert [prefetcher.take(3) for _ in range(DEPTH + 3)] == [(3, i) for i in range(DEPTH + 3)]
        assert [prefetcher.take(4) for _ in range(2)] == [(4, 7), (4, 8)]
        with pytest.raises(RecordError, match="bad record"):
            prefetcher.take(4)
