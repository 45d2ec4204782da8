"""The queue of places to look at: of a graph and an export, with the answers so far."""

import csv
from dataclasses import replace

import neuroglancer
import numpy as np
import pytest

from ffn.assembly.contacts import Contact
from ffn.assembly.given import Correction, CorrectionError, corrections_text, known_corrections, write_cuts
from ffn.assembly.merge_graph import Evidence, MergeEdge, header
from ffn.viewing.asking import asked
from ffn.viewing.config import ExportConfig
from ffn.viewing.corrections import STATUS
from ffn.viewing.export import export
from ffn.viewing.inputs import Sources
from ffn.viewing.queue import COLOURS, ENDS, Place, Queue, QueueInputs, places_text, write_confirmed
from ffn.viewing.state import load_state

from ..volumes import read, write

START = (20, -10, 300)
SIZE_NM = (20.0, 10.0, 10.0)


@pytest.fixture
def inputs(tmp_path):
    """A neurite in pieces 1, 2 and 3 along x, of which the first two were joined, beside neurite 4; 5 ends inside."""
    labels = np.zeros((20, 50, 90), np.uint64)
    for segment, x in ((1, 0), (2, 30), (3, 60)):
        labels[4:12, 5:15, x : x + 30] = segment
    labels[4:12, 17:30, :], labels[4:12, 35:45, 20:60] = 4, 5
    claims = np.array([[1, 4, 12, -24, 312, 5], [2, 3, 24, 0, 360, 40], [3, 4, 24, 0, 360, 30], [4, 5, 24, 24, 330, 3]])
    base = write(tmp_path / "base.zarr", labels, START, SIZE_NM, {"overlaps": claims})
    joined = np.where(labels == 2, 1, labels)
    joined[4:12, 17:30, 85:] = 1  # by affinities
    merged = write(tmp_path / "merged.zarr", joined, START, SIZE_NM)
    image = write(tmp_path / "raw.zarr", (100 + labels * 20).astype(np.uint8), START, SIZE_NM)
    evidence = Evidence(90, 80, 4.5, 3.5, 1, 1, 30, 40, 0.9, 0.8, 0.9, 0.9, 0.9, 0.8, 0.0, 0.0, 0.1)
    one = MergeEdge.of(Contact(1, 2, (28, 0, 329), 130.25, 40, 500), evidence, 0.9)
    (tmp_path / "graph.csv").write_text(f"{header({})}{one.row()}\n")
    (tmp_path / "mapping.csv").write_text("base_id,group_id\n1,1\n2,1\n")
    sources = Sources(image, merged, supervoxels=base)
    export(sources, tmp_path / "out", ExportConfig(min_mesh_voxels=100))
    paths = {"segmentation": base, "graphs": [f"{tmp_path}/graph.csv"], "mapping": f"{tmp_path}/mapping.csv"}
    return QueueInputs(export=tmp_path / "out", answers=(f"{tmp_path}/ann.csv", f"{tmp_path}/ben.csv"), **paths)


def pairs(places):
    return {place.pair: place for place in places if place.pair}


def test_every_contact_and_suspicious_object_is_a_place(inputs):
    places = Queue(inputs).places()
    found = pairs(places)
    assert {pair: place.kind for pair, place in found.items()} == {
        (1, 2): "joined",
        (2, 3): "apart",
        (1, 4): "apart",
        (3, 4): "apart",
        (4, 5): "apart",
    }
    assert found[2, 3].ends_zyx == ((24, -5, 359), (24, -5, 360)) and found[2, 3].sides == ([1, 2], [3])
    assert found[1, 2].sides == ([1], [2]) and found[1, 2].um3 == pytest.approx(8 * 10 * 30 * 2e-6)
    assert [place.sides[0] for place in places if place.kind == ENDS] == [[5]]
    assert places == sorted(places, key=lambda place: -place.wrong * place.um3) and len(Queue(inputs).places(2)) == 2
    rows = list(csv.DictReader(places_text(places).splitlines()))
    assert rows[0]["name"] == "queue-001"
    row = next(row for row in rows if (row["segment_a"], row["segment_b"]) == ("2", "3"))
    assert (row["kind"], row["z_a"], row["y_a"], row["x_b"]) == ("apart", "24", "-5", "360")


