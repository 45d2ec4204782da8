"""The properties of segments."""

import json

import numpy as np
import pytest

from ffn.viewing.config import ExportConfig
from ffn.viewing.export import export
from ffn.viewing.properties import (
    Groups,
    Origins,
    group_column,
    origin_columns,
    place_columns,
    write_segment_properties,
)
from ffn.viewing.segments import Segments


def three_segments():
    return Segments(np.array([4, 6, 2**40], np.uint64), np.array([10, 20, 30]), np.zeros((3, 3)), np.ones((3, 3)))


def test_the_seed_is_the_origin_with_most_fovs_and_all_fovs_count():
    origins = Origins(np.array([[1, 2, 3], [4, 5, 6], [7, 8, 9], [0, 0, 0]]), np.array([5, 50, 7, 1000]))
    columns = origin_columns(three_segments(), origins, np.array([4, 4, 2**40, 0], np.uint64))
    values = {column.name: column.values.tolist() for column in columns}
    assert values == {"fovs": [55, 0, 7], "seed_z": [4, -1, 7], "seed_y": [5, -1, 8], "seed_x": [6, -1, 9]}


def test_numbers_are_of_types_that_the_format_has(tmp_path, monkeypatch):
    segments = three_segments()
    start = np.array([[-5, 0, 0], [0, 0, 0], [0, 0, 0]])
    segments = Segments(segments.ids, np.array([10, 2**31, 2**32]), start, start + 1)
    columns = [
        *place_columns(segments, (10.0, 10.0, 10.0)),
        group_column(segments, Groups(segments.ids[:1], segments.ids[1:2])),
    ]
    monkeypatch.setattr("ffn.viewing.properties.ROWS_AT_ONCE", 2)
    write_segment_properties(tmp_path / "layer", segments, columns)
    inline = json.loads((tmp_path / "layer/segment_properties/info").read_text())["inline"]
    kinds = {column["id"]: (column["type"], column.get("data_type")) for column in inline["properties"]}
    assert kinds["voxels"] == ("number", "float32")
    assert kinds["z_start"] == ("number", "int32") and kinds["y_start"] == ("number", "uint32")
    labels = {column["id"]: column["values"] for column in inline["properties"] if column["type"] == "label"}
    assert labels == {"group_label": ["group 6", "group 6", f"group {2**40}"]}, "an id too long for a number"


def test_properties_include_origins_groups_and_matches(tmp_path, all_sources):
    export(all_sources, tmp_path / "out", ExportConfig())
    inline = json.loads((tmp_path / "out/segmentation/segment_properties/info").read_text())["inline"]
    values = {column["id"]: column["values"] for column in inline["properties"]}
    assert inline["ids"] == ["44", "90", "91"]
    assert values["fovs"] == [8, 12, 5] and values["seed_x"] == [330, 310, 380]
    assert values["group"] == [44, 1, 1]
    assert values["truth"] == [4, 9, 9] and values["truth_share"] == pytest.approx([1, 1, 500 / 590])
