"""Coordinates are exactly the eligible voxels by partition; all others are counted."""

import json

import numpy as np
import pytest

from ffn.config import Mask
from ffn.errors import RecordError, VolumeError
from ffn.geometry import Box
from ffn.io import hdf5
from ffn.io.volume import Placement
from ffn.sampling import coordinates as stage
from ffn.sampling.config import CoordinatesConfig
from ffn.sampling.coordinates import coordinate_tables, coordinates

from ...jobs import require_same_files, running
from ...volumes import create_volumes

BOX = Box((4, 30, 100), (24, 57, 133))
CONFIG = CoordinatesConfig(margin_zyx=(2, 3, 5), membrane_distance_nm=1.5)
RNG = np.random.default_rng(0)
PARTITIONS = RNG.choice(np.array([0, 1, 2, 13, 255], np.uint8), BOX.shape, p=[0.2, 0.1, 0.3, 0.3, 0.1])
DISTANCE = RNG.choice(np.array([0, 1, 1.5, 2, 3], np.float32), BOX.shape)


def write(path, name, voxels, box=BOX) -> str:
    with create_volumes(path, {name: voxels.dtype}, Placement(box)) as writers:
        writers[name].write(box, voxels)
    return str(path)


@pytest.fixture
def inputs(tmp_path, monkeypatch) -> tuple[str, str]:
    monkeypatch.setattr(stage, "BLOCK_ZYX", (7, 11, 13))
    partitions = write(tmp_path / "p.h5", "partitions", PARTITIONS)
    return f"{partitions}:partitions", write(tmp_path / "m.zarr", "distance", DISTANCE)


def read(path) -> tuple[dict[int, np.ndarray], dict[str, int]]:
    with hdf5.open_file(path) as file:
        tables = {partition: table[:] for partition, table in coordinate_tables(file, path).items()}
        return tables, json.loads(file.attrs["counts"])


def expected(partition, config=CONFIG, box=BOX, distance=DISTANCE) -> set[tuple]:
    inner = box.grow(tuple(-m for m in config.margin_zyx))
    good = (PARTITIONS == partition) & (distance >= config.membrane_distance_nm)
    voxels = np.argwhere(good) + BOX.start
    return {tuple(v) for v in voxels.tolist() if inner.contains(Box.from_shape((1, 1, 1), tuple(v)))}


def as_set(table) -> set[tuple]:
    assert len(np.unique(table, axis=0)) == len(table)
    return {tuple(row) for row in table.tolist()}


def test_tables_hold_the_eligible_voxels_once(tmp_path, inputs):
    coordinates(*inputs, tmp_path / "c.h5", CONFIG)
    tables, counts = read(tmp_path / "c.h5")
    assert list(tables) == [1, 2, 13]
    for partition, table in tables.items():
        assert table.dtype == np.int32
        assert as_set(table) == expected(partition)
    assert counts["eligible"] == sum(map(len, tables.values()))
    assert sum(counts.values()) == BOX.num_voxels
    assert counts["margin"] == BOX.num_voxels - 16 * 21 * 23


def test_masked_voxels_are_no_centres(tmp_path, inputs):
    half = Box((4, 30, 100), (24, 57, 116))
    coordinates(*inputs, tmp_path / "c.h5", CONFIG, masks=(Mask(box=str(half)),))
    tables, counts = read(tmp_path / "c.h5")
    for partition, table in tables.items():
        assert as_set(table) == {voxel for voxel in expected(partition) if voxel[2] >= 116}
    assert counts["masked"] == sum(len([v for v in expected(p) if v[2] < 116]) for p in tables)
    assert sum(counts.values()) == BOX.num_voxels


def test_background_is_included_on_request_and_margins_are_those_of_the_box(tmp_path, inputs):
    config = CONFIG.model_copy(update={"include_background": True})
    coordinates(*inputs, tmp_path / "c.h5", config)
    tables, counts = read(tmp_path / "c.h5")
    assert list(tables) == [0, 1, 2, 13] and "background" not in counts
    assert as_set(tables[0]) == expected(0)
    coordinates(inputs[0], None, tmp_path / "c.h5", CONFIG)
    tables, _ = read(tmp_path / "c.h5")
    assert as_set(tables[2]) == expected(2, distance=np.full(BOX.shape, np.inf))
    box = Box((6, 33, 104), (20, 50, 130))
    coordinates(*inputs, tmp_path / "c.h5", CONFIG, box)
    tables, counts = read(tmp_path / "c.h5")
    assert as_set(tables[13]) == expected(13, box=box)
    assert sum(counts.values()) == box.num_voxels


def test_jobs_that_share_the_rows_and_killed_ones_make_what_one_job_makes(tmp_path, inputs, monkeypatch):
    monkeypatch.setattr(stage, "ROW_BLOCKS", 2)
    config = ["--margin", "2", "3", "5", "--membrane-distance", "1.5"]
    words = ["coordinates", "--partitions", inputs[0], "--membrane", inputs[1], *config]
    made = require_same_files(running(words, "c.h5"), tmp_path, ["2-of-3", "1-of-3", "3-of-3", ""])
    assert list(made) == ["c.h5"]
    assert as_set(read(tmp_path / "one/c.h5")[0][13]) == expected(13)


def test_the_error_for_no_eligible_voxel_counts_what_removed_them(tmp_path, inputs):
    config = CONFIG.model_copy(update={"membrane_distance_nm": 4.0})
    with pytest.raises(RecordError, match="--margin.*--membrane-distance"):
        coordinates(*inputs, tmp_path / "c.h5", config)
    assert not (tmp_path / "c.h5").exists()


def test_unusable_input_is_one_error(tmp_path, inputs):
    out = tmp_path / "c.h5"
    labels = write(tmp_path / "l.h5", "labels", PARTITIONS.astype(np.uint64)) + ":labels"
    small = write(tmp_path / "s.zarr", "distance", DISTANCE[:, 1:-1], BOX.grow((0, -1, 0)))
    for partitions, membrane, said in ((labels, None, "uint64"), (inputs[0], small, "4:24,31")):
        with pytest.raises(VolumeError, match=said):
            coordinates(partitions, membrane, out, CONFIG)
    assert not out.exists()
