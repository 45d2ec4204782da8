"""`ffn agglomerate`, `merge` and `sweep`: two halves of a tube are joined, two tubes are not."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from ffn.assembly import agglomerate as agglomerating
from ffn.assembly import judging
from ffn.assembly.evidence import Evidence
from ffn.assembly.merge_graph import MergeEdge, read_graph
from ffn.assembly.places import Places
from ffn.cli import main
from ffn.contingency import add_up
from ffn.geometry import Box, add
from ffn.io.create import create_volume, create_volumes
from ffn.io.open import open_volume
from ffn.io.volume import Placement
from ffn.provenance import REVISIONS, revision

from ..engines import HERE
from ..jobs import Killed

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
OTHERWISE = ("--threads", "1", "--block-size", "16", "24", "20")  # as options that keep the result


def truth():
    labels = np.zeros(BOX.shape, np.uint64)
    for body, start in enumerate(STARTS, 1):
        labels[start : start + 10, start : start + 10] = body
    return labels


@pytest.fixture
def scene(tmp_path, bright_model, tubes):
    """A base segmentation with one tube in two halves, and a network that follows bright voxels."""
    labels = truth()
    base = np.where(labels == 1, FIRST, np.where(labels == 2, OTHER, 0)).astype(np.uint64)
    base[(labels == 1) & (np.arange(BOX.shape[2]) >= 29)] = SECOND
    placement = Placement(BOX, SIZE)
    for name, voxels in (("raw", tubes(BOX.shape, STARTS)), ("truth", labels)):
        with create_volume(f"{tmp_path}/{name}.h5:{name}", voxels.dtype, placement) as writer:
            writer.write(BOX, voxels)
    dtypes = {"segmentation": np.uint64}
    with create_volumes(tmp_path / "base.h5", dtypes, placement, {"overlaps": np.array(ROWS)}) as writers:
        writers["segmentation"].write(BOX, base)
    return tmp_path


def agglomerate(folder, *options, name="graph"):
    inputs = ["--segmentation", f"{folder}/base.h5:segmentation", "--image", f"{folder}/raw.h5:raw"]
    limits = ["--window-radius", "12", "12", "20", "--precision", "float32", "--max-fovs", "none"]
    if "--min-overlap-depth" not in options:
        limits += ["--min-overlap-depth", "0"]
    out = f"{folder}/{name}" if name.endswith("/") else f"{folder}/{name}.csv"
    code = main(["agglomerate", *inputs, "--model", f"{folder}/model", *limits, *options, "--out", out])
    return code, Path(out)


def test_halves_are_joined_and_neighbours_are_not(scene):
    code, graph = agglomerate(scene)
    assert code == 0
    edges = {(e.segment_a, e.segment_b): e for e in read_graph(graph)}
    assert set(edges) == {(FIRST, SECOND), (FIRST, OTHER)}  # the third pair overlaps by too little
    assert edges[FIRST, SECOND].score > 0.9 and edges[FIRST, OTHER].score == 0
    assert edges[FIRST, SECOND].evidence.recovered_ab > 0.3 and edges[FIRST, SECOND].overlap_voxels == 250
    assert edges[FIRST, SECOND].x in (3 + 28, 3 + 29)

    base, out = f"{scene}/base.h5:segmentation", f"{scene}/agglomerated.h5:segmentation"
    before = (scene / "base.h5").read_bytes()
    assert main(["merge", str(graph), "--segmentation", base, "--out", out, "--mapping", f"{scene}/map.csv"]) == 0
    assert (scene / "base.h5").read_bytes() == before
    with open_volume(out) as volume:
        labels, record = volume.read(), volume.provenance
    body = truth()
    assert (labels[body == 1] == FIRST).all() and (labels[body == 2] == OTHER).all() and not labels[body == 0].any()
    assert record["stage"] == "merge" and record["config"]["threshold"] == 0.7
    assert (scene / "map.csv").read_text() == f"base_id,group_id\n{FIRST},{FIRST}\n{SECOND},{FIRST}\n"

    sweep = ["sweep", str(graph), "--segmentation", base, "--truth", f"{scene}/truth.h5:truth"]
    assert main([*sweep, "--out", f"{scene}/sweep.json"]) == 0
    rows = json.loads((scene / "sweep.json").read_text())["sweep"]["foreground"]
    assert rows[0]["num_merges"] == 0 and rows[0]["voi_split"] > 0.4 and rows[0]["voi_merge"] == 0
    assert rows[-1]["num_merges"] == 1 and rows[-1]["voi"] == pytest.approx(0, abs=1e-9)
    assert [row["threshold"] for row in rows] == sorted((row["threshold"] for row in rows), reverse=True)


def test_larger_steps_take_fewer_fovs(scene, capsys):
    num_fovs = {}
    for number, options in enumerate((["--effort", "best"], [], ["--deltas", "2", "2", "3"])):
        code, graph = agglomerate(scene, *options, name=f"graph{number}")
        edges = read_graph(graph)
        assert code == 0 and [edge.score > 0.9 for edge in edges] == [True, False]
        num_fovs[number] = sum(edge.evidence.fovs_a + edge.evidence.fovs_b for edge in edges)
    assert num_fovs[0] > num_fovs[1] > num_fovs[2]
    assert agglomerate(scene, "--deltas", "3", "1", "1")[0] == 2
    assert "agglomerate.deltas_zyx: 3 on axis z is not less than half the FOV (5)" in capsys.readouterr().err


OPEN = Evidence(9, 9, 2.0, 2.0, 1, 1, 5, 5, 0.9, 0.1, 0.9, 0.9, 0.8, 0.5, 0.0, 0.0, 0.0)  # only b enters a


def test_what_large_steps_leave_open_is_judged_again_in_those_of_the_model(scene, monkeypatch):
    """Of two open points, smaller steps join one; they find nothing at the other, whose score stays."""
    large, both, asked, kills = (2, 2, 3), [(FIRST, SECOND), (FIRST, OTHER)], [], [True]

    def grown(around, contacts, lanes, threads):
        is_large = around.network.model.config.deltas_zyx == large
        asked.append((is_large, [contact.pair for contact in contacts]))
        for contact in contacts:
            entered = 0.9 if contact.pair == both[0] else 0.0
            yield contact, OPEN if is_large else replace(OPEN, recovered_ab=entered, recovered_ba=entered)
            if not is_large and kills and kills.pop():
                raise Killed

    monkeypatch.setattr(judging, "resegmented", grown)
    with pytest.raises(Killed):
        agglomerate(scene, "--deltas", *map(str, large))
    assert asked == [(True, both), (False, both)]
    asked.clear()
    code, graph = agglomerate(scene, "--deltas", *map(str, large))
    assert code == 0 and asked == [(True, []), (False, both[1:])]
    assert [edge.score for edge in read_graph(graph)] == pytest.approx([0.8, 0.48])
    assert not list(scene.glob("*.partial"))
    asked.clear()
    agglomerate(scene, "--effort", "best", name="best")
    assert len(asked) == 1  # no smaller steps than these


def test_negative_ids_of_a_segmentation_are_no_segments(scene):
    expected = read_graph(agglomerate(scene)[1])
    with open_volume(f"{scene}/base.h5:segmentation") as volume:
        base = volume.read().astype(np.int32)
    (scene / "base.h5").unlink()
    tables = {"overlaps": np.array(ROWS)}
    with create_volumes(scene / "base.h5", {"segmentation": np.int32}, Placement(BOX, SIZE), tables) as writers:
        writers["segmentation"].write(BOX, np.where(base == 0, -1, base))
    assert read_graph(agglomerate(scene)[1]) == expected and len(expected) == 2


def pairs_of(edges):
    return {(edge.segment_a, edge.segment_b) for edge in edges}


BOXES = {  # borders cut the contact of FIRST and OTHER
    1: ["100:132,20:54,3:63"],
    2: ["100:132,20:54,3:18", "100:132,20:54,18:63"],
    4: ["100:132,20:36,3:18", "100:132,36:54,3:18", "100:132,20:36,18:63", "100:132,36:54,18:63"],
}


def in_boxes(folder, num, *options):
    """Return the edges of `num` jobs that tile the volume."""
    paths = [agglomerate(folder, "--box", box, *options, name=f"part{i}")[1] for i, box in enumerate(BOXES[num])]
    return [edge for path in paths for edge in read_graph(path)]


@pytest.mark.parametrize("num", BOXES)
def test_boxes_that_tile_the_volume_find_every_contact_once(num, scene):
    whole, parts = read_graph(agglomerate(scene)[1]), in_boxes(scene, num)
    assert sorted(edge.row() for edge in parts) == sorted(edge.row() for edge in whole)
    assert {(FIRST, SECOND), (FIRST, OTHER)} <= pairs_of(whole)


@pytest.mark.parametrize("num", BOXES)
def test_boxes_that_tile_the_volume_pass_the_same_pairs(num, scene):
    depths = {(e.segment_a, e.segment_b): e.overlap_voxels / e.contact_faces for e in read_graph(agglomerate(scene)[1])}
    limit = ("--min-overlap-depth", str(1.5 * depths[FIRST, OTHER]))
    whole = read_graph(agglomerate(scene, *limit, name="whole")[1])
    assert pairs_of(in_boxes(scene, num, *limit)) == pairs_of(whole) == {(FIRST, SECOND)}


def test_a_folder_gets_a_graph_of_each_part(scene, capsys):
    parts = ("--box", "100:132,20:54,3:63", "--job-size", "32", "16", "15")
    for job in ("2-of-2", "1-of-2"):
        assert agglomerate(scene, *parts, "--job", job, name="parts/")[0] == 0
    graphs = sorted((scene / "parts").glob("*.csv"))
    assert len(graphs) == 3 * 4
    whole = read_graph(agglomerate(scene)[1])
    found = [edge for graph in graphs for edge in read_graph(graph)]
    assert sorted(edge.row() for edge in found) == sorted(edge.row() for edge in whole)
    graphs[3].unlink()
    states = [graph.stat().st_mtime_ns for graph in graphs if graph.exists()]
    assert agglomerate(scene, *parts, name="parts/")[0] == 0
    assert [graph.stat().st_mtime_ns for graph in graphs if graph != graphs[3]] == states and graphs[3].exists()
    assert agglomerate(scene, "--job", "1-of-2")[0] == 2
    assert "is a file, --job-size and --job need --out FOLDER/" in capsys.readouterr().err


def test_the_graphs_of_a_folder_are_made_again_for_other_steps_of_the_model(scene):
    parts = {"name": "parts/"}
    (graph,) = agglomerate(scene, **parts)[1].glob("*.csv")
    before = graph.stat().st_mtime_ns
    assert agglomerate(scene, **parts)[0] == 0 and graph.stat().st_mtime_ns == before
    give_deltas(scene, [1, 2, 2])
    assert agglomerate(scene, **parts)[0] == 0 and graph.stat().st_mtime_ns > before


def give_deltas(scene, deltas_zyx):
    model = yaml.safe_load((scene / "model/model.yaml").read_text())
    model["model"]["deltas_zyx"] = deltas_zyx
    (scene / "model/model.yaml").write_text(yaml.safe_dump(model))


def test_parts_beyond_the_segmentation_are_left_out(scene):
    """One file for such a box is what the part inside gives, so a folder is no reason to fail after the work."""
    code, folder = agglomerate(scene, "--box", "100:164,20:54,3:63", "--job-size", "32", "34", "60", name="parts/")
    assert code == 0 and [path.name for path in folder.glob("*.csv")] == ["z000100-y000020-x000003.csv"]


@pytest.fixture
def among_many(scene):
    """Return a function that writes the scene as the first part of a long volume, with many overlaps in the others.

    It takes the function that makes the tables of the rows, and returns the number of rows near the scene.
    """
    box = Box(BOX.start, (*BOX.stop[:2], 2000))
    for name, dataset in (("base", "segmentation"), ("raw", "raw")):
        with open_volume(f"{scene}/{name}.h5:{dataset}") as volume:
            voxels = volume.read()
        (scene / f"{name}.h5").unlink()
        with create_volume(f"{scene}/{name}.h5:{dataset}", voxels.dtype, Placement(box, SIZE)) as writer:
            writer.write(BOX, voxels)
    near = np.array(ROWS)
    far = np.array([(5, 6 + k, 96, 24, x, 300) for k in range(100) for x in range(384, 1992, 24)])

    def write(tables_of):
        with open_volume(f"{scene}/base.h5:segmentation") as volume:
            voxels = volume.read()
        (scene / "base.h5").unlink()
        tables = tables_of(add_up(np.concatenate([near, far])), box)
        with create_volumes(scene / "base.h5", {"segmentation": np.uint64}, Placement(box, SIZE), tables) as writers:
            writers["segmentation"].write(box, voxels)
        return len(near)

    return write


def by_place(rows, box):
    return Places(box, SIZE).tables(rows)


def test_a_job_reads_what_concerns_its_box_of_the_overlaps_of_a_volume(scene, among_many, monkeypatch):
    """The table of a volume has no bound, and each job would read all of it."""
    read, seen = agglomerating.read_table, []

    def counted(spec, name, keep, ranges):
        return read(spec, name, lambda rows: seen.append(len(rows)) or keep(rows), ranges)

    near = among_many(by_place)
    monkeypatch.setattr(agglomerating, "read_table", counted)
    parts = ("--box", str(BOX), "--job-size", "32", "34", "30")
    assert agglomerate(scene, *parts, name="parts/")[0] == 0
    assert len(list((scene / "parts").glob("*.csv"))) == 2 and sum(seen) == 2 * near


def test_the_parts_of_a_job_read_once_what_is_not_sorted_by_place(scene, monkeypatch):
    """Each part would take time for the whole volume, and all of them for its square."""
    found, names = agglomerating.read_rows, []
    monkeypatch.setattr(agglomerating, "read_rows", lambda *args: names.append(args[1]) or found(*args))
    assert agglomerate(scene, "--job-size", "32", "34", "30", name="parts/")[0] == 0
    assert len(list((scene / "parts").glob("*.csv"))) == 2 and names == ["components"]


def test_the_order_of_the_overlaps_keeps_the_graph(scene, among_many):
    """Volumes of other versions have them in the order of their ids, and are read to the end."""
    among_many(by_place)
    sorted_by_place = agglomerate(scene, "--box", str(BOX))[1].read_bytes()
    among_many(lambda rows, box: {"overlaps": rows})
    assert agglomerate(scene, "--box", str(BOX), name="other")[1].read_bytes() == sorted_by_place
    assert len(read_graph(scene / "other.csv")) == 2


def test_only_what_is_near_the_box_stays_of_a_table_in_another_order(scene, among_many, monkeypatch):
    near, sizes, found = among_many(lambda rows, box: {"overlaps": rows}), [], agglomerating.overlap_rows
    monkeypatch.setattr(agglomerating, "overlap_rows", lambda rows: sizes.append(len(rows)) or found(rows))
    assert agglomerate(scene, "--box", str(BOX))[0] == 0 and sizes == [near]


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


@pytest.mark.parametrize("options", [(), OTHERWISE], ids=["same", "otherwise"])
def test_a_killed_job_resumes_where_it_stopped(options, scene, killed, caplog):
    whole = read_graph(agglomerate(scene, name="whole")[1])
    partial = killed()
    with partial.open("ab") as file:
        file.write(b"4,9,0.")  # killed while the second edge was written
    with caplog.at_level("INFO"):
        code, graph = agglomerate(scene, *options)
    assert code == 0 and "resuming after 1 decision points" in caplog.text
    assert read_graph(graph) == whole and not partial.exists()


@pytest.mark.parametrize("engine", [name for name in HERE if name in ("openvino", "jax")])
def test_windows_at_once_give_the_graph_of_one_after_another(engine, scene, killed, caplog):
    whole = read_graph(agglomerate(scene, "--engine", engine, name="whole")[1])
    several = ("--engine", engine, "--canvases", "2")
    killed(*several)
    with caplog.at_level("INFO"):
        assert read_graph(agglomerate(scene, *several)[1]) == whole and len(whole) == 2
    assert "resuming after 1 decision points" in caplog.text


def test_windows_that_the_memory_does_not_hold_are_one_line(scene, monkeypatch, capsys):
    pytest.importorskip("jax")
    monkeypatch.setattr("ffn.inference.device.memory.memory_mb", lambda: 0.25)
    assert agglomerate(scene, "--engine", "jax", "--canvases", "2")[0] == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("ffn: error: canvases: 2 of 27×27×44 voxels need") and "Choose 1 or auto" in said


def test_a_partial_graph_of_other_options_is_not_resumed(scene, killed, caplog):
    killed()
    with caplog.at_level("INFO"):
        assert agglomerate(scene, "--min-recovered", "0.3")[0] == 0
    assert "resuming after" not in caplog.text


def test_a_partial_graph_of_other_steps_or_another_image_box_is_not_resumed(scene, killed, caplog, tubes):
    """The steps are the model's; where the image ends, windows see its mirror image."""
    killed()
    give_deltas(scene, [1, 2, 2])
    with caplog.at_level("INFO"):
        assert agglomerate(scene)[0] == 0
    killed()
    larger = Box(BOX.start, add(BOX.stop, (0, 0, 9)))
    (scene / "raw.h5").unlink()
    with create_volume(f"{scene}/raw.h5:raw", np.uint8, Placement(larger, SIZE)) as writer:
        writer.write(larger, tubes(larger.shape, STARTS))
    with caplog.at_level("INFO"):
        assert agglomerate(scene)[0] == 0
    assert "resuming after" not in caplog.text


