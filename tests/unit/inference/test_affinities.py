"""Affinities are learnt from bodies; neither parts nor boxes change what is predicted; fragments stay in bodies."""

import numpy as np
import pytest

from ffn.cli import main
from ffn.geometry import Box
from ffn.inference.affinities import NEAR, REACH, Sections, around, displaced, fragment, network, predict
from ffn.io.masks import NO_MASKS
from ffn.io.open import open_volume
from ffn.io.section_faults import JUMPS
from ffn.io.volume import IGNORED
from ffn.training.affinities import Source, affinities_of, crop_of, example

from ..volumes import read, write

THICK, CUBES = (40.0, 10.0, 10.0), (10.0, 10.0, 10.0)


def two_bodies():
    """Return bodies 7 and 9 with dark borders."""
    labels = np.zeros((8, 24, 40), np.uint64)
    labels[:, 1:23, 1:19], labels[:, 1:23, 21:39] = 7, 9
    return labels


def test_bodies_that_touch_are_apart_and_ignored_voxels_unknown():
    labels = np.repeat(np.array([1, 2, IGNORED], np.uint64), [4, 4, 2]) * np.ones((2, 4, 1), np.uint64)
    wanted, known = affinities_of(labels)
    assert wanted[1, 2, 2:7, 2].tolist() == [1, 0, 0, 0, 1]  # inner voxels of 1, then of 2
    assert known[1, 2].tolist() == [0, 0, 1, 1, 1, 1, 1, 0, 0, 0]  # neither at the rim nor beside ignored voxels
    assert not known[1, [0, 1, 3]].any()


def test_an_example_is_mirrored_and_transposed_with_its_bodies(tmp_path):
    body, box, rng = np.zeros((8, 24, 24), np.uint64), Box.from_shape((8, 24, 24)), np.random.default_rng(0)
    body[1:4, 2:14, 3:18] = 7
    paths = [write(tmp_path / f"{n}.zarr", (n * body).astype(dtype)) for n, dtype in ((20, np.uint8), (1, np.uint64))]
    with open_volume(paths[0]) as image, open_volume(paths[1]) as labels:
        source, starts = Source(Sections(image, box), labels, NO_MASKS, box, crop_of(box, "a")), set()
        for seen, wanted, known in (example(source, rng) for _ in range(60)):
            inner = (wanted[..., 2] == 1) & (known == 1)
            assert (seen[inner, NEAR] > 0.5).all()
            starts |= {tuple(np.argwhere(inner)[0])} if inner.any() else set()
    assert len(starts) == 8


@pytest.mark.parametrize("width", [40, 25])  # of a part, which may end before the middle of the second body
@pytest.mark.parametrize("size", [THICK, CUBES])
def test_fragments_lie_in_bodies(size, width):
    labels, box, part = two_bodies(), Box.from_shape((8, 24, 40), (3, 5, 7)), Box.from_shape((8, 24, width), (3, 5, 7))
    affinities = np.moveaxis(np.rint(255 * affinities_of(labels)[0]).astype(np.uint8), -1, 0)
    found, labels = fragment(affinities, box, part, part, size), labels[..., :width]
    assert found.all()
    for one in np.unique(found[labels > 0]):
        assert len(np.unique(labels[(found == one) & (labels > 0)])) == 1
    ids, first = np.unique(found, return_index=True)
    assert np.array_equal(ids, 1 + first)  # so ids of parts never collide
    assert (found[3] == found[4]).any() == (size == CUBES)


def test_affinities_end_at_displaced_sections():
    jumps = np.array([[4, 0, 0, 9, 99, 3, 0]])
    found = displaced(jumps, Box((3, 5, 5), (6, 12, 12)))
    assert found[1, :4].all() and found.sum() == 4 * 7


