"""Skeletons in the middle of their neurites, whole across blocks; read by cloud-volume, and as SWC by others."""

import csv
import json

import numpy as np
import osteoid
import pytest

from ffn.evaluation.skeletonize import read_skeletons
from ffn.geometry import Box
from ffn.io.coarser import Scale
from ffn.viewing import skeletons
from ffn.viewing.config import ExportConfig
from ffn.viewing.export import export
from ffn.viewing.precomputed import LABELS
from ffn.viewing.skeletons import RADIUS, write_swc

from .conftest import write_skeletons, write_volume

SIZE_NM = (40.0, 20.0, 10.0)
BOX = Box((11, -7, 300), (11 + 16, -7 + 40, 300 + 150))
BIG = 2**63 + 11
RADIUS_NM = 120.0


def two_tubes():
    """Round neurites along x, 240 nm thick, that end 100 nm before the volume does."""
    z, y, x = np.indices(BOX.shape)
    labels = np.zeros(BOX.shape, np.uint64)
    for segment_id, centre in ((5, 10), (BIG, 28)):
        inside = ((z - 8) * 40.0) ** 2 + ((y - centre) * 20.0) ** 2 < RADIUS_NM**2
        labels[inside & (x >= 10) & (x < 140)] = segment_id
    return labels


@pytest.fixture
def read_skeleton(tmp_path, cloud_volume):
    """Write the tubes and their skeletons, and return a function that reads one with cloud-volume."""
    scale, labels = Scale(BOX, SIZE_NM), two_tubes()
    write_volume(tmp_path / "a", LABELS, [scale], lambda block: labels[block.slices(BOX.start)])

    def read(segment_id):
        write_skeletons(tmp_path / "a", 0, scale, [5, BIG, 99], [7])
        return cloud_volume(f"file://{tmp_path}/a", progress=False).skeleton.get(segment_id)

    return read


@pytest.mark.parametrize(("segment_id", "centre"), [(5, 10), (BIG, 28)])
def test_a_skeleton_reaches_both_ends_of_its_neurite(read_skeleton, segment_id, centre, tmp_path):
    skeleton = read_skeleton(segment_id)
    x, y, z = skeleton.vertices.T
    assert x.min() == 3105 and x.max() == 4395, "centres of the first and the last voxel"
    assert np.median(z) == (11 + 8.5) * 40 and np.median(y) == (-7 + centre + 0.5) * 20
    assert np.median(skeleton.radii) == pytest.approx(RADIUS_NM, abs=20)
    assert len(skeleton.edges) == len(skeleton.vertices) - 1
    assert json.loads((tmp_path / "a/skeletons/info").read_text())["vertex_attributes"] == [RADIUS]


def test_blocks_are_joined_into_one_tree(read_skeleton, monkeypatch):
    """A skeleton may end 300 nm plus 1.5 radii early, as a branch may."""
    monkeypatch.setattr(skeletons, "BLOCK_ZYX", (256, 256, 47))
    skeleton = read_skeleton(5)
    x = skeleton.vertices[:, 0]
    assert x.min() <= 3105 + 480 and x.max() >= 4395 - 480
    assert len(skeleton.components()) == 1 and len(skeleton.edges) == len(skeleton.vertices) - 1
    assert skeleton.cable_length() == pytest.approx(np.ptp(x), abs=300)


@pytest.mark.parametrize("segment_id", [99, 7])
def test_segments_too_small_have_an_empty_skeleton(read_skeleton, segment_id):
    assert len(read_skeleton(segment_id).vertices) == 0


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
    return osteoid.Skeleton(nodes[:, ::-1], edges, np.array([1, 1, 1, 40, 2, 3, 4], np.float32), segid=owner)


def test_a_file_has_positions_radii_and_unit(tmp_path):
    write_swc(tmp_path / "swc", 2**63 + 5, star())
    header, nodes = parse(tmp_path / f"swc/{2**63 + 5}.swc")
    assert list(nodes) == [*range(1, 7)]
    assert {node[:4] for node in nodes.values()} >= {(0, 0, 7.25, 40), (0, 5, 90, 3), (9, 0, 0, 1)}
    assert all(node[4] == -1 or node[4] < number for number, node in nodes.items())
    meta = next(json.loads(line[7:]) for line in header if line.startswith("# Meta:"))  # as navis finds it
    assert meta == {"name": str(2**63 + 5), "id": 2**63 + 5, "units": "1 nanometer"}


def test_an_export_writes_the_skeletons_that_are_scored_again(tmp_path, sources):
    export(sources, tmp_path / "out", ExportConfig(swc=True))
    layer = tmp_path / "out/segmentation"
    assert {path.name for path in (layer / "swc").iterdir()} == {"4.swc", "9.swc"}, "the speck has no skeleton"
    assert not (tmp_path / "out/truth/swc").exists()
    ours = read_skeletons(layer / "swc")
    with (tmp_path / "out/segmentation.csv").open() as file:
        lengths_um = [float(row["length_um"]) for row in csv.DictReader(file)]
    assert len(np.unique(ours.owners)) == 2
    assert ours.edge_lengths_nm().sum() / 1000 == pytest.approx(sum(lengths_um), rel=1e-3)
