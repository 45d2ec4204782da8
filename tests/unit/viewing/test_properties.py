"""Segments, their properties and shards: for Neuroglancer, and as tables that other programs read."""

import csv
from dataclasses import replace

import numpy as np
import pytest

from ffn.geometry import Box
from ffn.viewing.config import ExportConfig
from ffn.viewing.export import export
from ffn.viewing.properties import Column, origin_columns, place_columns, write_segment_properties, write_table
from ffn.viewing.segments import Counts, Segments, count_segments, merge_counts, number_segments

from .conftest import read_json

BIG = 2**64 - 9


def segments_of(ids, voxels, start=0):
    start = np.zeros((len(ids), 3), np.int64) + start
    return Segments(np.array(ids, np.uint64), np.array(voxels), start, start + 1)


def properties_in(layer):
    return read_json(layer / "segment_properties/info")["inline"]


def test_tables_have_ids_as_they_are_and_segments_their_order(tmp_path):
    origins = np.array([[4, 4, 5, 6, 50, 1], [4, 1, 2, 3, 5, 1], [2**40, 7, 8, 9, 7, 1], [5, 0, 0, 0, 1000, 1]])
    segments = segments_of([4, 6, 2**40], [10, 20, 30])
    columns = origin_columns(segments, origins)
    values = {column.name: column.values.tolist() for column in columns}
    assert values == {"fovs": [55, 0, 7], "seed_z": [4, -1, 7], "seed_y": [5, -1, 8], "seed_x": [6, -1, 9]}
    share = Column("share", "", np.array([0.1, 1 / 3]))
    write_table(tmp_path / "a.csv", segments_of([3, BIG], [1, 1]), [share])
    assert (tmp_path / "a.csv").read_text() == f"id,share\n3,0.1\n{BIG},0.333333\n"


def test_numbers_are_of_types_that_the_format_has(tmp_path):
    segments = segments_of([4, 6, 2**40], [10, 2**31, 2**32], [[-5, 0, 0], [0, 0, 0], [0, 0, 0]])
    group = Column("group", "", np.array([6, 6, 2**40], np.uint64))
    write_segment_properties(tmp_path / "layer", segments, [*place_columns(segments, (10.0, 10.0, 10.0)), group])
    listed = properties_in(tmp_path / "layer")["properties"]
    kinds = {column["id"]: (column["type"], column.get("data_type")) for column in listed}
    assert kinds["voxels"] == ("number", "float32")
    assert kinds["z_start"] == ("number", "int32") and kinds["y_start"] == ("number", "uint32")
    labels = {column["id"]: column["values"] for column in listed if column["type"] == "label"}
    assert labels == {"group_label": ["group 6", "group 6", f"group {2**40}"]}, "an id too long for a number"


def rows(path):
    with path.open(newline="") as file:
        return {int(row["id"]): row for row in csv.DictReader(file)}


def numbers(row, *names):
    return [float(row[name]) for name in names]


def test_a_row_has_all_that_the_export_knows_of_a_segment(tmp_path, all_sources):
    export(all_sources, tmp_path / "out", ExportConfig(mesh_mip=0))
    table = rows(tmp_path / "out/segmentation.csv")
    assert list(table) == [44, 90, 91]
    voxels = 6 * 10 * 40
    assert numbers(table[90], "voxels", "volume_um3") == [voxels, pytest.approx(voxels * 20 * 8 * 10 / 1e9, rel=1e-5)]
    corners = [f"{axis}_{end}" for axis in "zyx" for end in ("start", "stop")]
    assert numbers(table[90], *corners) == [26, 32, 0, 10, 300, 340]
    assert numbers(table[90], "seed_z", "seed_y", "seed_x", "fovs") == [28, 2, 310, 12]
    assert numbers(table[90], "truth", "truth_share") == [9, 1]
    # The tube is 400 nm long; a skeleton may end a radius and more before it, or run into corners.
    assert 0.15 < numbers(table[90], "length_um")[0] < 0.5
    inline = properties_in(tmp_path / "out/segmentation")
    values = {column["id"]: column["values"] for column in inline["properties"]}
    assert list(table[44])[1:] == list(values), "Neuroglancer lists the same"
    assert values["fovs"] == [8, 12, 5] and values["truth_share"] == pytest.approx([1, 1, 500 / 590])


