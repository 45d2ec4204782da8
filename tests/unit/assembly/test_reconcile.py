"""A reconciled volume equals the whole, whatever the ids and the order of its subvolumes."""

import numpy as np
import pytest

from ffn.assembly.config import ReconcileConfig
from ffn.assembly.reconcile import best_of_each_other, needed_voxels, reconcile
from ffn.cli import main
from ffn.contingency import count_pairs, rows_of
from ffn.errors import VolumeError
from ffn.geometry import Box
from ffn.io.open import open_volume, read_table

from ...jobs import require_same_files, running
from ..volumes import read, write
from .conftest import TILED, write_tiles

CONFIG = ReconcileConfig(min_overlap_voxels=5, min_component_um3=1e-06)


def tubes(box: Box) -> np.ndarray:
    """Return two neurites along x, one of them bent, and a speck, with background between them."""
    z, y, x = np.meshgrid(*(np.arange(a, b) for a, b in zip(box.start, box.stop, strict=True)), indexing="ij")
    labels = np.zeros(box.shape, np.uint64)
    labels[(z - 12) ** 2 + (y - 15) ** 2 < 36] = 7
    labels[(z - 30) ** 2 + (y - 20 - (x - 10) // 3) ** 2 < 30] = 4
    labels[(z < 6) & (y > 44) & (x < 14)] = 9
    return labels


def set_parts(monkeypatch, shape_zyx):
    """Read and compare this many voxels at a time."""
    for module in ("subvolumes", "components"):
        monkeypatch.setattr(f"ffn.assembly.{module}.PART_ZYX", shape_zyx)


@pytest.mark.parametrize("seed", range(3))
def test_the_result_equals_the_whole_for_any_order_ids_and_blocks(seed, tmp_path, monkeypatch):
    rng = np.random.default_rng(seed)
    labels = tubes(TILED)
    specs = write_tiles(tmp_path, labels, rng)
    set_parts(monkeypatch, tuple(rng.integers(5, 40, 3).tolist()))
    out = str(tmp_path / "all.zarr")
    reconcile(list(rng.permutation(specs)), out, CONFIG)
    with open_volume(out) as volume:
        assert (volume.box, volume.voxel_size_zyx_nm) == (TILED, (10, 10, 20))
    assert np.array_equal(read(out), np.array([0, 0, 0, 0, 2, 0, 0, 1, 0, 3])[labels.astype(int)])


JOBS = ["tiling", "match 2-of-2", "match 1-of-2", "match", "label 3-of-3", "label 1-of-3", "label 2-of-3"]
JOBS += ["label", "2-of-2", "1-of-2", "write"]


@pytest.mark.slow
def test_jobs_and_kills_do_not_show(tmp_path, monkeypatch):
    specs = write_tiles(tmp_path / "parts", tubes(TILED), np.random.default_rng(0))
    seed = np.array([[1, 12, 15, TILED.start[2] + 5, 40, 1]])
    with open_volume(specs[0]) as volume:
        box, voxels = volume.box, volume.read()
    seed[0, 0] = voxels[tuple(np.subtract(seed[0, 1:4], box.start))]
    specs[0] = write(tmp_path / "parts/first.zarr", voxels, box.start, (10, 10, 20), {"origins": seed})
    command = ["reconcile", *specs, "--min-overlap-voxels", "5", "--min-component-um3", "1e-06"]
    one, whole = f"{tmp_path}/one/r.zarr", f"{tmp_path}/whole.zarr"
    assert main([*command, "--out", whole]) == 0
    set_parts(monkeypatch, (9, 20, 11))
    monkeypatch.setattr("ffn.io.shards.CHUNK", 16)
    monkeypatch.setattr("ffn.io.shards.MAX_SHARD", 32)
    require_same_files(running(command, "r.zarr"), tmp_path, JOBS, blocks_between_kills=15)
    assert np.array_equal(read(one), read(whole)) and len(np.unique(read(one))) == 4
    for table in ("origins", "overlaps", "components"):
        assert np.array_equal(read_table(one, table), read_table(whole, table))
    assert read_table(one, "origins").tolist() == [[1, *seed[0, 1:].tolist()]]


def test_thin_neurites_cross_an_overlap(tmp_path):
    """A neurite of 4 × 4 voxels shares 768 of them at an overlap of 48, and half of that at the ends of both sides."""
    labels = np.zeros((12, 20, 208), np.uint64)
    labels[4:8, 4:8], labels[4:8, 12:16] = 1, 2
    boxes = [Box((0, 0, 0), (12, 20, 128)), Box((0, 0, 80), (12, 20, 208))]
    parts = [labels[box.slices()].copy() for box in boxes]
    parts[0][:, 12:16, 116:] = parts[1][:, 12:16, :12] = 0  # not reached by the FOV
    specs = [write(tmp_path / f"{box.stem}.zarr", part, box.start) for box, part in zip(boxes, parts, strict=True)]
    reconcile(specs, str(tmp_path / "all.zarr"), ReconcileConfig())
    found = read(str(tmp_path / "all.zarr"))
    assert [len(np.unique(found[labels == body])) for body in (1, 2)] == [1, 1]


def test_the_same_box_twice_is_refused(tmp_path):
    specs = write_tiles(tmp_path, tubes(TILED))
    with pytest.raises(VolumeError, match=f"{specs[0]}: "):
        reconcile([*specs, specs[0]], str(tmp_path / "all.zarr"), CONFIG)


def table_of(counts):
    """Rows of `counts` are ids 0, 1, … of the first subvolume, columns of the second."""
    voxels = np.array(counts)
    first, second = (ids.ravel().repeat(voxels.ravel()) for ids in np.indices(voxels.shape))
    return count_pairs(first, second).foreground()


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([[9, 9, 9], [9, 50, 0], [9, 0, 60]], {(1, 1), (2, 2)}),
        ([[0, 0, 0], [0, 50, 40]], {(1, 1)}),  # of two partners, only the better one, with more than half
        ([[0, 0, 0], [0, 50, 50]], set()),  # a tie joins nothing
        ([[0, 0, 0], [0, 4, 0], [0, 0, 60]], {(2, 2)}),  # too few voxels
        ([[0, 0, 0, 0], [0, 40, 30, 30]], set()),  # best, but less than half
        ([[0, 900], [900, 10]], {(1, 1)}),  # background on either side does not count
    ],
)
def test_best_of_each_other_match(counts, expected):
    table = table_of(counts)
    chosen = best_of_each_other(table, np.full(len(table.voxels), 5), ReconcileConfig())
    assert set(map(tuple, rows_of(table)[chosen, :2].tolist())) == expected


