"""Supervoxels are cut between points of two neurons, whatever the order of points and lines, and merge follows."""

import numpy as np
import pytest

from ffn.assembly import cut as cutting
from ffn.assembly.config import Agglomeration, MergeConfig
from ffn.assembly.cut import cut
from ffn.assembly.given import Correction, CorrectionError, GraphInputs, corrections_text
from ffn.assembly.merge import merge
from ffn.assembly.merge_graph import Evidence, MergeEdge, header
from ffn.config import ModelConfig
from ffn.inference import lanes
from ffn.inference.inputs import AgglomerateInputs
from ffn.model.store import Model

from ..networks import network_of
from ..volumes import read, write

START = (5, -3, 100)
MODEL = ModelConfig(depth=1, features=2, fov_size_zyx=(3, 3, 5), deltas_zyx=(1, 1, 2), image_mean=128, image_stddev=1)
CONFIG = Agglomeration(window_radius_zyx=(4, 5, 6), max_deleted=1)
EVIDENCE = Evidence(*[1] * 17)


class Bright:
    """A network that follows what is bright."""

    name = "bright"

    def predict(self, image, pom_logit):
        return np.where(image >= 0.5, 4.0, -4.0).astype(np.float32)


@pytest.fixture
def scene(tmp_path, monkeypatch):
    """Segment 7 is three neurites side by side, with dark faces between them; segments 2 and 4 touch the outer ones."""
    truth = np.zeros((9, 26, 60), np.uint64)
    truth[2:7, 1:9, 2:50], truth[2:7, 9:17, 10:50], truth[2:7, 17:25, 2:40] = 1, 2, 3
    truth[2:7, 1:9, 50:58], truth[2:7, 9:17, 50:58] = 12, 14
    image = np.where(truth > 0, 130, 120).astype(np.uint8)
    image[:, [8, 16]] = 127
    labels = np.select([truth == 12, truth == 14, truth > 0], [2, 4, 7], 0).astype(np.uint64)
    for name, voxels in {"image": image, "labels": labels}.items():
        write(tmp_path / f"{name}.zarr", voxels, START)
    truth[:, [8, 16]] = 0  # either side may have them
    monkeypatch.setattr(AgglomerateInputs, "network", lambda *_: network_of(Model(MODEL, {}, {}), "kernels"))
    monkeypatch.setattr(lanes, "create_engine", lambda *_, **__: Bright())
    monkeypatch.setattr(cutting, "PART_ZYX", (8, 8, 16))

    def run(*corrections):
        (tmp_path / "c.csv").write_text(corrections_text(Correction(*each) for each in corrections))
        inputs = AgglomerateInputs(f"{tmp_path}/image.zarr", "model", segmentation=f"{tmp_path}/labels.zarr")
        cut(inputs, f"{tmp_path}/c.csv", f"{tmp_path}/cuts.csv", CONFIG)
        return (tmp_path / "cuts.csv").read_text()

    return tmp_path, run, truth


def merged(folder, *edges):
    """Merge the segments with these edges (a, b, score, z, y, x)."""
    rows = [MergeEdge(*edge, 300, 50, 1.0, EVIDENCE).row() for edge in edges]
    (folder / "graph.csv").write_text(header({}) + "".join(f"{row}\n" for row in rows))
    inputs = GraphInputs(
        segmentation=f"{folder}/labels.zarr",
        graphs=[f"{folder}/graph.csv"],
        corrections=f"{folder}/c.csv",
        cuts=f"{folder}/cuts.csv",
    )
    merge(inputs, f"{folder}/merged.zarr", MergeConfig())
    return read(f"{folder}/merged.zarr")


def place(z, y, x):
    return z + START[0], y + START[1], x + START[2]


FIRST, SECOND = (place(4, 4, 30), place(4, 12, 31)), (place(4, 13, 12), place(4, 21, 13))


@pytest.mark.parametrize("lines", [[FIRST, SECOND], [SECOND, FIRST[::-1]]])
def test_order_of_lines_and_of_their_ends_changes_no_byte(scene, lines):
    folder, run, truth = scene
    text = run(*(("cut", *line) for line in lines))
    assert text == run(("cut", *FIRST), ("cut", *SECOND))
    found = merged(folder, (2, 7, 0.9, *place(4, 4, 50)), (4, 7, 0.9, *place(4, 12, 50)))
    groups = [np.unique(found[np.isin(truth, bodies)]) for bodies in ((1, 12), (2, 14), (3,))]
    assert [len(ids) for ids in groups] == [1, 1, 1] and len(np.unique(groups)) == 3
    assert np.array_equal(found > 0, read(folder / "labels.zarr") > 0)


def test_several_points_of_a_side_part_it_from_several_neurites(scene):
    folder, run, truth = scene
    text = run(("cut", FIRST[1], FIRST[0]), ("cut", place(4, 12, 29), place(4, 20, 29)))
    assert len({line.rpartition(",")[2] for line in text.splitlines()[2:]}) == 2
    found = merged(folder)
    assert [np.unique(found[truth == body]).size for body in (1, 2, 3)] == [1, 1, 1]
    assert set(found[truth == 1]) == {7}  # the largest


def test_without_the_line_the_cut_is_gone(scene):
    folder, run, _ = scene
    assert len(run(("separate", FIRST[0], place(4, 4, 55))).splitlines()) == 2
    assert np.array_equal(merged(folder), read(folder / "labels.zarr"))


def test_what_cannot_be_cut_or_was_not_is_told(scene, monkeypatch):
    """Sides that also touch beyond what a watershed can part, a place on both sides, and cuts that were not made."""
    folder, run, _ = scene
    run(("cut", *FIRST))
    monkeypatch.setattr(cutting, "MAX_VOXELS", 2000)
    for ends, named in ((FIRST, "supervoxel 7"), (FIRST[:1] * 2, "c.csv")):
        with pytest.raises(CorrectionError, match=named):
            run(("cut", *ends))
    inputs = GraphInputs(segmentation=f"{folder}/labels.zarr", graphs=[], corrections=f"{folder}/c.csv")
    with pytest.raises(CorrectionError, match="--cuts"):
        inputs.constraints()


def test_a_cut_of_two_supervoxels_separates_them(scene):
    folder, run, truth = scene
    assert len(run(("cut", FIRST[0], place(4, 4, 55))).splitlines()) == 2
    found = merged(folder, (2, 7, 0.9, *place(4, 4, 50)))
    assert set(found[truth == 12]).isdisjoint(found[truth == 1])
