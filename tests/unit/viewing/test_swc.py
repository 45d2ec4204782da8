"""SWC as others read it: a parser of our own, osteoid's (which is cloud-volume's), and ffn evaluate."""

import json
import warnings

import numpy as np
import pytest

from ffn.cli import main
from ffn.evaluation.skeletons import Skeleton, read_skeletons
from ffn.viewing.config import ExportConfig
from ffn.viewing.export import export
from ffn.viewing.swc import trees, write_swc


def parse(path):
    """Return the header, and {node: (x, y, z, radius, parent)} in the order of the file."""
    lines = path.read_text().splitlines()
    header = [line for line in lines if line.startswith("#")]
    rows = [line.split() for line in lines[len(header) :]]
    assert all(len(row) == 7 and row[1] == "0" for row in rows)
    return header, {int(row[0]): (*map(float, row[2:6]), int(row[6])) for row in rows}


def star(owner=2**63 + 5):
    """Return a loop with a twig, thickest at its end, a part of two nodes, and a node alone."""
    nodes = np.array([[0, 0, 0], [0, 0, 9], [0, 8, 0], [7.25, 0, 0], [90, 0, 0], [90, 5, 0], [500, 1, 2]], np.float32)
    edges = np.array([[0, 1], [1, 2], [2, 0], [0, 3], [5, 4]])
    return Skeleton(owner, nodes, edges, np.array([1, 1, 1, 40, 2, 3, 4], np.float32))


def test_a_killed_job_leaves_no_half_of_a_file(tmp_path, monkeypatch):
    path = tmp_path / f"{star().owner}.swc"
    write_swc(tmp_path, star())
    whole = path.read_text()

    def killed(*_):
        assert path.read_text() == whole
        raise KeyboardInterrupt

    monkeypatch.setattr(json, "dumps", killed)
    with pytest.raises(KeyboardInterrupt):
        write_swc(tmp_path, star())
    assert [file.read_text() for file in tmp_path.iterdir()] == [whole]


def test_parents_come_before_their_children_in_trees_of_the_given_edges():
    skeleton = star()
    order, parents = trees(skeleton)
    assert sorted(order.tolist()) == list(range(7))
    given = {frozenset(edge) for edge in skeleton.edges.tolist()}
    kept = {frozenset((int(node), int(order[p - 1]))) for node, p in zip(order, parents, strict=True) if p > 0}
    assert (parents <= np.arange(7)).all() and kept < given and len(kept) == 4, "only the loop was opened"
    assert set(order[parents == -1].tolist()) == {3, 5, 6}, "the thickest node of each part"


def test_a_file_has_positions_radii_and_unit(tmp_path):
    write_swc(tmp_path / "swc", star())
    header, nodes = parse(tmp_path / f"swc/{2**63 + 5}.swc")
    assert list(nodes) == [*range(1, 8)]
    assert {node[:4] for node in nodes.values()} >= {(0, 0, 7.25, 40), (2, 1, 500, 4), (9, 0, 0, 1)}
    assert "nm from the origin of the full volume" in header[0]
    meta = next(json.loads(line[7:]) for line in header if line.startswith("# Meta:"))  # as navis finds it
    assert meta == {"name": str(2**63 + 5), "id": 2**63 + 5, "units": "1 nanometer"}


def test_cloud_volume_reads_the_trees(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from cloudvolume import Skeleton as CloudSkeleton
    write_swc(tmp_path / "swc", star(7))
    found = CloudSkeleton.from_swc((tmp_path / "swc/7.swc").read_text())
    assert len(found.vertices) == 7 and len(found.edges) == 4
    assert sorted(len(part.vertices) for part in found.components()) == [2, 4]  # it leaves out the node alone
    assert found.radii.max() == 40 and found.vertices.max(0).tolist() == [9, 8, 500]


def test_an_export_writes_the_skeletons_that_are_scored_again(tmp_path, sources):
    export(sources, tmp_path / "out", ExportConfig(formats=("precomputed", "swc")))
    layer = tmp_path / "out/segmentation"
    assert {path.name for path in (layer / "swc").iterdir()} == {"4.swc", "9.swc"}, "the speck has no skeleton"
    assert not (tmp_path / "out/truth/swc").exists()
    ours, binary = read_skeletons(layer / "swc"), read_skeletons(layer / "skeletons")
    assert set(ours.owners.tolist()) == {4, 9} and len(ours.edges) == len(binary.edges)
    assert ours.edge_lengths_nm().sum() == pytest.approx(binary.edge_lengths_nm().sum(), rel=1e-3)
    for path in (layer / "swc").iterdir():
        _, nodes = parse(path)
        assert all(parent < node for node, (*_, parent) in nodes.items())
        assert all(node[3] > 0 for node in nodes.values())


def test_swc_without_skeletons_is_refused(tmp_path, capsys):
    given = ["--formats", "precomputed", "swc", "--skeleton-mip", "none", "--out", f"{tmp_path}/out"]
    assert main(["export", *given]) == 2
    assert (
        "formats: has swc, but skeleton_mip is null, so there are no skeletons. Give a mip" in capsys.readouterr().err
    )
