"""Reconciliation: the tiled volume equals the whole, whatever the ids and the order of the subvolumes."""

import contextlib
import itertools

import numpy as np
import pytest

from ffn.assembly.nodes import Nodes, scan
from ffn.assembly.overlap import best_of_each_other, parts_inside
from ffn.assembly.pool import VolumePool
from ffn.assembly.reconcile import find_joins, open_tiling, reconcile
from ffn.assembly.tiling import Tiling
from ffn.assembly.unionfind import connected_roots
from ffn.config import ReconcileConfig
from ffn.contingency import count_pairs
from ffn.errors import VolumeError
from ffn.geometry import Box, tile
from ffn.io.hdf5_volume import create_volume
from ffn.io.open import open_volume
from ffn.io.volume import Placement

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
    """Cut `labels` into subvolumes; `rng` gives every subvolume different ids."""
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


@pytest.mark.parametrize("seed", range(3))
def test_tiled_equals_whole_for_any_order_ids_and_blocks(seed, tmp_path):
    rng = np.random.default_rng(seed)
    labels = tubes(BOX)
    specs = write_tiles(tmp_path, labels, rng)
    config = CONFIG.model_copy(update={"block_size_zyx": tuple(rng.integers(5, 40, 3).tolist())})
    out = str(tmp_path / "all.h5:segmentation")
    reconcile(list(rng.permutation(specs)), out, config)
    result, volume = read(out)
    assert volume.box == BOX
    assert volume.voxel_size_zyx_nm == (10, 10, 20)
    assert np.array_equal(result, np.array([0, 0, 0, 0, 2, 0, 0, 1, 0, 3])[labels.astype(int)])


