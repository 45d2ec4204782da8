"""The inputs of an export."""

import json

import numpy as np
import pytest

from ffn.errors import ExportError
from ffn.geometry import Box
from ffn.viewing.config import ExportConfig
from ffn.viewing.export import export
from ffn.viewing.inputs import Mosaic, Sources

from ..volumes import write
from .conftest import BOX, ERRORS, SIZE_NM


def test_overlapping_subvolumes_are_one_volume(all_sources):
    mosaic = Mosaic(all_sources.probability)
    assert mosaic.box == BOX and mosaic.voxel_size_zyx_nm == SIZE_NM
    row = mosaic.read(Box((25, 0, 338), (26, 1, 352)))[0, 0]
    assert row.tolist() == [99] * 2 + [100] * 12


def test_subvolumes_of_any_sizes_and_order_are_found(tmp_path):
    rng = np.random.default_rng(5)
    starts, shapes = rng.integers(-20, 20, (12, 3)).tolist(), rng.integers(1, 25, (12, 3)).tolist()
    boxes = [Box.from_shape(tuple(shape), tuple(start)) for shape, start in zip(shapes, starts, strict=True)]
    hull = Box.hull(boxes)
    expected = np.zeros(hull.shape, np.uint8)
    for value, box in enumerate(boxes, 1):
        expected[box.slices(hull.start)] = np.maximum(expected[box.slices(hull.start)], value)
    names = [
        write(tmp_path / f"{value}.h5", np.full(box.shape, value, np.uint8), box.start, SIZE_NM)
        for value, box in enumerate(boxes, 1)
    ]
    mosaic = Mosaic(names)
    for block in hull.blocks((9, 14, 30)):
        assert np.array_equal(mosaic.read(block), expected[block.slices(hull.start)])


@pytest.mark.parametrize(
    ("option", "content", "message"),
    [
        ("agglomeration", f"{2**64},2\n", r"bad: cannot be read \(.*\), expected a CSV file"),
        ("agglomeration", "1,2\n3\n", r"bad: line 2 is '3', expected base_id,group_id"),
        ("agglomeration", "1,-2\n", r"bad: line 1 is '1,-2', expected"),
        ("errors", "{}", "bad: has no list of errors, expected scores of this version"),
        (
            "errors",
            '{"errors": [{"kind": "hole"}]}',
            "bad: has the error .*, expected .*'name'.*evaluate again",
        ),
        (
            "errors",
            json.dumps({"errors": [ERRORS[0] | {"name": "../../split-01"}]}),
            "has the error .* such as split",
        ),
    ],
)
def test_a_bad_table_is_an_error_and_leaves_nothing(tmp_path, all_sources, option, content, message):
    (tmp_path / "bad").write_text(content)
    with pytest.raises(ExportError, match=message):
        export(Sources(image=all_sources.image, **{option: str(tmp_path / "bad")}), tmp_path / "out", ExportConfig())
    assert not [path for path in tmp_path.iterdir() if "out" in path.name]


def test_files_without_origins_or_coordinates_are_an_error(tmp_path, all_sources):
    raw = str(tmp_path / "raw.h5")
    with pytest.raises(ExportError, match="raw.h5: has .* but no table 'origins', expected a file of 'ffn segment'"):
        export(Sources(segmentation=all_sources.segmentation, origins=(raw,)), tmp_path / "out", ExportConfig())
    with pytest.raises(ExportError, match="raw.h5: has no coordinates, expected a file of 'ffn coordinates'"):
        export(Sources(image=all_sources.image, coordinates=raw), tmp_path / "out", ExportConfig())


def test_names_and_specifications_are_those_of_the_given_inputs():
    sources = Sources(image="raw.h5:raw", probability=("a.h5:p", "b.h5:p"), agglomeration="map.csv")
    assert sources.given == {"image": "raw.h5:raw", "probability": "a.h5:p and 1 more", "agglomeration": "map.csv"}
    assert sources.specs == ["raw.h5:raw", "a.h5:p", "b.h5:p", "map.csv"]
    assert sources.volumes == {"image": ("raw.h5:raw",), "probability": ("a.h5:p", "b.h5:p")}
