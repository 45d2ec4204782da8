"""Dark, blurred and displaced sections of an image are found when it is brought in; sound ones are not listed."""

import numpy as np
import pytest
from scipy import ndimage

from ffn.cli import main
from ffn.io.open import read_table
from ffn.io.section_faults import JUMPS, list_of, read_faults

SHAPE = (12, 80, 150)


def tissue():
    """Return grey levels that change slowly along z."""
    noise = ndimage.gaussian_filter(np.random.default_rng(0).standard_normal(SHAPE), (3, 1.5, 1.5))
    return np.clip(120 + 30 * noise / noise.std(), 1, 255).astype(np.uint8)


def disturbed():
    """Return the same with a dark, a blurred and a displaced section."""
    image = tissue()
    image[2] //= 3
    image[4] = ndimage.gaussian_filter(image[4], 2.0)
    image[7] = np.roll(image[7], (9, -12), (0, 1))
    return image


def bring_in(folder, image, name, *words):
    np.save(folder / "raw.npy", image)
    command = ["ingest", f"{folder}/raw.npy", "--voxel-size", "10", "10", "10", "--offset", "100", "0", "0", *words]
    assert main([*command, "--out", f"{folder}/{name}.zarr"]) == 0
    return f"{folder}/{name}.zarr"


def test_faults_are_listed_with_their_sections_whose_edges_may_move(tmp_path, caplog):
    store = bring_in(tmp_path, disturbed(), "raw")
    faults = [(int(row["z"]), row["fault"]) for row in read_faults(store)]
    assert faults == [(102, "dark"), (104, "blurred"), (107, "displaced"), (108, "displaced")]
    assert "4 faults" in caplog.text
    jumps = read_table(store, JUMPS)
    assert jumps[:, :5].tolist() == [[107, 0, 0, 80, 150], [108, 0, 0, 80, 150]]
    assert np.abs(jumps[:, 5:] - [[9, -12], [-9, 12]]).max() <= 2
    image = (tissue() // 4) + np.uint8(100)
    for z, section in enumerate(image):
        section[: 20 + 15 * (z % 2), : 40 + 20 * (z % 2)] = 0
    store = bring_in(tmp_path, image, "padded", "--max-shift", "4")
    assert read_table(store, JUMPS) is None


@pytest.mark.parametrize("pieces", [1, 5])
def test_faults_do_not_depend_on_pieces(pieces, tmp_path, monkeypatch):
    expected = list_of(bring_in(tmp_path, disturbed(), "whole")).read_bytes()
    monkeypatch.setattr("ffn.io.ingest.PIECE_BYTES", pieces * 80 * 150)
    assert list_of(bring_in(tmp_path, disturbed(), "pieces")).read_bytes() == expected


@pytest.mark.parametrize(("image", "words"), [(tissue, []), (disturbed, ["--max-shift", "none"])])
def test_what_replaces_a_faulty_image_has_no_list(image, words, tmp_path):
    bring_in(tmp_path, disturbed(), "raw")
    store = bring_in(tmp_path, image(), "raw", *words)
    assert read_faults(store) == [] and read_table(store, JUMPS) is None
