"""Segments, their properties and shards: for Neuroglancer, and as tables that other programs read."""

import csv
from dataclasses import replace

import numpy as np
import pytest

from ffn.geometry import Box
from ffn.viewing.config import ExportConfig
from ffn.viewing.export import export
from ffn.viewing.segments import (
    Column,
    Segments,
    columns_of,
    count_segments,
    merge_segments,
    number_segments,
    write_segment_properties,
    write_table,
)

from .conftest import read_json

BIG = 2**64 - 9


def segments_of(ids, voxels, start=0):
    start = np.zeros((len(ids), 3), np.int64) + start
    return Segments(np.array(ids, np.uint64), np.array(voxels), start, start + 1)


def properties_in(layer):
    return read_json(layer / "segment_properties/info")["inline"]


def test_tables_have_ids_as_they_are(tmp_path):
    share = Column("share", "", np.array([0.1, 1 / 3]))
    write_table(tmp_path / "a.csv", segments_of([3, BIG], [1, 1]), [share])
    assert (tmp_path / "a.csv").read_text() == f"id,share\n3,0.1\n{BIG},0.333333\n"


def test_numbers_are_of_types_that_the_format_has(tmp_path):
    segments = segments_of([4, 6, 2**40], [10, 2**31, 2**32], [[-5, 0, 0], [0, 0, 0], [0, 0, 0]])
    write_segment_properties(tmp_path / "layer", segments, [*columns_of(segments, (10.0, 10.0, 10.0), None)])
    kinds = {column["id"]: column["data_type"] for column in properties_in(tmp_path / "layer")["properties"]}
    assert kinds["voxels"] == "float32" and kinds["z_start"] == "int32" and kinds["y_start"] == "uint32"


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
    # The tube is 400 nm long; a skeleton may end a radius and more before it, or run into corners.
    assert 0.15 < numbers(table[90], "length_um")[0] < 0.5
    inline = properties_in(tmp_path / "out/segmentation")
    values = {column["id"]: column["values"] for column in inline["properties"]}
    assert list(table[44])[1:] == list(values), "Neuroglancer lists the same"


def test_every_layer_of_labels_has_a_table(tmp_path, all_sources):
    export(replace(all_sources, supervoxels=all_sources.segmentation), tmp_path / "out", ExportConfig())
    tables = {path.stem: rows(path) for path in (tmp_path / "out").glob("*.csv")}
    assert tables.keys() == {"segmentation", "supervoxels", "truth"}
    assert "length_um" not in tables["truth"][4]


def random_labels(rng, box, ids=(0, 3, 7, 2**63 + 5)):
    small = np.array(ids, np.uint64)[rng.integers(0, len(ids), [-(-n // 4) for n in box.shape])]
    return small.repeat(4, 0).repeat(4, 1).repeat(4, 2)[tuple(slice(n) for n in box.shape)]


@pytest.mark.parametrize("seed", range(4))
def test_blocks_of_any_size_give_the_result_of_the_whole(seed):
    rng = np.random.default_rng(seed)
    box = Box.from_shape(tuple(rng.integers(9, 40, 3).tolist()), (5, -17, 300))
    labels = random_labels(rng, box)
    blocks = box.blocks(tuple(rng.integers(3, 20, 3).tolist()))
    found = merge_segments(count_segments(block, labels[block.slices(box.start)]) for block in blocks)
    for row, segment_id in enumerate(found.ids):
        inside = np.argwhere(labels == segment_id)
        assert found.voxels[row] == len(inside)
        assert found.start_zyx[row].tolist() == (inside.min(0) + box.start).tolist()
        assert found.stop_zyx[row].tolist() == (inside.max(0) + 1 + box.start).tolist()
    assert found.ids.tolist() == np.unique(labels[labels > 0]).tolist()


def test_the_box_of_several_segments_contains_all_in_their_order():
    labels = np.zeros((4, 5, 6), np.uint64)
    labels[0, 1, 2], labels[3, 2, 5] = 8, 9
    found = count_segments(Box((10, 0, 0), (14, 5, 6)), labels)
    assert found.box([8, 9, 77]) == Box((10, 1, 2), (14, 3, 6))
    assert found.box([77]) is None
    labels = np.array([[[5, 0, 2**63, 8]]], np.uint64)
    assert number_segments(labels, np.array([5, 2**63], np.uint64)).tolist() == [[[1, 0, 2, 0]]]
    assert not number_segments(labels, np.empty(0, np.uint64)).any()
