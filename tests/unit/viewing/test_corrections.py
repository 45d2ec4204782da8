"""Lines that people draw in Neuroglancer are kept in a file of corrections."""

import copy
import shutil

import neuroglancer
import numpy as np
import pytest
import zarr

from ffn.assembly.given import Correction, read_corrections
from ffn.viewing.corrections import corrections_in, drawn_near, kept, with_corrections

CORRECTIONS = [Correction("join", (1, 2, 3), (4, -5, 6)), Correction("separate", (7, 8, 9), (0, 0, 0))]
EMPTY = {"layers": [{"type": "image", "name": "image", "source": "precomputed://http://h/image"}]}


def stay(voxel_zyx, segment_id):
    return voxel_zyx


@pytest.fixture
def viewer():
    neuroglancer.set_server_bind_address("127.0.0.1", 0)
    viewer = neuroglancer.Viewer()
    viewer.set_state(with_corrections(EMPTY, CORRECTIONS[:1]))
    return viewer


def test_lines_are_drawn_at_the_middle_of_voxels_and_read_back():
    state = with_corrections(EMPTY, CORRECTIONS)
    assert [layer["name"] for layer in state["layers"]] == ["image", "join", "separate"]
    assert state["layers"][1]["annotations"][0]["pointA"] == [3.5, 2.5, 1.5]
    assert corrections_in(state) == CORRECTIONS


def test_a_change_is_kept_at_once(viewer, tmp_path):
    path = tmp_path / "corrections.csv"
    with kept(viewer, path, stay):
        assert read_corrections(path) == CORRECTIONS[:1]
        path.unlink()
        viewer.set_state({**viewer.state.to_json(), "position": [1, 2, 3]})
        assert not path.exists()  # nothing was drawn
        viewer.set_state(with_corrections(EMPTY, CORRECTIONS))
        assert read_corrections(path) == CORRECTIONS
        viewer.set_state(with_corrections(EMPTY, CORRECTIONS[1:]))
        assert read_corrections(path) == CORRECTIONS[1:]


def test_a_layer_that_is_closed_removes_nothing(viewer, tmp_path):
    path = tmp_path / "corrections.csv"
    with kept(viewer, path, stay):
        viewer.set_state(with_corrections(EMPTY, CORRECTIONS))
        viewer.set_state(EMPTY)
    assert read_corrections(path) == CORRECTIONS


def test_a_place_that_cannot_be_written_is_an_error_before_anything_is_drawn(viewer, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError), kept(viewer, tmp_path / "file/corrections.csv", stay):
        pytest.fail("drawing would be lost")


def test_a_failed_write_is_logged_and_made_good_by_the_next_change(viewer, tmp_path, monkeypatch, caplog):
    path = tmp_path / "corrections.csv"
    with kept(viewer, path, stay):
        with monkeypatch.context() as full:
            full.setattr("ffn.viewing.corrections.atomic.write_text", fail)
            viewer.set_state(with_corrections(EMPTY, CORRECTIONS[1:]))
        assert f"{path}: " in caplog.text
        viewer.set_state(with_corrections(EMPTY, CORRECTIONS))
    assert read_corrections(path) == CORRECTIONS


def test_the_text_of_another_program_is_not_overwritten(viewer, tmp_path, caplog):
    """A second viewer, or an editor, has the same file."""
    path = tmp_path / "corrections.csv"
    with kept(viewer, path, stay):
        path.write_text(path.read_text() + "join,9,9,9,1,1,1\n")
        viewer.set_state(with_corrections(EMPTY, CORRECTIONS))
        assert read_corrections(path)[1:] == [("join", (9, 9, 9), (1, 1, 1))]
        assert f"{path}: was changed" in caplog.text
        path.rename(tmp_path / "theirs.csv")
        viewer.set_state(with_corrections(EMPTY, [*CORRECTIONS, CORRECTIONS[1]]))
    assert read_corrections(path) == [*CORRECTIONS, CORRECTIONS[1]]


@pytest.fixture
def export(tmp_path):
    """Two objects that touch at y = 10, and what they were before their gaps were filled."""
    labels = np.full((9, 20, 30), 2**53 + 1, np.uint64)
    labels[:, 10:] = 2**53
    base = labels // np.uint64(2**53)
    base[:, 8:13] = 0
    zarr.create_array(tmp_path / "segmentation", data=labels)
    zarr.create_array(tmp_path / "supervoxels", data=base)
    return tmp_path


def test_a_line_on_a_surface_ends_in_the_segments_that_it_was_drawn_in(export):
    a, b = 2**53 + 1, 2**53
    with drawn_near(export) as snap:
        assert snap((4, 10, 6), a) == (4, 7, 6) and snap((4, 9, 6), b) == (4, 13, 6)
        assert snap((4, 19, 6), a) == (4, 19, 6), "its segment is too far away"
        state = with_corrections(EMPTY, [Correction("join", (4, 10, 6), (4, 9, 8)), CORRECTIONS[1]])
        line = state["layers"][1]["annotations"][0]
        assert corrections_in(state, snap)[0] == ("join", (4, 10, 6), (4, 9, 8))
        line["segments"] = [[str(a), str(b)]]
        assert corrections_in(state, snap) == [("join", (4, 7, 6), (4, 13, 8)), CORRECTIONS[1]]
        line["segments"] = [[str(a)]]
        assert corrections_in(state, snap)[0] == ("join", (4, 10, 6), (4, 9, 8)), "one of the ends is in no segment"
        state["layers"][2]["annotations"] = [line]
        assert corrections_in(state, snap)[1] == ("separate", (4, 7, 6), (4, 7, 8))


def test_an_end_that_was_moved_stays_where_it_is(export, viewer, tmp_path):
    """Neuroglancer keeps the segments of the line."""
    state = with_corrections(EMPTY, [Correction("join", (4, 10, 6), (4, 9, 8))])
    line = state["layers"][1]["annotations"][0]
    line |= {"id": "new", "segments": [[str(2**53 + 1), str(2**53)]]}
    with drawn_near(export) as snap, kept(viewer, tmp_path / "c.csv", snap):
        viewer.set_state(copy.deepcopy(state))
        assert read_corrections(tmp_path / "c.csv") == [("join", (4, 7, 6), (4, 13, 8))]
        line["pointA"] = [6.5, 12.5, 4.5]
        viewer.set_state(copy.deepcopy(state))
        assert read_corrections(tmp_path / "c.csv") == [("join", (4, 12, 6), (4, 9, 8))]


def test_without_supervoxels_the_segmentation_alone_counts(export):
    shutil.rmtree(export / "supervoxels")
    with drawn_near(export) as snap:
        assert snap((4, 10, 6), 2**53 + 1) == (4, 9, 6)


def fail(*_):
    raise OSError("no space")
