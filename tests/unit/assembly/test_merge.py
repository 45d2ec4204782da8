"""An agglomeration graph is applied to supervoxels, which stay as they are."""

import numpy as np
import pytest

from ffn.assembly.config import MergeConfig
from ffn.assembly.given import Correction, GraphInputs, corrections_text, segments_of
from ffn.assembly.merge import merge
from ffn.assembly.merge_graph import MergeGraphError
from ffn.cli import main
from ffn.contingency import ContingencyTable
from ffn.io.open import open_volume

from ...jobs import files, require_same_files
from ..volumes import read, write
from .conftest import edge, write_graph

BASE = np.array([0, 3, 3, 5, 8, 9], np.uint64).reshape(1, 2, 3).repeat(4, 2)
CONFIG = MergeConfig(threshold=0.5)


@pytest.fixture
def base(tmp_path):
    return write(tmp_path / "base.zarr", BASE, (4, -2, 7), (40.0, 10.0, 10.0))


def test_joined_segments_get_one_id_and_the_mapping_lists_them(base, tmp_path):
    graphs = [write_graph(tmp_path / "a.csv", edge(5, 9, 0.6)), write_graph(tmp_path / "b.csv", edge(3, 8, 0.4))]
    out, before = str(tmp_path / "out.zarr"), files(tmp_path / "base.zarr")
    merge(GraphInputs(segmentation=base, graphs=graphs), out, CONFIG, str(tmp_path / "map.csv"))
    with open_volume(out) as volume:
        assert (volume.box.start, volume.voxel_size_zyx_nm) == ((4, -2, 7), (40.0, 10.0, 10.0))
        assert np.array_equal(volume.read(), np.where(BASE == 9, 5, BASE))
        assert volume.provenance["stage"] == "merge" and volume.provenance["config"]["threshold"] == 0.5
    assert (tmp_path / "map.csv").read_text() == "base_id,group_id\n5,5\n9,5\n"
    assert files(tmp_path / "base.zarr") == before


def test_the_largest_groups_are_listed_and_a_huge_one_is_named(base, tmp_path, caplog):
    graph, out = write_graph(tmp_path / "graph.csv", edge(5, 9, 0.6)), str(tmp_path / "out.zarr")
    inputs = GraphInputs(segmentation=base, graphs=[graph])
    merge(inputs, out, CONFIG, groups_path=str(tmp_path / "groups.csv"))
    size, total = np.isin(BASE, (5, 9)).sum(), (BASE > 0).sum()
    rows = (tmp_path / "groups.csv").read_text().splitlines()
    assert rows == ["group_id,segments,voxels,share", f"5,2,{size},{size / total:.4f}"]
    assert ("out.zarr: group 5 has 2 segments and" in caplog.text) == (size / total > 0.2)


def test_a_graph_or_nuclei_of_another_segmentation_are_refused(base, tmp_path, capsys):
    graph = write_graph(tmp_path / "graph.csv", edge(5, 77, 0.9))
    with pytest.raises(MergeGraphError, match="base.zarr: lacks segment 77"):
        merge(GraphInputs(segmentation=base, graphs=[graph]), str(tmp_path / "out.zarr"), CONFIG)
    assert not (tmp_path / "out.zarr/zarr.json").exists()
    command = ["merge", write_graph(tmp_path / "g.csv"), "--segmentation", base, "--out", f"{tmp_path}/out.zarr"]
    elsewhere = write(tmp_path / "nuclei.zarr", np.ones((1, 1, 6), np.uint64), (9, -1, 4), (40.0, 10.0, 20.0))
    assert main([*command, "--nuclei", elsewhere]) == 2
    assert "nuclei.zarr: covers 9:10,-1:0,4:10" in capsys.readouterr().err


def test_jobs_and_kills_do_not_show(base, tmp_path, monkeypatch):
    monkeypatch.setattr("ffn.io.shards.CHUNK", 4)
    monkeypatch.setattr("ffn.io.shards.MAX_SHARD", 8)
    graphs = [write_graph(tmp_path / "a.csv", edge(5, 9, 0.6)), write_graph(tmp_path / "b.csv", edge(3, 8, 0.4))]

    def run(folder, *job):
        tables = ["--mapping", f"{folder}/map.csv", "--groups", f"{folder}/groups.csv"]
        if job[1:] == ("2-of-2",):
            (tmp_path / "b.csv").rename(tmp_path / "away.csv")  # only the mapping is made of the graphs
        out = ["--segmentation", base, "--threshold", "0.5", "--out", f"{folder}/out.zarr"]
        assert main(["merge", *graphs, *tables, *out, *job]) == 0
        if job[1:] == ("write",):
            (tmp_path / "away.csv").rename(tmp_path / "b.csv")

    require_same_files(run, tmp_path, ["mapping", "2-of-2", "1-of-2", "write"])
    assert np.array_equal(read(f"{tmp_path}/one/out.zarr"), np.where(BASE == 9, 5, BASE))


