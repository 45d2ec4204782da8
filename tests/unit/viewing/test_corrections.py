"""What people draw in Neuroglancer is kept in a file of corrections."""

import neuroglancer
import pytest

from ffn.assembly.corrections import Correction, read_corrections
from ffn.viewing.corrections import corrections_in, kept, with_corrections

CORRECTIONS = [Correction("join", (1, 2, 3), (4, -5, 6)), Correction("separate", (7, 8, 9), (0, 0, 0))]
EMPTY = {"layers": [{"type": "image", "name": "image", "source": "precomputed://http://h/image"}]}


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
    with kept(viewer, path):
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
    with kept(viewer, path):
        viewer.set_state(with_corrections(EMPTY, CORRECTIONS))
        viewer.set_state(EMPTY)
    assert read_corrections(path) == CORRECTIONS


def test_a_place_that_cannot_be_written_is_an_error_before_anything_is_drawn(viewer, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError), kept(viewer, tmp_path / "file/corrections.csv"):
        pytest.fail("drawing would be lost")


def test_what_cannot_be_written_later_is_said_and_kept_with_the_next_change(viewer, tmp_path, monkeypatch, caplog):
    path = tmp_path / "corrections.csv"
    with kept(viewer, path):
        with monkeypatch.context() as full:
            full.setattr("ffn.viewing.corrections.atomic.write_text", fail)
            viewer.set_state(with_corrections(EMPTY, CORRECTIONS[1:]))
        assert "what was drawn is not kept (no space)" in caplog.text
        viewer.set_state(with_corrections(EMPTY, CORRECTIONS))
    assert read_corrections(path) == CORRECTIONS


def fail(*_):
    raise OSError("no space")
