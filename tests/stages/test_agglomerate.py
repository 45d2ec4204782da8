"""`ffn agglomerate`, `merge` and `sweep`: two halves of a tube are joined, two tubes are not."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

from ffn.assembly.merge_graph import MergeEdge, read_graph
from ffn.cli import main
from ffn.geometry import Box, add
from ffn.io.open import open_volume
from ffn.io.store_names import MAIN
from ffn.io.volume import Placement

from ..jobs import Killed
from ..volumes import create_volumes, write_volume
from .conftest import tube_image, write_bright_model

BOX = Box((100, 20, 3), (132, 54, 63))
SIZE = (10.0, 10.0, 10.0)
FIRST, SECOND, OTHER = 4, 9, 11  # the halves of one tube, and its neighbour
STARTS = (4, 18)
ROWS = (
    (SECOND, FIRST, 96, 24, 24, 250),
    (OTHER, FIRST, 96, 24, 0, 120),
    (OTHER, FIRST, 96, 24, 24, 100),
    (OTHER, SECOND, 96, 24, 24, 10),
)


def truth():
    labels = np.zeros(BOX.shape, np.uint64)
    for body, start in enumerate(STARTS, 1):
        labels[start : start + 10, start : start + 10] = body
    return labels


@pytest.fixture(scope="module")
def material(tmp_path_factory):
    """A base segmentation with one tube in two halves, and a network that follows bright voxels."""
    folder, labels = tmp_path_factory.mktemp("agglomerate"), truth()
    write_bright_model(folder / "model")
    base = np.where(labels == 1, FIRST, np.where(labels == 2, OTHER, 0)).astype(np.uint64)
    base[(labels == 1) & (np.arange(BOX.shape[2]) >= 29)] = SECOND
    placement = Placement(BOX, SIZE)
    for name, voxels in (("raw", tube_image(BOX.shape, STARTS)), ("truth", labels)):
        write_volume(f"{folder}/{name}.h5:{name}", voxels, placement)
    dtypes = {MAIN: np.uint64}
    with create_volumes(folder / "base.zarr", dtypes, placement, {"overlaps": np.array(ROWS)}) as writers:
        writers[MAIN].write(BOX, base)
    return folder


@pytest.fixture
def scene(material, tmp_path):
    """A copy, which a test may change."""
    return shutil.copytree(material, tmp_path / "scene")


@pytest.fixture(scope="module")
def whole(material):
    """The graph by one job without further options."""
    code, graph = agglomerate(material)
    assert code == 0
    return graph


def agglomerate(folder, *options, name="graph"):
    inputs = ["--segmentation", f"{folder}/base.zarr", "--image", f"{folder}/raw.h5:raw"]
    limits = ["--window-radius", "8", "8", "14", "--precision", "float32", "--max-fovs", "none"]
    if "--min-overlap-depth" not in options:
        limits += ["--min-overlap-depth", "0"]
    out = f"{folder}/{name}" if name.endswith("/") else f"{folder}/{name}.csv"
    code = main(["agglomerate", *inputs, "--model", f"{folder}/model", *limits, *options, "--out", out])
    return code, Path(out)


def test_halves_are_joined_and_neighbours_are_not(scene, whole):
    edges = {(e.segment_a, e.segment_b): e for e in read_graph(whole)}
    assert set(edges) == {(FIRST, SECOND), (FIRST, OTHER)}  # the third pair overlaps by too little
    assert edges[FIRST, SECOND].score > 0.9 and edges[FIRST, OTHER].score == 0
    assert edges[FIRST, SECOND].evidence.recovered_ab > 0.3 and edges[FIRST, SECOND].overlap_voxels == 250
    assert edges[FIRST, SECOND].x in (3 + 28, 3 + 29)

    base, out = f"{scene}/base.zarr", f"{scene}/agglomerated.zarr"
    assert main(["merge", str(whole), "--segmentation", base, "--out", out]) == 0
    with open_volume(out) as volume:
        labels = volume.read()
    body = truth()
    assert (labels[body == 1] == FIRST).all() and (labels[body == 2] == OTHER).all() and not labels[body == 0].any()

    sweep = ["sweep", str(whole), "--segmentation", base, "--truth", f"{scene}/truth.h5:truth"]
    assert main([*sweep, "--out", f"{scene}/sweep.json"]) == 0
    rows = json.loads((scene / "sweep.json").read_text())["sweep"]["foreground"]
    assert rows[0]["num_merges"] == 0 and rows[0]["voi_split"] > 0.4 and rows[0]["voi_merge"] == 0
    assert rows[-1]["num_merges"] == 1 and rows[-1]["voi"] == pytest.approx(0, abs=1e-9)
    assert [row["threshold"] for row in rows] == sorted((row["threshold"] for row in rows), reverse=True)


def test_no_fov_is_centred_beside_displaced_sections(scene):
    jumps = np.array([(z, *BOX.start[1:], *BOX.stop[1:], 0, 15) for z in range(BOX.start[0] + 1, BOX.stop[0])])
    write_volume(f"{scene}/jumps.zarr", tube_image(BOX.shape, STARTS), Placement(BOX, SIZE), {"jumps": jumps})
    code, graph = agglomerate(scene, "--image", f"{scene}/jumps.zarr")
    assert code == 0 and read_graph(graph)
    assert {(edge.evidence.fovs_a, edge.evidence.fovs_b) for edge in read_graph(graph)} == {(0, 0)}


def test_larger_steps_take_fewer_fovs(scene, whole):
    num_fovs, best = {}, agglomerate(scene, "--effort", "best", name="best")[1]
    for number, graph in enumerate((best, whole, agglomerate(scene, "--deltas", "2", "2", "3")[1])):
        edges = read_graph(graph)
        assert [edge.score > 0.9 for edge in edges] == [True, False]
        num_fovs[number] = sum(edge.evidence.fovs_a + edge.evidence.fovs_b for edge in edges)
    assert num_fovs[0] > num_fovs[1] > num_fovs[2]


def pairs_of(edges):
    return {(edge.segment_a, edge.segment_b) for edge in edges}


def test_boxes_that_tile_the_volume_pass_the_same_pairs(scene, whole):
    """Borders cut the contact of FIRST and OTHER, which is shallow."""
    depths = {(e.segment_a, e.segment_b): e.overlap_voxels / e.contact_faces for e in read_graph(whole)}
    limit = ("--min-overlap-depth", str(1.5 * depths[FIRST, OTHER]), "--max-fovs", "1")
    deep = read_graph(agglomerate(scene, *limit, name="deep")[1])
    parts = ("--box", "100:132,20:54,3:63", "--job-size", "32", "16", "15", *limit)
    agglomerate(scene, *parts, name="parts/")
    found = [edge for graph in (scene / "parts").glob("*.csv") for edge in read_graph(graph)]
    assert pairs_of(found) == pairs_of(deep) == {(FIRST, SECOND)}


def test_a_folder_gets_a_graph_of_each_part(scene, whole):
    parts = ("--box", "100:132,20:54,3:63", "--job-size", "32", "16", "15")
    for job in ("2-of-2", "1-of-2"):
        assert agglomerate(scene, *parts, "--job", job, name="parts/")[0] == 0
    graphs = sorted((scene / "parts").glob("*.csv"))
    assert len(graphs) == 3 * 4
    found = [edge for graph in graphs for edge in read_graph(graph)]
    assert sorted(edge.row() for edge in found) == sorted(edge.row() for edge in read_graph(whole))
    graphs[3].unlink()
    states = [graph.stat().st_mtime_ns for graph in graphs if graph.exists()]
    assert agglomerate(scene, *parts, name="parts/")[0] == 0
    assert [graph.stat().st_mtime_ns for graph in graphs if graph != graphs[3]] == states and graphs[3].exists()


@pytest.fixture
def killed(scene, monkeypatch):
    """Return a function that starts a job and kills it after its first edge; it returns the file that is left."""

    def start(*options):
        row, judged = MergeEdge.row, []

        def until_killed(edge):
            if judged:
                raise Killed
            judged.append(edge)
            return row(edge)

        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(MergeEdge, "row", until_killed)
            agglomerate(scene, *options)
        return scene / "graph.csv.partial"

    return start


def test_a_killed_job_resumes_where_it_stopped(scene, whole, killed, caplog):
    partial = killed()
    with partial.open("ab") as file:
        file.write(b"4,9,0.")  # killed while the second edge was written
    with caplog.at_level("INFO"):
        code, graph = agglomerate(scene)
    assert code == 0 and "resuming after 1 " in caplog.text
    edges = read_graph(graph)
    assert edges == read_graph(whole) and len(edges) == 2 and not partial.exists()


def test_a_partial_graph_of_other_steps_or_another_image_box_is_not_resumed(scene, killed, caplog, tubes):
    """The steps are the model's; where the image ends, windows see its mirror image."""
    killed()
    path = scene / "model/model.yaml"
    model = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**model, "model": {**model["model"], "deltas_zyx": [1, 2, 2]}}))
    with caplog.at_level("INFO"):
        assert agglomerate(scene)[0] == 0
    killed()
    larger = Box(BOX.start, add(BOX.stop, (0, 0, 9)))
    (scene / "raw.h5").unlink()
    write_volume(f"{scene}/raw.h5:raw", tubes(larger.shape, STARTS), Placement(larger, SIZE))
    with caplog.at_level("INFO"):
        assert agglomerate(scene)[0] == 0
    assert "resuming after" not in caplog.text