def test_a_partial_graph_of_another_revision_is_not_resumed(scene, killed, caplog, monkeypatch):
    killed()
    monkeypatch.setitem(REVISIONS, "agglomerate", revision("agglomerate") + 1)
    with caplog.at_level("INFO"):
        assert agglomerate(scene)[0] == 0
    assert "resuming after" not in caplog.text


def test_a_segmentation_without_overlaps_is_refused(scene, capsys):
    (scene / "base.h5").unlink()
    with create_volume(f"{scene}/base.h5:segmentation", np.uint64, Placement(BOX, SIZE)) as writer:
        writer.write(BOX, np.zeros(BOX.shape, np.uint64))
    code, out = agglomerate(scene)
    assert code == 2 and not out.exists()
    assert "has no table 'overlaps'" in capsys.readouterr().err


def test_an_image_of_another_mip_is_refused(scene, capsys):
    with create_volume(f"{scene}/raw.h5:raw", np.uint8, Placement(BOX, (5.0, 5.0, 5.0))) as writer:
        writer.write(BOX, np.zeros(BOX.shape, np.uint8))
    code, out = agglomerate(scene)
    assert code == 2 and not out.exists()
    assert "raw.h5:raw: has voxels of (5.0, 5.0, 5.0) nm, expected the (10.0, 10.0, 10.0) nm" in capsys.readouterr().err


