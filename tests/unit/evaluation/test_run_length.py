import json

import numpy as np
import pytest

from ffn.cli import main
from ffn.errors import EvaluationError
from ffn.evaluation.run_length import expected_run_length, segments_at
from ffn.evaluation.skeletons import Skeleton, join, read_skeletons
from ffn.geometry import Box
from ffn.io import hdf5
from ffn.io.hdf5_volume import create_volume
from ffn.io.open import open_volume
from ffn.io.volume import Placement

SIZE_ZYX_NM = (40.0, 10.0, 20.0)


def line(owner, num_nodes, step_nm=100.0):
    nodes = np.zeros((num_nodes, 3))
    nodes[:, 2] = np.arange(num_nodes) * step_nm
    return Skeleton(
        owner, nodes + [owner * 1000.0, 5, 5], np.stack([np.arange(num_nodes - 1), np.arange(1, num_nodes)], -1)
    )


@pytest.fixture
def two():
    """Skeletons of 1000 and 500 nm."""
    return join([line(1, 11), line(2, 6)])


def erl_of(skeletons, segments, tolerance_nm=0.0):
    return expected_run_length(skeletons, np.array(segments, np.uint64), tolerance_nm)


def test_a_perfect_segmentation_runs_as_far_as_the_truth(two):
    result = erl_of(two, [7] * 11 + [8] * 6)
    assert result["erl_nm"] == result["erl_truth_nm"] == pytest.approx((1000**2 + 500**2) / 1500)
    assert result["nerl"] == 1 and result["num_skeletons"] == 2 and result["length_nm"] == pytest.approx(1500)
    assert result["shares"] == {"correct": 1, "split": 0, "omitted": 0, "merged": 0}


def test_a_split_halves_the_run(two):
    result = erl_of(two, [7] * 6 + [9] * 5 + [8] * 6)
    assert result["erl_nm"] == pytest.approx((500**2 + 400**2 + 500**2) / 1500)
    assert result["shares"]["split"] == pytest.approx(100 / 1500)


def test_a_hole_costs_the_edges_at_it(two):
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


def test_background_is_no_merger(two):
    assert erl_of(two, [0] * 17)["shares"]["omitted"] == 1
    assert erl_of(two, [7] * 10 + [0] + [8] * 5 + [0])["shares"]["merged"] == 0


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
def test_agrees_with_the_definition(seed):
    rng = np.random.default_rng(seed)
    skeletons = join([line(owner, int(rng.integers(2, 30)), float(rng.uniform(10, 90))) for owner in range(1, 8)])
    segments = (
        skeletons.owners * 3 + rng.choice([0, 1, 2, 7], len(skeletons.owners), p=[0.6, 0.2, 0.17, 0.03])
    ).astype(np.uint64)
    segments[rng.random(len(segments)) < 0.1] = 0
    assert erl_of(skeletons, segments)["erl_nm"] == pytest.approx(brute_force(skeletons, segments))


@pytest.mark.parametrize("block", [(1, 1, 1), (3, 4, 5), (100, 100, 100)])
def test_blocks_do_not_change_the_look_up(block):
    rng = np.random.default_rng(0)
    box = Box((2, -4, 6), (10, 8, 26))
    labels = rng.integers(0, 99, box.shape).astype(np.uint64)
    voxels = rng.integers(box.start, box.stop, (60, 3))
    found = segments_at(lambda part: labels[part.slices(box.start)], voxels, box, block)
    assert found.tolist() == [labels[tuple(v - box.start)] for v in voxels]
    assert len(segments_at(lambda part: labels, voxels[:0], box, block)) == 0


def test_cropping_keeps_edges_inside(two):
    inside = two.crop(Box((0, 0, 10), (40, 1, 30)), SIZE_ZYX_NM)  # x from 200 to 600 nm, body 1 alone
    assert set(inside.owners.tolist()) == {1}
    assert inside.edge_lengths_nm().tolist() == pytest.approx([100.0] * (len(inside.owners) - 1))


@pytest.fixture
def tubes(tmp_path):
    """Two straight tubes along x, the second broken in the segmentation."""
    labels = np.zeros((12, 40, 60), np.uint64)
    labels[2:8, 4:16], labels[2:8, 24:36] = 3, 4
    segments = labels * 10
    segments[:, 20:, 30:] *= 2
    segments[:, :, 58:] = 0
    box = Box.from_shape(labels.shape, (10, 20, 30))
    specs = []
    for name, voxels in (("labels", labels), ("segmentation", segments)):
        specs.append(f"{tmp_path / name}.h5:{name}")
        with create_volume(specs[-1], np.uint64, Placement(box, SIZE_ZYX_NM)) as writer:
            writer.write(box, voxels)
    return specs


def test_skeletons_lie_in_their_bodies_and_have_their_length(tmp_path, tubes):
    out = str(tmp_path / "skeletons.h5")
    assert main(["skeletonize", "--labels", tubes[0], "--min-voxels", "500", "--out", out]) == 0
    skeletons = read_skeletons(out)
    with open_volume(tubes[0]) as volume:
        at = segments_at(volume.read, skeletons.voxels_zyx(SIZE_ZYX_NM), volume.box, (8, 8, 8))
    assert np.array_equal(at, skeletons.owners)
    for owner in (3, 4):
        length = skeletons.edge_lengths_nm()[skeletons.owners[skeletons.edges[:, 0]] == owner].sum()
        assert 900 < length < 1500  # 60 voxels of 20 nm