def test_components_that_were_one_object_are_looked_at_without_an_overlap(scene):
    with open_volume(f"{scene}/base.zarr") as volume:
        base = volume.read()
    tables = {"overlaps": np.empty((0, 6), np.int64), "components": np.array([[FIRST, FIRST], [SECOND, FIRST]])}
    with create_volumes(scene / "base.zarr", {MAIN: np.uint64}, Placement(BOX, SIZE), tables) as writers:
        writers[MAIN].write(BOX, base)
    (edge,) = read_graph(agglomerate(scene)[1])
    assert (edge.segment_a, edge.segment_b, edge.overlap_voxels) == (FIRST, SECOND, 0) and edge.score > 0.9


@pytest.mark.parametrize("out", ["s3://bucket/graph.csv", "s3://bucket/parts/"])
def test_a_graph_at_an_address_is_refused(scene, capsys, monkeypatch, out):
    """It was written to a folder with the name of the address."""
    monkeypatch.chdir(scene)
    before = sorted(scene.iterdir())
    inputs = ["--segmentation", f"{scene}/base.zarr", "--image", f"{scene}/raw.h5:raw"]
    assert main(["agglomerate", *inputs, "--model", f"{scene}/model", "--out", out]) == 2
    assert out in capsys.readouterr().err
    assert sorted(scene.iterdir()) == before


def test_nothing_is_decided_in_a_mask_and_no_object_enters_one(scene, whole):
    code, graph = agglomerate(scene, "--masks", f"#box=100:132,20:54,{3 + 26}:{3 + 32}")
    assert code == 0
    assert {(e.segment_a, e.segment_b) for e in read_graph(graph)} == {(FIRST, OTHER)}
    halves = []
    for graph in (whole, agglomerate(scene, "--masks", "#box=100:132,20:54,35:63", name="half")[1]):
        edges = {(e.segment_a, e.segment_b): e for e in read_graph(graph)}
        halves.append(edges[FIRST, SECOND].evidence)
    free, masked = halves
    assert (free.voxels_b, masked.voxels_b) == (11 * 100, 3 * 100)  # where FOVs are centred; of that outside the mask
    assert masked.fovs_a < 0.6 * free.fovs_a and masked.recovered_ab > 0.3
