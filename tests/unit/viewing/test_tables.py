"""The tables of an export."""

import json

import numpy as np

from ffn.geometry import Box
from ffn.viewing.config import ExportConfig
from ffn.viewing.inputs import Sources
from ffn.viewing.tables import read_tables

from .conftest import ERRORS


def test_without_inputs_there_are_no_tables():
    tables = read_tables(Sources(), Box.from_shape((2, 3, 4)), ExportConfig())
    assert tables.origins is tables.base is None
    assert not len(tables.points) and not tables.errors and not len(tables.groups.base_ids)


def test_groups_belong_to_the_supervoxels_if_there_are_some(tmp_path):
    (tmp_path / "map.csv").write_text("base_id,group_id\n9,1\n7,5\n7,4\n")
    for supervoxels, base in (("base.h5:labels", "supervoxels"), (None, "segmentation")):
        sources = Sources(supervoxels=supervoxels, agglomeration=str(tmp_path / "map.csv"))
        tables = read_tables(sources, Box.from_shape((2, 3, 4)), ExportConfig())
        assert (tables.base, tables.groups.of(np.array([7, 8, 9])).tolist()) == (base, [4, 8, 1])


def test_only_the_worst_errors_get_a_link(tmp_path):
    (tmp_path / "scores.json").write_text(json.dumps({"errors": ERRORS}))
    sources = Sources(errors=str(tmp_path / "scores.json"))
    tables = read_tables(sources, Box.from_shape((2, 3, 4)), ExportConfig(num_links=1))
    assert [error["name"] for error in tables.errors] == ["split-01", "merge-01"]