def test_run_length_is_in_the_scores(tmp_path, tubes):
    out = str(tmp_path / "skeletons.h5")
    main(["skeletonize", "--labels", tubes[0], "--min-voxels", "500", "--out", out])
    scores = tmp_path / "s.json"
    arguments = ["--segmentation", tubes[1], "--truth", tubes[0], "--skeletons", out, "--out", str(scores)]
    assert main(["evaluate", *arguments]) == 0
    erl = json.loads(scores.read_text())["erl"]
    assert 0.5 < erl["nerl"] < 0.9 and erl["num_skeletons"] == 2
    assert erl["shares"]["merged"] == 0 and 0 < erl["shares"]["split"] < 0.1
    assert json.loads(scores.read_text())["erl_tolerant"]["tolerance_nm"] == 200


def test_too_small_bodies_leave_the_run_length_out(tmp_path, tubes):
    out = str(tmp_path / "skeletons.h5")
    assert main(["skeletonize", "--labels", tubes[0], "--min-voxels", "999999", "--out", out]) == 0
    scores = tmp_path / "s.json"
    arguments = ["--segmentation", tubes[1], "--truth", tubes[0], "--skeletons", out, "--out", str(scores)]
    assert main(["evaluate", *arguments]) == 0
    assert "erl" not in json.loads(scores.read_text())


def write_swc(folder, skeletons):
    folder.mkdir()
    for owner in np.unique(skeletons.owners):
        nodes = skeletons.nodes_zyx_nm[skeletons.owners == owner]
        rows = [f"{i + 1} 0 {x} {y} {z} 1 {i if i else -1}" for i, (z, y, x) in enumerate(nodes.tolist())]
        (folder / f"{owner}.swc").write_text("# made by a test\n" + "\n".join(rows) + "\n")


def write_precomputed(folder, skeletons, sharded):
    import tensorstore

    sharding = {"@type": "neuroglancer_uint64_sharded_v1", "preshift_bits": 0, "minishard_bits": 1, "shard_bits": 1}
    sharding |= {"hash": "identity", "data_encoding": "gzip", "minishard_index_encoding": "gzip"}
    folder.mkdir()
    info = {"@type": "neuroglancer_skeletons", "transform": [2, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 7]}
    (folder / "info").write_text(json.dumps(info | ({"sharding": sharding} if sharded else {})))
    base = {"driver": "file", "path": f"{folder}/"}
    spec = {"driver": "neuroglancer_uint64_sharded", "metadata": sharding, "base": base} if sharded else base
    store = tensorstore.KvStore.open(spec).result()
    for owner in np.unique(skeletons.owners).tolist():
        nodes = skeletons.nodes_zyx_nm[skeletons.owners == owner][:, ::-1] - [0, 0, 7]
        edges = np.stack([np.arange(len(nodes) - 1), np.arange(1, len(nodes))], -1).astype("<u4")
        content = np.array([len(nodes), len(edges)], "<u4").tobytes()
        content += (nodes / [2, 1, 1]).astype("<f4").tobytes() + edges.tobytes()
        key = owner.to_bytes(8, "big") if sharded else str(owner)
        store.write(key, content).result()


@pytest.mark.parametrize("kind", ["swc", "precomputed", "sharded", "file"])
def test_every_form_of_skeletons_is_read(tmp_path, two, kind):
    path = tmp_path / kind
    if kind == "swc":
        write_swc(path, two)
    elif kind == "file":
        two.write(path, {})
    else:
        write_precomputed(path, two, kind == "sharded")
    read = read_skeletons(path)
    assert np.allclose(read.nodes_zyx_nm, two.nodes_zyx_nm)
    assert np.array_equal(np.sort(read.edges), two.edges) and np.array_equal(read.owners, two.owners)


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda p: p.mkdir(), "has no skeletons"),
        (lambda p: p.mkdir() or (p / "a.swc").write_text("1 0 1 2\n"), "a.swc: is not an SWC file"),
        (lambda p: p.mkdir() or (p / "a.swc").write_text("1 0 1 2 3 1 9\n"), "a.swc: is not an SWC file"),
        (lambda p: p.mkdir() or (p / "info").write_text("{"), "has no precomputed skeletons"),
        (lambda p: None, "no such file"),
        (lambda p: hdf5.write_arrays(p, {"edges": np.zeros((1, 2))}, {}), "has no dataset 'nodes_zyx_nm'"),
    ],
)
def test_bad_skeletons_are_one_line(tmp_path, prepare, message):
    prepare(tmp_path / "s")
    with pytest.raises(EvaluationError, match=message):
        read_skeletons(tmp_path / "s")


def test_skeletons_elsewhere_are_an_error(tmp_path, tubes, capsys):
    join([line(900, 4)]).write(tmp_path / "far.h5", {})
    arguments = ["--segmentation", tubes[1], "--truth", tubes[0], "--skeletons", str(tmp_path / "far.h5")]
    assert main(["evaluate", *arguments, "--out", str(tmp_path / "s.json")]) == 2
    assert "none of 1 lies in 10:22,20:60,30:90" in capsys.readouterr().err