def test_a_shallow_overlap_is_no_candidate(scene):
    depths = {(e.segment_a, e.segment_b): e.overlap_voxels / e.contact_faces for e in read_graph(agglomerate(scene)[1])}
    assert depths[FIRST, SECOND] > depths[FIRST, OTHER]
    limit = str(np.mean(list(depths.values())))
    graph = agglomerate(scene, "--min-overlap-depth", limit, name="deep")[1]
    assert pairs_of(read_graph(graph)) == {(FIRST, SECOND)}


def test_without_candidates_the_graph_is_empty(scene):
    code, graph = agglomerate(scene, "--min-overlap-voxels", "1000")
    assert code == 0 and read_graph(graph) == []


def test_components_that_were_one_object_are_looked_at_without_an_overlap(scene):
    with open_volume(f"{scene}/base.h5:segmentation") as volume:
        base = volume.read()
    tables = {"overlaps": np.empty((0, 6), np.int64), "components": np.array([[FIRST, FIRST], [SECOND, FIRST]])}
    (scene / "base.h5").unlink()
    with create_volumes(scene / "base.h5", {"segmentation": np.uint64}, Placement(BOX, SIZE), tables) as writers:
        writers["segmentation"].write(BOX, base)
    (edge,) = read_graph(agglomerate(scene)[1])
    assert (edge.segment_a, edge.segment_b, edge.overlap_voxels) == (FIRST, SECOND, 0) and edge.score > 0.9


