"""Data that are declared and not there are refused, or warned about, instead of read as zeros."""

import json
from pathlib import Path

import pytest
import zarr

from ffn.io.config import IngestConfig
from ffn.io.foreign import chunked
from ffn.io.ingest import ingest
from ffn.io.open import open_mip, open_volume

from ....volumes import multiscale
from .readers import SHAPE, check, refuse, voxels
from .test_chunked import create_n5, create_precomputed, create_store

CHUNK = (2, 4, 5)


def write(path, kind):
    """Write an array with several chunks, the first of which has a name that is returned."""
    if kind == "n5":
        create_n5(path, blockSize=CHUNK[::-1])
        return "0/0/0"
    if kind == "precomputed":
        create_precomputed(path, chunk_size=CHUNK[::-1], key="s")
        return "s/100-105_-20--16_3-5"
    zarr.create_array(path, data=voxels(), chunks=CHUNK, zarr_format=int(kind[-1]))
    return {"zarr2": "0.0.0", "zarr3": "c/0/0/0"}[kind]


KINDS = ["n5", "precomputed", "zarr2", "zarr3"]


@pytest.mark.parametrize("kind", KINDS)
def test_missing_chunks_are_counted_and_placed_once(tmp_path, caplog, kind):
    first = write(tmp_path / "raw", kind)
    for _ in range(2):
        with open_volume(tmp_path / "raw"):
            pass
    assert not caplog.records
    write(tmp_path / "part", kind)
    (tmp_path / "part" / first).unlink()
    for _ in range(2):
        with open_volume(tmp_path / "part") as volume:
            box = volume.box
    ends = ",".join(f"{start}:{start + side}" for start, side in zip(box.start, CHUNK, strict=True))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "1 of 36 " in caplog.text and ends in caplog.text


@pytest.mark.parametrize("kind", KINDS)
def test_an_array_without_chunks_is_refused(tmp_path, kind):
    write(tmp_path / "raw", kind)
    for file in list((tmp_path / "raw").rglob("*")):
        if file.is_file() and any(map(str.isdigit, file.name)):
            file.rename(file.with_name(f"lost-{file.name}"))
    refuse(tmp_path / "raw", f"{tmp_path}/raw: ", "lost")


@pytest.mark.parametrize("are_links", [True, False])
def test_chunks_that_have_gone_are_noticed_also_of_an_image_that_stays(tmp_path, are_links):
    write(tmp_path / "raw", "zarr2")
    ingest(str(tmp_path / "raw"), str(tmp_path / "a.zarr"), IngestConfig(voxel_size_zyx_nm=(8, 8, 8)))
    for chunk in (tmp_path / "raw").glob("*.*.*"):
        chunk.unlink()
        if are_links:  # of datalad and git-annex
            chunk.symlink_to(tmp_path / "archive" / chunk.name)
    for path in (tmp_path / "raw", tmp_path / "a.zarr"):
        refuse(path, f"{tmp_path}/raw: ")


def test_nested_and_very_many_chunks_are_found(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(chunked, "MOST_LISTED", 8)
    (tmp_path / "raw" / write(tmp_path / "raw", "zarr2")).unlink()
    with open_volume(tmp_path / "raw"):
        assert not caplog.records
    ingest(str(tmp_path / "raw"), str(tmp_path / "a.zarr"), IngestConfig(voxel_size_zyx_nm=(8, 8, 8)))
    assert "1 of 36 " in caplog.text
    path = Path(create_store(tmp_path / "raw.zarr", "zarr", SHAPE, voxels(), metadata={"dimension_separator": "/"}))
    metadata = json.loads((path / ".zarray").read_text())
    del metadata["dimension_separator"]
    (path / ".zarray").write_text(json.dumps(metadata))
    check(path)


@pytest.mark.parametrize("gone", ["chunks", "array"])
def test_a_mip_that_is_there_is_named_and_read(tmp_path, gone):
    group = zarr.create_group(tmp_path / "a.zarr", zarr_format=2)
    group.create_array("1", data=voxels())
    if gone == "chunks":
        group.create_array("0", shape=[2 * n for n in SHAPE], dtype="uint8")
    group.attrs["multiscales"] = [multiscale({"0": [8] * 3, "1": [16] * 3})]
    refuse(tmp_path / "a.zarr", "a.zarr: ", "mip 0 ", "--voxel-size 16 16 16")
    for choice in ({"mip": 1}, {"size_zyx_nm": (16, 16, 16)}):
        with open_mip(tmp_path / "a.zarr", **choice) as volume:
            assert (volume.read() == voxels()).all()
