import h5py
import numpy as np
import pytest
from PIL import Image

from ffn.cli import main
from ffn.errors import ConfigError, VolumeError
from ffn.geometry import Box
from ffn.io import ingest as stage
from ffn.io.config import IngestConfig
from ffn.io.foreign import decoding
from ffn.io.ingest import ingest
from ffn.io.open import open_volume
from ffn.io.section_faults import read_faults
from ffn.io.volume import IGNORED, Placement

from ...jobs import require_same_files, running
from ...volumes import write_volume
from ..volumes import read

SHAPE = (5, 12, 20)
NM = IngestConfig(voxel_size_zyx_nm=(40, 4, 4.5))


def image(dtype=np.uint8):
    return np.random.default_rng(1).integers(1, 250, SHAPE).astype(dtype)


def write_stack(folder, volume=None):
    folder.mkdir()
    for i, plane in enumerate(image() if volume is None else volume):
        Image.fromarray(plane).save(folder / f"s{i + 8}.png")
    return str(folder)


def write_hdf5(path, **datasets):
    with h5py.File(path, "w") as file:
        for name, content in datasets.items():
            file[name] = content
    return str(path)


@pytest.mark.parametrize(
    "dtype, kind, expected",
    [
        ("u1", "auto", "u1"),
        ("u2", "auto", "u2"),
        (">u2", "auto", "u2"),
        ("u1", "image", "u1"),
        ("u1", "labels", "u8"),
        ("u2", "labels", "u8"),
        ("i4", "auto", "u8"),
        (">i8", "auto", "u8"),
        ("u8", "labels", "u8"),
    ],
)
def test_kind_and_type_decide_the_type_of_the_output(tmp_path, dtype, kind, expected):
    source = write_hdf5(tmp_path / "source.h5", any=image(dtype))
    ingest(source, f"{tmp_path}/out.zarr", NM.model_copy(update={"kind": kind}))
    found = read(f"{tmp_path}/out.zarr")
    assert found.dtype == np.dtype(expected)
    np.testing.assert_array_equal(found, image())


@pytest.mark.parametrize(("signed", "added"), [("i1", 128), (">i2", 32768)])
def test_signed_grey_levels_are_shifted_to_unsigned_ones(tmp_path, caplog, signed, added):
    span = np.iinfo(signed)
    voxels = np.linspace(span.min, span.max, 1200).astype(signed).reshape(SHAPE)
    source, out = write_hdf5(tmp_path / "source.h5", raw=voxels), f"{tmp_path}/out.zarr"
    with caplog.at_level("INFO"):
        ingest(source, out, NM)
    said = [record.getMessage() for record in caplog.records if str(added) in record.getMessage()]
    assert said == [f"{source}: has type {np.dtype(signed).name}, so {added} is added to every voxel"]
    with open_volume(out) as volume:
        assert volume.dtype == np.dtype(f"u{signed[-1]}")
        np.testing.assert_array_equal(volume.read().astype(int), voxels.astype(int) + added)
        assert volume.provenance["inputs"]["added_to_voxels"] == str(added)


def test_place_and_voxel_size_are_kept_and_mips_are_of_shifted_grey_levels(tmp_path):
    signed = write_hdf5(tmp_path / "signed.h5", raw=(image() ^ 128).view(np.int8))
    plain = write_hdf5(tmp_path / "plain.h5", raw=image())
    for change in ({"mip": 1}, {"clahe_tile": 8}):
        config = NM.model_copy(update=change)
        ingest(signed, f"{tmp_path}/a.zarr", config)
        ingest(plain, f"{tmp_path}/b.zarr", config)
        np.testing.assert_array_equal(read(f"{tmp_path}/a.zarr"), read(f"{tmp_path}/b.zarr"))
    placement = Placement(Box.from_shape(SHAPE, (7, 8, 9)), (30.0, 5.0, 6.0))
    write_volume(f"{tmp_path}/a.h5:a", image(), placement)
    ingest(f"{tmp_path}/a.h5:a", f"{tmp_path}/c.zarr", IngestConfig(), Box((8, 8, 9), (12, 20, 29)))
    with open_volume(f"{tmp_path}/c.zarr") as volume:
        assert volume.box == Box((8, 8, 9), (12, 20, 29))
        assert volume.voxel_size_zyx_nm == (30, 5, 6)
        np.testing.assert_array_equal(volume.read(), image()[1:])


