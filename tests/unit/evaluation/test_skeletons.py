"""Skeletons are read from every format, and their error-free paths are measured."""

import dataclasses

import numpy as np
import pytest

from ffn.errors import EvaluationError
from ffn.evaluation.skeletonize import expected_run_length, join, read_skeletons
from ffn.geometry import Box
from ffn.io import hdf5

from .conftest import TUBE_SIZE_NM, line


def test_cropping_keeps_the_edges_inside(two):
    inside = two.crop(Box((0, 0, 10), (40, 1, 30)), TUBE_SIZE_NM)  # x from 200 to 600 nm, body 1 alone
    assert set(inside.owners.tolist()) == {1}
    assert inside.edge_lengths_nm().tolist() == pytest.approx([100.0] * (len(inside.owners) - 1))


def write_swc(folder, found):
    folder.mkdir()
    for owner in np.unique(found.owners):
        nodes = found.nodes_zyx_nm[found.owners == owner]
        rows = [f"{i + 1} 0 {x} {y} {z} 1 {i if i else -1}" for i, (z, y, x) in enumerate(nodes.tolist())]
        (folder / f"{owner}.swc").write_text("# written by a test\n" + "\n".join(rows) + "\n")


def test_skeletons_in_micrometres_or_another_hdf5_file_are_refused(tmp_path, two):
    write_swc(tmp_path / "nm", two)
    write_swc(tmp_path / "um", dataclasses.replace(two, nodes_zyx_nm=two.nodes_zyx_nm / 1000))
    assert len(read_skeletons(tmp_path / "nm", (10, 10, 10)).edges)
    with pytest.raises(EvaluationError, match="um: .* nm"):
        read_skeletons(tmp_path / "um", (10, 10, 10))
    hdf5.write_arrays(tmp_path / "s.h5", {"edges": np.zeros((1, 2))}, {})
    with pytest.raises(EvaluationError, match="s.h5: .*nodes_zyx_nm"):
        read_skeletons(tmp_path / "s.h5")


@pytest.mark.parametrize("kind", ["swc", "file"])
def test_every_format_is_read(tmp_path, two, kind):
    path = tmp_path / kind
    if kind == "swc":
        write_swc(path, two)
    else:
        two.write(path, {})
    read = read_skeletons(path)
    assert np.allclose(read.nodes_zyx_nm, two.nodes_zyx_nm)
    assert np.array_equal(np.sort(read.edges), two.edges) and np.array_equal(read.owners, two.owners)
    if kind == "swc":
        (path / "2.swc").rename(path / "2.SWC").write_text((path / "2.SWC").read_text().replace(" -1\n", " 0\n"))
        assert read_skeletons(path / "2.SWC").edge_lengths_nm().sum() == pytest.approx(500)
        assert len(read_skeletons(path).edges) == len(two.edges)


def swc(text):
    """Return a function that writes a folder with one SWC file."""
    return lambda path: path.mkdir() or (path / "a.swc").write_text(text)


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda p: p.mkdir(), "s: "),
        (swc("1 0 1 2 3 1 -1\n2 0 nan 2 3 1 1\n"), "a.swc"),
        (swc("1 0 1 2 3 1 -1\n2 0 1 2 4 1 root\n"), "a.swc: .*root"),
        (swc("1 0 1 2 3 1 9\n"), "a.swc: parent 9"),
        (lambda p: None, "s: "),
    ],
)
def test_bad_skeletons_are_an_error_of_one_line(tmp_path, prepare, message):
    prepare(tmp_path / "s")
    with pytest.raises(EvaluationError, match=message) as error:
        read_skeletons(tmp_path / "s")
    assert "\n" not in str(error.value)


def erl_of(skeletons, segments, tolerance_nm=0.0):
    return expected_run_length(skeletons, np.array(segments, np.uint64), tolerance_nm)


def test_a_split_or_a_hole_shortens_the_run_of_the_truth(two):
    result = erl_of(two, [7] * 11 + [8] * 6)
    assert result["erl_nm"] == result["erl_truth_nm"] == pytest.approx((1000**2 + 500**2) / 1500)
    assert result["nerl"] == 1 and result["num_skeletons"] == 2 and result["length_nm"] == pytest.approx(1500)
    assert result["shares"] == {"correct": 1, "split": 0, "omitted": 0, "merged": 0}
    result = erl_of(two, [7] * 6 + [9] * 5 + [8] * 6)
    assert result["erl_nm"] == pytest.approx((500**2 + 400**2 + 500**2) / 1500)
    assert result["shares"]["split"] == pytest.approx(100 / 1500)
    result = erl_of(two, [7] * 5 + [0] + [7] * 5 + [8] * 6)
    assert result["erl_nm"] == pytest.approx((800**2 + 500**2) / 1500)  # one segment on both sides: one run
    assert result["shares"]["omitted"] == pytest.approx(200 / 1500)


def test_one_merged_node_costs_the_whole_segment(two):
    segments = [7] * 11 + [8] * 5 + [7]
    result = erl_of(two, segments)
    assert result["erl_nm"] == pytest.approx(400**2 / 1500)
    assert result["shares"]["merged"] == pytest.approx(1000 / 1500)
    tolerant = erl_of(two, segments, tolerance_nm=50)
    assert tolerant["erl_nm"] == pytest.approx((1000**2 + 400**2) / 1500)
    assert erl_of(two, [7] * 17, tolerance_nm=400)["erl_nm"] == erl_of(two, [7] * 17)["nerl"] == 0
    assert erl_of(two, [7] * 17, tolerance_nm=600)["nerl"] == 1  # the short one is within the tolerance


def brute_force(skeletons, segments):
    """The definition, edge by edge and skeleton by skeleton."""
    touched = {}
    for segment, owner in zip(segments.tolist(), skeletons.owners.tolist(), strict=True):
        touched.setdefault(segment, set()).add(owner)
    total, weighted = 0.0, 0.0
    for owner in set(skeletons.owners.tolist()):
        length, runs = 0.0, {}
        for (u, v), edge in zip(skeletons.edges.tolist(), skeletons.edge_lengths_nm().tolist(), strict=True):
            if skeletons.owners[u] == owner:
                length += edge
                if segments[u] == segments[v] != 0 and len(touched[int(segments[u])]) == 1:
                    runs[int(segments[u])] = runs.get(int(segments[u]), 0) + edge
        total += length
        weighted += length * sum(run**2 for run in runs.values()) / length
    return weighted / total


@pytest.mark.parametrize("seed", range(5))
def test_the_run_length_agrees_with_the_definition(seed):
    rng = np.random.default_rng(seed)
    skeletons = join([line(owner, int(rng.integers(2, 30)), float(rng.uniform(10, 90))) for owner in range(1, 8)])
    segments = (
        skeletons.owners * 3 + rng.choice([0, 1, 2, 7], len(skeletons.owners), p=[0.6, 0.2, 0.17, 0.03])
    ).astype(np.uint64)
    segments[rng.random(len(segments)) < 0.1] = 0
    assert erl_of(skeletons, segments)["erl_nm"] == pytest.approx(brute_force(skeletons, segments))