def merge(folder, *graphs, out="merged.h5:segmentation"):
    return main(
        ["merge", *map(str, graphs), "--segmentation", f"{folder}/base.h5:segmentation", "--out", f"{folder}/{out}"]
    )


def test_parts_made_with_different_options_are_refused(scene, capsys):
    one, two = agglomerate(scene)[1], agglomerate(scene, "--min-crossing", "0.5", name="two")[1]
    assert merge(scene, one, two) == 2
    assert "two.csv: differs in model or options from" in capsys.readouterr().err


def test_parts_made_with_other_threads_and_blocks_belong_together(scene):
    one, two = agglomerate(scene)[1], agglomerate(scene, *OTHERWISE, name="two")[1]
    assert merge(scene, one, two) == 0


@pytest.mark.parametrize("out", ["s3://bucket/graph.csv", "s3://bucket/parts/"])
def test_a_graph_at_an_address_is_refused(scene, capsys, monkeypatch, out):
    """It was written to a folder with the name of the address."""
    monkeypatch.chdir(scene)
    before = sorted(scene.iterdir())
    inputs = ["--segmentation", f"{scene}/base.h5:segmentation", "--image", f"{scene}/raw.h5:raw"]
    assert main(["agglomerate", *inputs, "--model", f"{scene}/model", "--out", out]) == 2
    assert f"{out}: is an address, expected a path on this machine" in capsys.readouterr().err
    assert sorted(scene.iterdir()) == before