def test_objects_that_differ_between_subvolumes_do_not_depend_on_ids_order_or_blocks(tmp_path):
    results = []
    for seed in range(3):
        folder, rng = tmp_path / str(seed), np.random.default_rng(seed)
        specs = []
        for number, box in enumerate(tile(BOX, (24, 30, 28), (8, 10, 8))):
            coarse = np.random.default_rng(number).integers(0, 6, [n // 6 + 1 for n in box.shape])
            part = coarse.repeat(6, 0).repeat(6, 1).repeat(6, 2)[tuple(map(slice, box.shape))]
            specs.append(str(folder / f"{box.stem}.h5:segmentation"))
            with create_volume(specs[-1], np.uint64, Placement(box)) as writer:
                writer.write(box, np.array([0, *rng.permutation(np.arange(1, 900))[:5]], np.uint64)[part])
        config = ReconcileConfig(
            min_overlap_voxels=5, min_overlap_fraction=0.2, block_size_zyx=tuple(rng.integers(5, 40, 3).tolist())
        )
        reconcile(list(rng.permutation(specs)), str(folder / "all.h5:segmentation"), config)
        results.append(read(str(folder / "all.h5:segmentation"))[0])
    assert np.array_equal(results[0], results[1])
    assert np.array_equal(results[0], results[2])
    found = np.unique(results[0])
    assert np.array_equal(found, np.arange(len(found)))  # dense, though some ids are in no core
    assert len(found) < 5 * len(specs)  # some were joined


def test_pool_closes_what_was_not_used_for_longest(monkeypatch):
    events = []

    @contextlib.contextmanager
    def recorded(spec):
        events.append(f"+{spec}")
        yield spec
        events.append(f"-{spec}")

    monkeypatch.setattr("ffn.assembly.pool.open_volume", recorded)
    with VolumePool(max_open=2) as pool:
        assert [pool.open(spec) for spec in "abac"] == list("abac")
        assert events == ["+a", "+b", "-b", "+c"]
    assert events[4:] == ["-a", "-c"]


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


TILINGS = [  # box, size, overlap
    (Box((0, 0, 0), (23, 10, 10)), (10, 10, 10), (6, 0, 0)),  # three tiles share voxels
    (Box((-5, 3, 0), (20, 31, 12)), (9, 11, 12), (3, 4, 2)),
    (Box((0, 0, 0), (30, 4, 21)), (10, 4, 7), (0, 0, 0)),  # no overlap at all
]


@pytest.mark.parametrize(("box", "size", "overlap"), TILINGS)
def test_cores_partition_the_hull(box, size, overlap):
    tiling = Tiling.of(tile(box, size, overlap)[::-1])
    seen = np.zeros(box.shape, int)
    for number in range(tiling.num_boxes):
        inner = tiling.core(number)
        assert tiling.box(number).contains(inner)
        seen[inner.slices(box.start)] += 1
    assert tiling.hull == box
    assert (seen == 1).all()


@pytest.mark.parametrize(("box", "size", "overlap"), TILINGS)
def test_pairs_and_blocks_are_those_of_a_search_over_all(box, size, overlap):
    tiling = Tiling.of(tile(box, size, overlap))
    boxes = [tiling.box(number) for number in range(tiling.num_boxes)]
    pairs = itertools.combinations(range(len(boxes)), 2)
    assert list(tiling.overlaps()) == [(i, j) for i, j in pairs if not boxes[i].intersect(boxes[j]).is_empty]
    for block in box.blocks((7, 30, 8)):
        parts = [(number, tiling.core(number).intersect(block)) for number in range(len(boxes))]
        assert list(tiling.cores_in(block)) == [(number, part) for number, part in parts if not part.is_empty]


@pytest.mark.parametrize(
    ("boxes", "found"),
    [
        (tile(BOX, (24, 30, 28), (8, 10, 8))[:-2], "none is at 19:43,20:50,30:58"),
        ([Box((0, 0, 0), (4, 5, 6)), Box((5, 0, 0), (9, 5, 6))], "0:4 is followed by 5:9 on axis z"),
        ([Box((0, 0, 0), (4, 5, 6)), Box((0, 0, 1), (4, 5, 4))], "0:6 is followed by 1:4 on axis x"),
    ],
)
def test_boxes_that_are_no_tiling_are_refused(boxes, found):
    with pytest.raises(VolumeError, match=f"{found}, expected a tiling without holes"):
        Tiling.of(boxes)


def table_of(counts):
    """Rows of `counts` are ids 0, 1, … of the first subvolume, columns of the second."""
    voxels = np.array(counts)
    first, second = (ids.ravel().repeat(voxels.ravel()) for ids in np.indices(voxels.shape))
    return count_pairs(first, second).foreground()


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([[9, 9, 9], [9, 50, 0], [9, 0, 60]], {(1, 1), (2, 2)}),
        ([[0, 0, 0], [0, 50, 40]], {(1, 1)}),  # the first has two partners: only the better, above half
        ([[0, 0, 0], [0, 50, 50]], set()),  # a tie joins nothing
        ([[0, 0, 0], [0, 4, 0], [0, 0, 60]], {(2, 2)}),  # too few voxels
        ([[0, 0, 0, 0], [0, 40, 30, 30]], set()),  # best, but less than half
        ([[0, 900], [900, 10]], {(1, 1)}),  # what the other left out says nothing
    ],
)
def test_best_of_each_other_match(counts, expected):
    table = table_of(counts)
    assert set(map(tuple, table.pairs[best_of_each_other(table, CONFIG)].tolist())) == expected


@pytest.mark.parametrize(
    ("counts", "whole", "expected"),
    [
        ([[0, 0, 0], [0, 30, 20]], (99, [33, 20]), {(1, 1), (1, 2)}),  # 91 % and all of the parts
        ([[0, 0, 0], [0, 30, 20]], (99, [33, 23]), {(1, 1)}),  # 87 % of the second part
        ([[0, 0, 0], [0, 30, 20]], (99, [90, 60]), set()),  # both go on beyond the overlap: two neurites?
        ([[0, 0, 0], [0, 30, 4]], (99, [30, 4]), {(1, 1)}),  # a part too small to tell
    ],
)
@pytest.mark.parametrize("turned", [False, True])
def test_parts_that_end_in_the_overlap_match(counts, whole, expected, turned):
    table = table_of(np.transpose(counts) if turned else counts)
    voxels = np.full(len(table.voxels), whole[0]), np.array(whole[1])
    config = CONFIG.model_copy(update={"min_inside_fraction": 0.9})
    chosen = table.pairs[parts_inside(table, voxels[::-1] if turned else voxels, config)]
    assert set(map(tuple, (chosen[:, ::-1] if turned else chosen).tolist())) == expected
    assert not parts_inside(table, voxels, CONFIG).any()  # off by default