def test_fragments_end_at_displaced_sections(tmp_path, monkeypatch):
    monkeypatch.setattr("ffn.inference.affinities.load", lambda path, size: None)
    bright = "ffn.inference.affinities.predict"
    monkeypatch.setattr(bright, lambda net, seen: np.tile(255 * (seen[NEAR:-NEAR] > 0), (3, 1, 1, 1)).astype(np.uint8))
    (tmp_path / "network.h5").write_bytes(b"")
    jumps = {JUMPS: np.array([[104, 0, 0, 24, 40, 9, 9]])}
    voxels = np.where(two_bodies() > 0, 180, 60).astype(np.uint8)
    image = write(tmp_path / "image.zarr", voxels, (100, 0, 0), CUBES, jumps)
    words = ["affinities", "--image", image, "--network", f"{tmp_path}/network.h5", "--out", f"{tmp_path}/out.zarr"]
    assert main(words) == 0
    found = read(f"{tmp_path}/out.zarr/fragments")
    assert np.isin(found[:3], found[3]).all() and not np.isin(found[:4], found[4:]).any()


@pytest.mark.tensorflow
def test_neither_parts_nor_boxes_change_predictions(tmp_path):
    import keras

    keras.utils.set_random_seed(3)
    net, shape = network(), (9, 2 * REACH + 40, 2 * REACH + 56)
    image = np.random.default_rng(0).integers(0, 255, shape).astype(np.uint8)
    spec = write(tmp_path / "image.zarr", image, (0, 0, 0), THICK)
    with open_volume(spec) as volume:
        box, part = volume.box, Box((4, 64, 56), (6, 80, 88))
        sections = Sections(volume, box)
        whole = predict(net, sections.read(around(box, box, THICK).grow((NEAR, 0, 0))))
        outer = around(part, box, THICK)
        near = predict(net, sections.read(outer.grow((NEAR, 0, 0))))
    seen = near[(slice(None), *part.slices(outer.start))].astype(int)
    expected = whole[(slice(None), *part.slices(around(box, box, THICK).start))]
    assert np.abs(seen - expected).max() <= 1 and len(np.unique(expected)) > 5


@pytest.mark.slow
@pytest.mark.tensorflow
def test_bodies_are_found_by_what_was_learnt(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("ffn.training.affinities.CROP", 40)
    labels = np.tile(two_bodies(), (2, 2, 2))
    noise = np.random.default_rng(0).normal(0, 10, labels.shape)
    image = write(tmp_path / "image.zarr", (np.where(labels > 0, 180, 60) + noise).astype(np.uint8), (0, 0, 0), THICK)
    truth = write(tmp_path / "labels.zarr", labels, (0, 0, 0), THICK)
    empty = write(tmp_path / "empty.zarr", np.zeros_like(labels), (0, 0, 0), THICK)
    first, second, out, filled = (f"{tmp_path}/{name}" for name in ("a.h5", "b.h5", "out.zarr", "filled.zarr"))
    learn = ["learn-affinities", "--volume", f"a={image},{truth},0:16,0:48,0:80", "--max-steps"]
    assert main([*learn, "40", "--out", first]) == main([*learn, "0", "--network", first, "--out", second]) == 0
    assert main([*learn, "0", "--out", first]) == 2
    assert main(["affinities", "--image", image, "--network", second, "--out", out]) == 0
    assert main(["fill", "--segmentation", empty, "--image", image, "--affinities", out, "--out", filled]) == 0
    found = read(filled)
    bodies = [found[4, 12 + y, 10 + x] for y in (0, 24) for x in (0, 20, 40, 60)]
    assert len(set(bodies)) == 8 and all(found[10, 12, 10 + x] == found[4, 12, 10 + x] for x in (0, 20, 40, 60))
    other = write(tmp_path / "other.zarr", read(image), (0, 0, 0), CUBES)
    assert main(["affinities", "--image", other, "--network", first, "--out", f"{tmp_path}/b.zarr"]) == 0
    assert "10 × 10 × 10 nm" in caplog.text  # other voxels are told