def join_by_affinities(inputs, tmp_path):
    """Make 5 a part of 4 in the filled volume alone."""
    merged = read(tmp_path / "merged.zarr")
    filled = write(tmp_path / "filled.zarr", np.where(merged == 5, 4, merged), START, SIZE_NM)
    export(Sources(f"{tmp_path}/raw.zarr", filled, supervoxels=inputs.segmentation), inputs.export, ExportConfig())


def test_what_affinities_have_joined_is_joined_and_likelier(inputs, tmp_path):
    join_by_affinities(inputs, tmp_path)
    before, after = (pairs(Queue(replace(inputs, has_affinities=each)).places()) for each in (False, True))
    assert [(each[4, 5].kind, each[2, 3].kind) for each in (before, after)] == [("apart", "apart"), ("joined", "apart")]
    assert after[4, 5].wrong < 1 - before[4, 5].wrong and after[2, 3].wrong < before[2, 3].wrong
    answer(inputs.answers[0], after[4, 5], False)
    assert (4, 5) not in pairs(Queue(replace(inputs, has_affinities=True)).places())


def answer(path, place, is_same):
    with open(path, "w") as file:
        file.write(corrections_text([place.correction(is_same)]))


def test_answers_of_several_people_settle_places(inputs):
    found = pairs(Queue(inputs).places())
    answer(inputs.answers[0], found[2, 3], True)
    answer(inputs.answers[1], found[1, 4], False)
    left = Queue(inputs)
    assert left.answers == {(2, 3): True, (1, 4): False}
    assert set(pairs(left.places())) == {(1, 2), (4, 5)}  # 3 is of the same object as 1, which is not 4
    answer(inputs.answers[1], found[2, 3], False)
    with pytest.raises(CorrectionError, match="ann.csv"):
        Queue(inputs)


def test_an_object_without_a_doubtful_contact_becomes_labels(inputs, tmp_path, monkeypatch):
    monkeypatch.setattr("ffn.viewing.queue.DOUBT", 0.03)
    found = pairs(Queue(inputs).places())
    with pytest.raises(CorrectionError, match="no object"):
        write_confirmed(inputs, [], tmp_path / "labels.zarr")
    lines = [found[1, 2].correction(True), found[2, 3].correction(False), found[1, 4].correction(False)]
    (tmp_path / "ann.csv").write_text(corrections_text(lines))
    queue = Queue(inputs)
    assert (3, 4) in pairs(queue.places()) and queue.confirmed() == {1}
    box = write_confirmed(inputs, [], tmp_path / "labels.zarr")
    labels = read(tmp_path / "labels.zarr").astype(np.int64)
    assert box.start == START and set(np.unique(labels)) == {-1, 0, 1}
    assert (labels[4:12, 5:15, :60] == 1).all() and (labels == 1).sum() == 8 * 10 * 60
    assert (labels[4:12, 5:15, 60] == -1).all() and (labels[4:12, 5:15, 61:] == 0).all()  # the border of 3 is not known
    assert (labels[4:12, 17:30, :85] == 0).all() and (labels[4:12, 15:30, 85:] == -1).all()
    join_by_affinities(inputs, tmp_path)
    write_confirmed(inputs, [5], tmp_path / "labels.zarr")
    labels = read(tmp_path / "labels.zarr").astype(np.int64)
    assert (labels[4:12, 35:45, 20:60] == 5).all() and (labels[4:12, 17:30, :85] == -1).all() and (labels == 0).any()


@pytest.mark.parametrize("other", [-1, 0, 77, 2**64])
def test_other_ids_are_no_objects(inputs, tmp_path, other):
    with pytest.raises(CorrectionError, match=f"no object {other},"):
        write_confirmed(inputs, [1, other], tmp_path / "labels.zarr")


def test_answers_are_applied_before_they_become_labels(inputs):
    answer(inputs.answers[0], pairs(Queue(inputs).places())[2, 3], True)
    with pytest.raises(CorrectionError, match="mapping.csv"):
        Queue(inputs).confirmed()


