"""Gaps go to the segment on their side of the membrane, up to the maximum distance, and nothing else changes."""

import numpy as np
import pytest

from ffn.assembly.competitors import MembraneLevels, fill_gaps, find_competitors, settle
from ffn.assembly.config import FillConfig
from ffn.assembly.contacts import smoothed
from ffn.assembly.fill import fill
from ffn.cli import main
from ffn.config import Mask
from ffn.errors import VolumeError
from ffn.geometry import Box
from ffn.io.masks import NO_MASKS
from ffn.io.open import open_volume

from ...jobs import require_same_files, running
from ..volumes import read, write

SIZE = (10.0, 10.0, 20.0)
CONFIG = FillConfig(max_distance_nm=60, sigma_nm=0, block_size_zyx=(9, 12, 10))


def two_segments(shape=(18, 24, 31)):
    """Return two segments with a gap between them, and an image whose membrane is nearer to the first."""
    labels = np.zeros(shape, np.uint64)
    labels[:, :, :8] = 2**40 + 1
    labels[:, :, 16:20] = 7
    image = np.full(shape, 200, np.uint8)
    image[:, :, 10] = 20
    return labels, image


def corridor():
    """Return segments along x and a bright corridor between them, open to the second, which has the darker membrane."""
    labels = np.zeros((6, 13, 50), np.uint64)
    labels[:, :4], labels[:, 9:] = 1, 2
    image = np.full(labels.shape, 200, np.uint8)
    image[:, 4], image[:, 8] = 60, 40
    image[:, 4:9, 16:] = np.array([30, 29, 10, 28, 30])[:, None]  # no ties
    image[:, 8, 4:6] = 200
    return labels, image


def missed_neurite(openings=(), shape=(24, 41, 60)):
    """Return segments 1 and 2, and an image with a neurite without a segment between them, open to `openings`."""
    labels, image = np.zeros(shape, np.uint64), np.full(shape, 200, np.uint8)
    labels[:, :11], labels[:, 30:] = 1, 2
    image[:, 12:14] = image[:, 27:29] = 20
    for segment, y in ((1, 12), (2, 27)):
        if segment in openings:
            image[:, y : y + 2, 15:60] = 200
    return labels, image


def tissue():
    """Return the insides of random cells, and a noisy image with dark membranes between them."""
    rng = np.random.default_rng(0)
    shape = (16, 24, 80)
    centres = np.array([rng.integers(0, n, 30) for n in shape]).T
    distances = np.stack([np.linalg.norm(np.stack(np.indices(shape), -1) - one, axis=-1) for one in centres])
    nearest, second = np.sort(distances, axis=0)[:2]
    image = np.clip(40 + 20 * (second - nearest) + rng.normal(0, 40, shape), 0, 255).astype(np.uint8)
    return np.where(second - nearest > 8, distances.argmin(axis=0) + 1, 0).astype(np.uint64), image


def written(folder, labels, image, size=(10, 10, 10)):
    volumes = {"segmentation": labels, "image": image}
    return {name: write(folder / f"{name}.zarr", v, (5, 6, 7), size) for name, v in volumes.items()}


def fill_in_blocks(folder, labels, image, config):
    """Fill a volume on disk, and check that its place stays."""
    specs = written(folder, labels, image)
    out = f"{folder}/out.zarr"
    fill(out, config, **specs)
    with open_volume(out) as volume:
        assert volume.box == Box.from_shape(labels.shape, (5, 6, 7))
        return volume.read()


def test_floods_meet_on_the_membrane_and_distance_is_nm():
    labels, image = two_segments()
    filled = fill_gaps(labels, image, (10, 10, 10), CONFIG)
    assert (filled[:, :, :10] == 2**40 + 1).all()
    assert (filled[:, :, 11:20] == 7).all()
    assert (filled[labels > 0] == labels[labels > 0]).all()
    labels, image = two_segments()
    assert (fill_gaps(labels, image, (10, 10, 10), CONFIG)[0, 0] > 0).sum() == 26
    assert (fill_gaps(labels, image, SIZE, CONFIG)[0, 0] > 0).sum() == 21  # 3 voxels of 20 nm


