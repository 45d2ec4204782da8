"""Tables of segments, as other programs read them."""

import csv
from dataclasses import replace

import numpy as np
import pytest

from ffn.cli import main
from ffn.errors import ExportError
from ffn.viewing import segment_table
from ffn.viewing.config import ExportConfig
from ffn.viewing.export import export
from ffn.viewing.properties import Column
from ffn.viewing.segment_table import write_tables
from ffn.viewing.segments import Segments

from ..volumes import write
from .conftest import BOX, SIZE_NM, read_json

BIG = 2**64 - 9


def rows(path):
    with path.open(newline="") as file:
        return {int(row["id"]): row for row in csv.DictReader(file)}


def numbers(row, *names):
    return [float(row[name]) for name in names]


def test_a_row_has_all_that_the_export_knows_of_a_segment(tmp_path, all_sources):
    export(all_sources, tmp_path / "out", ExportConfig(skeleton_mip=0))
    table = rows(tmp_path / "out/segmentation.csv")
    assert list(table) == [44, 90, 91]
    voxels = 6 * 10 * 40
    assert numbers(table[90], "voxels", "volume_um3") == [voxels, pytest.approx(voxels * 20 * 8 * 10 / 1e9, rel=1e-5)]
    places = [f"{axis}_{end}" for axis in "zyx" for end in ("start", "stop")]
    assert numbers(table[90], *places) == [26, 32, 0, 10, 300, 340]
    assert numbers(table[90], "seed_z", "seed_y", "seed_x", "fovs") == [28, 2, 310, 12]
    assert numbers(table[90], "group", "truth", "truth_share") == [1, 9, 1]
    # Probabilities are 99 in the first subvolume, 100 in the second and in the overlap: 40 voxels along x, 30 to 80.
    assert numbers(table[44], "mean_pom") == [pytest.approx((40 * 98 + 40 * 99) / 80 / 254, rel=1e-5)]
    # The tube is 400 nm long; a skeleton may end a radius and more before it, or run into corners.
    assert 0.15 < numbers(table[90], "length_um")[0] < 0.5
    listed = read_json(tmp_path / "out/segmentation/segment_properties/info")["inline"]["properties"]
    assert list(table[44])[1:] == [column["id"] for column in listed], "Neuroglancer lists the same"


def test_every_layer_of_labels_has_a_table_and_groups_belong_to_the_base(tmp_path, all_sources):
    sources = replace(all_sources, supervoxels=all_sources.segmentation)
    export(sources, tmp_path / "out", ExportConfig())
    tables = {path.stem: rows(path) for path in (tmp_path / "out").glob("*.csv")}
    assert tables.keys() == {"segmentation", "supervoxels", "truth"}
    assert [row["group"] for row in tables["supervoxels"].values()] == ["44", "1", "1"]
    assert "group" not in tables["segmentation"][44] and "length_um" not in tables["truth"][4]


def test_without_the_format_there_is_no_table(tmp_path, sources):
    export(sources, tmp_path / "out", ExportConfig(formats=("precomputed",)))
    assert not list((tmp_path / "out").glob("*.csv"))


def test_parquet_has_the_values_with_their_types(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    ids = np.array([3, BIG], np.uint64)
    corners = np.zeros((2, 3), np.int64)
    share = Column("share", "", np.array([0.1, 1 / 3]))
    write_tables(tmp_path / "a", ("parquet", "csv"), Segments(ids, ids, corners, corners), [share])
    table = parquet.read_table(tmp_path / "a.parquet")
    assert table.to_pydict() == {"id": [3, BIG], "share": [0.1, 1 / 3]}
    assert [str(column.type) for column in table.schema] == ["uint64", "double"]
    assert (tmp_path / "a.csv").read_text() == f"id,share\n3,0.1\n{BIG},0.333333\n"


def test_parquet_without_its_library_stops_before_anything_is_written(tmp_path, sources, monkeypatch):
    monkeypatch.setattr(segment_table.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ExportError, match=r"export.formats: has parquet, but pyarrow is not installed. Run: pip"):
        export(sources, tmp_path / "out", ExportConfig(formats=("precomputed", "parquet")))
    assert not list(tmp_path.glob("*out*"))


def test_an_export_that_nobody_could_look_at_is_refused(tmp_path, capsys):
    assert main(["export", "--formats", "csv", "--out", f"{tmp_path}/out"]) == 2
    assert "--formats: has no precomputed, which ffn view needs. Add it" in capsys.readouterr().err


def test_probabilities_of_another_type_are_refused(tmp_path, sources):
    wide = write(tmp_path / "wide.h5", np.ones(BOX.shape, np.uint16), BOX.start, SIZE_NM)
    with pytest.raises(ExportError, match="wide.h5:wide: has type uint16, expected uint8, as ffn segment writes it"):
        export(replace(sources, probability=(wide,)), tmp_path / "out", ExportConfig())
