"""Stores: what is written is read again, by us and by the formats' own libraries, and nothing unfinished is."""

from dataclasses import replace

import numpy as np
import pytest
import zarr

from ffn.errors import FfnError, VolumeError
from ffn.geometry import Box
from ffn.io import store as stores
from ffn.io.blocks import map_blocks
from ffn.io.open import identity, open_volume, read_table
from ffn.io.shards import MAX_SHARD_BYTES, chunk_shape, shard_shape
from ffn.io.store import require_replaceable
from ffn.io.volume import MAIN, Placement, Volume

from ...jobs import files
from ...volumes import create_volume, create_volumes

BOX = Box((-5, 7, 1000), (125, 77, 1200))
PLACEMENT = Placement(BOX, (40.0, 4.0, 4.5), {"stage": "test"}, shard_zyx=(128, 64, 64))
LABELS = np.random.default_rng(1).integers(0, 2**63, BOX.shape, np.uint64)


def write(spec, voxels=LABELS, placement=PLACEMENT, block=(50, 50, 50), tables=None):
    with create_volume(str(spec), voxels.dtype, placement, tables) as out:
        for part in placement.box.blocks(block):
            out.write(part, voxels[part.slices(placement.box.start)])


@pytest.fixture
def store(tmp_path):
    write(tmp_path / "base.zarr", tables={"origins": np.zeros((0, 6), np.int64), "overlaps": np.eye(3)})
    return tmp_path / "base.zarr"


@pytest.mark.parametrize("below", ["", "/", "/0"])
def test_a_volume_knows_its_place_and_provenance(store, below):
    with open_volume(f"{store}{below}") as volume:
        assert isinstance(volume, Volume)
        assert (volume.box, volume.voxel_size_zyx_nm, volume.dtype) == (BOX, (40.0, 4.0, 4.5), np.uint64)
        assert volume.provenance == {"stage": "test"}
        np.testing.assert_array_equal(volume.read(), LABELS)
        part = Box((120, 60, 1050), (125, 77, 1070))
        np.testing.assert_array_equal(volume.read(part), LABELS[part.slices(BOX.start)])


def test_a_store_is_written_above_the_working_folder(tmp_path, monkeypatch):
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    map_blocks("../up.zarr", {MAIN: np.uint8}, Placement(Box((0, 0, 0), (2, 3, 4))), lambda *_: None, {})
    with open_volume("../up.zarr") as volume:
        assert not volume.read().any()


@pytest.mark.parametrize("is_there", [True, False])
def test_a_link_to_another_disk_stays_and_the_store_is_written_there(is_there, tmp_path):
    (tmp_path / "disk").mkdir()
    link, folder = tmp_path / "linked.zarr", tmp_path / "disk/real.zarr"
    if is_there:
        folder.mkdir()
    link.symlink_to(folder)
    for _ in range(2):
        write(str(link))
        assert link.is_symlink()
        with open_volume(folder) as volume:
            np.testing.assert_array_equal(volume.read(), LABELS)
    assert [path.name for path in folder.parent.iterdir()] == ["real.zarr"]


def test_other_programs_find_an_image_of_one_mip_in_shards(store):
    group = zarr.open_group(store, mode="r")
    (image,) = group.attrs["ome"]["multiscales"]
    assert "image-label" in group.attrs["ome"], "ids, to be coloured"
    assert [axis["name"] for axis in image["axes"]] == ["z", "y", "x"]
    assert {axis["unit"] for axis in image["axes"]} == {"nanometer"}
    (dataset,) = image["datasets"]
    assert dataset["coordinateTransformations"] == [
        {"type": "scale", "scale": [40.0, 4.0, 4.5]},
        {"type": "translation", "translation": [-200.0, 28.0, 4500.0]},
    ]
    array = group[dataset["path"]]
    assert (array.shards, array.chunks) == ((128, 64, 64), (64, 64, 64))
    assert array.metadata.dimension_names == ("z", "y", "x")
    np.testing.assert_array_equal(array[:], LABELS)


@pytest.mark.parametrize("below", ["", "/0"])
def test_tables_lie_beside_the_volume(store, below):
    assert read_table(f"{store}{below}", "origins").shape == (0, 6)
    np.testing.assert_array_equal(read_table(f"{store}{below}", "overlaps"), np.eye(3))
    assert read_table(f"{store}{below}", "counts") is None


def test_one_store_holds_several_volumes(tmp_path):
    path = tmp_path / "m.zarr"
    with create_volumes(path, {MAIN: np.uint8, "probability": np.float32}, PLACEMENT) as out:
        out["probability"].write(BOX, LABELS)
    for spec in (f"{path}/probability", f"{path}/probability/0"):
        with open_volume(spec) as volume:
            assert (volume.box, volume.dtype, volume.provenance) == (BOX, np.float32, {"stage": "test"})
            np.testing.assert_array_equal(volume.read(), LABELS.astype(np.float32))
    with open_volume(path) as volume:
        assert not volume.read().any(), "nobody wrote to it"
    assert "image-label" not in zarr.open_group(path, mode="r").attrs["ome"]


@pytest.mark.parametrize("gathered", [2**29, 0])
def test_blocks_that_are_no_shards_give_the_same_bytes_in_any_order(tmp_path, gathered, monkeypatch):
    write(tmp_path / "whole" / "a.zarr", block=PLACEMENT.shard_zyx)
    monkeypatch.setattr(stores, "GATHERED_BYTES", gathered)
    blocks = list(BOX.blocks((50, 30, 70)))
    with create_volume(f"{tmp_path}/parts/a.zarr", np.uint64, PLACEMENT) as out:
        for block in [*reversed(blocks), blocks[3]]:
            out.write(block, LABELS[block.slices(BOX.start)])
    assert files(tmp_path / "parts/a.zarr") == files(tmp_path / "whole/a.zarr")


