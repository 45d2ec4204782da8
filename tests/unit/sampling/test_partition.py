"""Local object maps and partitions equal their definition, whatever the blocks, the threads and the labels."""

import numpy as np
import pytest

from ffn.cli import main
from ffn.errors import VolumeError
from ffn.geometry import Box
from ffn.io.open import open_volume
from ffn.io.volume import IGNORED, Placement
from ffn.sampling.config import PartitionConfig
from ffn.sampling.partition import large_labels, lom_counts, partition, require_lom_fits

from ...jobs import require_same_files
from ...volumes import write_volume

BOX = Box((3, 10, 0), (27, 43, 50))
RADIUS = (2, 4, 3)
CONFIG = PartitionConfig(lom_radius_zyx=RADIUS, min_label_um3=0.0001)  # 200 voxels


def tissue(shape=BOX.shape, num_objects=25, rng_seed=0) -> np.ndarray:
    """Return Voronoi cells with background between them and ids of any size."""
    rng = np.random.default_rng(rng_seed)
    centers = rng.random((num_objects, 3)) * shape
    voxels = np.argwhere(np.ones(shape))
    distances = np.sqrt(((voxels[:, None] - centers) ** 2).sum(axis=2))
    order = np.sort(distances, axis=1)
    names = rng.integers(1, 2**63, num_objects, dtype=np.uint64)
    return np.where(order[:, 1] - order[:, 0] < 1.5, 0, names[distances.argmin(axis=1)]).reshape(shape)


def count_by_definition(labels, radius, ids) -> np.ndarray:
    """Look at every voxel of every LOM."""
    windows = np.lib.stride_tricks.sliding_window_view(labels, [2 * r + 1 for r in radius])
    centres = labels[tuple(slice(r, n - r) for r, n in zip(radius, labels.shape, strict=True))]
    counts = (windows == centres[..., None, None, None]).sum(axis=(3, 4, 5))
    return np.where(np.isin(centres, ids), counts, 0)


def write_labels(path, labels, box=BOX) -> str:
    return write_volume(f"{path}:labels", labels, Placement(box, (20.0, 5.0, 5.0)))


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr("ffn.sampling.partition.PART_ZYX", (9, 32, 13))


def run(tmp_path, labels, config=CONFIG, **options) -> np.ndarray:
    out = f"{tmp_path / 'p.zarr'}"
    partition(write_labels(tmp_path / "l.h5", labels), out, config, **options)
    with open_volume(out) as volume:
        assert volume.dtype == np.uint8
        return volume.read()


def test_partitions_equal_the_definition_in_blocks(tmp_path):
    labels = tissue()
    ids, sizes = np.unique(labels, return_counts=True)
    large = ids[(sizes >= 200) & (ids > 0)]
    assert 0 < len(large) < len(ids) - 1
    fractions = count_by_definition(labels, RADIUS, large) / np.prod([2 * r + 1 for r in RADIUS])
    expected = np.full(BOX.shape, 255)
    inner = tuple(slice(r, -r) for r in RADIUS)
    expected[inner] = np.where(fractions > 0, 1 + np.digitize(fractions, CONFIG.thresholds), 0)
    np.testing.assert_array_equal(run(tmp_path, labels), expected)
    assert len(np.unique(expected)) >= 9


@pytest.mark.parametrize("ignored", [IGNORED, np.uint64(2**64 - 2), np.uint64(2**64 - 3)])
def test_ignored_voxels_are_in_no_partition(tmp_path, ignored):
    """Neither as an object nor as background, which training may start from, too; nor in labels as CREMI has them."""
    labels = tissue()
    ids, sizes = np.unique(labels[labels > 0], return_counts=True)
    before = run(tmp_path, labels)
    is_largest = labels == ids[sizes.argmax()]
    after = run(tmp_path, np.where(is_largest, ignored, labels))
    np.testing.assert_array_equal(after, np.where(is_largest, 255, before))


def test_a_label_of_exactly_the_minimum_size_is_kept(tmp_path):
    labels = np.zeros(BOX.shape, np.uint64)
    labels[8:12, 10:20, 10:20] = 5
    labels[8:12, 22:32, 30:40] = 6
    labels[8, 22, 30] = 0  # 399 voxels
    partitions = run(tmp_path, labels, PartitionConfig(lom_radius_zyx=RADIUS, min_label_um3=0.0002))
    assert (partitions[labels == 5] > 0).all()
    assert set(np.unique(partitions[labels == 6])) <= {0, 255}