@pytest.fixture
def small_shards(monkeypatch):
    """Shards of 16³ voxels of an image, and of 16 x 8 x 8 of labels."""
    monkeypatch.setattr("ffn.io.shards.CHUNK", 8)
    monkeypatch.setattr("ffn.io.shards.MAX_SHARD", 16)
    monkeypatch.setattr("ffn.io.shards.MAX_SHARD_BYTES", 2**13)


@pytest.mark.parametrize("piece_bytes", [1, 2000, 2**27])
@pytest.mark.parametrize("chunks", [None, (1, 50, 20), (5, 50, 20), (8, 8, 8)])
def test_the_result_does_not_depend_on_the_pieces(tmp_path, monkeypatch, small_shards, piece_bytes, chunks):
    offset = (3, 70, -1)
    monkeypatch.setattr(stage, "PIECE_BYTES", piece_bytes)
    volume = np.random.default_rng(2).integers(0, 9, (40, 50, 20), np.uint8)
    with h5py.File(tmp_path / "source.h5", "w") as file:
        file.create_dataset("raw", data=volume, chunks=chunks)
    ingest(f"{tmp_path}/source.h5:raw", f"{tmp_path}/out.zarr", NM.model_copy(update={"offset_zyx": offset}))
    with open_volume(tmp_path / "out.zarr") as out:
        assert out.box == Box.from_shape((40, 50, 20), offset)
        np.testing.assert_array_equal(out.read(), volume)


@pytest.mark.parametrize(("piece_bytes", "gathered"), [(2**27, 2**29), (2**27, 0), (100, 0)])
def test_a_slice_is_decoded_once(tmp_path, monkeypatch, small_shards, piece_bytes, gathered):
    """Whether there is room in memory for the 3 x 4 shards that share it, or not even for the slice."""
    monkeypatch.setattr(stage, "PIECE_BYTES", piece_bytes)
    monkeypatch.setattr("ffn.io.store.GATHERED_BYTES", gathered)
    volume = np.random.default_rng(2).integers(0, 9, (40, 35, 50), np.uint8)
    source = write_stack(tmp_path / "stack", volume)
    decoded, decode = [], decoding.read_pixels
    monkeypatch.setattr(decoding, "read_pixels", lambda path, *how: decoded.append(path.name) or decode(path, *how))
    ingest(source, f"{tmp_path}/out.zarr", NM)
    assert decoded == [f"s{i}.png" for i in range(8, 48)]
    np.testing.assert_array_equal(read(f"{tmp_path}/out.zarr"), volume)
    assert [path.name for path in (tmp_path / "out.zarr").iterdir() if path.name[0] == "."] == []


@pytest.mark.parametrize("kind", ["image", "labels"])
def test_jobs_that_share_the_layers_and_killed_ones_make_what_one_job_makes(tmp_path, small_shards, kind):
    volume = np.random.default_rng(2).integers(0, 9, (40, 35, 50), np.uint8)
    words = ["ingest", write_stack(tmp_path / "stack", volume), "--voxel-size", "40", "4", "4.5", "--kind", kind]
    require_same_files(running(words, "v.zarr"), tmp_path, ["2-of-2", "1-of-2", ""])
    np.testing.assert_array_equal(read(f"{tmp_path}/several/v.zarr"), volume)