def spread_mergers(folder, config) -> int:
    """Reconcile a row of subvolumes of eight neurites, in each of which two neighbours are one; most in one object."""
    rng, specs, per_neurite, step = np.random.default_rng(1), [], 4, 20
    count = 30
    for number in range(count):
        box = Box((0, 0, number * step), (5, 8 * per_neurite, (number + 1) * step + 8))
        ids = np.arange(1, 9, dtype=np.uint64)
        merged = rng.integers(7)
        ids[merged + 1] = ids[merged]
        part = np.broadcast_to(ids.repeat(per_neurite)[None, :, None], box.shape).copy()
        part[rng.random(box.shape) < 0.1] = 0  # no ties
        specs.append(str(folder / f"{number}.h5:segmentation"))
        with create_volume(specs[-1], np.uint64, Placement(box)) as writer:
            writer.write(box, part)
    reconcile(specs, str(folder / "all.h5:segmentation"), config)
    result = read(str(folder / "all.h5:segmentation"))[0]
    neurite = np.arange(8).repeat(per_neurite)[None, :, None]
    pairs = count_pairs(result, np.broadcast_to(neurite, result.shape))
    return int(np.bincount(pairs.a[pairs.a > 0].astype(int)).max())


def test_mergers_of_single_subvolumes_are_not_handed_on_by_parts_inside(tmp_path):
    most = []
    for fraction in (None, 0.9):
        folder = tmp_path / str(fraction)
        folder.mkdir()
        most.append(spread_mergers(folder, CONFIG.model_copy(update={"min_inside_fraction": fraction})))
    assert most[0] == most[1] < 8


def test_joins_say_which_rule_found_them(tmp_path):
    whole, cut = np.ones((2, 4, 6, 20), np.uint64)
    cut[:, :, 4], cut[:, :, 5:] = 0, 2  # a short piece at the start of the second, in the overlap
    specs = []
    for box, part in ((Box((0, 0, 0), (4, 6, 20)), whole), (Box((0, 0, 10), (4, 6, 30)), cut)):
        specs.append(str(tmp_path / f"{box.stem}.h5:segmentation"))
        with create_volume(specs[-1], np.uint64, Placement(box)) as writer:
            writer.write(box, part)
    tiling, ordered, _ = open_tiling(specs)
    found = {}
    for fraction in (None, 0.9):
        with VolumePool() as pool:
            nodes = Nodes.of([scan(pool.open(spec), tiling.core(k)) for k, spec in enumerate(ordered)])
            config = CONFIG.model_copy(update={"min_inside_fraction": fraction})
            joins = find_joins(tiling, ordered, nodes, pool, config)
        found[fraction] = len(joins.pairs), joins.num_inside
    assert nodes.voxels.tolist() == [480, 96, 360]
    assert found == {None: (1, 0), 0.9: (2, 1)}


def test_output_in_place_of_a_subvolume_is_refused(tmp_path):
    specs = write_tiles(tmp_path, tubes(BOX))
    before = read(specs[1])[0]
    with pytest.raises(VolumeError, match="is the file of the input"):
        reconcile(specs, specs[1], CONFIG)
    assert np.array_equal(read(specs[1])[0], before)


def test_voxels_of_another_size_are_refused(tmp_path):
    specs = write_tiles(tmp_path, tubes(BOX))
    part, volume = read(specs[2])
    with create_volume(specs[2], np.uint64, Placement(volume.box, (10, 10, 30))) as writer:
        writer.write(volume.box, part)
    with pytest.raises(
        VolumeError, match=r"has voxels of \(10.0, 10.0, 30.0\) nm, expected the \(10.0, 10.0, 20.0\) nm of"
    ):
        reconcile(specs, str(tmp_path / "all.h5:segmentation"), CONFIG)


def test_roots_do_not_depend_on_edge_order():
    edges = np.array([[5, 2], [2, 0], [3, 4]])
    assert connected_roots(6, edges).tolist() == [0, 1, 0, 3, 3, 0]
    assert connected_roots(6, edges[::-1, ::-1]).tolist() == [0, 1, 0, 3, 3, 0]
