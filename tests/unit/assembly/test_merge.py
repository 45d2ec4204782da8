"""A merge graph is applied to a base segmentation, which stays as it is."""

import numpy as np
import pytest

from ffn.assembly.contacts import Contact
from ffn.assembly.merge import merge
from ffn.assembly.merge_graph import MergeEdge, MergeGraphError, header
from ffn.assembly.resegment import Evidence
from ffn.config import MergeConfig
from ffn.errors import VolumeError
from ffn.io.open import open_volume

from ..volumes import write

BASE = np.array([0, 3, 3, 5, 8, 9], np.uint64).reshape(1, 2, 3).repeat(4, 2)
CONFIG = MergeConfig(threshold=0.5, block_size_zyx=(1, 1, 5))


def edge(a, b, score):
    evidence = Evidence(90, 80, 4.5, 3.5, 1, 2, 3, 4, 0.9, 0.8, 0.7, 0.95, score, 0.5, 0.25, 0.0, 0.125)
    return MergeEdge.of(Contact(a, b, (1, 2, 3), 130.25, 40, 500), evidence, score)


@pytest.fixture
def base(tmp_path):
    return write(tmp_path / "base.h5", BASE, (4, -2, 7), (40.0, 10.0, 10.0))


def write_graph(path, *edges):
    path.write_text(header({}) + "".join(f"{e.row()}\n" for e in edges))
    return str(path)


def test_joined_segments_get_one_id_and_the_mapping_lists_them(base, tmp_path):
    graphs = [write_graph(tmp_path / "a.csv", edge(5, 9, 0.6)), write_graph(tmp_path / "b.csv", edge(3, 8, 0.4))]
    out, before = str(tmp_path / "out.h5:labels"), (tmp_path / "base.h5").read_bytes()
    merge(base, graphs, out, str(tmp_path / "map.csv"), CONFIG)
    with open_volume(out) as volume:
        assert (volume.box.start, volume.voxel_size_zyx_nm) == ((4, -2, 7), (40.0, 10.0, 10.0))
        assert np.array_equal(volume.read(), np.where(BASE == 9, 5, BASE))
        assert volume.provenance["stage"] == "merge" and volume.provenance["config"]["threshold"] == 0.5
    assert (tmp_path / "map.csv").read_text() == "base_id,group_id\n5,5\n9,5\n"
    assert (tmp_path / "base.h5").read_bytes() == before


def test_the_largest_groups_are_listed_and_a_huge_one_is_named(base, tmp_path, caplog):
    graph, out = write_graph(tmp_path / "graph.csv", edge(5, 9, 0.6)), str(tmp_path / "out.h5:labels")
    merge(base, [graph], out, None, CONFIG, str(tmp_path / "groups.csv"))
    size, total = np.isin(BASE, (5, 9)).sum(), (BASE > 0).sum()
    rows = (tmp_path / "groups.csv").read_text().splitlines()
    assert rows == ["group_id,segments,voxels,share", f"5,2,{size},{size / total:.4f}"]
    assert ("out.h5:labels: group 5 has 2 segments and" in caplog.text) == (size / total > 0.2)


def test_a_graph_of_another_segmentation_is_refused(base, tmp_path):
    graph = write_graph(tmp_path / "graph.csv", edge(5, 77, 0.9))
    with pytest.raises(MergeGraphError, match="base.h5:base: lacks segment 77, expected all that the graph joins"):
        merge(base, [graph], str(tmp_path / "out.h5:labels"), None, CONFIG)
    assert not (tmp_path / "out.h5").exists()


@pytest.mark.parametrize(("out", "mapping"), [("base.h5:other", None), ("out.h5:labels", "graph.csv")])
def test_inputs_are_not_overwritten(base, tmp_path, out, mapping):
    graph = write_graph(tmp_path / "graph.csv", edge(5, 9, 0.9))
    with pytest.raises(VolumeError, match="is the file of the input"):
        merge(base, [graph], str(tmp_path / out), mapping and str(tmp_path / mapping), CONFIG)