def test_floods_meet_on_a_membrane_of_one_voxel_rather_than_in_a_grey_band_by_default():
    """Smoothing of 10 nm would make the membrane the brighter of the two."""
    labels, image = np.zeros((8, 9, 34), np.uint64), np.full((8, 9, 34), 200, np.uint8)
    labels[:, :, :5], labels[:, :, 29:] = 1, 2
    image[:, :, 10], image[:, :, 18:23] = 60, 100
    for sigma_nm, border in ((None, range(10, 12)), (10.0, range(18, 24))):
        config = FillConfig(max_distance_nm=200, **({} if sigma_nm is None else {"sigma_nm": sigma_nm}))
        filled = fill_gaps(labels, image, (10, 10, 10), config)
        assert (filled > 0).all() and set((filled == 1).sum(axis=2).ravel().tolist()) <= set(border)


def test_masked_gaps_stay_gaps_and_are_not_crossed(tmp_path):
    labels, image = two_segments()
    masked = np.zeros(labels.shape, bool)
    masked[:, :, 9] = True
    filled = fill_gaps(labels, image, (10, 10, 10), CONFIG, masked)
    assert not filled[masked].any() and (filled[:, :, 8] == 2**40 + 1).all()
    assert (filled[:, :, 10:20] == 7).all(), "the first segment cannot pass the mask"
    fill(f"{tmp_path}/out.zarr", CONFIG, (Mask(box="5:23,6:30,16:17"),), **written(tmp_path, labels, image))
    with open_volume(f"{tmp_path}/out.zarr") as volume:
        np.testing.assert_array_equal(volume.read() > 0, fill_gaps(labels, image, (10, 10, 10), CONFIG, masked) > 0)


@pytest.mark.parametrize("steps", range(1, 12))
def test_voxels_at_the_maximum_distance_are_filled_whatever_their_size(steps):
    labels = np.zeros((4, 5, 30), np.uint64)
    labels[:, :, :3] = 1
    config = CONFIG.model_copy(update={"max_distance_nm": steps * 9.8})
    filled = fill_gaps(labels, np.zeros(labels.shape, np.uint8), (39.7, 9.8, 9.8), config)
    assert (filled[:, :, 3:] > 0).sum(axis=2).tolist() == [[steps] * 5] * 4


@pytest.mark.parametrize("block", [(6, 13, 8), (4, 5, 8), (9, 99, 99)])
def test_blocks_do_not_show_up_to_twice_the_distance(block, tmp_path):
    labels, image = corridor()
    config = CONFIG.model_copy(update={"block_size_zyx": block})
    filled = fill_in_blocks(tmp_path, labels, image, config)
    assert (filled[:, 5:8, :16] == 2).all()  # also 10 voxels away from the opening
    assert np.array_equal(filled, fill_gaps(labels, image, (10, 10, 10), config))


@pytest.mark.parametrize(("openings", "ids"), [((), {3}), ((1,), {1}), ((2,), {2}), ((1, 2), {1, 2})])
def test_a_missed_neurite_gets_an_id_unless_no_membrane_separates_it_from_a_segment(openings, ids, tmp_path):
    labels, image = missed_neurite(openings)
    filled = fill_in_blocks(tmp_path, labels, image, FillConfig(max_distance_nm=200))
    assert set(np.unique(filled[:, 15:26])) == ids and set(np.unique(filled)) == {1, 2} | ids
    assert (filled[labels > 0] == labels[labels > 0]).all()
    if len(ids) == 2:
        assert np.array_equal(filled, fill_gaps(labels, image, (10, 10, 10), FillConfig(max_distance_nm=200)))


@pytest.mark.parametrize("openings", [(), (2,)])
def test_blocks_agree_on_missed_neurites(openings, tmp_path):
    labels, image = missed_neurite(openings, (12, 41, 150))
    configs = [FillConfig(max_distance_nm=100, block_size_zyx=(12, 21, n)) for n in (150, 40)]
    whole, tiled = (fill_in_blocks(tmp_path / str(i), labels, image, config) for i, config in enumerate(configs))
    assert np.array_equal(whole, tiled) and set(np.unique(whole[:, 20])) == ({2} if openings else {3})


def test_what_is_farther_than_the_distance_from_all_segments_stays_empty_and_masks_are_no_neurites(tmp_path):
    labels, image = missed_neurite()
    labels[:, :, 20:] = 0
    filled = fill_in_blocks(tmp_path, labels, image, FillConfig(max_distance_nm=100))
    assert (filled[:, 18:23, :12] == 3).all() and not filled[:, :, 30:].any()
    masked = np.zeros(labels.shape, bool)
    masked[:, 14:27] = True
    found = find_competitors(labels, image, np.float32(110), (10.0, 10.0, 10.0), masked)
    assert set(np.unique(found[0][:, 12:29])) == {0}