@pytest.mark.parametrize("bits", [32, 64])
def test_labels_to_ignore_become_one_that_is_neither_trained_on_nor_scored(tmp_path, bits):
    labels = image(f"u{bits // 8}")
    labels[0, 0, :4] = [2**bits - n for n in range(1, 5)]
    labels[0, 1, :2] = 7, 0
    source = write_hdf5(tmp_path / "s.h5", any=labels)
    ingest(source, f"{tmp_path}/l.zarr", NM)
    assert read(f"{tmp_path}/l.zarr")[0, 0, :4].tolist() == [IGNORED] * 3 + [2**bits - 4]
    ingest(source, f"{tmp_path}/m.zarr", NM.model_copy(update={"ignore_labels": (-4, 7)}))
    found = read(f"{tmp_path}/m.zarr")
    assert found[0, 0, :4].tolist() == [2**bits - 1, 2**bits - 2, 2**bits - 3, IGNORED]
    assert found[0, 1, :2].tolist() == [IGNORED, 0]
    np.testing.assert_array_equal(found[1:], np.where(labels[1:] == 7, IGNORED, labels[1:]))


@pytest.mark.parametrize("dtype", ["f2", "f4", ">f8", "?"])
def test_whole_numbers_of_any_type_are_labels(tmp_path, dtype):
    voxels = image().astype(dtype)
    ingest(write_hdf5(tmp_path / "s.h5", any=voxels), f"{tmp_path}/l.zarr", NM.model_copy(update={"kind": "labels"}))
    np.testing.assert_array_equal(read(f"{tmp_path}/l.zarr"), voxels.astype(np.uint64))


@pytest.mark.parametrize("value", [0.5, np.nan, 2.0**25])
def test_floats_that_are_no_ids_are_refused_with_the_value(tmp_path, value):
    source = write_hdf5(tmp_path / "s.h5", any=np.where(image() == 7, value, image()).astype(np.float32))
    with pytest.raises(VolumeError, match=f"holds {value}"):
        ingest(source, f"{tmp_path}/l.zarr", NM.model_copy(update={"kind": "labels"}))


def test_colours_are_ids_only_where_the_option_says_so(tmp_path):
    colours = np.random.default_rng(1).integers(0, 250, (*SHAPE, 3), np.uint8)
    source, labels = write_stack(tmp_path / "stack", colours), NM.model_copy(update={"kind": "labels"})
    with pytest.raises(VolumeError, match=r"s8\.png.*--colour-ids rgb"):
        ingest(source, f"{tmp_path}/l.zarr", labels)
    ingest(source, f"{tmp_path}/l.zarr", labels.model_copy(update={"colour_ids": "rgb"}))
    np.testing.assert_array_equal(read(f"{tmp_path}/l.zarr"), colours.astype(np.uint64) @ [65536, 256, 1])
    with pytest.raises(VolumeError, match="has no colours"):
        ingest(write_stack(tmp_path / "grey"), f"{tmp_path}/l.zarr", labels.model_copy(update={"colour_ids": "rgb"}))


SUPERVOXELS = np.array([0, 1, 2, 5, 5, 1], np.int32).reshape(1, 2, 3)
BODIES = [[5, 900], [1, 700], [2, 700], [3, 1]]


@pytest.mark.parametrize("dtype", [np.uint64, np.int64])
def test_ids_above_2_to_the_53_are_mapped_exactly(tmp_path, dtype):
    table = np.array([[2**60 + 1, 2**61 + 1], [2**60 + 2, 2**61 + 3], [5, 9]], dtype)
    stack = np.array([2**60 + 1, 2**60 + 2, 5, 0], np.uint64).reshape(1, 2, 2)
    source = write_hdf5(tmp_path / "np.h5", stack=stack, transforms=table)
    ingest(source + ":stack", f"{tmp_path}/labels.zarr", NM)
    assert read(f"{tmp_path}/labels.zarr").ravel().tolist() == [2**61 + 1, 2**61 + 3, 9, 0]


