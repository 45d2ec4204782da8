"""MRC and NIfTI files that their libraries write, and headers that others write."""

import mrcfile
import nibabel
import numpy as np
import pytest

from ffn.geometry import Box

from .readers import SHAPE, check, refuse, voxels


def write(path, content=None, angstrom=(45, 40, 400), start=(0, 0, 0)):
    """Write a file with voxels of 40 × 4 × 4.5 nm, z, y, x; return its path."""
    with mrcfile.new(path) as file:
        file.set_data(voxels() if content is None else content)
        file.voxel_size = angstrom
        file.header.nxstart, file.header.nystart, file.header.nzstart = start
    return path


def edit(path, offset, content):
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(content)


@pytest.mark.parametrize("dtype", [np.uint16, np.int16, np.float32, np.int8])
def test_voxels_voxel_size_and_place_are_read(tmp_path, dtype):
    content = (voxels() // 2).astype(dtype)
    path = write(tmp_path / "a.mrc", content, start=(100, -20, 3))
    assert check(path, content, Box.from_shape(SHAPE, (3, -20, 100))) == pytest.approx((40, 4, 4.5))


@pytest.mark.parametrize("flags, dtype", [(0, np.uint8), (1, np.int8)])
def test_bytes_of_imod_are_unsigned_unless_it_says_otherwise(tmp_path, flags, dtype):
    path = write(tmp_path / "a.rec", voxels().view(np.int8))
    edit(path, 152, np.array([1146047817, flags], "<i4").tobytes())
    check(path, voxels().view(dtype))


@pytest.mark.parametrize("angstrom", [0, 1])
def test_a_header_without_calibration_declares_no_voxel_size(tmp_path, angstrom):
    assert check(write(tmp_path / "a.mrc", voxels(np.uint16), angstrom), voxels(np.uint16)) is None


@pytest.mark.parametrize(("offset", "size", "has_size"), [(208, 8, True), (28, 24, False)])
def test_a_header_without_a_stamp_or_a_cell_is_read(tmp_path, offset, size, has_size):
    path = write(tmp_path / "a.mrc", voxels(np.uint16))
    edit(path, offset, bytes(size))
    assert (check(path, voxels(np.uint16)) is not None) == has_size


def test_files_that_are_not_one_whole_volume_are_refused(tmp_path):
    path = write(tmp_path / "cut.mrc", voxels(np.uint16))
    path.write_bytes(path.read_bytes()[:-100])
    refuse(path, "cut.mrc:")
    edit(write(tmp_path / "turned.mrc", voxels(np.uint16)), 64, np.array([3, 2, 1], "<i4").tobytes())
    refuse(tmp_path / "turned.mrc", "turned.mrc: has axes (3, 2, 1)")
    (tmp_path / "empty.mrc").write_bytes(b"")
    refuse(tmp_path / "empty.mrc", "empty.mrc:")


def write_nifti(path, content=None, unit="micron"):
    """Write a file with voxels of 40 × 4 × 4.5 nm, z, y, x, if the unit is µm; return its path."""
    affine = np.diag([-0.0045, 0.004, 0.04, 1])
    affine[:3, 3] = 7, 8, 9
    image = nibabel.Nifti1Image(voxels().transpose() if content is None else content, affine)
    image.header.set_xyzt_units(unit)
    nibabel.save(image, path)
    return path


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz"])
def test_voxels_and_voxel_size_are_read(tmp_path, suffix):
    assert check(write_nifti(tmp_path / f"a{suffix}")) == pytest.approx((40, 4, 4.5))
    content = voxels(np.int32)
    check(write_nifti(tmp_path / f"labels{suffix}", content.transpose()[..., None]), content)
    assert check(write_nifti(tmp_path / "a.nii", unit="unknown")) is None


def test_nifti_files_that_are_not_one_whole_volume_are_refused(tmp_path):
    path = write_nifti(tmp_path / "time.nii", np.zeros((3, 4, 5, 6), np.uint8))
    refuse(path, "time.nii: has shape (3, 4, 5, 6)")
    for suffix in (".nii", ".nii.gz"):
        path = write_nifti(tmp_path / f"cut{suffix}")
        path.write_bytes(path.read_bytes()[:-100])
        refuse(path, f"cut{suffix}:")
        path.write_bytes(b"")
        refuse(path, f"cut{suffix}:")


def test_a_compressed_file_that_changed_is_refused(tmp_path):
    """nibabel reads to the last voxel, not to the checksum behind it."""
    path = write_nifti(tmp_path / "a.nii.gz")
    changed = bytearray(path.read_bytes())
    changed[len(changed) // 2] ^= 0xFF
    path.write_bytes(changed)
    refuse(path, "a.nii.gz:")
