"""Mips that a source lacks: their voxels and places, as in our exports, from every kind of source, in any pieces."""

import h5py
import numpy as np
import pytest
import zarr

from ffn.cli import main
from ffn.errors import VolumeError
from ffn.geometry import Box
from ffn.io import coarser, ingest
from ffn.io.coarser import Coarser, equalized
from ffn.io.foreign.arrays import ArrayVolume
from ffn.io.open import open_volume
from ffn.io.volume import IGNORED
from ffn.viewing.precomputed import LABELS, image_encoding, plan_scales

from ...jobs import require_same_files
from ...volumes import multiscale
from ..viewing.conftest import write_volume
from ..volumes import read, read_scale, write

ODD = Box((13, -7, 101), (13 + 41, -7 + 90, 101 + 150))
SIZE = (40.0, 10.0, 12.0)


@pytest.fixture(autouse=True)
def _even_sections(monkeypatch):
    """Noise has no levels to tell apart; tests of them are in test_sections.py."""
    monkeypatch.setattr("ffn.io.ingest.levels_of", lambda *_: None)


def voxels_like(dtype, shape=ODD.shape):
    rng = np.random.default_rng(0)
    if dtype != np.uint64:
        return rng.integers(1, 250, shape).astype(dtype)
    small = rng.integers(0, 2**63, [-(-n // 5) for n in shape], dtype=np.uint64)
    z, y, x = shape
    return small.repeat(5, 0).repeat(5, 1).repeat(5, 2)[:z, :y, :x]


def bring_in(source, out, *options):
    assert main(["ingest", str(source), "--out", str(out), *options]) == 0


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint64])
def test_mips_and_their_places_are_those_of_an_export(tmp_path, dtype):
    voxels, scales = voxels_like(dtype), plan_scales(ODD, SIZE)
    encoding = LABELS if dtype == np.uint64 else image_encoding(np.dtype(dtype), "raw", "a")
    write_volume(tmp_path / "export", encoding, scales, lambda block: voxels[block.slices(ODD.start)])
    source = write(tmp_path / "source.zarr", voxels, ODD.start, SIZE)
    for mip in (1, 2):
        bring_in(source, tmp_path / f"{mip}.zarr", "--mip", str(mip))
        with open_volume(tmp_path / f"{mip}.zarr") as made:
            assert made.box == scales[mip].box and made.voxel_size_zyx_nm == scales[mip].voxel_size_zyx_nm
            np.testing.assert_array_equal(made.read(), read_scale(tmp_path / "export", mip))


def test_anisotropic_voxels_become_isotropic_and_a_box_is_in_those_of_the_mip(tmp_path):
    image = voxels_like(np.uint8, (6, 20, 24))
    np.save(tmp_path / "raw.npy", image)
    options = ("--mip", "1", "--voxel-size", "40", "10", "10")
    bring_in(tmp_path / "raw.npy", tmp_path / "part.zarr", *options, "--box", "1:3,2:9,0:12")
    with open_volume(tmp_path / "part.zarr") as made:
        assert made.voxel_size_zyx_nm == (40, 20, 20) and made.box == Box((1, 2, 0), (3, 9, 12))
        means = image.reshape(6, 10, 2, 12, 2).mean((2, 4))[1:3, 2:9]
        assert np.abs(made.read() - means).max() <= 0.5


def test_a_multiscale_source_goes_on_from_its_coarsest(tmp_path):
    group = zarr.create_group(tmp_path / "image.zarr", zarr_format=3)
    group.attrs["ome"] = {"version": "0.5", "multiscales": [multiscale({"0": [10] * 3, "1": [20] * 3})]}
    group.create_array("0", data=np.full((8, 8, 12), 7, np.uint8))
    group.create_array("1", data=np.full((4, 4, 6), 9, np.uint8))
    bring_in(tmp_path / "image.zarr", tmp_path / "made.zarr", "--mip", "3")
    with open_volume(tmp_path / "made.zarr") as made:
        assert made.voxel_size_zyx_nm == (80, 80, 80) and made.box == Box((0, 0, 0), (1, 1, 2))
        assert made.read().tolist() == [[[9, 9]]]


@pytest.fixture
def small_blocks(monkeypatch):
    """Shards of 8³ voxels, and little read at a time."""
    monkeypatch.setattr("ffn.io.shards.CHUNK", 8)
    monkeypatch.setattr("ffn.io.shards.MAX_SHARD", 8)
    monkeypatch.setattr(coarser, "READ_BYTES", 2**12)
    monkeypatch.setattr(ingest, "PIECE_BYTES", 2**12)


@pytest.mark.parametrize(
    ("kind", "chunks"), [("image", None), ("labels", (1, 27, 34)), ("image", (7, 16, 34)), ("labels", (16, 16, 16))]
)
def test_neither_pieces_nor_jobs_show(tmp_path, monkeypatch, small_blocks, kind, chunks):
    voxels = voxels_like(np.uint8, (70, 27, 34))
    with h5py.File(tmp_path / "source.h5", "w") as file:
        file.create_dataset("raw", data=voxels, chunks=chunks)
    options = ["--mip", "2", "--voxel-size", "10", "10", "12", "--kind", kind]

    def job(folder, *more):
        bring_in(tmp_path / "source.h5", folder / "v.zarr", *options, *more)

    require_same_files(job, tmp_path, ["2-of-2", "1-of-2", ""])
    monkeypatch.undo()
    job(tmp_path / "at-once")
    np.testing.assert_array_equal(read(tmp_path / "several/v.zarr"), read(tmp_path / "at-once/v.zarr"))


def test_little_is_read_at_a_time(tmp_path, monkeypatch, small_blocks):
    """Of a volume of which nothing is decoded as a whole."""
    shapes, read_finer = [], coarser.Placed.read
    monkeypatch.setattr(coarser.Placed, "read", lambda self, box: shapes.append(box.shape) or read_finer(self, box))
    np.save(tmp_path / "raw.npy", voxels_like(np.uint8))
    bring_in(tmp_path / "raw.npy", tmp_path / "made.zarr", "--mip", "3", "--voxel-size", "10", "10", "10")
    assert max(map(np.prod, shapes)) <= coarser.READ_BYTES and sum(map(np.prod, shapes)) == ODD.num_voxels


def test_labels_are_moved_and_mapped_before_they_vote(tmp_path):
    """Supervoxels 1, 2 and 3 are body 9, 5 is body 7; the offset is in voxels of the labels."""
    stack = np.full((2, 2, 8), 5, np.int32)
    stack[..., 0] = 1
    stack[..., 3:5] = [[[5, 5], [5, 2]], [[2, 3], [3, 1]]]
    stack[..., 7] = [[-1, -1], [-1, 5]]
    with h5py.File(tmp_path / "np.h5", "w") as file:
        file["stack"], file["transforms"] = stack, [[1, 9], [2, 9], [3, 9], [5, 7], [-1, -1]]
    options = ("--kind", "labels", "--mip", "1", "--voxel-size", "10", "10", "10", "--offset", "4", "2", "3")
    bring_in(f"{tmp_path / 'np.h5'}:stack", tmp_path / "made.zarr", *options)
    with open_volume(tmp_path / "made.zarr") as made:
        assert made.box == Box((2, 1, 1), (3, 2, 6))
        assert made.read().ravel().tolist() == [9, 7, 9, 7, IGNORED]


def test_sections_are_equalised_in_voxels_of_the_mip(tmp_path):
    source = write(tmp_path / "raw.zarr", voxels_like(np.uint8), ODD.start, SIZE)
    bring_in(source, tmp_path / "made.zarr", "--mip", "1", "--clahe-tile", "16")
    with open_volume(source) as raw:
        expected = equalized(Coarser(raw, "mean"), 16).read()
    np.testing.assert_array_equal(read(tmp_path / "made.zarr"), expected)


TILE = 32


@pytest.fixture
def uneven():
    """Noise whose brightness and contrast grow along x, and from section to section; the last section is blank."""
    z, _, x = np.indices((5, 75, 110))
    levels = 60 + 0.8 * x + 4 * z + np.random.default_rng(0).normal(size=z.shape) * (12 + x / 10)
    voxels = levels.clip(0, 255).astype(np.uint8)
    voxels[-1] = 7
    return voxels


@pytest.mark.parametrize("block", [(1, 75, 110), (2, 16, 33)])
def test_blocks_equal_the_whole_volume(uneven, block):
    volume = equalized(ArrayVolume("raw", uneven, start_zyx=(3, 10, 20)), TILE)
    whole = volume.read()
    for box in volume.box.blocks(block):
        np.testing.assert_array_equal(volume.read(box), whole[box.slices(volume.box.start)])
    assert (whole[-1] == 7).all()


def test_a_pale_section_gets_contrast_and_other_types_are_refused(uneven):
    pale = 100 + uneven // 16
    after = equalized(ArrayVolume("raw", pale), TILE).read()
    assert all(section.std() > 4 * before.std() for section, before in zip(after[:-1], pale, strict=False))
    with pytest.raises(VolumeError, match="raw: .*clahe_tile"):
        equalized(ArrayVolume("raw", np.ones((2, 3, 4), np.uint16)), TILE)