@pytest.mark.parametrize("out", ["base.h5", "raw.h5"])
def test_a_graph_never_overwrites_an_input(scene, capsys, out):
    before = (scene / out).read_bytes()
    inputs = ["--segmentation", f"{scene}/base.h5:segmentation", "--image", f"{scene}/raw.h5:raw"]
    assert main(["agglomerate", *inputs, "--model", f"{scene}/model", "--out", f"{scene}/{out}"]) == 2
    assert "is the file of the input" in capsys.readouterr().err and (scene / out).read_bytes() == before


def test_a_partial_graph_of_changed_voxels_is_not_resumed(scene, killed, caplog):
    killed("--box", "100:132,20:54,3:40")
    with open_volume(f"{scene}/raw.h5:raw") as volume:
        image = volume.read()
    image[:, :, 40:] += 1  # outside the box, but within reach of its windows
    with create_volume(f"{scene}/raw.h5:raw", np.uint8, Placement(BOX, SIZE)) as writer:
        writer.write(BOX, image)
    with caplog.at_level("INFO"):
        assert agglomerate(scene, "--box", "100:132,20:54,3:40")[0] == 0
    assert "resuming after" not in caplog.text


def write_mask(folder, start):
    mask = np.zeros(BOX.shape, np.uint8)
    mask[:, :, start:] = 1
    with create_volume(f"{folder}/mask.h5:mask", np.uint8, Placement(BOX, SIZE)) as writer:
        writer.write(BOX, mask)
    return "--masks", f"{folder}/mask.h5:mask"


