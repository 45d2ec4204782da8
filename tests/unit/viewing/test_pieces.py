"""Pieces of segments, joined shard by shard."""

import numpy as np

from ffn.geometry import Box, cut
from ffn.viewing import shards
from ffn.viewing.pieces import Piece, Pieces

from .written import done


def test_a_segment_is_joined_before_the_pieces_of_the_next_one_are_read(tmp_path, monkeypatch):
    """In the order of a shard with several minishards, so that it can be written as it comes."""
    monkeypatch.setattr(shards, "MINISHARD_ITEMS", 2)
    seen, read = [], Pieces._read
    monkeypatch.setattr(Pieces, "_read", lambda self, row: seen.append("read") or read(self, row))

    def make(block):
        start = block.start[2]
        yield from (Piece(i, f"{i}@{start}".encode(), 1) for i in (2, 3, 5) if (i, start) != (3, 4))

    def join(path, found):
        seen.extend(found)
        return {}

    pieces = Pieces(tmp_path / "pieces", cut(Box.from_shape((1, 1, 8)), (1, 1, 4)))
    made = done(tmp_path, pieces.made_by("made", make))
    index = done(tmp_path, pieces.sorted_by_shard("index", made, np.array([2, 3, 4, 5], np.uint64)))[0]
    done(tmp_path, pieces.joined_by("joined", tmp_path / "out", index, join))
    two, three, five = ([f"{i}@{start}".encode() for start in (0, 4)] for i in (2, 3, 5))
    assert seen == ["read", "read", (2, two), (4, []), "read", (3, three[:1]), "read", "read", (5, five)]