def test_what_was_there_is_replaced_as_a_whole(store):
    before = identity(store)
    small = Placement(Box((0, 0, 0), (4, 5, 6)))
    tables = {"overlaps": np.eye(2), "origins": np.ones(1)}
    with pytest.raises(ZeroDivisionError), create_volume(str(store), np.uint8, small, tables):
        raise ZeroDivisionError
    assert identity(store) == before
    assert [path.name for path in store.parent.iterdir()] == ["base.zarr"]
    write(store, np.ones((4, 5, 6), np.uint8), small, tables=tables)
    assert identity(store) != before
    assert {name for name in files(store) if name.startswith("0/c")} == {"0/c/0/0/0"}
    assert read_table(store, "origins").shape == (1,)


def test_nothing_else_is_replaced(tmp_path, store):
    require_replaceable(store, {MAIN, "origins", "overlaps"})
    require_replaceable(tmp_path / "new.zarr", {MAIN})
    with pytest.raises(VolumeError, match=r"base.zarr: .*\['origins', 'overlaps'\]"):
        require_replaceable(store, {MAIN})
    (tmp_path / "file.zarr").write_text("")
    for path in ("file.zarr", "file.zarr/out.zarr"):
        with pytest.raises(FfnError, match=f"{path}: .*folder"):
            require_replaceable(tmp_path / path, {MAIN})


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("array", ["theirs.zarr", "theirs.zarr/0"])
def test_what_another_program_wrote_is_not_replaced(array, zarr_format, tmp_path):
    path = tmp_path / "theirs.zarr"
    zarr.create_array(tmp_path / array, data=LABELS, zarr_format=zarr_format, chunks=(50, 80, 120))
    before = files(path)
    with pytest.raises(VolumeError, match="theirs.zarr: .*another program"):
        write(path)
    assert files(path) == before


def test_a_lost_shard_and_a_flipped_bit_are_errors(store):
    (store / "0/c/0/1/2").unlink()
    with open_volume(store) as volume:
        volume.read(Box(BOX.start, (0, 10, 1010)))
        with pytest.raises(VolumeError, match="is missing"):
            volume.read()
    shard = store / "0/c/0/0/0"
    content = bytearray(shard.read_bytes())
    content[1000] ^= 1
    shard.write_bytes(content)
    with pytest.raises(VolumeError, match="cannot be read"), open_volume(store) as volume:
        volume.read()


@pytest.mark.parametrize("below", ["", "/0"])
def test_what_is_not_finished_is_not_read(store, below):
    (store / "zarr.json").unlink()
    with pytest.raises(VolumeError, match="base.zarr: .*not finished"):
        open_volume(f"{store}{below}").__enter__()
    with pytest.raises(VolumeError, match="is not finished"):
        identity(store)


def test_the_identity_of_a_volume_is_its_content(tmp_path, store):
    write(tmp_path / "one.zarr")
    write(tmp_path / "same.zarr", placement=replace(PLACEMENT, provenance={}))
    write(tmp_path / "moved.zarr", placement=replace(PLACEMENT, box=BOX.shift((1, 0, 0))))
    assert identity(f"{tmp_path}/one.zarr/0") == identity(tmp_path / "same.zarr")
    assert len({identity(path) for path in (store, tmp_path / "same.zarr", tmp_path / "moved.zarr")}) == 3
    with create_volume(f"{tmp_path}/a.h5:a", np.uint8, Placement(Box((0, 0, 0), (1, 1, 1)))):
        pass
    assert identity(f"{tmp_path}/a.h5:a") == identity(f"{tmp_path}/a.h5:a") != identity(f"{tmp_path}/b.h5:a")


@pytest.mark.parametrize(
    "spec", ["stack", "stack/*.png", "**/stack/0/0", "n5://stack", "stack/0", "file://{}/stack|n5:", "file://{}/stack/"]
)
def test_the_identity_of_a_folder_changes_with_its_files(tmp_path, monkeypatch, spec):
    monkeypatch.chdir(tmp_path)
    spec = spec.format(tmp_path)
    (tmp_path / "stack/0").mkdir(parents=True)
    for name in ("stack/1.png", "stack/0/0"):
        (tmp_path / name).write_bytes(b"1")
    before = identity(spec)
    assert identity(spec) == before
    for name in ("stack/1.png", "stack/0/0"):
        (tmp_path / name).write_bytes(b"12")
    assert identity(spec) != before


@pytest.mark.parametrize("address", ["file/base.zarr", "ftp://example.org/base.zarr", "s3://x/base.zarr"])
def test_a_place_that_cannot_be_written_to_is_one_error(tmp_path, monkeypatch, address):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(VolumeError, match=f"{address}: "):
        map_blocks(address, {MAIN: np.uint8}, Placement(Box((0, 0, 0), (2, 3, 4))), lambda *_: None, {})


@pytest.mark.parametrize("shape", [(1, 1, 1), (63, 64, 65), (300, 2000, 40), (5000, 5000, 5000)])
@pytest.mark.parametrize("itemsize", [1, 4, 8])
def test_a_shard_has_whole_chunks_fits_into_memory_and_is_not_larger_than_needed(shape, itemsize):
    shard, chunk = shard_shape(shape, itemsize), chunk_shape(shape)
    assert all(s % c == 0 and s < n + c for s, c, n in zip(shard, chunk, shape, strict=True))
    assert np.prod(shard) * itemsize <= MAX_SHARD_BYTES
