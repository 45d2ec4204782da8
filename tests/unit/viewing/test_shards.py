"""Values by id in sharded files, and segments joined of their pieces there."""

import numpy as np
import tensorstore as ts

from ffn.geometry import Box
from ffn.io.coarser import Scale
from ffn.io.tables import Tables
from ffn.viewing import shards
from ffn.viewing.meshes import Meshes
from ffn.viewing.shards import order_in_shards, plan_shards, shard_path, shards_of, write_shard

BIG = 2**63 + 11


def test_shards_return_every_value_with_its_prefix(tmp_path, monkeypatch):
    """TensorStore reads them from several files with several minishards each."""
    monkeypatch.setattr(shards, "SHARD_BYTES", 2000)
    monkeypatch.setattr(shards, "MINISHARD_ITEMS", 4)
    rng = np.random.default_rng(3)
    ids = np.array([1, BIG, *rng.integers(1, 2**63, 60)], np.uint64)
    items = {i: (i, rng.bytes(rng.integers(0, 50)), rng.bytes(rng.integers(1, 90))) for i in ids.tolist()}
    spec = plan_shards(len(ids), sum(len(prefix) + len(value) for _, prefix, value in items.values()))
    assert spec["shard_bits"] >= 1 and spec["minishard_bits"] >= 1
    ids = ids[order_in_shards(spec, ids)]
    for shard in range(2 ** spec["shard_bits"]):
        own = ids[shards_of(spec, ids) == shard].tolist()
        write_shard(shard_path(tmp_path, spec, shard), spec, (items[i] for i in own))
    base = {"driver": "file", "path": f"{tmp_path}/"}
    reader = ts.KvStore.open({"driver": "neuroglancer_uint64_sharded", "metadata": spec, "base": base}).result()
    contents = b"|".join(path.read_bytes() for path in tmp_path.iterdir())
    for segment_id, prefix, value in items.values():
        assert reader.read(segment_id.to_bytes(8, "big")).result().value == value
        assert prefix + value in contents
    assert reader.read((2).to_bytes(8, "big")).result().state == "missing"


def test_a_segment_is_joined_before_the_pieces_of_the_next_one_are_read(tmp_path, monkeypatch):
    """In the order of a shard with several minishards, so that it can be written as it comes."""
    monkeypatch.setattr(shards, "MINISHARD_ITEMS", 2)
    scale, seen = Scale(Box.from_shape((9, 9, 300)), (1.0, 1.0, 1.0)), []

    class Texts(Meshes):
        def pieces_in(self, wanted, block):
            number = self.blocks.index(block)
            return ((i, f"{i}@{number}".encode()) for i in (2, 3, 5) if (i, number) != (3, 1))

        def write_joined(self, sharding, path, segments):
            seen.append(next(segments))
            for block in self.blocks:
                (self.piece_folder / block.stem).write_bytes(b"x" * 9)
            seen.extend(segments)

    kind = Texts(tmp_path, 0, scale, tmp_path / "pieces")
    ids = np.array([2, 3, 4, 5], np.uint64)
    tables = Tables(kind.sort_pieces([kind.write_pieces(ids, block) for block in kind.blocks], ids))
    assert len(kind.blocks) == 2 and tables.read(f"{kind.key}-ends").tolist() == [9]
    kind.join_shard(tables, kind.shards[0])
    assert seen == [(2, [b"2@0", b"2@1"]), (4, []), (3, [b"xxx"]), (5, [b"xxx", b"xxx"])]
