"""Reconciliation: the tiled volume equals the whole, whatever the ids and the order of the subvolumes."""

import numpy as np
import pytest

from ffn.assembly.overlap import PairCounts, matches
from ffn.assembly.reconcile import core, reconcile
from ffn.assembly.unionfind import connected_roots
from ffn.config import ReconcileConfig
from ffn.errors import VolumeError
from ffn.geometry import Box, tile
from ffn.volume import Placement, create_volume, open_volume

BOX = Box((3, 0, 10), (43, 50, 70))
CONFIG = ReconcileConfig(min_overlap_voxels=5, block_size_zyx=(16, 20, 24))


def tubes(box: Box) -> np.ndarray:
    """Two neurites along x, one of them bent, and a speck; unlabelled gaps between them."""
    z, y, x = np.meshgrid(*(np.arange(a, b) for a, b in zip(box.start, box.stop, strict=True)), indexing="ij")
    labels = np.zeros(box.shape, np.uint64)
    labels[(z - 12) ** 2 + (y - 15) ** 2 < 36] = 7
    labels[(z - 30) ** 2 + (y - 20 - (x - 10) // 3) ** 2 < 30] = 4
    labels[(z < 6) & (y > 44) & (x < 14)] = 9
    return labels


def write_tiles(folder, labels, rng=None) -> list[str]:
    """Cut `labels` into subvolumes; `rng` gives every subvolume ids of its own."""
    specs = []
    for box in tile(BOX, (24, 30, 28), (8, 10, 8)):
        part = labels[box.slices(BOX.start)]
        if rng is not None:
            names = rng.permutation(np.arange(1, 1000, dtype=np.uint64))[:20]
            part = np.where(part == 0, 0, names[part.astype(int)])
        spec = str(folder / f"{box.stem}.h5:segmentation")
        with create_volume(spec, np.uint64, Placement(box, (10, 10, 20))) as writer:
            writer.write(box, part)
        specs.append(spec)
    return specs


def read(spec):
    with open_volume(spec) as volume:
        return volume.read(), volume


def canonical(labels):
    """Number labels by first appearance."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse.reshape(labels.shape)]


def test_tiled_equals_whole_for_any_order_and_ids(tmp_path):
    labels = tubes(BOX)
    results = []
    for seed in (1, 2):
        folder = tmp_path / str(seed)
        generator = np.random.default_rng(seed)
        specs = write_tiles(folder, labels, generator)
        out = str(folder / "all.h5:segmentation")
        reconcile(list(generator.permutation(specs)), out, CONFIG)
        result, volume = read(out)
        assert volume.box == BOX
        assert volume.voxel_size_zyx_nm == (10, 10, 20)
        results.append(result)
    assert np.array_equal(results[0], results[1])
    assert np.array_equal(canonical(results[0]), canonical(labels))
    assert sorted(np.unique(results[0])) == [0, 1, 2, 3]


def test_empty_subvolumes_give_an_empty_volume(tmp_path):
    specs = write_tiles(tmp_path, np.zeros(BOX.shape, np.uint64))
    reconcile(specs, str(tmp_path / "all.h5:segmentation"), CONFIG)
    assert not read(str(tmp_path / "all.h5:segmentation"))[0].any()


def test_missing_subvolume_is_refused_and_leaves_nothing(tmp_path):
    specs = write_tiles(tmp_path, tubes(BOX))
    with pytest.raises(VolumeError, match="tiling without holes"):
        reconcile(specs[:1] + specs[2:], str(tmp_path / "all.h5:segmentation"), CONFIG)
    assert not (tmp_path / "all.h5").exists()


def test_same_box_twice_is_refused(tmp_path):
    specs = write_tiles(tmp_path, tubes(BOX))
    with pytest.raises(VolumeError, match="covers the same box"):
        reconcile([*specs, specs[0]], str(tmp_path / "all.h5:segmentation"), CONFIG)


def test_cores_partition_the_box_even_where_three_tiles_overlap():
    box = Box((0, 0, 0), (23, 10, 10))
    tiles = tile(box, (10, 10, 10), (6, 0, 0))
    seen = np.zeros(box.shape, int)
    for one in tiles:
        inner = core(one, tiles)
        assert one.contains(inner)
        seen[inner.slices()] += 1
    assert (seen == 1).all()


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([[50, 0], [0, 60]], {(1, 1), (2, 2)}),
        ([[50, 40], [0, 0]], {(1, 1)}),  # the first has two partners: only the better, above half
        ([[50, 50], [0, 0]], set()),  # a tie joins nothing
        ([[4, 0], [0, 60]], {(2, 2)}),  # too few voxels
        ([[40, 30, 30], [0, 0, 0]], set()),  # best, but less than half
    ],
)
def test_matches(counts, expected):
    table = np.array(counts)
    rows, columns = np.nonzero(table)
    pairs = np.stack([rows + 1, columns + 1], axis=1).astype(np.uint64)
    chosen = pairs[matches(pairs, table[rows, columns], CONFIG)]
    assert {tuple(map(int, pair)) for pair in chosen} == expected


def test_pair_counts_add_up_over_blocks():
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 4, (2, 6, 7, 8))
    whole, parts = PairCounts(), PairCounts()
    whole.add(a, b)
    for z in range(6):
        parts.add(a[z], b[z])
    assert all(np.array_equal(x, y) for x, y in zip(whole.table(), parts.table(), strict=True))
    pairs, counts = whole.table()
    assert counts.sum() == ((a > 0) & (b > 0)).sum()
    assert counts[0] == ((a == pairs[0, 0]) & (b == pairs[0, 1])).sum()


def test_roots_do_not_depend_on_edge_order():
    edges = np.array([[5, 2], [2, 0], [3, 4]])
    assert connected_roots(6, edges).tolist() == [0, 1, 0, 3, 3, 0]
    assert connected_roots(6, edges[::-1, ::-1]).tolist() == [0, 1, 0, 3, 3, 0]