@pytest.mark.parametrize(
    "transforms, message",
    [
        ([[1, 700], [2, 700]], "np.h5:stack: supervoxel 5 has no row in transforms"),
        ([*BODIES[1:], [5, -4]], "np.h5:stack: holds the label -4"),
    ],
)
def test_an_unusable_table_of_bodies_is_refused(tmp_path, transforms, message):
    source = write_hdf5(tmp_path / "np.h5", stack=SUPERVOXELS, transforms=np.array(transforms))
    with pytest.raises(VolumeError, match=message):
        ingest(source + ":stack", f"{tmp_path}/labels.zarr", NM)
    assert not (tmp_path / "labels.zarr/zarr.json").exists()


def save_series(folder, changes):
    write_stack(folder)
    for number, plane in changes.items():
        (folder / f"s{number}.png").unlink()
        if plane is not None:
            Image.fromarray(plane).save(folder / f"s{number}.png")
    return str(folder)


@pytest.mark.parametrize("kind", ["image", "labels"])
def test_gaps_and_small_sections_are_filled_and_listed_where_the_option_says_so(tmp_path, kind):
    source = save_series(tmp_path / "stack", {8: image()[0, :, :-3], 10: None, 11: image()[3, :-2]})
    config, out = NM.model_copy(update={"kind": kind}), f"{tmp_path}/out.zarr"
    for option, value in {"missing_sections": "blank", "unequal_sections": "pad"}.items():
        with pytest.raises(VolumeError, match=f"--{option.replace('_', '-')} {value} .{option}"):
            ingest(source, out, config)
        config = config.model_copy(update={option: value})
    ingest(source, out, config)
    expected = image()
    expected[0, :, -3:] = expected[2] = expected[3, -2:] = 0
    np.testing.assert_array_equal(read(out), expected)
    assert [(int(row["z"]), row["fault"]) for row in read_faults(out)] == [(0, "small"), (2, "missing"), (3, "small")]
    ingest(source, out, config.model_copy(update={"voxel_size_zyx_nm": (4, 4, 4), "mip": 1, "offset_zyx": (3, 0, 0)}))
    assert [int(row["z"]) for row in read_faults(out)] == [1, 2, 3]


def test_sparse_numbers_are_no_gaps(tmp_path):
    source = write_stack(tmp_path / "stack")
    (tmp_path / "stack/s8.png").rename(tmp_path / "stack/s20261127.png")
    with pytest.raises(VolumeError, match=r"s20261127.png.*alone$"):
        ingest(source, f"{tmp_path}/out.zarr", NM.model_copy(update={"missing_sections": "blank"}))


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i4", "u2"])
def test_an_intensity_range_makes_grey_levels_of_8_bits(tmp_path, dtype):
    voxels = (image(dtype) - 25) if dtype == "i4" else image(dtype)
    source, out = write_hdf5(tmp_path / "s.h5", raw=voxels), f"{tmp_path}/out.zarr"
    if dtype != "u2":
        with pytest.raises(VolumeError, match=r"--intensity-range \S+ \S+"):
            ingest(source, out, NM.model_copy(update={"kind": "image"}))
    ingest(source, out, NM.model_copy(update={"intensity_range": (50, 203)}))
    expected = np.clip((voxels.astype(float) - 50) * 255 / 153, 0, 255)
    assert read(out).dtype == np.uint8
    assert np.abs(read(out) - expected).max() <= 0.5 + 1e-4


@pytest.mark.parametrize("voxels", [np.full((2, 8, 8), np.nan), np.ones((2, 8, 8), bool)])
def test_images_without_grey_levels_need_an_intensity_range(tmp_path, voxels):
    np.save(tmp_path / "raw.npy", voxels)
    with pytest.raises(VolumeError, match="--intensity-range"):
        ingest(f"{tmp_path}/raw.npy", f"{tmp_path}/out.zarr", NM.model_copy(update={"kind": "image"}))