def test_a_place_is_shown_with_both_sides_in_colour(inputs):
    queue = Queue(inputs)
    place = pairs(queue.places())[2, 3]
    state = queue.state(load_state(inputs.export), place)
    layers = {layer["name"]: layer for layer in state["layers"]}
    assert [name for name, layer in layers.items() if layer["visible"]] == ["image", "supervoxels"]
    shown = layers["supervoxels"]
    assert shown["segments"] == ["1", "2", "3"] and shown["equivalences"] == [["1", "2"]]
    assert shown["segmentColors"] == {"1": COLOURS[0], "2": COLOURS[0], "3": COLOURS[1]}
    assert state["position"] == [359.5, -4.5, 24.5]
    whole = Place(ENDS, 0.8, 1.0, 0.0, (24, 30, 340), ([5], []))
    layers = queue.state(load_state(inputs.export), whole)["layers"]
    assert [layer["segments"] for layer in layers if layer["name"] == "supervoxels"] == [["5"]]


@pytest.fixture
def shown(inputs, tmp_path):
    """A viewer that asks, a function that presses keys in it, and the file of answers."""
    neuroglancer.set_server_bind_address("127.0.0.1", 0)
    viewer, path = neuroglancer.Viewer(), tmp_path / "ann.csv"

    def press(name):
        viewer.actions.invoke(f"ffn-{name}", None)

    with asked(viewer, "http://h", Queue(inputs), path, load_state(inputs.export)):
        yield viewer, press, path


def selected(viewer):
    state = viewer.state.to_json()
    return next(layer for layer in state["layers"] if layer["name"] == "supervoxels")["segments"]


def test_keys_answer_skip_and_go_back(shown):
    viewer, press, path = shown
    asked_first = selected(viewer)
    press("skip")
    asked_second = selected(viewer)
    assert known_corrections(path) == [] and asked_second != asked_first
    for name in ("same", "different") * 6:
        press(name)
    lines = known_corrections(path)
    assert len(lines) == len(set(lines)) > 1
    press("back")
    assert known_corrections(path) == lines[:-1]
    path.unlink()
    press("same" if lines[-1].action == "join" else "different")
    assert known_corrections(path) == lines  # those of this session
    path.unlink()
    press("back")
    assert known_corrections(path) == lines[:-1]
    for _ in range(14):
        press("back")
    assert known_corrections(path) == [] and selected(viewer) == asked_first


def test_when_all_is_answered_the_last_two_have_one_colour(shown):
    viewer, press, path = shown
    for _ in range(9):
        press("same")
    layer = next(each for each in viewer.state.to_json()["layers"] if each["name"] == "supervoxels")
    assert layer["equivalences"] == [layer["segments"]] and not layer.get("segmentColors")
    assert {line.action for line in known_corrections(path)} == {"join"}


def test_answers_of_others_in_the_same_file_stay_and_failures_are_told(shown):
    viewer, press, path = shown
    while not known_corrections(path):
        press("same")
    other = known_corrections(path)[0]._replace(action="separate")
    path.write_text(corrections_text([other]))
    press("back")
    assert known_corrections(path) == [other]
    path.write_text("nothing")
    for _ in range(9):
        press("same")
    assert path.read_text() == "nothing" and "ann.csv" in viewer.config_state.state.status_messages[STATUS]


def test_answers_and_labels_of_a_run_with_a_cut(inputs, tmp_path, monkeypatch):
    monkeypatch.setattr("ffn.viewing.queue.DOUBT", 2)
    near, far, beside = (24, 10, 305), (24, 10, 385), (24, 0, 385)  # in 4, 4 and 3
    lines = [Correction(*each) for each in (("cut", near, far), ("join", far, beside), ("separate", near, beside))]
    (tmp_path / "ann.csv").write_text(corrections_text(lines))
    rows = [[24 + z, 7 + y, 350, 40, 4, 10**15] for z in range(8) for y in range(13)]
    rows += [[38, 30, 310, 40, 0, 10**15 + 7]]  # traced
    write_cuts(tmp_path / "cuts.csv", np.array(rows), {})
    (tmp_path / "mapping.csv").write_text(f"base_id,group_id\n1,1\n2,1\n3,3\n{10**15},3\n")
    inputs = replace(inputs, cuts=str(tmp_path / "cuts.csv"))
    write_confirmed(inputs, [], tmp_path / "labels.zarr")
    labels = read(tmp_path / "labels.zarr")
    lines.append(Correction("join", (38, 30, 320), beside))
    (tmp_path / "ann.csv").write_text(corrections_text(lines))
    assert Queue(inputs).answers == {(3, 4): False}
    assert (labels[4:12, 17:30, :50] == 4).all() and (labels[4:12, 17:30, 50:] == 3).all()
