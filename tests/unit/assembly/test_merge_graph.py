"""The merge graph's file, its groups, and the evidence behind its scores."""

import numpy as np
import pytest

from ffn.assembly.contacts import Contact
from ffn.assembly.merge_graph import (
    COLUMNS,
    MergeEdge,
    MergeGraphError,
    apply_groups,
    header,
    mapping_text,
    merge_groups,
    read_graph,
)
from ffn.assembly.resegment import Evidence, choose_seed, compare
from ffn.config import AgglomerateConfig
from ffn.geometry import Box


def edge(a, b, score):
    evidence = Evidence(3, 4, 0.9, 0.8, 0.7, 0.95, score, 0.5, 0.125)
    return MergeEdge.of(Contact(a, b, (1, 2, 3), 130.25, 40), 500, evidence, score)


def write(path, edges):
    path.write_text(header({"stage": "agglomerate"}) + "".join(e.row() + "\n" for e in edges))
    return path


def test_what_is_written_is_read(tmp_path):
    edges = [edge(1, 2, 0.75), edge(2**63, 2**63 + 5, 0.5)]
    assert read_graph(write(tmp_path / "graph.csv", edges)) == edges


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "starts with 'nothing', expected the columns segment_a"),
        ("a,b\n1,2\n", "starts with 'a,b', expected the columns"),
        (",".join(COLUMNS) + "\n1,2,0.5\n", r"line 2: '1,2,0.5' is not an edge .* rerun agglomerate"),
        (",".join(COLUMNS) + "\n" + edge(1, 2, 0.5).row().replace("500", "many") + "\n", "line 2: .* is not an edge"),
    ],
)
def test_a_damaged_file_is_refused_by_name(tmp_path, text, message):
    path = tmp_path / "graph.csv"
    path.write_text(text)
    with pytest.raises(MergeGraphError, match=message):
        read_graph(path)


def test_a_missing_file_is_refused_by_name(tmp_path):
    with pytest.raises(MergeGraphError, match=r"graph.csv: cannot be read .*ffn agglomerate"):
        read_graph(tmp_path / "graph.csv")


def test_groups_take_the_smallest_id_whatever_the_order_of_edges():
    edges = [edge(7, 9, 0.9), edge(3, 7, 0.6), edge(4, 5, 0.5), edge(3, 4, 0.49)]
    for order in (edges, edges[::-1]):
        base_ids, group_ids = merge_groups(order, 0.5)
        assert base_ids.tolist() == [3, 4, 5, 7, 9] and group_ids.tolist() == [3, 4, 4, 3, 3]
    assert mapping_text(base_ids.tolist(), group_ids.tolist()).splitlines()[:3] == ["base_id,group_id", "3,3", "4,4"]


def test_one_edge_of_several_between_two_segments_is_enough():
    assert merge_groups([edge(1, 2, 0.1), edge(1, 2, 0.8)], 0.5)[1].tolist() == [1, 1]


def test_no_edge_changes_nothing():
    labels = np.array([[0, 2], [9, 2]], np.uint64)
    assert (apply_groups(labels, *merge_groups([edge(2, 9, 0.4)], 0.5)) == labels).all()


def test_segments_that_were_not_joined_keep_their_ids():
    labels = np.array([0, 1, 2, 3, 10**12, 2**64 - 1], np.uint64)
    base_ids, group_ids = np.array([2, 10**12], np.uint64), np.array([2, 2], np.uint64)
    assert apply_groups(labels, base_ids, group_ids).tolist() == [0, 1, 2, 3, 2, 2**64 - 1]


def halves():
    a = np.zeros((4, 6, 10), bool)
    b = a.copy()
    a[1:3, 1:5, :5], b[1:3, 1:5, 5:] = True, True
    return a, b


def test_two_halves_of_one_object_agree():
    a, b = halves()
    evidence = compare([a, b], [a | b, a | b], [5, 6])
    assert evidence == Evidence(5, 6, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0)
    assert evidence.score(AgglomerateConfig()) == 1.0


def test_two_objects_that_stay_apart_do_not():
    a, b = halves()
    evidence = compare([a, b], [a, b], [5, 6])
    assert (evidence.recovered_ab, evidence.recovered_ba, evidence.agreement) == (0, 0, 0)
    assert evidence.score(AgglomerateConfig()) == 0.0


def test_an_object_that_left_its_own_segment_is_no_evidence():
    a, b = halves()
    evidence = compare([a, b], [b, b], [5, 6])
    assert evidence.recovered_aa == 0 and evidence.agreement == 1
    assert evidence.score(AgglomerateConfig()) == 0.0
    assert evidence.score(AgglomerateConfig(min_recovered=0)) == 1.0


def test_agreement_of_one_side_alone_counts_if_it_holds_the_smaller_object():
    a, b = halves()
    small = a & (np.arange(10) >= 2)
    evidence = compare([a, b], [small, b | small], [5, 6])
    assert evidence.agreement == 1.0 and evidence.iou == pytest.approx(24 / 64)
    assert evidence.recovered_ba == pytest.approx(0.6) and evidence.deleted == pytest.approx(16 / 80)


def test_nothing_grown_is_no_division_by_zero():
    a, b = halves()
    nothing = np.zeros_like(a)
    assert compare([a, b], [nothing, nothing], [0, 0]).score(AgglomerateConfig(min_recovered=0, min_crossing=0)) == 0


def test_the_seed_lies_deep_inside_its_side_and_near_the_contact():
    side = np.zeros((9, 9, 40), bool)
    side[1:8, 1:8, :] = True
    reach = Box((2, 2, 3), (7, 7, 37))
    z, y, x = choose_seed(side, (4, 4, 20), reach, (1.0, 1.0, 1.0))
    assert (z, y, x) == (4, 4, 20)
    assert choose_seed(side, (4, 4, 39), reach, (1.0, 1.0, 1.0)) == (4, 4, 36)
    assert choose_seed(np.zeros_like(side), (4, 4, 20), reach, (1.0, 1.0, 1.0)) is None
    assert choose_seed(side, (4, 4, 20), Box((2, 2, 3), (2, 7, 37)), (1.0, 1.0, 1.0)) is None


def test_depth_is_measured_in_the_smallest_side():
    side = np.zeros((7, 21, 21), bool)
    side[1:6, 3:18, 3:18] = True  # 5 thick sections: as deep as 15 voxels where a section is three voxels thick
    assert choose_seed(side, (3, 10, 10), Box.from_shape(side.shape), (3.0, 1.0, 1.0)) == (3, 10, 10)
