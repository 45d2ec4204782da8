"""An agglomeration graph is applied to supervoxels, which stay as they are."""

import numpy as np
import pytest

from ffn.assembly.config import MergeConfig
from ffn.assembly.given import Correction, GraphInputs, corrections_text
from ffn.assembly.merge import merge
from ffn.assembly.merge_graph import MergeGraphError
from ffn.cli import main
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


def test_a_huge_group_is_named(base, tmp_path, caplog):
    graph, out = write_graph(tmp_path / "graph.csv", edge(5, 9, 0.6), edge(3, 8, 0.4)), str(tmp_path / "out.zarr")
    merge(GraphInputs(segmentation=base, graphs=[graph]), out, CONFIG)
    share = np.isin(BASE, (5, 9)).sum() / (BASE > 0).sum()
    assert f"out.zarr: group 5 has 2 segments and {100 * share:.0f} %" in caplog.text


def test_a_graph_of_another_segmentation_is_refused(base, tmp_path):
    graph = write_graph(tmp_path / "graph.csv", edge(5, 77, 0.9))
    with pytest.raises(MergeGraphError, match="base.zarr: lacks segment 77"):
        merge(GraphInputs(segmentation=base, graphs=[graph]), str(tmp_path / "out.zarr"), CONFIG)
    assert not (tmp_path / "out.zarr/zarr.json").exists()


def test_jobs_and_kills_do_not_show(base, tmp_path, monkeypatch):
    monkeypatch.setattr("ffn.io.shards.CHUNK", 4)
    monkeypatch.setattr("ffn.io.shards.MAX_SHARD", 8)
    graphs = [write_graph(tmp_path / "a.csv", edge(5, 9, 0.6)), write_graph(tmp_path / "b.csv", edge(3, 8, 0.4))]

    def run(folder, *job):
        tables = ["--mapping", f"{folder}/map.csv"]
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
