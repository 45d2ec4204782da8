"""Folders of training records, as the stage `records` writes them."""

from pathlib import Path

import numpy as np

from ffn.io import atomic
from ffn.io.training_records import PartitionCounts, RecordIndex, encode_example, shard_name, write_shard


def write_shards(folder: Path, centers_zyx: np.ndarray, counts: tuple[int, ...], volume: str) -> None:
    """Write records of a volume in shards of the given numbers of records."""
    folder.mkdir()
    shards = []
    for number, part in enumerate(np.split(np.asarray(centers_zyx), np.cumsum(counts)[:-1])):
        examples = (encode_example(center[::-1].tolist(), volume) for center in part)
        shards.append(write_shard(folder / shard_name(number, len(counts)), examples))
    total = sum(counts)
    index = RecordIndex(
        num_records=total,
        rng_seed=1,
        volumes={volume: total},
        partitions={1: PartitionCounts(num_voxels=total, num_records=total)},
        shards=tuple(shards),
        provenance={},
    )
    atomic.write_json(folder / "index.json", index.model_dump(mode="json"))
