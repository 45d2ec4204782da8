"""Folders of training records, as the stage `records` writes them."""

import hashlib
from pathlib import Path

import numpy as np

from ffn.io import atomic
from ffn.io.tfrecord import encode_example, write_records
from ffn.io.training_records import PartitionCounts, RecordIndex, Shard, shard_name


def write_shards(folder: Path, centers_zyx: np.ndarray, counts: tuple[int, ...], volume: str) -> None:
    """Write records of a volume in shards of the given numbers of records."""
    folder.mkdir()
    shards = []
    for number, part in enumerate(np.split(np.asarray(centers_zyx), np.cumsum(counts)[:-1])):
        path = folder / shard_name(number, len(counts))
        examples = [{"center": center[::-1].tolist(), "label_volume_name": [volume.encode()]} for center in part]
        write_records(path, map(encode_example, examples))
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        shards.append(Shard(file=path.name, num_records=len(part), sha256=digest))
    total = sum(counts)
    index = RecordIndex(
        format=1,
        num_records=total,
        rng_seed=1,
        volumes={volume: total},
        partitions={1: PartitionCounts(num_voxels=total, num_records=total)},
        shards=tuple(shards),
        provenance={},
    )
    atomic.write_json(folder / "index.json", index.model_dump(mode="json"))