def test_the_tip_of_a_large_segment_joins_nothing_that_a_whole_thin_one_joins():
    voxels = np.array([4096, 32_800]), np.array([4096, 800])  # a neurite of 4 × 4 × 256, and a body with its tip
    needed = needed_voxels(voxels, 48 / 256, ReconcileConfig())
    table = table_of([[0, 0, 0], [0, 768, 0], [0, 0, 800]])
    assert rows_of(table)[best_of_each_other(table, needed, ReconcileConfig()), :2].tolist() == [[1, 1]]


LEFT, RIGHT = Box((0, 0, 0), (4, 6, 10)), Box((0, 0, 6), (4, 6, 16))
SIZE = (10.0, 10.0, 40.0)  # cells are 24 × 24 × 6 voxels


def origin(*row):
    return np.array([row], np.int64)


def claims(*rows):
    """Rows of ``overlaps`` in cells at x."""
    return np.array([(one, other, 0, 0, x, voxels) for one, other, x, voxels in rows], np.int64)


def scene(folder, ids=(5, 8, 2, 3)):
    """A tube in both subvolumes (ids 0 and 2), and its neighbour (1 and 3), which takes part of it on the right."""
    left, right = np.zeros(LEFT.shape, np.uint64), np.zeros(RIGHT.shape, np.uint64)
    left[:, 0:3], right[:, 0:3] = ids[0], ids[2]
    left[:, 4:6], right[:2, 3:6] = ids[1], ids[3]
    right[:, 2] = ids[3]  # the tube's neighbour claims what is the tube on the left
    tables = {
        "origins": origin(ids[0], 1, 2, 3, 40, 1),
        "overlaps": claims((ids[1], ids[0], 0, 30), (ids[1], ids[0], 6, 900)),
    }
    specs = [write(folder / "left.zarr", left, LEFT.start, SIZE, tables=tables)]
    tables = {
        "origins": origin(ids[2], 1, 2, 13, 50, 2),
        "overlaps": claims((ids[3], ids[2], 6, 500), (ids[3], ids[2], 12, 7)),
    }
    return [*specs, write(folder / "right.zarr", right, RIGHT.start, SIZE, tables=tables)]


@pytest.mark.parametrize("ids", [(5, 8, 2, 3), (1, 2, 1, 2), (9, 4, 7, 6)])
def test_tables_get_global_ids_whatever_the_local_ones_are(ids, tmp_path):
    specs, out = scene(tmp_path, ids), str(tmp_path / "all.zarr")
    reconcile(specs[::-1], out, CONFIG)
    labels = read(out)
    tube, left, right = labels[0, 0, 0], labels[3, 5, 0], labels[0, 5, 15]
    assert labels[0, 0, 15] == tube and len({int(i) for i in (tube, left, right)} - {0}) == 3
    assert read_table(out, "origins").tolist() == [[tube, 1, 2, 3, 40, 1], [tube, 1, 2, 13, 50, 2]]
    overlaps = {(a, b, x): n for a, b, _, _, x, n in read_table(out, "overlaps").tolist()}
    shared = 4 * 4  # voxels of the overlap that are the tube on one side and its neighbour on the other
    assert overlaps == {  # the middle of the cell at 6 is in the core of the right subvolume, from 8 on
        (tube, left, 0): 30,
        (tube, right, 6): 500 + shared,
        (tube, right, 12): 7,
        (left, right, 6): 2 * 2 * 4,
    }