def test_every_layer_of_labels_has_a_table_and_groups_belong_to_the_base(tmp_path, all_sources):
    agglomerated = {"supervoxels": all_sources.segmentation, "agglomeration": f"{tmp_path}/groups.csv"}
    sources = replace(all_sources, **agglomerated)
    export(sources, tmp_path / "out", ExportConfig())
    tables = {path.stem: rows(path) for path in (tmp_path / "out").glob("*.csv")}
    assert tables.keys() == {"segmentation", "supervoxels", "truth"}
    assert [row["group"] for row in tables["supervoxels"].values()] == ["44", "1", "1"]
    assert numbers(tables["segmentation"][44], "fovs", "seed_x") == [9, 330], "of 44 and 7, which is in its group"
    assert "group" not in tables["segmentation"][44] and "length_um" not in tables["truth"][4]


def random_labels(rng, box, ids=(0, 3, 7, 2**63 + 5)):
    small = np.array(ids, np.uint64)[rng.integers(0, len(ids), [-(-n // 4) for n in box.shape])]
    return small.repeat(4, 0).repeat(4, 1).repeat(4, 2)[tuple(slice(n) for n in box.shape)]


@pytest.mark.parametrize("seed", range(4))
def test_blocks_of_any_size_give_the_result_of_the_whole(seed):
    rng = np.random.default_rng(seed)
    box = Box.from_shape(tuple(rng.integers(9, 40, 3).tolist()), (5, -17, 300))
    labels, truth = random_labels(rng, box), random_labels(rng, box, (0, 11, 12))
    records = [
        count_segments(block, labels[block.slices(box.start)], lambda block: truth[block.slices(box.start)]).arrays
        for block in box.blocks(tuple(rng.integers(3, 20, 3).tolist()))
    ]
    counts = merge_counts(Counts.of(record.__getitem__) for record in records)
    found, (truth_ids, shares) = counts.segments, counts.matches()
    for row, segment_id in enumerate(found.ids):
        is_in = labels == segment_id
        inside = np.argwhere(is_in)
        assert found.voxels[row] == len(inside)
        assert found.start_zyx[row].tolist() == (inside.min(0) + box.start).tolist()
        assert found.stop_zyx[row].tolist() == (inside.max(0) + 1 + box.start).tolist()
        bodies = np.bincount(truth[is_in & (truth > 0)].astype(int), minlength=13)
        assert truth_ids[row] == bodies.argmax()
        assert shares[row] == pytest.approx(bodies.max() / bodies.sum())
    assert found.ids.tolist() == np.unique(labels[labels > 0]).tolist()


def test_segments_without_labelled_voxels_match_no_body():
    labels, truth = np.array([[[4, 4, 9, 9]]], np.uint64), np.array([[[0, 3, 0, 0]]])
    counts = count_segments(Box.from_shape((1, 1, 4)), labels, lambda block: truth)
    assert [column.tolist() for column in counts.matches()] == [[3, 0], [1, 0]]


def test_the_box_of_several_segments_contains_all_in_their_order():
    labels = np.zeros((4, 5, 6), np.uint64)
    labels[0, 1, 2], labels[3, 2, 5] = 8, 9
    found = count_segments(Box((10, 0, 0), (14, 5, 6)), labels).segments
    assert found.box([8, 9, 77]) == Box((10, 1, 2), (14, 3, 6))
    assert found.box([77]) is None
    labels = np.array([[[5, 0, 2**63, 8]]], np.uint64)
    assert number_segments(labels, np.array([5, 2**63], np.uint64)).tolist() == [[[1, 0, 2, 0]]]
    assert not number_segments(labels, np.empty(0, np.uint64)).any()