def test_a_partial_graph_of_a_changed_mask_is_not_resumed(scene, killed, caplog):
    killed(*write_mask(scene, 50))
    with caplog.at_level("INFO"):
        assert agglomerate(scene, *write_mask(scene, 45))[0] == 0
    assert "resuming after" not in caplog.text


def test_damaged_lines_of_a_partial_graph_are_dropped(scene, killed):
    whole = agglomerate(scene, name="whole")[1].read_bytes()
    partial = killed()
    lines = partial.read_bytes().splitlines(keepends=True)
    partial.write_bytes(b"".join(lines[:2]) + b"4,9,\xff\x00\n" + lines[2])
    code, graph = agglomerate(scene)
    assert code == 0 and graph.read_bytes() == whole


def test_a_contact_whose_brightest_place_is_masked_is_decided_elsewhere(scene):
    def point(*options):
        edges = {(e.segment_a, e.segment_b): e for e in read_graph(agglomerate(scene, *options)[1])}
        return np.array([getattr(edges[FIRST, SECOND], axis) for axis in "zyx"])

    masked = Box.around(tuple(point().tolist()), (1, 2, 3))
    assert not masked.holds(point("--masks", f"#box={masked}")[None]).any()


def test_nothing_is_decided_in_a_mask_and_no_object_enters_one(scene):
    code, graph = agglomerate(scene, "--masks", f"#box=100:132,20:54,{3 + 26}:{3 + 32}")
    assert code == 0
    assert {(e.segment_a, e.segment_b) for e in read_graph(graph)} == {(FIRST, OTHER)}
    halves = []
    for name, options in (("free", []), ("half", ["--masks", "#box=100:132,20:54,36:63"])):
        edges = {(e.segment_a, e.segment_b): e for e in read_graph(agglomerate(scene, *options, name=name)[1])}
        halves.append(edges[FIRST, SECOND].evidence)
    free, masked = halves
    assert (free.voxels_b, masked.voxels_b) == (20 * 100, 4 * 100)  # of the window, and of that outside the mask
    assert masked.fovs_a < 0.6 * free.fovs_a and masked.recovered_ab > 0.3
