"""A reconciled volume equals the whole, whatever the ids and the order of its subvolumes."""

import numpy as np
import pytest

from ffn.assembly.nodes import Nodes
from ffn.assembly.pool import VolumePool
from ffn.assembly.reconcile import find_joins, reconcile
from ffn.assembly.stacked import Stacked
from ffn.assembly.subvolumes import open_subvolumes
from ffn.cli import main
from ffn.config import ReconcileConfig
from ffn.contingency import count_pairs
from ffn.errors import VolumeError
from ffn.geometry import Box
from ffn.io.open import open_volume, read_table

from ...jobs import require_same_files
from ..volumes import read, write
from .conftest import TILED, TILES, write_tiles

CONFIG = ReconcileConfig(min_overlap_voxels=5, min_component_size=1, block_size_zyx=(16, 20, 24))


def tubes(box: Box) -> np.ndarray:
    """Return two neurites along x, one of them bent, and a speck, with background between them."""
    z, y, x = np.meshgrid(*(np.arange(a, b) for a, b in zip(box.start, box.stop, strict=True)), indexing="ij")
    labels = np.zeros(box.shape, np.uint64)
    labels[(z - 12) ** 2 + (y - 15) ** 2 < 36] = 7
    labels[(z - 30) ** 2 + (y - 20 - (x - 10) // 3) ** 2 < 30] = 4
    labels[(z < 6) & (y > 44) & (x < 14)] = 9
    return labels


@pytest.mark.parametrize("seed", range(3))
def test_the_result_equals_the_whole_for_any_order_ids_and_blocks(seed, tmp_path):
    rng = np.random.default_rng(seed)
    labels = tubes(TILED)
    specs = write_tiles(tmp_path, labels, rng)
    config = CONFIG.model_copy(update={"block_size_zyx": tuple(rng.integers(5, 40, 3).tolist())})
    out = str(tmp_path / "all.h5:segmentation")
    reconcile(list(rng.permutation(specs)), out, config)
    with open_volume(out) as volume:
        assert (volume.box, volume.voxel_size_zyx_nm) == (TILED, (10, 10, 20))
    assert np.array_equal(read(out), np.array([0, 0, 0, 0, 2, 0, 0, 1, 0, 3])[labels.astype(int)])


def test_objects_that_differ_between_subvolumes_do_not_depend_on_order_ids_or_blocks(tmp_path):
    results = []
    for seed in range(3):
        folder, rng = tmp_path / str(seed), np.random.default_rng(seed)
        specs = []
        for number, box in enumerate(TILES):
            coarse = np.random.default_rng(number).integers(0, 6, [n // 6 + 1 for n in box.shape])
            part = coarse.repeat(6, 0).repeat(6, 1).repeat(6, 2)[tuple(map(slice, box.shape))]
            part = np.array([0, *rng.permutation(np.arange(1, 900))[:5]], np.uint64)[part]
            specs.append(write(folder / f"{box.stem}.h5", part, box.start))
        config = ReconcileConfig(
            min_overlap_voxels=5,
            min_component_size=1,
            min_overlap_fraction=0.2,
            block_size_zyx=tuple(rng.integers(5, 40, 3).tolist()),
        )
        reconcile(list(rng.permutation(specs)), str(folder / "all.h5:segmentation"), config)
        results.append(read(str(folder / "all.h5:segmentation")))
    assert np.array_equal(results[0], results[1])
    assert np.array_equal(results[0], results[2])
    found = np.unique(results[0])
    assert np.array_equal(found, np.arange(len(found)))  # consecutive, although some ids are in no core
    assert len(found) < 5 * len(specs)  # some were joined


def test_negative_ids_of_a_subvolume_are_no_segments(tmp_path):
    labels, found = tubes(TILED).astype(np.int32), []
    for nothing in (0, -1):
        specs = write_tiles(tmp_path / "parts", np.where(labels == 0, nothing, labels))
        reconcile(specs, f"{tmp_path}/all.h5:segmentation", CONFIG)
        found.append(read(f"{tmp_path}/all.h5:segmentation"))
    assert np.array_equal(*found)


JOBS = ["tiling-finish", "match-2-of-2", "match-1-of-2", "match-finish", "label-3-of-3", "label-1-of-3", "label-2-of-3"]
JOBS += ["label-finish", "2-of-2", "1-of-2", "finish"]


def test_jobs_and_kills_do_not_show(tmp_path, monkeypatch):
    specs = write_tiles(tmp_path / "parts", tubes(TILED), np.random.default_rng(0))
    seed = np.array([[1, 12, 15, TILED.start[2] + 5, 40, 1]])
    with open_volume(specs[0]) as volume:
        box, voxels = volume.box, volume.read()
    seed[0, 0] = voxels[tuple(np.subtract(seed[0, 1:4], box.start))]
    specs[0] = write(tmp_path / "parts/first.h5", voxels, box.start, (10, 10, 20), {"origins": seed})
    command = ["reconcile", *specs, "--min-overlap-voxels", "5", "--min-component-size", "1"]
    one, whole = f"{tmp_path}/one/r.zarr", f"{tmp_path}/whole.zarr"
    assert main([*command, "--out", whole]) == 0
    monkeypatch.setattr("ffn.assembly.reconcile.PART_ZYX", (9, 20, 11))
    monkeypatch.setattr("ffn.io.shards.CHUNK", 16)
    monkeypatch.setattr("ffn.io.shards.MAX_SHARD", 32)

    def run(folder, *job):
        assert main([*command, *job, "--block-size", "9", "20", "11", "--out", f"{folder}/r.zarr"]) == 0

    require_same_files(run, tmp_path, JOBS, blocks_between_kills=5)
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
    specs = [write(tmp_path / f"{box.stem}.h5", part, box.start) for box, part in zip(boxes, parts, strict=True)]
    reconcile(specs, str(tmp_path / "all.h5:segmentation"), ReconcileConfig())
    found = read(str(tmp_path / "all.h5:segmentation"))
    assert [len(np.unique(found[labels == body])) for body in (1, 2)] == [1, 1]


def test_empty_subvolumes_give_an_empty_volume(tmp_path):
    specs = write_tiles(tmp_path, np.zeros(TILED.shape, np.uint64))
    reconcile(specs, str(tmp_path / "all.h5:segmentation"), CONFIG)
    assert not read(str(tmp_path / "all.h5:segmentation")).any()


def test_a_missing_subvolume_is_refused_and_leaves_no_file(tmp_path):
    specs = write_tiles(tmp_path, tubes(TILED))
    with pytest.raises(VolumeError, match="tiling without holes"):
        reconcile(specs[:1] + specs[2:], str(tmp_path / "all.h5:segmentation"), CONFIG)
    assert not (tmp_path / "all.h5").exists()


def test_the_same_box_twice_is_refused(tmp_path):
    specs = write_tiles(tmp_path, tubes(TILED))
    with pytest.raises(VolumeError, match="covers the same box"):
        reconcile([*specs, specs[0]], str(tmp_path / "all.h5:segmentation"), CONFIG)


def spread_mergers(folder, config) -> int:
    """Reconcile a row of subvolumes that each merge two of eight neurites; return the most neurites in one object."""
    rng, specs, per_neurite, step = np.random.default_rng(1), [], 4, 20
    count = 30
    for number in range(count):
        box = Box((0, 0, number * step), (5, 8 * per_neurite, (number + 1) * step + 8))
        ids = np.arange(1, 9, dtype=np.uint64)
        merged = rng.integers(7)
        ids[merged + 1] = ids[merged]
        part = np.broadcast_to(ids.repeat(per_neurite)[None, :, None], box.shape).copy()
        part[rng.random(box.shape) < 0.1] = 0  # no ties
        specs.append(write(folder / f"{number}.h5", part, box.start))
    reconcile(specs, str(folder / "all.h5:segmentation"), config)
    result = read(str(folder / "all.h5:segmentation"))
    neurite = np.arange(8).repeat(per_neurite)[None, :, None]
    pairs = count_pairs(result, np.broadcast_to(neurite, result.shape))
    return int(np.bincount(pairs.a[pairs.a > 0].astype(int)).max())


def test_parts_inside_do_not_spread_mergers_of_single_subvolumes(tmp_path):
    most = []
    for fraction in (None, 0.9):
        folder = tmp_path / str(fraction)
        folder.mkdir()
        most.append(spread_mergers(folder, CONFIG.model_copy(update={"min_inside_fraction": fraction})))
    assert most[0] == most[1] < 8


def test_joins_count_those_of_parts_inside(tmp_path):
    whole, cut = np.ones((2, 4, 6, 20), np.uint64)
    cut[:, :, 4], cut[:, :, 5:] = 0, 2  # the second has a short piece in the overlap
    specs = []
    for x, part in ((0, whole), (10, cut)):
        specs.append(write(tmp_path / f"x{x}.h5", part, (0, 0, x)))
    subvolumes = open_subvolumes(specs)
    with VolumePool() as pool:
        learnt = [subvolumes.look_at(k, pool, CONFIG.block_size_zyx) for k in range(2)]
    stacked, found = Stacked(learnt), {}
    nodes = Nodes.of(stacked)
    ((first, claims),) = stacked.batches("claims")
    for fraction in (None, 0.9):
        config = CONFIG.model_copy(update={"min_inside_fraction": fraction})
        joins = find_joins(subvolumes.tiling, nodes, first, claims, config)
        found[fraction] = len(joins.pairs), joins.num_inside
    assert nodes.voxels.tolist() == [480, 96, 360]
    assert found == {None: (1, 0), 0.9: (2, 1)}


def test_a_subvolume_is_not_overwritten(tmp_path):
    specs = write_tiles(tmp_path, tubes(TILED))
    before = read(specs[1])
    with pytest.raises(VolumeError, match="is the file of the input"):
        reconcile(specs, specs[1], CONFIG)
    assert np.array_equal(read(specs[1]), before)


def test_voxels_of_another_size_are_refused(tmp_path):
    specs = write_tiles(tmp_path, tubes(TILED))
    write(tmp_path / f"{TILES[2].stem}.h5", read(specs[2]), TILES[2].start, (10, 10, 30))
    with pytest.raises(
        VolumeError, match=r"has voxels of \(10.0, 10.0, 30.0\) nm, expected the \(10.0, 10.0, 20.0\) nm of"
    ):
        reconcile(specs, str(tmp_path / "all.h5:segmentation"), CONFIG)


def test_the_dataset_is_segmentation_unless_it_is_given(monkeypatch):
    calls = []
    monkeypatch.setattr("ffn.assembly.reconcile.reconcile", lambda *given: calls.append(given))
    assert main(["reconcile", "a.h5", "b.h5:other", "--out", "all.h5:s", "--min-overlap-voxels", "7"]) == 0
    ((specs, out, config, _),) = calls
    assert (specs, out) == (["a.h5:segmentation", "b.h5:other"], "all.h5:s")
    assert config.min_overlap_voxels == 7
