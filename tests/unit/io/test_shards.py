import numpy as np
import pytest

from ffn.geometry import Box
from ffn.io.shards import MAX_SHARD_BYTES, Shards, chunk_shape, shard_shape

BOX = Box((-3, 10, 0), (127, 80, 200))
SHARDS = Shards(BOX, (128, 64, 64))


@pytest.mark.parametrize("shape", [(1, 1, 1), (63, 64, 65), (300, 2000, 40), (5000, 5000, 5000)])
@pytest.mark.parametrize("itemsize", [1, 4, 8])
def test_a_shard_has_whole_chunks_fits_into_memory_and_is_not_larger_than_needed(shape, itemsize):
    shard, chunk = shard_shape(shape, itemsize), chunk_shape(shape)
    assert all(s % c == 0 and s < n + c for s, c, n in zip(shard, chunk, shape, strict=True))
    assert np.prod(shard) * itemsize <= MAX_SHARD_BYTES


def test_shards_are_counted_from_the_first_voxel_of_the_volume_and_cover_it_once():
    boxes = SHARDS.boxes()
    assert sum(box.num_voxels for box in boxes) == BOX.num_voxels
    assert boxes[0] == Box((-3, 10, 0), (125, 74, 64))
    assert boxes[-1] == Box((125, 74, 192), (127, 80, 200))
    assert len({SHARDS.key(box) for box in boxes}) == len(boxes) == SHARDS.number == 16
    assert SHARDS.key(boxes[-1]) == "c/1/1/3"


def test_a_block_touches_the_shards_that_hold_its_voxels():
    block = Box((124, 70, 60), (126, 75, 70))
    assert set(SHARDS.touched_by(block)) == {box for box in SHARDS.boxes() if not box.intersect(block).is_empty}
    assert list(SHARDS.touched_by(Box((125, 74, 192), (126, 75, 193)))) == [Box((125, 74, 192), (127, 80, 200))]
