"""Lanes: every record once per epoch for any number of lanes, as a pure function of the position."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from ffn.errors import RecordError
from ffn.training.data.examples import LaneStream, RecordTable, generator

COUNTS = (5, 1, 13, 2)  # unequal shards
TOTAL = sum(COUNTS)


def make_records() -> RecordTable:
    """Records that are numbered 0, 1, … in z, alternating between two volumes."""
    records = RecordTable([Path("shard")], COUNTS, ["even", "odd"])
    records.rows = np.arange(TOTAL)[:, None] * (1, 2, 3, 0) + np.arange(TOTAL)[:, None] % 2 * (0, 0, 0, 1)
    return records


def numbers(stream: LaneStream, positions: range) -> list[int]:
    return [stream.record(position).center_zyx[0] for position in positions]


@pytest.mark.parametrize("num_lanes", [1, 2, 3, 8, 21])  # includes more lanes than shards, and one record per lane
def test_every_record_once_per_epoch_over_all_lanes(num_lanes):
    records = make_records()
    streams = [LaneStream(records, lane, num_lanes, rng_seed=7) for lane in range(num_lanes)]
    for epoch in range(3):
        seen = Counter()
        for stream in streams:
            first = epoch * stream.num_records
            seen.update(numbers(stream, range(first, first + stream.num_records)))
        assert seen == Counter(range(TOTAL))


def test_lanes_are_reshuffled_and_streams_differ():
    stream = LaneStream(make_records(), 1, 2, rng_seed=7)
    epochs = [numbers(stream, range(e * stream.num_records, (e + 1) * stream.num_records)) for e in range(4)]
    assert len({tuple(epoch) for epoch in epochs}) == 4
    assert len({frozenset(epoch) for epoch in epochs}) > 1
    draws = {generator(1, "example", 2).random(), generator(1, "example", 2, 0).random()}
    draws |= {generator(1, "lane order", 2).random(), generator(2, "example", 2).random()}
    assert len(draws) == 4
    assert generator(1, "example", 2).random() in draws


def test_a_record_depends_on_the_position_only_and_keeps_its_volume():
    forward = LaneStream(make_records(), 0, 3, rng_seed=7)
    expected = numbers(forward, range(40))
    backward = LaneStream(make_records(), 0, 3, rng_seed=7)
    assert numbers(backward, range(39, -1, -1)) == expected[::-1]
    assert numbers(LaneStream(make_records(), 0, 3, rng_seed=8), range(40)) != expected
    stream = LaneStream(make_records(), 0, 1, rng_seed=3)
    for position in range(TOTAL):
        (z, y, x), volume = stream.record(position)
        assert (y, x) == (2 * z, 3 * z)
        assert volume == ("odd" if z % 2 else "even")


def test_fewer_records_than_lanes_is_an_error():
    make_records().require_lanes(TOTAL)
    needed = "found 21 records, expected at least num_workers × virtual_workers × batch_size = 22"
    with pytest.raises(RecordError, match=needed):
        make_records().require_lanes(TOTAL + 1)