def test_corrections_are_applied_and_a_change_of_them_too(base, tmp_path):
    graph, out, path = write_graph(tmp_path / "g.csv", edge(5, 9, 0.6)), f"{tmp_path}/out.zarr", tmp_path / "c.csv"
    command = ["merge", graph, "--segmentation", base, "--threshold", "0.5", "--corrections", str(path), "--out", out]
    of_9, of_5, of_3 = (4, -1, 17), (4, -1, 8), (4, -2, 15)
    path.write_text(corrections_text([Correction("join", of_9, of_3)]))
    assert main(command) == 0
    assert np.array_equal(read(out), np.where(np.isin(BASE, (5, 9)), 3, BASE))
    path.write_text(corrections_text([Correction("join", of_9, of_3), Correction("separate", of_3, of_5)]))
    assert main(command) == 0
    assert np.array_equal(read(out), np.where(BASE == 9, 3, BASE))
    path.write_text(corrections_text([Correction("separate", of_5, of_5)]))
    assert main(command) != 0
    assert np.array_equal(read(out), np.where(BASE == 9, 3, BASE))


def write_nuclei(path, x=(4, 8, 9), ids=(100, 200, 200)):
    """Write nuclei in voxels twice as long, in a part of the volume: by default one in segment 5, one in segment 9."""
    voxels = np.zeros((1, 1, 6), np.uint64)
    voxels[0, 0, np.array(x) - 4] = ids
    return write(path, voxels, (4, -1, 4), (40.0, 10.0, 20.0))


EDGES = edge(5, 9, 0.9), edge(8, 9, 0.8), edge(5, 8, 0.6)  # join all three


def test_no_score_joins_two_nuclei(base, tmp_path):
    out = "out.zarr"
    graph, nuclei = write_graph(tmp_path / "g.csv", *EDGES), write_nuclei(tmp_path / "nuclei.zarr")
    command = ["merge", graph, "--segmentation", base, "--threshold", "0.5", "--out", f"{tmp_path}/{out}"]
    for more, expected in (
        ([], np.where(np.isin(BASE, (8, 9)), 5, BASE)),
        (["--nuclei", nuclei], np.where(BASE == 9, 8, BASE)),
    ):
        assert main([*command, *more]) == 0
        assert np.array_equal(read(f"{tmp_path}/{out}"), expected)
    with open_volume(f"{tmp_path}/{out}") as volume:
        assert volume.provenance["inputs"]["nuclei"] == nuclei
    write_nuclei(tmp_path / "nuclei.zarr", ids=(200, 200, 200))
    assert main([*command, "--nuclei", nuclei]) == 0
    assert np.array_equal(read(f"{tmp_path}/{out}"), np.where(np.isin(BASE, (8, 9)), 5, BASE))


def nucleus_of_segments(*rows):
    """Return the nucleus of each segment that has one, from triples of nucleus, segment, voxels."""
    nuclei, ids, voxels = np.array(sorted(rows), np.uint64).reshape(-1, 3).T
    return dict(segments_of(ContingencyTable(nuclei, ids, voxels.astype(np.int64))).tolist())


def test_pieces_of_a_nucleus_count_and_the_largest_names_a_segment(caplog):
    assert nucleus_of_segments((1, 7, 500), (1, 8, 300), (1, 9, 200)) == {7: 1, 8: 1}
    assert nucleus_of_segments((2**63 + 1, 2**64 - 1, 1)) == {2**64 - 1: 2**63 + 1}
    assert nucleus_of_segments((1, 7, 8000), (1, 8, 900), (2, 8, 100)) == {7: 1, 8: 2}, "a small nucleus is not lost"
    assert nucleus_of_segments() == {}
    assert nucleus_of_segments((1, 7, 100), (2, 7, 900), (3, 8, 50)) == {7: 2, 8: 3}
    assert "segment 7, which holds 2" in caplog.text
