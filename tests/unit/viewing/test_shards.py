"""Values by id in sharded files."""

import numpy as np
import tensorstore as ts

from ffn.viewing.shards import Item, write_shards

BIG = 2**63 + 11


def test_shards_return_every_value_with_its_prefix(tmp_path, monkeypatch):
    """TensorStore reads them from several files with several minishards each."""
    monkeypatch.setattr("ffn.viewing.shards.SHARD_BYTES", 2000)
    monkeypatch.setattr("ffn.viewing.shards.MINISHARD_ITEMS", 4)
    rng = np.random.default_rng(3)
    ids = [1, BIG, *(int(i) for i in rng.integers(1, 2**63, 60))]
    items = {i: Item(rng.bytes(rng.integers(1, 90)), rng.bytes(rng.integers(0, 50))) for i in ids}
    spec = write_shards(tmp_path, items)
    assert spec["shard_bits"] >= 1 and spec["minishard_bits"] >= 1
    base = {"driver": "file", "path": f"{tmp_path}/"}
    reader = ts.KvStore.open({"driver": "neuroglancer_uint64_sharded", "metadata": spec, "base": base}).result()
    contents = b"|".join(path.read_bytes() for path in tmp_path.iterdir())
    for segment_id, item in items.items():
        assert reader.read(segment_id.to_bytes(8, "big")).result().value == item.value
        assert item.prefix + item.value in contents
    assert reader.read((2).to_bytes(8, "big")).result().state == "missing"