@pytest.mark.parametrize("source", ["*.png", "."])
def test_slices_of_this_folder_have_its_name(tmp_path, monkeypatch, source):
    monkeypatch.chdir(write_stack(tmp_path / "stack"))
    ingest(source, f"{tmp_path}/out.zarr", NM)
    assert read(f"{tmp_path}/out.zarr").dtype.itemsize <= 2


def test_what_is_no_number_becomes_0(tmp_path):
    source = write_hdf5(tmp_path / "s.h5", raw=np.array([[[np.nan, -np.inf, 1, np.inf]]], np.float32))
    ingest(source, f"{tmp_path}/out.zarr", NM.model_copy(update={"intensity_range": (0, 2)}))
    assert read(f"{tmp_path}/out.zarr").ravel().tolist() == [0, 0, 128, 255]


@pytest.mark.parametrize(("name", "wide"), [("labels", "u8"), ("raw", "u2")])
def test_narrow_labels_are_known_by_name_and_statistics(tmp_path, name, wide):
    blocks = np.arange(1, 81, dtype=np.uint16).reshape(2, 4, 10).repeat(8, 0).repeat(8, 1).repeat(8, 2)
    ingest(write_hdf5(tmp_path / "s.h5", **{name: blocks}), f"{tmp_path}/l.zarr", NM)
    assert read(f"{tmp_path}/l.zarr").dtype == np.dtype(wide)
    noise = write_hdf5(tmp_path / "n.h5", labels=image(np.uint16))
    ingest(noise, f"{tmp_path}/n.zarr", NM)
    assert read(f"{tmp_path}/n.zarr").dtype == np.uint16


@pytest.mark.parametrize(
    "labels, message",
    [
        (-image(np.int64), "holds the label -249"),
        (0 * image(np.int64), "every voxel is 0 or ignored"),
        (-np.ones(SHAPE, np.int64), "every voxel is 0 or ignored"),
    ],
)
def test_labels_that_are_negative_or_all_0_are_refused(tmp_path, labels, message):
    source = write_hdf5(tmp_path / "s.h5", any=labels)
    with pytest.raises(VolumeError, match=message):
        ingest(source, f"{tmp_path}/out.zarr", NM)
    assert not (tmp_path / "out.zarr/zarr.json").exists()


def test_the_voxel_size_must_be_known_and_agree_with_the_source(tmp_path):
    source = write_hdf5(tmp_path / "s.h5", raw=image())
    with pytest.raises(ConfigError, match="--voxel-size: is missing and .*s.h5:raw"):
        ingest(source, f"{tmp_path}/out.zarr", IngestConfig())
    ingest(source, f"{tmp_path}/known.zarr", NM)
    ingest(f"{tmp_path}/known.zarr", f"{tmp_path}/again.zarr", NM)
    other = IngestConfig(voxel_size_zyx_nm=(4.5, 4, 40))
    with pytest.raises(ConfigError, match=r"--voxel-size: \(4.5, 4.0, 40.0\) nm .*\(40.0, 4.0, 4.5\) nm"):
        ingest(f"{tmp_path}/known.zarr", f"{tmp_path}/out.zarr", other)


def test_neuroproof_labels_of_fib25_become_the_published_bodies(shared_fib25, tmp_path):
    ingest(f"{shared_fib25}/labels_neuroproof_z000-170.h5:stack", f"{tmp_path}/labels.zarr", NM)
    np.testing.assert_array_equal(read(f"{tmp_path}/labels.zarr"), read(f"{shared_fib25}/labels_z000-170.h5:stack"))


def test_a_stack_is_a_folder_not_a_list_of_files(tmp_path, capsys):
    words = ["second.png", "third.png", "--voxel-size", "10", "10", "10", "--out", f"{tmp_path}/raw.zarr"]
    assert main(["ingest", write_stack(tmp_path / "stack"), *words]) == 2
    assert "SOURCE: found 3" in capsys.readouterr().err and not (tmp_path / "raw.zarr").exists()
