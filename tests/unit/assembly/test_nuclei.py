"""Which base segments are of which nucleus."""

import numpy as np

from ffn.assembly.nuclei import segments_of
from ffn.contingency import ContingencyTable


def segments(*rows):
    """Return the nucleus of each segment that has one, from triples of nucleus, segment, voxels."""
    nuclei, ids, voxels = np.array(sorted(rows), np.uint64).reshape(-1, 3).T
    return dict(segments_of(ContingencyTable(nuclei, ids, voxels.astype(np.int64))).tolist())


def test_pieces_of_a_nucleus_count_and_what_touches_its_rim_does_not():
    assert segments((1, 7, 500), (1, 8, 300), (1, 9, 200)) == {7: 1, 8: 1}
    assert segments((2**63 + 1, 2**64 - 1, 1)) == {2**64 - 1: 2**63 + 1}
    assert segments() == {}


def test_a_small_nucleus_is_not_lost_to_the_rim_of_a_large_one():
    assert segments((1, 7, 8000), (1, 8, 900), (2, 8, 100)) == {7: 1, 8: 2}


def test_a_segment_of_several_nuclei_is_of_the_largest_and_named(caplog):
    assert segments((1, 7, 100), (2, 7, 900), (3, 8, 50)) == {7: 2, 8: 3}
    assert "1 base segments hold several nuclei, such as segment 7, which holds 2. Merge cuts none" in caplog.text
