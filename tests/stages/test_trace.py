"""Traces and cuts: what `ffn cut` writes of them, and their pictures in a viewer before they are kept."""

import neuroglancer
import numpy as np
import pytest

from ffn.assembly import cut as cutting
from ffn.assembly.config import Agglomeration
from ffn.assembly.given import Correction, corrections_text, read_cuts
from ffn.cli import main
from ffn.geometry import Box, add, zyx
from ffn.inference.inputs import AgglomerateInputs
from ffn.io.volume import Placement
from ffn.viewing.trials import TrialInputs, Trials

from ..volumes import contents, write_volume

IMAGE = Box((100, 20, 3), (140, 60, 63))
BOX = Box((104, 24, 7), (136, 58, 60))
SEED, TAKEN = (112, 32, 20), 50  # in the first tube; from this x on it is a segment already
CONFIG = {"move_threshold": 0.9, "window_radius_zyx": (6, 6, 9)}


@pytest.fixture
def scene(tmp_path, bright_model, tubes):
    """Two bright tubes. The end of one is a segment, and of the other, both halves are one with what is around."""
    image = tubes(IMAGE.shape, (8, 22))
    write_volume(f"{tmp_path}/raw.h5:raw", image, Placement(IMAGE, (10, 10, 10)))
    given = np.zeros(BOX.shape, np.uint64)
    given[4:14, 4:14, TAKEN - BOX.start[2] :] = 7
    given[18:28, 18:28] = 8
    write_volume(f"{tmp_path}/given.zarr", given, Placement(BOX, (10, 10, 10)))
    return tmp_path


def cut(folder, *lines):
    (folder / "c.csv").write_text(corrections_text(lines))
    inputs = f"--segmentation {folder}/given.zarr --image {folder}/raw.h5:raw --model {folder}/model"
    options = f"--corrections {folder}/c.csv --window-radius 6 6 9 --out {folder}/cuts.csv"
    assert main(["cut", *f"{inputs} {options}".split()]) == 0
    return read_cuts(f"{folder}/cuts.csv")


def voxels_of(rows):
    mask = np.zeros(BOX.shape, bool)
    for *place, voxels, _, _ in rows.tolist():
        mask[Box(zyx(place), add(zyx(place), (1, 1, voxels))).slices(BOX.start)] = True
    return mask


@pytest.mark.parametrize("window", [BOX, Box.around(SEED, (10, 10, 10)).moved_into(BOX)])
def test_a_trace_has_the_voxels_of_segment_from_this_seed_and_enters_no_segment(scene, monkeypatch, window):
    """Also in a window that is smaller than the object."""
    monkeypatch.setattr(cutting, "MAX_VOXELS", 21**3 if window != BOX else 2**24)
    rows = cut(scene, Correction("trace", SEED, SEED))
    inputs = f"--image {scene}/raw.h5:raw --model {scene}/model --init-segmentation {scene}/given.zarr"
    seed = ["--seed-points", ",".join(map(str, SEED)), "--min-segment-um3", "1e-8"]
    boxes = [f"--box={window}", f"--within={BOX}", "--out", f"{scene}/seg.zarr"]
    assert main(["segment", *inputs.split(), *seed, *boxes]) == 0
    file = contents(scene / "seg.zarr", "segmentation")
    expected = np.zeros(BOX.shape, bool)
    (traced,) = [segment for segment, *_, number in file["origins"].tolist() if number]
    expected[window.slices(BOX.start)] = file["segmentation"] == traced
    assert np.array_equal(voxels_of(rows), expected) and expected.sum() > 500
    assert set(rows[:, 4]) == {0} and len(set(rows[:, 5])) == 1


def test_a_second_trace_of_one_object_adds_nothing(scene):
    other = (SEED[0], SEED[1], SEED[2] + 9)
    once = cut(scene, Correction("trace", SEED, SEED))
    assert np.array_equal(once, cut(scene, Correction("trace", SEED, SEED), Correction("trace", other, other)))


@pytest.fixture
def trials(scene):
    """The trials of a viewer, and a function that waits for the last one, and returns the labels that are shown."""
    neuroglancer.set_server_bind_address("127.0.0.1", 0)
    viewer, told = neuroglancer.Viewer(), []
    viewer.set_state({"layers": [{"type": "annotation", "name": "trace"}]})
    inputs = AgglomerateInputs(f"{scene}/raw.h5:raw", f"{scene}/model", segmentation=f"{scene}/given.zarr")
    found = Trials(viewer, TrialInputs(inputs, Agglomeration(**CONFIG)), told.append)

    def shown():
        found._thread.submit(lambda: None).result()
        layers = viewer.shared_state.raw_state["layers"][1:]
        sources = {key: each.data.transpose() for key, each in viewer.volume_manager.volumes.items()}
        return [sources[layer["source"].rpartition(".")[2]] for layer in layers], told

    yield found, shown
    found.close()


def test_a_trace_is_shown_until_it_is_discarded_and_what_is_kept_is_taken(scene, trials):
    found, shown = trials
    line, other = (Correction("trace", at, at) for at in (SEED, (SEED[0], SEED[1], SEED[2] + 9)))
    found.begin(line, [])
    expected = voxels_of(cut(scene, line))
    (labels,), _ = shown()
    assert set(np.unique(labels)) <= {0, 1} and np.count_nonzero(labels) == expected.sum()
    found.end(keeps=False)
    assert shown()[0] == []
    for kept, pictures in (([line], 0), ([], 1)):
        found.begin(other, kept)
        assert len(shown()[0]) == pictures


def test_what_is_discarded_while_its_picture_is_drawn_is_not_shown(scene, trials, monkeypatch):
    found, shown = trials
    monkeypatch.setattr(found, "_tell", lambda text: found.end(keeps=False) if "k keeps" in text else None)
    found.begin(Correction("trace", SEED, SEED), [])
    assert shown()[0] == []


def test_a_trial_that_fails_after_it_was_discarded_says_nothing(trials, monkeypatch):
    found, shown = trials

    def fail(*_):
        found.end(keeps=False)
        raise OSError("gone")

    monkeypatch.setattr(found, "_found", fail)
    found.begin(Correction("trace", SEED, SEED), [])
    assert shown()[1] == []


def test_both_sides_of_a_cut_have_their_colours(trials):
    found, shown = trials
    found.begin(Correction("cut", (127, 46, 20), (127, 46, 45)), [])
    (labels,), _ = shown()
    assert set(np.unique(labels)) == {0, 1, 2}
    found.begin(Correction("cut", (127, 46, 20), (127, 46, 20)), [])
    _, told = shown()
    assert "both sides" in told[-1]