def test_parts_that_two_tiles_see_are_one_and_join_what_they_are_widest_open_to(tmp_path):
    """The first tile's competitor 1 is the second's 2; it is open to segment 7, and a little to the second's 1."""
    faces = [[[-1, 7, 1, 30_000], [-1, 9, 0, 90_000]], [[-2, -1, 1, 5_000], [-1, 9, 0, 50_000]]]
    names = [[[40, 1]], [[90, 1], [40, 2]]]
    found = zip(map(np.array, names), map(np.array, faces), strict=True)
    results = [{"names": n, "faces": f, "number": len(n), "largest": 9} for n, f in found]
    assert settle(results, f"{tmp_path}/out.zarr")["ids"].tolist() == [7, 7, 7]
    results[1]["faces"][0, 3] = 1_000
    assert settle(results, f"{tmp_path}/out.zarr")["ids"].tolist() == [7, 10, 7]


def test_thick_sections_have_their_own_levels_and_the_same_smoothing(tmp_path):
    image = np.where(np.arange(40) % 20 < 4, 40, 120)[None, None] + np.array([0, 90])[:, None, None]
    spec = write(tmp_path / "image.zarr", np.broadcast_to(image, (2, 40, 40)).astype(np.uint8), (0, 0, 0), (30, 6, 6))
    with open_volume(spec) as volume:
        levels = MembraneLevels(volume, volume.box, NO_MASKS).read(volume.box).ravel()
    assert 40 < levels[0] < 120 and 130 < levels[1] < 210
    size = np.array([40.0, 4.0, 8.0])
    image = np.zeros((25, 161, 81), np.float32)
    image[12, 80, 40] = 1
    smooth = smoothed(image, 60.0, size)
    places = (np.indices(image.shape) - np.array([12, 80, 40])[:, None, None, None]) * size[:, None, None, None]
    assert np.sqrt((smooth * places**2).sum(axis=(1, 2, 3)) / smooth.sum()) == pytest.approx([60, 60, 60], rel=0.01)


def test_a_folder_of_others_is_refused_before_the_work(tmp_path):
    write(tmp_path / "out.zarr", np.ones((2, 2, 2)), tables={"other": np.ones(1)})
    with pytest.raises(VolumeError, match="out.zarr"):
        fill_in_blocks(tmp_path, *two_segments(), CONFIG)
    assert not (tmp_path / "out.zarr.jobs").exists()


@pytest.mark.slow
def test_jobs_kills_and_shards_do_not_show(tmp_path, monkeypatch):
    """Tiles cross the borders of shards."""
    specs = written(tmp_path, *tissue())
    command = ["fill", "--segmentation", specs["segmentation"], "--image", specs["image"]]
    command += "--max-distance 40 --sigma 0 --block-size 4 5 50".split()
    assert main([*command, "--out", f"{tmp_path}/whole.zarr"]) == 0
    monkeypatch.setattr("ffn.io.shards.CHUNK", 8)
    monkeypatch.setattr("ffn.io.shards.MAX_SHARD", 32)
    jobs = ["compete 2-of-2", "compete", "2-of-3", "3-of-3", "1-of-3", ""]
    require_same_files(running(command, "filled.zarr"), tmp_path, jobs, blocks_between_kills=25)
    assert np.array_equal(read(f"{tmp_path}/one/filled.zarr"), read(f"{tmp_path}/whole.zarr"))


@pytest.mark.parametrize(
    ("options", "says"), [([], True), (["--max-distance", "9"], True), (["--max-distance", "20"], False)]
)
def test_a_distance_that_fills_nothing_is_named(options, says, tmp_path, caplog):
    """By hand, none is the default, and 3 may be meant as voxels."""
    labels, image = two_segments()
    specs = written(tmp_path, labels, image, SIZE)
    words = ["fill", "--segmentation", specs["segmentation"], "--image", specs["image"], *options]
    assert main([*words, "--out", f"{tmp_path}/out.zarr"]) == 0
    assert ("nothing is filled" in caplog.text) == says
    assert np.array_equal(read(f"{tmp_path}/out.zarr"), labels) == says