def test_voxels_outside_the_box_have_no_influence(tmp_path):
    labels, box = tissue(), Box((5, 12, 7), (26, 40, 41))
    config = PartitionConfig(lom_radius_zyx=RADIUS, min_label_um3=0.00005)
    spec = write_labels(tmp_path / "l.h5", labels)
    partition(spec, f"{tmp_path / 'a.zarr'}", config, box)
    masked = np.zeros_like(labels)
    masked[box.slices(BOX.start)] = labels[box.slices(BOX.start)]
    partition(write_labels(tmp_path / "m.h5", masked), f"{tmp_path / 'b.zarr'}", config)
    with open_volume(f"{tmp_path / 'a.zarr'}") as part, open_volume(f"{tmp_path / 'b.zarr'}") as whole:
        assert part.box == box and part.voxel_size_zyx_nm == (20.0, 5.0, 5.0)
        inner = box.grow((-2, -4, -3))
        np.testing.assert_array_equal(part.read(inner), whole.read(inner))
        assert np.count_nonzero(part.read() == 255) == box.num_voxels - inner.num_voxels


def test_labels_that_are_all_too_small_are_warned_of(caplog):
    found = {"sizes": np.array([[0, 9000], [3, 40], [5, 812], [IGNORED, 7000]], np.uint64)}
    assert large_labels([found], 812).tolist() == [5] and "background" not in caplog.text
    assert not len(large_labels([found], 1000))
    assert "has 812" in caplog.text


@pytest.fixture
def job(tmp_path, monkeypatch):
    """A function that writes partitions in twelve blocks."""
    monkeypatch.setattr("ffn.io.shards.MAX_SHARD", 64)
    monkeypatch.setattr("ffn.io.shards.CHUNK", 16)
    monkeypatch.setattr("ffn.io.shards.MAX_SHARD_BYTES", 2**14)
    spec = write_labels(tmp_path / "l.h5", tissue())
    words = ["partition", "--labels", spec, "--min-label-um3", "1e-4", "--threads", "1"]
    words += ["--lom-radius", *map(str, RADIUS)]
    return lambda folder, *options: main([*words, "--out", f"{folder}/p.zarr", *options])


def test_jobs_that_share_the_blocks_and_killed_ones_make_what_one_job_makes(tmp_path, job, monkeypatch):
    """An object is large, or not, by its voxels in all of them."""
    parts = ["2-of-3", "1-of-3", "3-of-3", ""]
    made = require_same_files(job, tmp_path, [*(f"sizes {part}".strip() for part in parts), *parts[:-1], "write"])
    assert len([name for name in made if name.startswith("p.zarr/0/c/")]) > 3
    monkeypatch.setattr("ffn.sampling.partition.PART_ZYX", (24, 33, 50))
    with open_volume(tmp_path / "one/p.zarr") as volume:
        np.testing.assert_array_equal(volume.read(), run(tmp_path, tissue()))


def test_a_part_waits_for_the_sizes_of_all_labels(tmp_path, job, capsys):
    assert job(tmp_path, "--step", "sizes", "--job", "1-of-2") == 0
    assert job(tmp_path, "--job", "1-of-2") == 2
    assert "--step sizes" in capsys.readouterr().err


def test_unusable_input_is_one_error(tmp_path):
    out = f"{tmp_path / 'p.zarr'}"
    image = write_labels(tmp_path / "i.h5", np.full(BOX.shape, 0.5, np.float32))
    labels = write_labels(tmp_path / "l.h5", tissue())
    for spec, to, config, said in (
        (image, out, CONFIG, "float32"),
        (labels, out, PartitionConfig(lom_radius_zyx=(12, 4, 3)), r"\(25, 9, 7\)"),
        (labels, labels, CONFIG, "l.h5"),
    ):
        with pytest.raises(VolumeError, match=said):
            partition(spec, to, config)
    assert not (tmp_path / "p.zarr").exists()


@pytest.mark.parametrize(("radius", "threads"), [(RADIUS, 1), ((1, 1, 6), 3), ((5, 2, 1), 3)])
def test_counts_equal_the_definition(radius, threads):
    labels = tissue()
    ids = np.unique(labels)[1:]
    for chosen in (ids, ids[::3], ids[:0]):
        counts = lom_counts(labels, radius, chosen, threads)
        np.testing.assert_array_equal(counts, count_by_definition(labels, radius, chosen))


def test_labels_as_fine_as_voxels_are_counted_in_one_lom():
    labels = np.random.default_rng(1).integers(0, 4, (9, 12, 20)).astype(np.uint64)
    ids = np.arange(1, 4, dtype=np.uint64)
    np.testing.assert_array_equal(lom_counts(labels, RADIUS, ids), count_by_definition(labels, RADIUS, ids))
    require_lom_fits(Box((0, 0, 0), (5, 9, 7)), RADIUS, "labels")
    with pytest.raises(VolumeError, match=r"5, 8, 7.*5, 9"):
        require_lom_fits(Box((0, 0, 0), (5, 8, 7)), RADIUS, "labels")
