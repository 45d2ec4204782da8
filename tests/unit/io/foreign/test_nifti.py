"""NIfTI files that nibabel writes."""

import nibabel
import numpy as np
import pytest

from .readers import check, refuse, voxels


def write(path, content=None, unit="micron"):
    """Write a file with voxels of 40 × 4 × 4.5 nm, z, y, x, if the unit is µm; return its path."""
    affine = np.diag([-0.0045, 0.004, 0.04, 1])
    affine[:3, 3] = 7, 8, 9
    image = nibabel.Nifti1Image(voxels().transpose() if content is None else content, affine)
    image.header.set_xyzt_units(unit)
    nibabel.save(image, path)
    return path


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz"])
def test_voxels_and_voxel_size_are_read(tmp_path, suffix):
    assert check(write(tmp_path / f"a{suffix}")) == pytest.approx((40, 4, 4.5))
    content = voxels(np.int32)
    check(write(tmp_path / f"labels{suffix}", content.transpose()[..., None]), content)


def test_without_a_unit_the_voxel_size_is_unknown(tmp_path):
    assert check(write(tmp_path / "a.nii", unit="unknown")) is None


def test_files_that_are_not_one_whole_volume_are_refused(tmp_path):
    path = write(tmp_path / "time.nii", np.zeros((3, 4, 5, 6), np.uint8))
    refuse(path, "time.nii: has shape (3, 4, 5, 6)")
    for suffix in (".nii", ".nii.gz"):
        path = write(tmp_path / f"cut{suffix}")
        path.write_bytes(path.read_bytes()[:-100])
        refuse(path, f"cut{suffix}:")
        path.write_bytes(b"")
        refuse(path, f"cut{suffix}:")


def test_a_compressed_file_that_changed_is_refused(tmp_path):
    """nibabel reads to the last voxel, not to the checksum behind it."""
    path = write(tmp_path / "a.nii.gz")
    changed = bytearray(path.read_bytes())
    changed[len(changed) // 2] ^= 0xFF
    path.write_bytes(changed)
    refuse(path, "a.nii.gz:")
