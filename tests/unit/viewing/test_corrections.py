"""Lines that people draw in Neuroglancer are kept in a file of corrections."""

import shutil
import time

import neuroglancer
import numpy as np
import pytest
import zarr

from ffn.assembly.given import Correction, corrections_text, read_corrections
from ffn.viewing.corrections import STATUS, Drawing, End, corrections_in, ends_in, with_corrections

CORRECTIONS = [Correction("join", (1, 2, 3), (4, -5, 6)), Correction("separate", (7, 8, 9), (0, 0, 0))]
EMPTY = {"layers": [{"type": "image", "name": "image", "source": "precomputed://http://h/image"}]}


def listening(viewer, path, trials=None):
    """Draw in a volume whose segments are 10 voxels wide along x, and supervoxels 5; the first 10 are background."""

    def end_at(voxel_zyx, segment):
        x = voxel_zyx[2]
        return End(voxel_zyx, segment or x // 10, x // 5) if x >= 10 else None

    if path.parent.is_dir():
        path.write_text(corrections_text(corrections_in(viewer.shared_state.raw_state)))
    return Drawing(viewer, path, end_at, trials).listening()


@pytest.fixture
def viewer():
    neuroglancer.set_server_bind_address("127.0.0.1", 0)
    viewer = neuroglancer.Viewer()
    viewer.set_state(with_corrections(EMPTY, CORRECTIONS[:1]))
    return viewer


def test_lines_are_drawn_at_the_middle_of_voxels_and_read_back():
    state = with_corrections(EMPTY, CORRECTIONS)
    assert [layer["name"] for layer in state["layers"]] == ["image", "join", "separate", "cut", "trace"]
    assert state["layers"][1]["annotations"][0]["pointA"] == [3.5, 2.5, 1.5]
    assert corrections_in(state) == CORRECTIONS


def test_a_change_is_kept_at_once(viewer, tmp_path):
    path = tmp_path / "corrections.csv"
    with listening(viewer, path):
        assert read_corrections(path) == CORRECTIONS[:1]
        written = path.stat().st_mtime_ns
        viewer.set_state({**viewer.state.to_json(), "position": [1, 2, 3]})
        assert path.stat().st_mtime_ns == written  # nothing was drawn
        viewer.set_state(with_corrections(EMPTY, CORRECTIONS))
        assert read_corrections(path) == CORRECTIONS
        viewer.set_state(with_corrections(EMPTY, CORRECTIONS[1:]))
        assert read_corrections(path) == CORRECTIONS[1:]


def test_a_deleted_file_gets_all_lines_that_are_shown(viewer, tmp_path):
    path = tmp_path / "corrections.csv"
    with listening(viewer, path):
        path.unlink()
        viewer.set_state(with_corrections(EMPTY, CORRECTIONS))
        assert read_corrections(path) == CORRECTIONS


def test_a_layer_that_is_closed_removes_nothing(viewer, tmp_path):
    path = tmp_path / "corrections.csv"
    with listening(viewer, path):
        viewer.set_state(with_corrections(EMPTY, CORRECTIONS))
        viewer.set_state(EMPTY)
    assert read_corrections(path) == CORRECTIONS


def test_a_place_that_cannot_be_written_is_an_error_before_anything_is_drawn(viewer, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError), listening(viewer, tmp_path / "file/corrections.csv"):
        pytest.fail("drawing would be lost")


def test_a_failed_write_is_logged_and_made_good_by_the_next_change(viewer, tmp_path, monkeypatch, caplog):
    path = tmp_path / "corrections.csv"
    with listening(viewer, path):
        with monkeypatch.context() as full:
            full.setattr("ffn.viewing.corrections.atomic.write_text", fail)
            viewer.set_state(with_corrections(EMPTY, CORRECTIONS[1:]))
        assert f"{path}: " in caplog.text
        viewer.set_state(with_corrections(EMPTY, CORRECTIONS))
    assert read_corrections(path) == CORRECTIONS


def test_the_lines_of_another_program_stay_and_other_texts_are_not_overwritten(viewer, tmp_path, caplog):
    """A second viewer, or an editor, has the same file."""
    path, theirs = tmp_path / "corrections.csv", Correction("join", (9, 9, 9), (1, 1, 1))
    with listening(viewer, path):
        path.write_text(path.read_text() + f"{theirs}\n")
        viewer.set_state(with_corrections(EMPTY, CORRECTIONS))
        assert read_corrections(path) == [CORRECTIONS[0], theirs, CORRECTIONS[1]]
        viewer.set_state(with_corrections(EMPTY, CORRECTIONS[1:]))
        assert read_corrections(path) == [theirs, CORRECTIONS[1]]
        path.write_text("notes")
        viewer.set_state(with_corrections(EMPTY, CORRECTIONS))
        assert path.read_text() == "notes" and f"{path}: " in caplog.text


@pytest.fixture
def export(tmp_path):
    """Two objects that touch at y = 10, and what they were before their gaps were filled."""
    labels = np.full((9, 20, 30), 2**53 + 1, np.uint64)
    labels[:, 10:] = 2**53
    base = labels - np.uint64(2**53 - 1)
    base[:, 8:13] = 0
    labels[:, :8, 20:24], labels[:, :8, 24:] = 2**53, 9  # which affinities took from the first
    zarr.create_array(tmp_path / "segmentation", data=labels)
    zarr.create_array(tmp_path / "supervoxels", data=base)
    return tmp_path


def test_a_click_on_a_surface_ends_in_the_segment_that_was_clicked_on(export):
    a, b = 2**53 + 1, 2**53
    with ends_in(export) as end_at:
        assert end_at((4, 10, 6), a) == ((4, 7, 6), a, 2) and end_at((4, 9, 6), b) == ((4, 13, 6), b, 1)
        assert end_at((4, 19, 6), a) is None and end_at((4, 12, 6), 0) == ((4, 13, 6), b, 1), "the nearest, if any"
        assert end_at((4, 7, 23), b) == ((4, 13, 23), b, 1) and end_at((4, 7, 25), 9) is None, "its own supervoxel"


def test_without_supervoxels_the_segmentation_alone_counts(export):
    shutil.rmtree(export / "supervoxels")
    with ends_in(export) as end_at:
        assert end_at((4, 10, 6), 2**53 + 1).voxel_zyx == (4, 9, 6)


LABELS = {"type": "segmentation", "name": "segmentation", "source": "precomputed://http://h/segmentation"}


@pytest.fixture
def drawing(viewer, tmp_path):
    """Functions that click with ctrl at some x and take back, what is shown then, and the file of corrections."""
    viewer.set_state(with_corrections({"layers": [LABELS]}, []))

    def click(*places, layer="join"):
        for x in places:
            clicked = {"viewerState": {"selectedLayer": {"layer": layer, "visible": True}}, "selectedValues": {}}
            viewer.actions.invoke("ffn-end", clicked if x is None else {**clicked, "mousePosition": [x, 1, 1]})

    def shown(colours=None):
        """Wait for the colours, which follow the lines, and return what is told."""
        while colours is not None and viewer.shared_state.raw_state["layers"][0].get("equivalences", []) != colours:
            time.sleep(0.01)
        return viewer.config_state.state.status_messages[STATUS]

    with listening(viewer, tmp_path / "c.csv"):
        yield click, lambda: viewer.actions.invoke("ffn-back", {}), shown, tmp_path / "c.csv"


def test_a_join_has_one_colour_until_it_is_taken_back(drawing):
    click, back, shown, path = drawing
    click(12, 25, 25, 31)
    assert "2 + 3" in shown([["1", "2"], ["2", "3"]])
    assert read_corrections(path) == [("join", (1, 1, 12), (1, 1, 25)), ("join", (1, 1, 25), (1, 1, 31))]
    back()
    shown([["1", "2"]])
    assert len(read_corrections(path)) == 1
    back()
    shown([])
    back()
    assert read_corrections(path) == []


def test_a_line_that_was_deleted_is_not_taken_back_again(drawing, viewer):
    click, back, shown, path = drawing
    click(12, 25, 25, 31)
    shown([["1", "2"], ["2", "3"]])
    state = viewer.shared_state.raw_state
    layers = [{**each, "annotations": each.get("annotations", [])[:1]} for each in state["layers"]]
    viewer.set_state({**state, "layers": layers})
    back()
    shown([])
    assert read_corrections(path) == []


def test_a_line_needs_two_segments(drawing):
    """A click on background, in 2D or beside all meshes, is none; one that was taken back does not count."""
    click, back, shown, path = drawing
    click(None, 3)
    before = shown()
    click(12)
    assert shown() != before
    click(17)  # another supervoxel of the same segment
    assert "segment 1" in shown() and read_corrections(path) == []
    click(12, layer="separate")
    back()
    click(11, 14, layer="separate")
    assert "supervoxel 2" in shown() and read_corrections(path) == []
    click(11, 11, layer="cut")
    assert read_corrections(path) == []
    click(11, 17, layer="separate")
    assert read_corrections(path) == [("separate", (1, 1, 11), (1, 1, 17))]


class Tried(list):
    """Trials that are only noted: lines that begin, and whether each was kept."""

    def begin(self, line, kept):
        self.append((line.action, len(kept)))

    def end(self, keeps):
        self.append(keeps)


def test_what_the_network_decides_is_drawn_once_it_is_kept(viewer, tmp_path):
    path, tried = tmp_path / "c.csv", Tried()
    viewer.set_state(with_corrections({"layers": [LABELS]}, []))

    def act(name, layer="", *places):
        for x in places or [None]:
            clicked = {"viewerState": {"selectedLayer": {"layer": layer, "visible": True}}, "selectedValues": {}}
            viewer.actions.invoke(name, clicked if x is None else {**clicked, "mousePosition": [x, 1, 1]})

    with listening(viewer, path, tried):
        act("ffn-end", "trace", 12)  # there is a segment
        act("ffn-end", "trace", 3)
        act("ffn-back")
        assert tried == [("trace", 0), False] and read_corrections(path) == []
        act("ffn-end", "trace", 4)
        act("ffn-keep")
        assert read_corrections(path) == [("trace", (1, 1, 4), (1, 1, 4))]
        act("ffn-end", "cut", 11, 14, 21, 24)  # another one discards the first
        act("ffn-keep")
        act("ffn-keep")
        assert tried[2:] == [("trace", 0), True, ("cut", 1), False, ("cut", 1), True]
        assert read_corrections(path)[1:] == [("cut", (1, 1, 21), (1, 1, 24))]
        act("ffn-back")
    assert tried[-1] is False, "nor is its picture left"


def fail(*_):
    raise OSError("no space")
